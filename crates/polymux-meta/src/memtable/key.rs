//! Keys of a memtable: the first 32 bytes stand in the key itself, as two numbers.
//!
//! The order of keys is the bytewise order of their original bytes. Comparing two mostly takes a
//! comparison of numbers that lie side by side in a node of the tree; keys that are longer have the rest elsewhere.

use std::cmp::Ordering;

/// Bytes that stand in the key itself.
const HEAD_LENGTH: usize = 32;

/// A key in the order of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The first bytes as big-endian numbers, filled up with zeros.
    head: [u128; 2],
    /// Bytes of the key where it is no longer than the head.
    short_length: u8,
    /// The bytes after the head; only of keys that are longer.
    rest: Option<Box<[u8]>>,
}

impl Key {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut head = [0; HEAD_LENGTH];
        let short = bytes.len().min(HEAD_LENGTH);
        head[..short].copy_from_slice(&bytes[..short]);
        let (first, second) = head.split_at(16);
        let number = |half: &[u8]| u128::from_be_bytes(half.try_into().expect("half a head is 16 bytes"));
        Self {
            head: [number(first), number(second)],
            short_length: u8::try_from(short).expect("a head is short"),
            rest: bytes.get(HEAD_LENGTH..).filter(|rest| !rest.is_empty()).map(Box::from),
        }
    }

    /// Bytes of the key.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.short_length) + self.rest_length()
    }

    /// The first bytes: where those of two keys differ, so does their order.
    pub(crate) fn beginning(&self) -> u128 {
        self.head[0]
    }

    /// Bytes of it that are elsewhere.
    pub(crate) fn rest_length(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// The bytes that it was made from.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len().max(HEAD_LENGTH));
        bytes.extend_from_slice(&self.head[0].to_be_bytes());
        bytes.extend_from_slice(&self.head[1].to_be_bytes());
        bytes.truncate(usize::from(self.short_length));
        if let Some(rest) = &self.rest {
            bytes.extend_from_slice(rest);
        }
        bytes
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        // Where the heads are the same, the shorter of two keys is the beginning of the other: its padding is zero.
        self.head
            .cmp(&other.head)
            .then_with(|| self.short_length.cmp(&other.short_length))
            .then_with(|| self.rest.cmp(&other.rest))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys that often agree for long, with zeros and lengths around the head's.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0_u8, 0, 0, 1, 0xff]), 0..40)
    }

    proptest! {
        #[test]
        fn the_order_of_keys_is_that_of_their_bytes(left in bytes(), right in bytes()) {
            prop_assert_eq!(Key::new(&left).cmp(&Key::new(&right)), left.cmp(&right));
            prop_assert_eq!(Key::new(&left) == Key::new(&right), left == right);
        }

        #[test]
        fn a_key_gives_its_bytes_back(key in bytes()) {
            prop_assert_eq!(Key::new(&key).to_bytes(), key.clone());
            prop_assert_eq!(Key::new(&key).len(), key.len());
        }
    }
}
