//! Targets of programs as people run them: times to native, and to mergerfs with its fast settings and with those and collected writes.

use super::{Against, Bound, Subject, Target};

/// One program. Bounds are of the time that it takes.
struct Program {
    claim: &'static str,
    workload: &'static str,
    figure: &'static str,
    /// To native at most, as Polymux chooses how it does I/O.
    chosen: f64,
    /// To native at most, with files passed through; `None` where that is only shown.
    passthrough: Option<f64>,
    /// To mergerfs at most, as Polymux chooses.
    mergerfs: f64,
    /// How that is set.
    peers: &'static [Subject],
}

/// The settings that programs are measured with,
const PEERS: &[Subject] = &[Subject::MergerfsFast, Subject::MergerfsWriteBack];
/// and workloads that compare transports.
const PEERS_OF_TRANSPORTS: &[Subject] = &[Subject::MergerfsFast];

/// At least 0.85 of the native rate.
const ALMOST_NATIVE: f64 = 1.0 / 0.85;

const fn database(claim: &'static str, workload: &'static str, figure: &'static str) -> Program {
    let passthrough = Some(ALMOST_NATIVE);
    Program { claim, workload, figure, chosen: ALMOST_NATIVE, passthrough, mergerfs: 1.0, peers: PEERS }
}

const fn copy(claim: &'static str, workload: &'static str, figure: &'static str) -> Program {
    Program { claim, workload, figure, chosen: 4.0, passthrough: Some(5.0), mergerfs: 0.5, peers: PEERS }
}

const fn walk(claim: &'static str, figure: &'static str) -> Program {
    let workload = "tree-walks";
    Program { claim, workload, figure, chosen: 1.5, passthrough: Some(3.0), mergerfs: 1.0, peers: PEERS }
}

const fn cold_walk(claim: &'static str, figure: &'static str) -> Program {
    Program { chosen: 3.0, passthrough: Some(4.0), ..walk(claim, figure) }
}

/// A share of the native rate at least, and 1.5 times that of mergerfs.
const fn server(claim: &'static str, figure: &'static str, share: f64) -> Program {
    let workload = "filebench";
    Program { claim, workload, figure, chosen: 1.0 / share, passthrough: None, mergerfs: 1.0 / 1.5, peers: PEERS }
}

const fn git(claim: &'static str, workload: &'static str, figure: &'static str) -> Program {
    Program { claim, workload, figure, chosen: 1.0 / 0.6, passthrough: None, mergerfs: 1.0, peers: PEERS }
}

const PROGRAMS: &[Program] = &[
    database("RocksDB fillrandom", "rocksdb", "fillrandom"),
    database("RocksDB overwrite", "rocksdb", "overwrite"),
    database("RocksDB readwhilewriting", "rocksdb", "readwhilewriting"),
    database("RocksDB fillsync", "rocksdb", "fillsync"),
    Program { passthrough: Some(1.25), ..database("SQLite, rollback journal", "sqlite", "insert + commit") },
    Program {
        passthrough: Some(1.25),
        ..database("SQLite, write-ahead log", "sqlite", "insert + commit, write-ahead log")
    },
    Program { passthrough: Some(1.0 / 0.7), ..database("pgbench, fresh", "pgbench", "fresh") },
    Program { passthrough: Some(1.0 / 0.7), ..database("pgbench after a restart", "pgbench", "after a restart") },
    Program {
        chosen: 1.0 / 0.9,
        passthrough: Some(1.0 / 0.9),
        ..database("Redis, always", "redis", "appendfsync always")
    },
    Program {
        chosen: 1.0 / 0.9,
        passthrough: Some(1.0 / 0.9),
        ..database("Redis, everysec", "redis", "appendfsync everysec")
    },
    Program { peers: PEERS_OF_TRANSPORTS, ..copy("untar", "untar", "untar") },
    copy("cp -a", "tree-copies", "cp -a"),
    copy("rm -rf", "tree-copies", "rm -rf"),
    git("git clone", "tree-copies", "git clone"),
    Program { peers: PEERS_OF_TRANSPORTS, ..git("git status, first", "git-status", "first") },
    Program { peers: PEERS_OF_TRANSPORTS, ..git("git status, again", "git-status", "again") },
    server("filebench varmail", "varmail", 0.6),
    server("filebench fileserver", "fileserver", 0.5),
    server("filebench webserver", "webserver", 0.6),
    server("filebench webproxy", "webproxy", 0.4),
    Program { chosen: 1.0 / 0.95, ..git("make -j2", "build", "make -j2") },
    walk("grep -r, warm", "grep -r, warm"),
    walk("find -size, warm", "find -size, warm"),
    walk("ls -lR, warm", "ls -lR, warm"),
    walk("du, warm", "du, warm"),
    cold_walk("grep -r, cold", "grep -r, cold"),
    cold_walk("find -size, cold", "find -size, cold"),
    cold_walk("ls -lR, cold", "ls -lR, cold"),
    cold_walk("du, cold", "du, cold"),
];

/// Throughput of a file server under four clients, to native and to mergerfs at least.
const DBENCH: [(Subject, f64); 3] =
    [(Subject::Native, 0.4), (Subject::MergerfsFast, 1.5), (Subject::MergerfsWriteBack, 1.5)];

impl Program {
    fn targets(&self) -> impl Iterator<Item = Target> {
        let Self { claim, workload, figure, .. } = *self;
        let at_most = move |subject, against, bound| Target {
            claim,
            workload,
            figure,
            devices: &[],
            subject,
            against: Against::Side(against),
            bound: Bound::RatioAtMost(bound),
        };
        let chosen = at_most(Subject::Chosen, Subject::Native, self.chosen);
        let passthrough = self.passthrough.map(|bound| at_most(Subject::Passthrough, Subject::Native, bound));
        let mergerfs = self.mergerfs;
        let peers = self.peers.iter().map(move |peer| at_most(Subject::Chosen, *peer, mergerfs));
        std::iter::once(chosen).chain(passthrough).chain(peers)
    }
}

/// All targets of programs.
pub(super) fn targets() -> impl Iterator<Item = Target> {
    let dbench = DBENCH.into_iter().map(|(against, bound)| Target {
        claim: "dbench",
        workload: "dbench",
        figure: "4 clients",
        devices: &[],
        subject: Subject::Chosen,
        against: Against::Side(against),
        bound: Bound::RatioAtLeast(bound),
    });
    PROGRAMS.iter().flat_map(Program::targets).chain(dbench)
}
