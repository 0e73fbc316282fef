//! The memory through which one request at a time travels.
//!
//! Invariants:
//! * While the kernel has an entry, no thread of this process accesses its memory. The entry comes back with a completion, and
//!   goes again with a commit; in between it belongs to the request that lies in it.
//! * Header and structure of a request are copied out as they are read. Names and data (the payload) are only borrowed, and an
//!   answer is put there only when no reference to them is left.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::param::page_size;

use crate::negotiation::Agreement;
use crate::wire::{RING_HEADERS_LENGTH, RingHeaders};

/// Fewest bytes of payload that the kernel accepts.
const PAYLOAD_MIN: usize = 8192;

/// Bytes of payload that an entry must hold.
pub(super) fn payload_length(agreement: &Agreement) -> usize {
    let write = usize::try_from(agreement.write_max).expect("a request is far smaller than memory");
    let pages = usize::from(agreement.pages_max) * page_size();
    write.max(pages).max(PAYLOAD_MIN).next_multiple_of(page_size())
}

/// Memory of one entry: a page for the headers, then the payload.
pub(super) struct EntryMemory {
    memory: NonNull<u8>,
    payload_length: usize,
    /// The two buffers, headers and payload, as they are registered with the kernel.
    parts: Box<[libc::iovec; 2]>,
}

impl EntryMemory {
    pub(super) fn new(payload_length: usize) -> io::Result<Self> {
        let length = page_size() + payload_length;
        // SAFETY: nothing is mapped over: the kernel chooses the place.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let memory = NonNull::new(memory.cast::<u8>()).expect("memory is not mapped at nothing");
        let headers = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: RING_HEADERS_LENGTH };
        // SAFETY: the payload begins a page into the mapping, which is longer than that.
        let payload = unsafe { memory.add(page_size()) };
        let payload = libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: payload_length };
        Ok(Self { memory, payload_length, parts: Box::new([headers, payload]) })
    }

    /// The address of the descriptions of the buffers, for the registration.
    pub(super) fn parts(&self) -> u64 {
        self.parts.as_ptr().addr() as u64
    }

    /// The headers that the kernel wrote before the payload.
    ///
    /// # Safety
    /// The entry is not in the kernel's hands, and no answer is being written.
    pub(super) unsafe fn headers(&self) -> RingHeaders {
        // SAFETY: the mapping begins with a page, more than the headers take; it is initialized with zeros, and the caller
        // guarantees that nothing writes to it.
        RingHeaders::parse(unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), RING_HEADERS_LENGTH) })
    }

    /// Names and data of the request.
    ///
    /// # Safety
    /// The entry is not in the kernel's hands, and no answer is written while the slice is there.
    pub(super) unsafe fn payload(&self, length: usize) -> &[u8] {
        let length = length.min(self.payload_length);
        // SAFETY: the payload begins a page into the mapping and has this length at least; the caller guarantees that nothing
        // writes to it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(page_size()), length) }
    }

    /// Puts the body of an answer where it belongs; `None` where it is too long.
    ///
    /// # Safety
    /// The entry is not in the kernel's hands, and no slice of its payload exists.
    pub(super) unsafe fn put_body(&self, body: &[u8]) -> Option<usize> {
        if body.len() > self.payload_length {
            log::error!("an answer of {} bytes is longer than the kernel allows", body.len());
            return None;
        }
        // SAFETY: the payload lies in the mapping with at least this length, `body` lies elsewhere, and the caller guarantees
        // that no other thread accesses the payload.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), self.memory.as_ptr().add(page_size()), body.len()) };
        Some(body.len())
    }

    /// Completes an answer whose body is there.
    ///
    /// # Safety
    /// The entry is not in the kernel's hands.
    pub(super) unsafe fn put_headers(&self, headers: &[u8; RING_HEADERS_LENGTH]) {
        // SAFETY: the mapping begins with a page, more than the headers take, and the caller guarantees that no other thread
        // accesses them.
        unsafe { std::ptr::copy_nonoverlapping(headers.as_ptr(), self.memory.as_ptr(), headers.len()) };
    }
}

// SAFETY: the memory belongs to the holder of the request that lies in it, one at a time; the methods that touch it state
// the obligations of their callers.
unsafe impl Send for EntryMemory {}
// SAFETY: the same.
unsafe impl Sync for EntryMemory {}

impl Drop for EntryMemory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and the entry has no owner any more.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), page_size() + self.payload_length) };
        if let Err(error) = unmapped {
            log::error!("memory of a request stays: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Capabilities;

    fn agreement(write_max: u32, pages_max: u16) -> Agreement {
        Agreement { kernel_version: (7, 45), capabilities: Capabilities::NONE, write_max, pages_max }
    }

    #[test]
    fn the_payload_has_room_for_the_longest_write_and_the_longest_read() {
        assert_eq!(payload_length(&agreement(4096, 1)), 8192.max(page_size()));
        assert_eq!(payload_length(&agreement(1 << 20, 32)), 1 << 20);
        assert_eq!(payload_length(&agreement(4096, 256)), 256 * page_size());
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused() {
        let entry = EntryMemory::new(8192).unwrap();
        // SAFETY: there is no kernel, and no slice.
        assert_eq!(unsafe { entry.put_body(&[7; 8193]) }, None);
        // SAFETY: there is no kernel, and no slice.
        assert_eq!(unsafe { entry.put_body(&[7; 8192]) }, Some(8192));
        // SAFETY: nothing writes.
        assert!(unsafe { entry.payload(8192) }.iter().all(|byte| *byte == 7));
    }
}
