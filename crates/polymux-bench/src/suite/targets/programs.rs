//! Targets of programs as people run them: times to native, and to mergerfs with its fast settings and with those and collected writes.

use super::comparison::{Comparison, FAST_PEER, PEERS};
use super::{Bound, Subject, Target};

/// At least 0.85 of the native rate.
const ALMOST_NATIVE: f64 = 1.0 / 0.85;

/// Bounds of the time that a program takes: as Polymux chooses, with files passed through, and to mergerfs.
const fn program(
    (claim, workload, figure): (&'static str, &'static str, &'static str),
    chosen: f64,
    passthrough: Option<f64>,
    mergerfs: f64,
) -> Comparison {
    let passthrough = match passthrough {
        Some(bound) => Some(Bound::RatioAtMost(bound)),
        None => None,
    };
    let chosen = Some(Bound::RatioAtMost(chosen));
    let mergerfs = (Subject::Chosen, Bound::RatioAtMost(mergerfs));
    Comparison { claim, workload, figure, devices: &[], chosen, passthrough, mergerfs, peers: PEERS }
}

const fn database(claim: &'static str, workload: &'static str, figure: &'static str) -> Comparison {
    program((claim, workload, figure), ALMOST_NATIVE, Some(ALMOST_NATIVE), 1.0)
}

const fn copy(claim: &'static str, workload: &'static str, figure: &'static str) -> Comparison {
    program((claim, workload, figure), 4.0, Some(5.0), 0.5)
}

const fn walk(claim: &'static str, figure: &'static str) -> Comparison {
    program((claim, "tree-walks", figure), 1.5, Some(3.0), 1.0)
}

const fn cold_walk(claim: &'static str, figure: &'static str) -> Comparison {
    program((claim, "tree-walks", figure), 3.0, Some(4.0), 1.0)
}

/// A share of the native rate at least, and 1.5 times that of mergerfs.
const fn server(claim: &'static str, figure: &'static str, share: f64) -> Comparison {
    program((claim, "filebench", figure), 1.0 / share, None, 1.0 / 1.5)
}

const fn git(claim: &'static str, workload: &'static str, figure: &'static str) -> Comparison {
    program((claim, workload, figure), 1.0 / 0.6, None, 1.0)
}

const PROGRAMS: &[Comparison] = &[
    database("RocksDB fillrandom", "rocksdb", "fillrandom"),
    database("RocksDB overwrite", "rocksdb", "overwrite"),
    database("RocksDB readwhilewriting", "rocksdb", "readwhilewriting"),
    database("RocksDB fillsync", "rocksdb", "fillsync"),
    Comparison {
        passthrough: Some(Bound::RatioAtMost(1.25)),
        ..database("SQLite, rollback journal", "sqlite", "insert + commit")
    },
    Comparison {
        passthrough: Some(Bound::RatioAtMost(1.25)),
        ..database("SQLite, write-ahead log", "sqlite", "insert + commit, write-ahead log")
    },
    Comparison { passthrough: Some(Bound::RatioAtMost(1.0 / 0.7)), ..database("pgbench, fresh", "pgbench", "fresh") },
    Comparison {
        passthrough: Some(Bound::RatioAtMost(1.0 / 0.7)),
        ..database("pgbench after a restart", "pgbench", "after a restart")
    },
    Comparison {
        chosen: Some(Bound::RatioAtMost(1.0 / 0.9)),
        passthrough: Some(Bound::RatioAtMost(1.0 / 0.9)),
        ..database("Redis, always", "redis", "appendfsync always")
    },
    Comparison {
        chosen: Some(Bound::RatioAtMost(1.0 / 0.9)),
        passthrough: Some(Bound::RatioAtMost(1.0 / 0.9)),
        ..database("Redis, everysec", "redis", "appendfsync everysec")
    },
    Comparison { peers: FAST_PEER, ..copy("untar", "untar", "untar") },
    copy("cp -a", "tree-copies", "cp -a"),
    copy("rm -rf", "tree-copies", "rm -rf"),
    git("git clone", "tree-copies", "git clone"),
    Comparison { peers: FAST_PEER, ..git("git status, first", "git-status", "first") },
    Comparison { peers: FAST_PEER, ..git("git status, again", "git-status", "again") },
    server("filebench varmail", "varmail", 0.6),
    server("filebench fileserver", "fileserver", 0.5),
    server("filebench webserver", "webserver", 0.6),
    server("filebench webproxy", "webproxy", 0.4),
    Comparison { chosen: Some(Bound::RatioAtMost(1.0 / 0.95)), ..git("make -j2", "build", "make -j2") },
    walk("grep -r, warm", "grep -r, warm"),
    walk("find -size, warm", "find -size, warm"),
    walk("ls -lR, warm", "ls -lR, warm"),
    walk("du, warm", "du, warm"),
    cold_walk("grep -r, cold", "grep -r, cold"),
    cold_walk("find -size, cold", "find -size, cold"),
    cold_walk("ls -lR, cold", "ls -lR, cold"),
    cold_walk("du, cold", "du, cold"),
    // Its figure is a rate: more is better.
    Comparison {
        chosen: Some(Bound::RatioAtLeast(0.4)),
        mergerfs: (Subject::Chosen, Bound::RatioAtLeast(1.5)),
        ..program(("dbench", "dbench", "4 clients"), 1.0, None, 1.0)
    },
];

/// All targets of programs.
pub(super) fn targets() -> impl Iterator<Item = Target> {
    PROGRAMS.iter().flat_map(Comparison::targets)
}
