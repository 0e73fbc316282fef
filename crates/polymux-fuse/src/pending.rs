//! Requests that wait until the kernel has written back the data it collected of a file (docs/design/0036).
//!
//! Invariants:
//! * One thread, which serves no other requests, asks the kernel to write back one file after the other, and then carries out the requests
//!   that waited. The kernel sends the writes meanwhile, and others serve them; one that hangs in a tier is answered by the watcher, and with it
//!   the write-back ends. A rename, whose sync may wait for a tier, is done by a thread of its own, watched as all requests are; the other
//!   work asks a tier only for its free space, and does not wait long for that.
//! * A write that finds no free space is held while some is being freed (`held_writes`); the thread serves others meanwhile.
//! * A request waits here with no lock of this process held. The kernel may hold locks of the directories and of the inode for it; writing
//!   back needs none of them.
//! * A panic costs the request that it comes with, which is answered with EIO.
//!
//! Lock order: the queue is a leaf.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polymux_fs::HandleId;
use polymux_transport::Reply;
use polymux_transport::wire::{Attr, Header};
use polymux_types::Ino;

use crate::adapter::{Adapter, ino};
use crate::admission::{Admissions, margin};
use crate::convert;
use crate::held_writes::{HeldWrites, Refusal};
use crate::threads::is_reading;
use crate::write_back::WriteBack;

/// Time in which a program that was answered has put its data into the page cache.
const COPIED_WITHIN: Duration = Duration::from_millis(100);
/// Time between two checks of the free space of the volume, beside those that writers ask for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks of the free space of an idle volume. Each of them wakes a thread of every tier.
const RESTING_LOOK_INTERVAL: Duration = Duration::from_secs(20);

/// A request that waits for the write-back of a file.
struct Pending {
    header: Header,
    /// The file.
    node: u64,
    work: Work,
    reply: Reply,
}

/// Work to do after the write-back.
enum Work {
    /// A program is about to write, and asks for attributes first; the answer says whether enough space is free.
    AdmitWrite,
    /// The file replaces another one.
    Replace { name: Vec<u8>, new_parent: Ino, new_name: Vec<u8>, flags: u32 },
}

/// The waiting requests.
#[derive(Default)]
pub(crate) struct PendingRequests {
    queue: Mutex<Queue>,
    /// The queue has an entry or ends, or free space is to be checked.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Pending>,
    has_ended: bool,
    is_look_due: bool,
}

/// The next step of the thread.
enum Next {
    Serve(Pending),
    Look,
    /// Held writes are tried again.
    Retry,
    /// No request comes any more.
    End,
}

impl PendingRequests {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, pending: Pending) {
        self.lock().waiting.push_back(pending);
        self.changed.notify_one();
    }

    /// Has the free space of the volume checked soon.
    pub(crate) fn wake(&self) {
        self.lock().is_look_due = true;
        self.changed.notify_one();
    }

    /// No request comes any more.
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn next(&self, look_at: Instant, retry_at: Option<Instant>) -> Next {
        let mut queue = self.lock();
        loop {
            if std::mem::take(&mut queue.is_look_due) || Instant::now() >= look_at {
                return Next::Look;
            }
            if retry_at.is_some_and(|at| Instant::now() >= at) {
                return Next::Retry;
            }
            if let Some(pending) = queue.waiting.pop_front() {
                return Next::Serve(pending);
            }
            if queue.has_ended {
                return Next::End;
            }
            let next = retry_at.map_or(look_at, |at| at.min(look_at));
            let left = next.saturating_duration_since(Instant::now());
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A write that was admitted.
#[derive(Clone, Copy)]
struct Admitted {
    at: Instant,
    /// Of the program that writes.
    thread: u32,
}

impl Admitted {
    /// Whether the written data is in the page cache by a moment at which this thread sends a request: it does so after its last write.
    fn is_copied(&self, now: Instant, asking: u32) -> bool {
        self.thread == asking && asking != 0 || now.duration_since(self.at) >= COPIED_WITHIN
    }
}

/// State that is kept while free space is short.
#[derive(Default)]
pub(crate) struct Shortage {
    admissions: Admissions,
    /// Files in which a write was admitted that may not have been sent yet.
    outstanding: BTreeMap<u64, Admitted>,
    /// Writes that wait for space that is being freed.
    pub(crate) held: HeldWrites,
}

impl Adapter {
    /// Takes on a request for attributes that comes before a write, if free space has to be checked first. Otherwise the
    /// reply comes back.
    pub(crate) fn admit_write_later(&self, header: &Header, handle: Option<u64>, reply: Reply) -> Option<Reply> {
        let may_change = |handle| self.fs.may_change(HandleId(handle)).unwrap_or(false);
        // A read that goes beyond the end and a search for the end ask in the same way.
        if !self.room.is_short() || !handle.is_some_and(may_change) || is_reading(header) {
            return Some(reply);
        }
        self.pending.push(Pending { header: *header, node: header.node, work: Work::AdmitWrite, reply });
        None
    }

    /// Queues a rename over another file, where the new one is open and its data may be in the write-back cache: the promise that a replaced
    /// file is never lost covers this data, too. Otherwise the reply comes back.
    pub(crate) fn replace_later(
        &self,
        header: &Header,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
        reply: Reply,
    ) -> Option<Reply> {
        if self.write_back == WriteBack::Off {
            return Some(reply);
        }
        let (from, to) = ((ino(header), name), (new_parent, new_name));
        let Ok(Some(node)) = self.run("rename", ino(header), |fs| Ok(fs.open_replacement(from, to))) else {
            return Some(reply);
        };
        let work = Work::Replace { name: name.to_vec(), new_parent, new_name: new_name.to_vec(), flags };
        self.pending.push(Pending { header: *header, node: node.get(), work, reply });
        None
    }

    /// A request came. After an idle time the free space is checked at once.
    pub(crate) fn note_use(&self) {
        if self.fs.note_use() {
            self.pending.wake();
        }
    }

    /// Serves the requests that wait for a write-back until no request comes any more.
    pub(crate) fn serve_pending(&self) {
        let mut shortage = self.shortage_of_earlier();
        let mut renames: Vec<JoinHandle<()>> = Vec::new();
        let mut look_at = Instant::now();
        loop {
            let work = || match self.pending.next(look_at, shortage.held.retry_at()) {
                Next::Serve(pending) => {
                    self.send(pending.node, pending.header.pid, &mut shortage);
                    renames.retain(|rename| !rename.is_finished());
                    renames.extend(self.finish(pending, &mut shortage));
                    true
                }
                Next::Look => {
                    self.look_for_room();
                    // Afterwards: a look may wait for a tier, and others are served between two of them.
                    look_at = Instant::now() + if self.fs.is_resting() { RESTING_LOOK_INTERVAL } else { LOOK_INTERVAL };
                    if !self.room.is_short() {
                        shortage = Shortage { held: std::mem::take(&mut shortage.held), ..Shortage::default() };
                    }
                    true
                }
                Next::Retry => {
                    self.retry_held_writes(&mut shortage);
                    true
                }
                Next::End => false,
            };
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => log::error!("internal error while a request waited for a write-back"),
            }
        }
        for rename in renames {
            // A panic in it was answered and logged there.
            let _ = rename.join();
        }
    }

    /// The state to assume after earlier daemons: a write was admitted in each file that may be changed.
    fn shortage_of_earlier(&self) -> Shortage {
        let admitted = Admitted { at: Instant::now(), thread: 0 };
        let files = self.fs.files_open_for_changes();
        Shortage { outstanding: files.iter().map(|ino| (ino.get(), admitted)).collect(), ..Shortage::default() }
    }

    /// Has the kernel send the data it collected of a file on which a thread sent a request.
    pub(crate) fn send(&self, node: u64, asking: u32, shortage: &mut Shortage) {
        let began = Instant::now();
        self.device.write_back(node);
        // Data of a write that another thread was admitted to just now may be collected after this.
        if shortage.outstanding.get(&node).is_some_and(|admitted| admitted.is_copied(began, asking)) {
            shortage.outstanding.remove(&node);
        }
    }

    /// Carries out the request that waited. A rename goes on in a thread of its own.
    fn finish(&self, Pending { header, work, reply, .. }: Pending, shortage: &mut Shortage) -> Option<JoinHandle<()>> {
        match work {
            Work::AdmitWrite if self.must_hold(shortage) => self.hold_write(header, reply, shortage),
            Work::AdmitWrite => match self.admit_write(&header, shortage) {
                Ok(attr) => self.attr(reply, attr),
                Err(Refusal::NoSpace { .. }) if shortage.held.may_hold() => self.hold_write(header, reply, shortage),
                Err(refusal) => reply.error(refusal.errno()),
            },
            Work::Replace { name, new_parent, new_name, flags } => {
                let adapter = self.clone();
                let rename = move || {
                    adapter.answer_change(&header, &[ino(&header), new_parent], reply, || {
                        adapter.rename_name(&header, &name, new_parent, &new_name, flags)
                    });
                };
                // Where there is no thread for it, the reply is dropped, which answers EIO.
                let started = thread::Builder::new().name("fuse-rename".to_owned()).spawn(rename);
                return started.inspect_err(|error| log::error!("no thread for a rename: {error}")).ok();
            }
        }
        None
    }

    /// Admits a write of the file that a request is about, if enough space is free. Returns the attributes of the file.
    pub(crate) fn admit_write(&self, header: &Header, shortage: &mut Shortage) -> Result<Attr, Refusal> {
        let known = self.run("getattr", ino(header), |fs| fs.known_attributes(ino(header))).map_err(Refusal::Failed)?;
        let attr = convert::attr(&known);
        self.send_outstanding(header.pid, shortage);
        let space = self.fs.space().ok();
        if !shortage.admissions.admit(space.as_ref(), &attr) {
            return Err(Refusal::NoSpace { available: space.map(|space| space.available) });
        }
        shortage.outstanding.insert(header.node, Admitted { at: Instant::now(), thread: header.pid });
        Ok(attr)
    }

    /// Has the writes sent that were admitted before, where the free space might not do for all of them and one more of this thread.
    fn send_outstanding(&self, asking: u32, shortage: &mut Shortage) {
        let each = |margin: u64| margin.saturating_mul(shortage.outstanding.len() as u64 + 1);
        if self.fs.space().is_ok_and(|space| space.available >= each(margin(&space))) {
            return;
        }
        let now = Instant::now();
        let under_way = shortage.outstanding.values().filter(|admitted| !admitted.is_copied(now, asking));
        if let Some(last) = under_way.map(|admitted| admitted.at).max() {
            thread::sleep((last + COPIED_WITHIN).saturating_duration_since(now));
        }
        std::mem::take(&mut shortage.outstanding).into_keys().for_each(|node| self.device.write_back(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_copied_when_its_thread_asks_again_or_had_time_enough() {
        let at = Instant::now();
        let admitted = Admitted { at, thread: 7 };
        assert!(admitted.is_copied(at, 7) && !admitted.is_copied(at, 8));
        assert!(admitted.is_copied(at + COPIED_WITHIN, 8));
        assert!(!Admitted { thread: 0, ..admitted }.is_copied(at, 0), "0 is any thread of another process namespace");
    }

    #[test]
    fn whoever_serves_what_waits_looks_when_it_is_asked_to_and_ends_with_the_connection() {
        let pending = PendingRequests::default();
        let later = Instant::now() + Duration::from_secs(3600);
        pending.wake();
        assert!(matches!(pending.next(later, None), Next::Look));
        assert!(matches!(pending.next(Instant::now(), None), Next::Look));
        pending.end();
        assert!(
            matches!(pending.next(later, Some(Instant::now())), Next::Retry),
            "held writes are answered before the end"
        );
        assert!(
            matches!(pending.next(later, Some(later)), Next::End),
            "the answers to held writes would reach no program"
        );
    }
}
