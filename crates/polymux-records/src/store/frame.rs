//! Frame of every record: one version byte, the fields in little-endian order, and a CRC-32C over both.
//!
//! A reader accepts the versions it knows and nothing else. Fields are only ever added at the end of a new version.

use crate::error::Error;

/// Writes the fields of one record.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Where the record begins: it may follow others in a batch.
    start: usize,
}

impl Writer {
    /// Begins a record of a version.
    #[inline]
    pub fn new(version: u8) -> Self {
        Self { bytes: vec![version], start: 0 }
    }

    /// Appends a record of a version to `bytes`, where it is to stay: a record of its own would be an allocation and a
    /// copy more for each change of each operation.
    pub fn append(bytes: &mut Vec<u8>, version: u8, fields: impl FnOnce(&mut Self)) {
        let start = bytes.len();
        let mut writer = Self { bytes: std::mem::take(bytes), start };
        writer.u8(version);
        fields(&mut writer);
        *bytes = writer.finish();
    }

    /// Appends a byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Appends two bytes, little-endian.
    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends four bytes, little-endian.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends eight bytes, little-endian.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends eight bytes, little-endian, signed.
    #[inline]
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A length (u32) and the bytes.
    #[inline]
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(u32::try_from(value.len()).expect("a field is shorter than 4 GiB"));
        self.bytes.extend_from_slice(value);
        self
    }

    /// Ends the record with its checksum.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        let checksum = crc32c::crc32c(&bytes[self.start..]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// Reads the fields of one record. Every method fails where the record ends too early.
pub struct Reader<'a> {
    subject: &'a str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Verifies the frame. `subject` names the record in errors; `version_max` is the newest version known.
    pub fn new(subject: &'a str, record: &'a [u8], version_max: u8) -> Result<Self, Error> {
        let Some((body, checksum)) = record.split_last_chunk::<4>() else {
            return Err(Error::corrupted(subject, "it is shorter than its frame"));
        };
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(Error::corrupted(subject, "its checksum does not match"));
        }
        match body.split_first() {
            Some((version, rest)) if (1..=version_max).contains(version) => Ok(Self { subject, rest }),
            Some((version, _)) => {
                Err(Error::corrupted(subject, format!("version {version} is not known to this program")))
            }
            None => Err(Error::corrupted(subject, "it is empty")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((field, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::corrupted(self.subject, "it ends in the middle of a field"));
        };
        self.rest = rest;
        Ok(*field)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Error> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// The next two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, Error> {
        self.take().map(u16::from_le_bytes)
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next eight bytes, little-endian, signed.
    pub fn i64(&mut self) -> Result<i64, Error> {
        self.take().map(i64::from_le_bytes)
    }

    /// The next field of variable length.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        let length = self.u32()? as usize;
        if length > self.rest.len() {
            return Err(Error::corrupted(self.subject, "a field is longer than the record"));
        }
        let (field, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(field.to_vec())
    }

    /// An error about the meaning of a field.
    pub fn invalid(&self, detail: impl Into<String>) -> Error {
        Error::corrupted(self.subject, detail)
    }

    /// Fails where bytes are left over.
    pub fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::corrupted(self.subject, "bytes follow its last field")) }
    }
}
