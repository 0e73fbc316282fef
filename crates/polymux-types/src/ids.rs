//! Identifiers. Numbers of one kind are never reused and never mixed with those of another kind.

use std::fmt;

macro_rules! number_identifier {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// The bare number, for formats and messages.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }
    };
}

number_identifier!(
    /// Inode number of a file within one volume. 1 is the root directory; 0 never names a file.
    Ino,
    u64
);
number_identifier!(
    /// Number of a backing object, unique within a volume and separate from inode numbers
    /// (DESIGN section 4), so that a file can change its objects without changing its identity.
    ObjectId,
    u64
);
number_identifier!(
    /// Directory of a tier that an object lies in: `0..BUCKETS`.
    Bucket,
    u16
);
number_identifier!(
    /// Number of a tier within one volume, `0..TIERS_MAX`, given when the tier joins and never reused.
    /// It says nothing about speed; the speed order stands in the configuration.
    TierId,
    u16
);
number_identifier!(
    /// Position in the order of committed metadata transactions.
    Sequence,
    u64
);
number_identifier!(
    /// Raised at each read-write mount and tier event (DESIGN section 4).
    Epoch,
    u64
);
number_identifier!(
    /// Opaque identity of an I/O stream (a process, a descriptor, a client), never a thread.
    StreamId,
    u64
);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::LowerHex for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, formatter)
    }
}

/// Identity of a volume: 128 random bits, printed as a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeId(pub [u8; 16]);

impl VolumeId {
    /// Makes the 16 bytes a valid version 4 UUID.
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Reads the form that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        if digits.len() != 32 || text.len() != 36 {
            return None;
        }
        let mut bytes = [0_u8; 16];
        for (target, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *target = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        let id = Self(bytes);
        (id.to_string() == text.to_ascii_lowercase()).then_some(id)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                formatter.write_str("-")?;
            }
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_id_survives_printing_and_parsing() {
        let id = VolumeId::from_random([0xab; 16]);
        assert_eq!(VolumeId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn a_damaged_volume_id_is_refused() {
        let text = VolumeId::from_random([7; 16]).to_string();
        assert_eq!(VolumeId::parse(&text[1..]), None);
        assert_eq!(VolumeId::parse(&text.replace('-', "0")), None);
        assert_eq!(VolumeId::parse(&text.replacen('0', "g", 1)), None);
    }
}
