//! Enums that know all their variants.

/// Declares an enum with `ALL`, an array of its variants in the order in which they stand: a variant that is added is in it.
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
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$of_variant])* $variant $(= $number)?),+
        }

        impl $name {
            /// Every variant, in the order in which they are declared.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];
        }
    };
}
