//! Where a thread reads requests.
//!
//! Invariant: the data of a `WRITE` begins at a multiple of the page size, so that it can go to a device without a
//! copy. Header and structure of such a request lie before it, in the page that the buffer begins with.

use crate::wire::HEADER_LENGTH;

const PAGE_SIZE: usize = 4096;
/// Length of the structure of a `WRITE`.
const WRITE_LENGTH: usize = 40;

/// Memory for one request.
pub(crate) struct RequestBuffer {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl RequestBuffer {
    /// One that holds a `WRITE` of so many bytes.
    pub(crate) fn new(write_max: u32) -> Self {
        let data = usize::try_from(write_max).expect("a request is far smaller than memory").max(PAGE_SIZE);
        // A leading page, the data, the other parts of requests beyond it, and up to a page to align it all.
        let memory = vec![0; PAGE_SIZE + data + PAGE_SIZE + PAGE_SIZE];
        let aligned = memory.as_ptr().align_offset(PAGE_SIZE);
        let begin = aligned + PAGE_SIZE - HEADER_LENGTH - WRITE_LENGTH;
        let length = HEADER_LENGTH + WRITE_LENGTH + data + PAGE_SIZE;
        assert!(begin + length <= memory.len(), "aligning takes less than a page");
        Self { memory, begin, length }
    }

    /// Sees to it that all of its pages are there. A process that is killed gets no more of them: the kernel could not finish copying a request
    /// into the buffer, and would end that with EIO although another process goes on with the connection.
    pub(crate) fn make_resident(&mut self) {
        self.memory.fill(u8::MAX);
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.length]
    }

    pub(crate) fn filled(&self, length: usize) -> &[u8] {
        &self.memory[self.begin..self.begin + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_data_begins_at_a_page_and_a_whole_request_fits() {
        for write_max in [4096, 128 * 1024, 1024 * 1024] {
            let mut buffer = RequestBuffer::new(write_max);
            let room = buffer.room();
            assert_eq!(room[HEADER_LENGTH + WRITE_LENGTH..].as_ptr().align_offset(PAGE_SIZE), 0);
            // The kernel refuses to read into less.
            assert!(room.len() >= 8192 && room.len() >= write_max as usize + HEADER_LENGTH + WRITE_LENGTH);
        }
    }
}
