//! Inline data (key `b<ino>`), version 1: the whole content of a small file (DESIGN section 5).
//!
//! Invariant: a `b` record counts only where the inode record names no object and a size floor above zero, and then it
//! is exactly that long: both are written in one transaction. So the size of an inline file is in its inode record, and
//! a listing reads no content.

use polymux_types::Ino;

use super::frame::{Reader, Writer};
use crate::error::Error;

const VERSION: u8 = 1;

/// No file longer than this is ever inline, whatever the options say.
pub const INLINE_SIZE_LIMIT: u64 = 64 * 1024;

/// Appends the value of a `b` record to a batch.
pub fn encode_into(bytes: &mut Vec<u8>, content: &[u8]) {
    assert!(content.len() as u64 <= INLINE_SIZE_LIMIT, "a file beyond the limit has an object");
    Writer::append(bytes, VERSION, |writer| {
        writer.bytes(content);
    });
}

/// The content in a `b` record of an inode whose record says how long it is.
pub fn decode(ino: Ino, size: u64, record: &[u8]) -> Result<Vec<u8>, Error> {
    let subject = format!("the inline data of inode {ino}");
    let mut reader = Reader::new(&subject, record, VERSION)?;
    let content = reader.bytes()?;
    if content.len() as u64 != size {
        return Err(reader.invalid(format!("it has {} bytes and the inode record says {size}", content.len())));
    }
    reader.finish()?;
    Ok(content)
}

/// The length of the content in a `b` record of an inode.
pub fn content_length(ino: Ino, record: &[u8]) -> Result<u64, Error> {
    let subject = format!("the inline data of inode {ino}");
    let mut reader = Reader::new(&subject, record, VERSION)?;
    Ok(reader.bytes()?.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as version 1 wrote it; kept for ever.
    const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/inline-v1.bin");

    fn encode(content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_into(&mut bytes, content);
        bytes
    }

    fn content() -> Vec<u8> {
        (0..=255).collect()
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for content in [content(), vec![7], vec![0; 4096]] {
            assert_eq!(decode(Ino(5), content.len() as u64, &encode(&content)).unwrap(), content);
        }
    }

    #[test]
    fn records_of_version_1_are_read_for_ever() {
        assert_eq!(decode(Ino(5), 256, FIXTURE).unwrap(), content());
    }

    #[test]
    fn no_damaged_record_is_read_and_none_panics() {
        let good = encode(&content());
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 1;
            assert!(decode(Ino(5), 256, &bad).is_err(), "byte {position}");
            assert!(decode(Ino(5), 256, &good[..position]).is_err());
        }
    }

    #[test]
    fn content_of_another_length_than_recorded_is_refused() {
        let error = decode(Ino(5), 255, &encode(&content())).unwrap_err();
        assert!(error.to_string().contains("256 bytes"), "{error}");
    }
}
