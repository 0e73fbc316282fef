//! The commands that the kernel's driver understands, as entries of a submission queue.

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};

use crate::wire::ring_command;

/// Gives an entry to the kernel for the first time.
const REGISTER: u32 = 1;
/// Answers a request and gives its entry back.
const COMMIT_AND_FETCH: u32 = 2;

/// Parts of the memory of an entry: headers and payload.
const PARTS: u32 = 2;
/// Where an entry of a submission queue has the number of parts.
const LENGTH_OFFSET: usize = 24;

/// Gives memory to a queue; `parts` is the address of its two `iovec`s, which stay there for as long as the entry lives.
pub(super) fn register(device: BorrowedFd<'_>, queue: u16, parts: u64) -> Entry128 {
    let command = ring_command(0, queue);
    let entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), REGISTER).cmd(command).addr(Some(parts)).build();
    with_parts(entry)
}

/// Answers the request that an entry holds.
pub(super) fn commit(device: BorrowedFd<'_>, queue: u16, commit_id: u64) -> Entry128 {
    let command = ring_command(commit_id, queue);
    opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), COMMIT_AND_FETCH).cmd(command).build()
}

/// A registration that the kernel refuses, whereupon it does without `io_uring`.
pub(super) fn broken_registration(device: BorrowedFd<'_>) -> Entry128 {
    let command = ring_command(0, 0);
    opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), REGISTER).cmd(command).build()
}

/// Sets the number of parts, for which the crate `io-uring` has no method.
fn with_parts(mut entry: Entry128) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128) };
    // SAFETY: an `Entry128` is the kernel's `struct io_uring_sqe` of 128 bytes (`repr(C)`, nothing but integers), and the
    // 32-bit number `len` lies at this offset of it.
    unsafe { (&raw mut entry).byte_add(LENGTH_OFFSET).cast::<u32>().write_unaligned(PARTS) };
    entry
}
