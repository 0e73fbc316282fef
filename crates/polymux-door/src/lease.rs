//! Leases that programs have.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polymux_fs::{FileSystem, LeasedFile, OutsideReader};
use polymux_lease::message::Peer;
use polymux_lease::{LeasedMap, ReadCounts};
use polymux_types::sync::{Mutex, MutexGuard};
use polymux_types::{Ino, OutsideReads};

use crate::connection::Connection;
use crate::limits::{NODES_NOTED_MAX, READS_BELIEVED};

/// The word by which a program learns that its map is not true any more. It exists before the map does, which is copied meanwhile.
#[derive(Debug, Default)]
pub struct Recall {
    is_recalled: AtomicBool,
    map: OnceLock<LeasedMap>,
}

impl Recall {
    pub fn is_recalled(&self) -> bool {
        self.is_recalled.load(Ordering::SeqCst)
    }

    /// The map that the program will have. It is recalled already if it changed while it was copied.
    pub fn set_map(&self, map: LeasedMap) {
        assert!(self.map.set(map).is_ok(), "a lease has one map");
        if self.is_recalled() {
            self.recall_map();
        }
    }

    fn recall_map(&self) {
        if let Some(map) = self.map.get() {
            map.recall();
        }
    }
}

impl OutsideReader for Recall {
    fn recall(&self) {
        // Either this sees the map, or the one who sets it sees this.
        self.is_recalled.store(true, Ordering::SeqCst);
        self.recall_map();
    }
}

/// One lease.
pub struct Lease {
    pub peer: Peer,
    pub leased: LeasedFile,
    pub recall: Arc<Recall>,
    pub counts: ReadCounts,
    since: Instant,
    device_reads: AtomicU64,
}

impl Lease {
    pub fn new(peer: Peer, leased: LeasedFile, recall: Arc<Recall>, counts: ReadCounts) -> Self {
        Self { peer, leased, recall, counts, since: Instant::now(), device_reads: AtomicU64::new(0) }
    }

    /// Has placement learn of the reads since the last call, as far as `believed` goes: the program may have written anything there.
    pub fn collect(&self, file_system: &FileSystem, believed: &mut Believed) {
        if !believed.is_more() {
            return;
        }
        self.counts.take(|node, reads| {
            let left = believed.of_users.entry(self.peer.uid).or_insert(READS_BELIEVED);
            let random = reads.random.min(left.random);
            let stream_bytes = reads.stream_bytes.min(left.stream_bytes);
            left.random -= random;
            left.stream_bytes -= stream_bytes;
            self.device_reads.fetch_add(random, Ordering::Relaxed);
            file_system.note_outside_reads(&self.leased, node, OutsideReads { random, stream_bytes });
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
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A program that keeps its copy of the map is not to believe it.
        self.recall.recall();
    }
}

/// Use that is believed in one look.
pub struct Believed {
    of_users: HashMap<u32, OutsideReads>,
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
    use polymux_types::MapRun;

    use super::*;

    fn map() -> (LeasedMap, LeasedMap) {
        let (ours, descriptor) = LeasedMap::create(7, &[MapRun { start: 0, end: 5, object: Some(0) }]).unwrap();
        (ours, LeasedMap::map(descriptor).unwrap())
    }

    #[test]
    fn a_map_that_changed_while_it_was_copied_is_never_true() {
        let (early, late) = (Recall::default(), Recall::default());
        let (ours, theirs) = map();
        early.recall();
        assert!(early.is_recalled());
        early.set_map(ours);
        assert!(!theirs.is_current());
        let (ours, theirs) = map();
        late.set_map(ours);
        assert!(theirs.is_current());
        late.recall();
        assert!(!theirs.is_current());
    }
}
