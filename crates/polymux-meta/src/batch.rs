//! A set of changes that become visible and durable together.
//!
//! Invariants:
//! * A batch is one run of bytes, so that making it allocates once, and a log takes it in one copy:
//!
//!   ```text
//!   key length u16 | value length u32, u32::MAX for a removal | key | value     (lengths little-endian), repeated
//!   ```
//!
//! * The bytes of a [`Batch`] always parse; bytes from a medium become one only through [`Batch::from_bytes`].

/// Value length that stands for the removal of the key.
const REMOVAL: u32 = u32::MAX;

/// Bytes before each key.
const HEADER_LENGTH: usize = 6;

/// Capacity for the changes of one ordinary operation, so that building its batch allocates once.
const CAPACITY_FIRST: usize = 512;

/// One change of a batch, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its new value; `None` where the key is removed (one that is not there is no error).
    pub value: Option<&'a [u8]>,
}

/// Changes in order; where two name the same key, the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    length: usize,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a key. Keys are up to 65,535 bytes long, values shorter than 4 GiB.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_with(|bytes| bytes.extend_from_slice(key.as_ref()), |bytes| bytes.extend_from_slice(value.as_ref()));
    }

    /// Adds the setting of a key; the two closures append key and value to the batch itself, which saves a copy of each.
    /// They must not touch the bytes already in it.
    pub fn put_with(&mut self, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        let (start, key_end) = self.begin(key);
        value(&mut self.bytes);
        let length = self.bytes.len().checked_sub(key_end).expect("a value is appended, and nothing taken away");
        let length = u32::try_from(length).ok().filter(|length| *length != REMOVAL);
        self.bytes[start + 2..start + HEADER_LENGTH]
            .copy_from_slice(&length.expect("a value is shorter than 4 GiB").to_le_bytes());
    }

    /// Adds the removal of a key.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.delete_with(|bytes| bytes.extend_from_slice(key.as_ref()));
    }

    /// Adds the removal of a key that the closure appends to the batch itself.
    pub fn delete_with(&mut self, key: impl FnOnce(&mut Vec<u8>)) {
        self.begin(key);
    }

    /// Makes capacity for a value of this length and the changes of an ordinary operation beside it, so that a long value does not
    /// allocate and copy several times.
    pub fn reserve(&mut self, length: usize) {
        if self.bytes.capacity() - self.bytes.len() < length + HEADER_LENGTH {
            self.bytes.reserve(length + CAPACITY_FIRST);
        }
    }

    /// Appends the header of a removal and the key; returns where the header begins and where the key ends.
    fn begin(&mut self, key: impl FnOnce(&mut Vec<u8>)) -> (usize, usize) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(CAPACITY_FIRST);
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0, 0xff, 0xff, 0xff, 0xff]);
        key(&mut self.bytes);
        let end = self.bytes.len();
        let length = end.checked_sub(start + HEADER_LENGTH).expect("a key is appended, and nothing taken away");
        let length = u16::try_from(length).expect("a key is at most 65,535 bytes long");
        self.bytes[start..start + 2].copy_from_slice(&length.to_le_bytes());
        self.length += 1;
        (start, end)
    }

    /// Adds all changes of another batch after those of this one.
    pub fn append(&mut self, other: &Batch) {
        self.bytes.extend_from_slice(&other.bytes);
        self.length += other.length;
    }

    /// The changes in order.
    #[must_use]
    pub fn iter(&self) -> Changes<'_> {
        Changes { rest: &self.bytes }
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes of all keys and values, which the log should not exceed by much.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - self.length * HEADER_LENGTH
    }

    /// The batch as a log stores it, in the form given at the top of this module.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The batch that [`Batch::as_bytes`] gave; `None` where these bytes are not one.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let mut changes = Changes { rest: &bytes };
        let mut length = 0;
        while !changes.rest.is_empty() {
            changes.rest = split_change(changes.rest)?.1;
            length += 1;
        }
        Some(Self { bytes, length })
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = ChangeRef<'a>;
    type IntoIter = Changes<'a>;

    fn into_iter(self) -> Changes<'a> {
        self.iter()
    }
}

/// The changes of a batch, in order.
#[derive(Clone, Debug)]
pub struct Changes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Changes<'a> {
    type Item = ChangeRef<'a>;

    fn next(&mut self) -> Option<ChangeRef<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (change, rest) = split_change(self.rest).expect("the bytes of a batch parse");
        self.rest = rest;
        Some(change)
    }
}

/// Splits the first change off a run of bytes; returns it and the remaining bytes.
fn split_change(bytes: &[u8]) -> Option<(ChangeRef<'_>, &[u8])> {
    let (key_length, rest) = bytes.split_first_chunk::<2>()?;
    let (value_length, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key_length)))?;
    match u32::from_le_bytes(*value_length) {
        REMOVAL => Some((ChangeRef { key, value: None }, rest)),
        length => {
            let (value, rest) = rest.split_at_checked(length as usize)?;
            Some((ChangeRef { key, value: Some(value) }, rest))
        }
    }
}

/// The format, for its fuzz targets.
pub(crate) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    OnDiskFormat {
        name: "batch",
        samples: || {
            let mut batch = Batch::new();
            batch.put(b"key", b"value");
            batch.delete(b"gone");
            batch.put(b"", [9; 300]);
            vec![Vec::new(), batch.bytes]
        },
        repair: |_| {},
        read_and_write: |bytes| {
            let batch = Batch::from_bytes(bytes.to_vec())?;
            let mut again = Batch::new();
            for change in &batch {
                match change.value {
                    Some(value) => again.put(change.key, value),
                    None => again.delete(change.key),
                }
            }
            assert_eq!(again, batch, "a batch has as many changes as it says");
            Some(again.bytes)
        },
        form: FormatForm::Unique,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Batch {
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        batch.delete(b"gone");
        batch.put_with(|key| key.push(7), |value| value.extend_from_slice(&[9; 300]));
        batch.put(b"", b"");
        batch
    }

    #[test]
    fn changes_come_back_in_their_order() {
        let batch = sample();
        let expected: [(&[u8], Option<&[u8]>); 4] =
            [(b"key", Some(b"value")), (b"gone", None), (&[7], Some(&[9; 300])), (b"", Some(b""))];
        let found: Vec<_> = batch.iter().map(|change| (change.key, change.value)).collect();
        assert_eq!(found, expected);
        assert_eq!((batch.len(), batch.payload_bytes()), (4, 3 + 5 + 4 + 1 + 300));
    }

    #[test]
    fn a_batch_read_from_its_bytes_is_the_same_and_a_part_of_it_is_refused() {
        let batch = sample();
        assert_eq!(Batch::from_bytes(batch.as_bytes().to_vec()).as_ref(), Some(&batch));
        let ends: Vec<usize> = (0..=batch.len()).map(|count| prefix(&batch, count).as_bytes().len()).collect();
        for end in 0..batch.as_bytes().len() {
            let found = Batch::from_bytes(batch.as_bytes()[..end].to_vec());
            assert_eq!(found.is_some(), ends.contains(&end), "{end} bytes");
        }
    }

    fn prefix(batch: &Batch, count: usize) -> Batch {
        let mut some = Batch::new();
        for change in batch.iter().take(count) {
            match change.value {
                Some(value) => some.put(change.key, value),
                None => some.delete(change.key),
            }
        }
        some
    }

    #[test]
    fn appending_keeps_the_order() {
        let mut batch = prefix(&sample(), 2);
        let mut rest = Batch::new();
        rest.put([7], [9; 300]);
        rest.put([0_u8; 0], [0_u8; 0]);
        batch.append(&rest);
        assert_eq!(batch, sample());
    }

    #[test]
    #[should_panic(expected = "at most 65,535 bytes")]
    fn a_key_beyond_the_limit_is_an_error_of_the_program() {
        Batch::new().put([0; 65_536], b"");
    }
}
