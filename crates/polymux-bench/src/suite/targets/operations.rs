//! Targets of single operations and streams on devices without limits, where every microsecond of the way to the daemon shows.

use super::comparison::{Comparison, FAST_PEER, PEERS};
use super::{Bound, Subject, Target};

const ONE_DEVICE: &[&str] = &["memory"];
const TWO_DEVICES: &[&str] = &["memory + memory"];

const fn append(claim: &'static str, workload: &'static str, figure: &'static str) -> Comparison {
    Comparison {
        claim,
        workload,
        figure,
        devices: ONE_DEVICE,
        chosen: Some(Bound::RatioAtMost(1.5)),
        passthrough: Some(Bound::RatioAtMost(1.5)),
        mergerfs: (Subject::Chosen, Bound::RatioAtMost(1.0)),
        peers: PEERS,
    }
}

const fn stream(claim: &'static str, figure: &'static str) -> Comparison {
    Comparison {
        claim,
        workload: "streams",
        figure,
        devices: ONE_DEVICE,
        chosen: Some(Bound::RatioAtLeast(0.6)),
        passthrough: Some(Bound::RatioAtLeast(0.97)),
        mergerfs: (Subject::Passthrough, Bound::RatioAtLeast(0.97)),
        peers: PEERS,
    }
}

/// Direct I/O; past the page cache `auto` is shown only.
const fn direct(claim: &'static str, figure: &'static str) -> Comparison {
    Comparison {
        claim,
        workload: "direct-jobs",
        figure,
        devices: ONE_DEVICE,
        chosen: None,
        passthrough: Some(Bound::RatioAtMost(1.0 / 0.9)),
        mergerfs: (Subject::Passthrough, Bound::RatioAtMost(1.03)),
        peers: PEERS,
    }
}

const fn write(claim: &'static str, workload: &'static str) -> Comparison {
    Comparison {
        claim,
        workload,
        figure: "write",
        devices: ONE_DEVICE,
        chosen: Some(Bound::RatioAtLeast(0.85)),
        passthrough: Some(Bound::RatioAtLeast(0.95)),
        mergerfs: (Subject::Chosen, Bound::RatioAtLeast(1.0)),
        peers: FAST_PEER,
    }
}

const fn warm_read(claim: &'static str, workload: &'static str) -> Comparison {
    Comparison {
        claim,
        workload,
        figure: "1 byte",
        devices: ONE_DEVICE,
        chosen: Some(Bound::RatioAtMost(1.35)),
        passthrough: Some(Bound::RatioAtMost(1.25)),
        mergerfs: (Subject::Chosen, Bound::RatioAtMost(1.0)),
        peers: FAST_PEER,
    }
}

/// A file that is split is never passed through.
const fn split(operation: Comparison) -> Comparison {
    Comparison { devices: TWO_DEVICES, passthrough: None, peers: FAST_PEER, ..operation }
}

const OPERATIONS: &[Comparison] = &[
    append("appends of 100 bytes", "append", "append"),
    append("appends of 4 KiB", "append", "append of 4 KiB"),
    split(append("appends of 100 bytes, split file", "append-split", "append")),
    split(append("appends of 4 KiB, split file", "append-split", "append of 4 KiB")),
    write("random writes of 4 KiB, buffered", "write-4k"),
    split(write("random writes of 4 KiB, buffered, split file", "write-4k-split")),
    warm_read("one-byte read, warm", "read-warm"),
    split(warm_read("one-byte read, warm, split file", "read-warm-split")),
    stream("streams of 1 MiB, read", "read"),
    stream("streams of 1 MiB, overwritten", "overwrite"),
    direct("direct read of 4 KiB, 1 job", "read, 1 job"),
    direct("direct read of 4 KiB, 4 jobs", "read, 4 jobs"),
    direct("direct read of 4 KiB, 1 job, io_uring", "read, 1 job, io_uring"),
    direct("direct read of 4 KiB, 4 jobs, io_uring", "read, 4 jobs, io_uring"),
    direct("direct write of 4 KiB, 1 job", "write, 1 job"),
    direct("direct write of 4 KiB, 4 jobs", "write, 4 jobs"),
    direct("direct write of 4 KiB, 1 job, io_uring", "write, 1 job, io_uring"),
    direct("direct write of 4 KiB, 4 jobs, io_uring", "write, 4 jobs, io_uring"),
];

/// All targets of operations.
pub(super) fn targets() -> impl Iterator<Item = Target> {
    OPERATIONS.iter().flat_map(Comparison::targets)
}
