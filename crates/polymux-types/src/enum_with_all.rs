//! Enums that know all their variants.

/// Declares an enum with `ALL`, an array of its variants in the order in which they stand: a variant that is added is in it. One that
/// carries data stands behind a semicolon, and is not in `ALL`.
///
/// ```
/// polymux_types::enum_with_all! {
///     /// A side of a coin.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Side {
///         /// With the number.
///         Tails,
///         /// The other one.
///         Heads,
///     }
/// }
/// assert_eq!(Side::ALL, [Side::Tails, Side::Heads]);
/// ```
#[macro_export]
macro_rules! enum_with_all {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)?),+ $(,)?
            $(; $(#[$of_open:meta])* $open:ident($data:ty) $(= $open_number:literal)? $(,)?)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$of_variant])* $variant $(= $number)?,)+
            $($(#[$of_open])* $open($data) $(= $open_number)?,)?
        }

        impl $name {
            /// Every variant without data, in the order in which they are declared.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];
        }
    };
}
