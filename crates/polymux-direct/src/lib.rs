//! Serves reads and writes of a program that knows nothing of leases (docs/design/0047, docs/design/0049). Loaded by `libpolymux_preload`, when the program has used a file on a FUSE file system some times.
//!
//! Invariants:
//! * A call is served only from a lease of the very file that the descriptor names at that moment, and from objects that are still those of the lease; everything else is left to the kernel.
//! * Memory is apart from the program's (`allocator`). No thread is started and no signal is handled. Where locks are taken or memory is allocated, signals are blocked.
//! * Descriptors of leases have numbers that are not in the way of the program, and the preloaded part knows them (`numbers`).
//! * A child of fork(2) begins anew: locks that other threads held at the fork are not touched (`forks`).
//! * Calls use no thread-local storage: that of a library which is loaded late comes from the program's allocator, at its first use in each thread.
//!
//! Flow: the preloaded part asks [`calls`] for each read and write of a number with a lease. A file that shows slow ones gets a lease, by `polymux_client::Reader`. At the end of the
//! process [`report`] says how its files were used, if that was asked for.

mod allocator;
mod bounce;
mod calls;
mod files;
mod forks;
mod interface;
mod numbers;
mod past_pages;
mod quiet;
mod registry;
mod report;

#[global_allocator]
static ALLOCATOR: allocator::Heap = allocator::Heap::new();
