//! Leases that programs have.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polymux_fs::{FileSystem, LeasedFile, OutsideUser};
use polymux_lease::message::{self, Peer};
use polymux_lease::{LeasedMap, UseCounts};
use polymux_types::sync::{Mutex, MutexGuard};
use polymux_types::{Ino, LeaseRefusal, OutsideUse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::Connection;
use crate::late_users::LateUsers;
use crate::limits::{NODES_NOTED_MAX, USE_BELIEVED};

/// Memory that the daemon shares with the program of a lease.
#[derive(Debug)]
pub struct Shared {
    pub map: LeasedMap,
    pub counts: UseCounts,
}

/// The word by which a program learns that its map is not true any more. It exists before the map does, which is copied meanwhile.
#[derive(Debug)]
pub struct Recall {
    uid: u32,
    mounts: Mounts,
    late_users: Arc<LateUsers>,
    is_recalled: AtomicBool,
    shared: OnceLock<Shared>,
}

impl Recall {
    /// For the lease of a program of a user.
    pub fn new(uid: u32, mounts: Mounts, late_users: Arc<LateUsers>) -> Self {
        Self { uid, mounts, late_users, is_recalled: AtomicBool::new(false), shared: OnceLock::new() }
    }

    pub fn is_recalled(&self) -> bool {
        self.is_recalled.load(Ordering::SeqCst)
    }

    /// The memory that the program will have. The map is recalled already if it changed while it was copied.
    pub fn set_shared(&self, shared: Shared) {
        assert!(self.shared.set(shared).is_ok(), "a lease has one map");
        if self.is_recalled() {
            self.recall_map();
        }
    }

    fn recall_map(&self) {
        if let Some(shared) = self.shared.get() {
            shared.map.recall();
        }
    }
}

/// The mounts that a process sees. By the descriptor of an object a process with privileges can change its attributes, which in a container is more than it may do to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// Those that this process sees.
    Ours,
    /// Others, or it is unknown.
    Others,
}

impl Mounts {
    /// Those of the process that connected.
    pub fn of(connection: impl AsFd, peer: Peer) -> Self {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let Ok(process) = message::process_of(connection) else { return Self::Others };
        let theirs = namespace(&peer.pid.to_string());
        // While it lives its number is that of no other process.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let lives = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)) == Ok(0);
        if lives && theirs.is_some() && theirs == namespace("self") { Self::Ours } else { Self::Others }
    }
}

impl OutsideUser for Recall {
    fn recall(&self) {
        // Either this sees the map, or the one who sets it sees this.
        self.is_recalled.store(true, Ordering::SeqCst);
        self.recall_map();
    }

    fn admit_to_changes(&self) -> Result<(), LeaseRefusal> {
        if self.late_users.has(self.uid, Instant::now()) {
            Err(LeaseRefusal::Late)
        } else if self.mounts == Mounts::Others {
            Err(LeaseRefusal::OtherNamespace)
        } else {
            Ok(())
        }
    }

    fn may_be_writing(&self) -> bool {
        self.shared.get().is_some_and(|shared| shared.counts.has_writes_under_way())
    }

    fn expire(&self) {
        if let Some(shared) = self.shared.get() {
            shared.map.expire();
        }
    }

    fn note_late(&self) {
        self.late_users.note(self.uid, Instant::now());
    }
}

/// One lease.
pub struct Lease {
    pub peer: Peer,
    pub leased: LeasedFile,
    pub recall: Arc<Recall>,
    since: Instant,
    device_reads: AtomicU64,
    writes: AtomicU64,
}

impl Lease {
    pub fn new(peer: Peer, leased: LeasedFile, recall: Arc<Recall>) -> Self {
        let zero = || AtomicU64::new(0);
        Self { peer, leased, recall, since: Instant::now(), device_reads: zero(), writes: zero() }
    }

    /// Has placement learn of the uses since the last call, as far as `believed` goes: the program may have written anything there.
    pub fn collect(&self, file_system: &FileSystem, believed: &mut Believed) {
        let Some(shared) = self.recall.shared.get() else { return };
        if !believed.is_more() {
            return;
        }
        shared.counts.take(|node, uses| {
            let left = believed.of_users.entry(self.peer.uid).or_insert(USE_BELIEVED);
            let uses = OutsideUse {
                random: uses.random.min(left.random),
                stream_bytes: uses.stream_bytes.min(left.stream_bytes),
                writes: uses.writes.min(left.writes),
            };
            left.random -= uses.random;
            left.stream_bytes -= uses.stream_bytes;
            left.writes -= uses.writes;
            self.device_reads.fetch_add(uses.random, Ordering::Relaxed);
            self.writes.fetch_add(uses.writes, Ordering::Relaxed);
            file_system.note_outside_use(&self.leased, node, uses);
            believed.nodes_left = believed.nodes_left.saturating_sub(1);
            if believed.nodes_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    fn report(&self) -> LeaseReport {
        LeaseReport {
            pid: self.peer.pid,
            uid: self.peer.uid,
            ino: self.leased.ino(),
            is_recalled: self.recall.is_recalled(),
            age: self.since.elapsed(),
            covered_bytes: self.leased.length(),
            device_reads: self.device_reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A program that keeps its copy of the map is not to believe it, nor is it waited for from now on.
        self.recall.recall();
        if self.recall.may_be_writing() {
            self.recall.expire();
        }
    }
}

/// Use that is believed in one look.
pub struct Believed {
    of_users: HashMap<u32, OutsideUse>,
    nodes_left: usize,
}

impl Default for Believed {
    fn default() -> Self {
        Self { of_users: HashMap::new(), nodes_left: NODES_NOTED_MAX }
    }
}

impl Believed {
    /// Whether more is noted in this look.
    pub fn is_more(&self) -> bool {
        self.nodes_left > 0
    }
}

/// A lease, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseReport {
    /// The process that asked for it; it may have given it to a child.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The file.
    pub ino: Ino,
    /// It is over, and the program has not given back its descriptors yet: it does so at its next call.
    pub is_recalled: bool,
    /// Since it was given.
    pub age: Duration,
    /// Bytes of the file, from the first one on, that the program may read by it.
    pub covered_bytes: u64,
    /// Short reads at random that devices served.
    pub device_reads: u64,
    /// Writes.
    pub writes: u64,
}

/// All leases, by the number of their connection.
#[derive(Default)]
pub struct Leases(Mutex<BTreeMap<u64, (Arc<Lease>, Connection)>>);

impl Leases {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (Arc<Lease>, Connection)>> {
        self.0.lock()
    }

    pub fn add(&self, number: u64, lease: Arc<Lease>, connection: Connection) {
        let before = self.lock().insert(number, (lease, connection));
        assert!(before.is_none(), "numbers of connections are not used twice");
    }

    /// Has the connection of a lease watched. It may end as soon as it is.
    pub fn watch(&self, number: u64, watch: impl FnOnce(&Connection) -> io::Result<()>) -> io::Result<()> {
        self.lock().get(&number).map_or(Ok(()), |(_, connection)| watch(connection))
    }

    /// Takes a lease out whose connection ended; `None` where it is the connection of none.
    pub fn take(&self, number: u64) -> Option<(Arc<Lease>, Connection)> {
        self.lock().remove(&number)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> Vec<(u64, Arc<Lease>)> {
        self.lock().iter().map(|(number, (lease, _))| (*number, Arc::clone(lease))).collect()
    }

    pub fn recall_all(&self) {
        self.all().iter().for_each(|(_, lease)| lease.recall.recall());
    }

    pub fn report(&self) -> Vec<LeaseReport> {
        let mut reports: Vec<LeaseReport> = self.all().iter().map(|(_, lease)| lease.report()).collect();
        reports.sort_by_key(|report| (report.pid, report.ino));
        reports
    }
}

#[cfg(test)]
mod tests {
    use polymux_lease::Changes;
    use polymux_types::MapRun;

    use super::*;

    fn map() -> (Shared, LeasedMap) {
        let runs = [MapRun { start: 0, end: 5, object: Some(0), is_writable: true }];
        let (map, descriptor) = LeasedMap::create(7, &runs, Changes::Possible).unwrap();
        let (counts, _) = UseCounts::create(5).unwrap();
        (Shared { map, counts }, LeasedMap::map(descriptor).unwrap())
    }

    #[test]
    fn a_map_that_changed_while_it_was_copied_is_never_true() {
        let [early, late] = [(); 2].map(|()| Recall::new(1, Mounts::Ours, Arc::default()));
        let (ours, theirs) = map();
        early.recall();
        assert!(early.is_recalled());
        early.set_shared(ours);
        assert!(!theirs.is_current());
        let (ours, theirs) = map();
        late.set_shared(ours);
        assert!(theirs.is_current());
        late.recall();
        assert!(!theirs.is_current());
    }
}
