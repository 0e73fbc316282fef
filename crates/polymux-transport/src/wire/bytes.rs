//! Numbers and strings of the protocol.
//!
//! Invariant: this is the one place that knows the byte order, which is that of the machine.

#![expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]

use std::fmt;

/// A request that breaks the protocol, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "malformed request: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

/// Reads numbers and strings one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed("too short"))?;
        self.rest = rest;
        Ok(*array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_ne_bytes)
    }

    /// Passes over bytes that mean nothing here.
    pub(crate) fn skip(&mut self, count: usize) -> Result<(), Malformed> {
        self.rest = self.rest.get(count..).ok_or(Malformed("too short"))?;
        Ok(())
    }

    /// The bytes before the next zero byte, which is passed over.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(Malformed("a string without an end"))?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(string)
    }

    /// A name of a directory entry: neither empty nor a path.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') { Err(Malformed("not a name")) } else { Ok(name) }
    }

    pub(crate) fn bytes(&mut self, count: u32) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed("too long"))?;
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(Malformed("fewer bytes than it says"))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// A structure of `N` bytes that is written from front to back; bytes that are skipped or left are zero.
#[derive(Clone, Debug)]
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    pub(crate) fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn i64(self, value: i64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// Leaves bytes zero.
    pub(crate) fn skip(mut self, count: usize) -> Self {
        self.length += count;
        assert!(self.length <= N, "a structure has its length");
        self
    }

    pub(crate) fn finish(self) -> [u8; N] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_zero_byte_and_nowhere_else() {
        let mut reader = Reader::new(b"one\0two\0three");
        assert_eq!(reader.string(), Ok(&b"one"[..]));
        assert_eq!(reader.string(), Ok(&b"two"[..]));
        assert!(reader.string().is_err());
    }

    #[test]
    fn a_path_is_not_a_name() {
        assert!(Reader::new(b"a/b\0").name().is_err());
        assert!(Reader::new(b"\0").name().is_err());
        assert_eq!(Reader::new(b"..\0").name(), Ok(&b".."[..]));
    }

    #[test]
    fn numbers_come_back_as_they_were_written() {
        let bytes = Writer::<28>::new().u64(u64::MAX - 1).i64(i64::MIN).u32(7).u16(8).skip(2).i32(-3).finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u64(), reader.i64()), (Ok(u64::MAX - 1), Ok(i64::MIN)));
        assert_eq!((reader.u32(), reader.u32().is_ok(), reader.i32()), (Ok(7), true, Ok(-3)));
        assert!(reader.u32().is_err());
    }
}
