//! The data beside a request that comes through `io_uring`.

use polymux_types::Errno;

use super::bytes::{Reader, Writer};
use super::reply::answer_header;
use super::request::HEADER_LENGTH;

/// Length of each of the two first parts of the headers.
const PART_LENGTH: usize = 128;
/// Length of all three.
pub(crate) const RING_HEADERS_LENGTH: usize = 2 * PART_LENGTH + 32;

/// The headers before the payload of an entry.
pub(crate) struct RingHeaders {
    /// The header of the request.
    pub(crate) header: [u8; HEADER_LENGTH],
    /// Its structure, with bytes that mean nothing behind it.
    pub(crate) structure: [u8; PART_LENGTH],
    /// Identifies the answer.
    pub(crate) commit_id: u64,
    /// Bytes of names and data.
    pub(crate) payload_length: usize,
}

impl RingHeaders {
    /// Parses the headers that the kernel wrote.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let (parts, entry) = bytes.split_at(2 * PART_LENGTH);
        let (header, structure) = parts.split_at(PART_LENGTH);
        let mut entry = Reader::new(entry);
        let numbers = entry.u64().and_then(|_| Ok((entry.u64()?, entry.u32()?)));
        let (commit_id, payload_length) = numbers.expect("headers have one length");
        Self {
            header: *header.first_chunk().expect("a part is longer than that"),
            structure: *structure.first_chunk().expect("a part has this length"),
            commit_id,
            payload_length: usize::try_from(payload_length).expect("32 bits fit"),
        }
    }

    /// The headers of an answer, which precede its payload.
    pub(crate) fn answer(
        commit_id: u64,
        unique: u64,
        outcome: Result<(), Errno>,
        payload_length: usize,
    ) -> [u8; RING_HEADERS_LENGTH] {
        let header = answer_header(unique, outcome, payload_length);
        let length = u32::try_from(payload_length).expect("an answer is no longer than its entry");
        Writer::new().put(&header).skip(2 * PART_LENGTH - header.len()).u64(0).u64(commit_id).u32(length).finish()
    }
}

/// The part of a command that only the driver understands.
pub(crate) fn ring_command(commit_id: u64, queue: u16) -> [u8; 80] {
    Writer::new().u64(0).u64(commit_id).u16(queue).finish()
}

/// The bytes that ring a bell (`eventfd`) once.
pub(crate) fn one_ring() -> [u8; 8] {
    Writer::new().u64(1).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_an_entry_stand_behind_both_parts() {
        let bytes = RingHeaders::answer(u64::MAX - 3, 17, Err(Errno::EIO), 4096);
        let headers = RingHeaders::parse(&bytes);
        assert_eq!((headers.commit_id, headers.payload_length), (u64::MAX - 3, 4096));
        assert_eq!(headers.header[..16], answer_header(17, Err(Errno::EIO), 4096));
        assert_eq!(headers.structure, [0; PART_LENGTH]);
    }
}
