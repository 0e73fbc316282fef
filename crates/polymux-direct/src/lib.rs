//! Serves reads of a program that knows nothing of leases (docs/design/0047). Loaded by `libpolymux_preload`, when the program has read a file on a FUSE file system some times.
//!
//! Invariants:
//! * A read is served only from a lease of the very file that the descriptor names at that moment, and from objects that are still those of the lease; everything else is left to the kernel.
//! * Memory is apart from the program's (`allocator`). No thread is started and no signal is handled. Where locks are taken or memory is allocated, signals are blocked.
//! * Descriptors of leases have numbers that are not in the way of the program, and the preloaded part knows them (`numbers`).
//! * A child of fork(2) begins anew: locks that other threads held at the fork are not touched (`forks`).
//! * Reading uses no thread-local storage: that of a library which is loaded late comes from the program's allocator, at its first use in each thread.
//!
//! Flow: the preloaded part asks [`reads`] for each read of a watched number. A file that shows slow reads gets a lease, by `polymux_client::Reader`. At the end of the
//! process [`report`] says how its files were read, if that was asked for.

mod allocator;
mod files;
mod forks;
mod interface;
mod numbers;
mod quiet;
mod reads;
mod registry;
mod report;

#[global_allocator]
static ALLOCATOR: allocator::Heap = allocator::Heap::new();
