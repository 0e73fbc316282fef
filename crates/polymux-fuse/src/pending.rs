//! Requests that wait until the kernel has written back what it collected of a file (docs/design/0036).
//!
//! What is true here:
//! * One thread, which serves no other requests, asks the kernel to write back one file after the other, and then carries out what waited
//!   for that. The kernel sends the writes meanwhile, and others serve them.
//! * A request waits here with no lock of this process held. The kernel may hold locks of the directories and of the inode for it; writing
//!   back needs none of them.
//!
//! Lock order: the queue is a leaf.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polymux_fs::{HandleId, Wait};
use polymux_transport::wire::{AttrReply, Header};
use polymux_transport::Reply;
use polymux_types::{Errno, Ino};

use crate::adapter::{Adapter, caller, ino};
use crate::room::has_room;
use crate::write_back::WriteBack;

/// Time between two looks at the room of the volume, beside those of writers.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A request that waits for the write-back of a file.
struct Pending {
    header: Header,
    /// The file.
    node: u64,
    work: Work,
    reply: Reply,
}

/// What is done after the write-back.
enum Work {
    /// A program is about to write, and asks for attributes first; it is told whether there is room.
    AdmitWrite,
    /// The file replaces another one.
    Replace { name: Vec<u8>, new_parent: Ino, new_name: Vec<u8>, flags: u32 },
}

/// What waits.
#[derive(Default)]
pub(crate) struct PendingRequests {
    queue: Mutex<Queue>,
    /// The queue has something, or ends.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Pending>,
    has_ended: bool,
}

/// What the thread does next.
enum Next {
    Serve(Pending),
    /// Nothing came for [`LOOK_INTERVAL`].
    Nothing,
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

    /// No request comes any more.
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Next {
        let mut queue = self.lock();
        if queue.waiting.is_empty() && !queue.has_ended {
            queue = self.changed.wait_timeout(queue, LOOK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        match queue.waiting.pop_front() {
            Some(pending) => Next::Serve(pending),
            None if queue.has_ended => Next::End,
            None => Next::Nothing,
        }
    }
}

impl Adapter {
    /// Takes on a request for attributes that comes before a write, where it has to be found out first whether there is room. Otherwise the
    /// reply comes back.
    pub(crate) fn admit_write_later(&self, header: &Header, handle: Option<u64>, reply: Reply) -> Option<Reply> {
        let may_change = |handle| self.fs.may_change(HandleId(handle)).unwrap_or(false);
        if !self.room.is_short() || !handle.is_some_and(may_change) {
            return Some(reply);
        }
        self.pending.push(Pending { header: *header, node: header.node, work: Work::AdmitWrite, reply });
        None
    }

    /// Takes on a rename over another file, where somebody has the new one open and the kernel may have collected what was written to it:
    /// that a replaced file is never lost is promised of these bytes, too. Otherwise the reply comes back.
    pub(crate) fn replace_later(
        &self,
        header: &Header,
        name: &[u8],
        (new_parent, new_name): (Ino, &[u8]),
        flags: u32,
        reply: Reply,
    ) -> Option<Reply> {
        if self.write_back == WriteBack::Off {
            return Some(reply);
        }
        let found = |parent, name| self.fs.lookup(&caller(header), parent, name).map(|found| found.ino);
        let (Ok(node), Ok(_)) = (found(ino(header), name), found(new_parent, new_name)) else { return Some(reply) };
        if !self.fs.is_open_for_changes(node) {
            return Some(reply);
        }
        let work = Work::Replace { name: name.to_vec(), new_parent, new_name: new_name.to_vec(), flags };
        self.pending.push(Pending { header: *header, node: node.get(), work, reply });
        None
    }

    /// Serves what waits for a write-back until no request comes any more.
    pub(crate) fn serve_pending(&self) {
        loop {
            match self.pending.next() {
                Next::Serve(pending) => {
                    self.device.write_back(pending.node);
                    self.finish(pending);
                }
                // Others write to the file systems of tiers, too; where nothing is open for changes, nothing is collected.
                Next::Nothing if !self.fs.open_for_changes().is_empty() => self.look_for_room(),
                Next::Nothing => {}
                Next::End => return,
            }
        }
    }

    fn finish(&self, Pending { header, work, reply, .. }: Pending) {
        match work {
            Work::AdmitWrite => {
                let admitted = if has_room(&self.fs) { Ok(()) } else { Err(Errno::ENOSPC) };
                let attr = admitted.and_then(|()| self.get_attributes(&header, Wait::Allowed));
                reply.result(attr.map(|attr| AttrReply { keep_attr: self.keep_attr(&attr), attr }.encode()));
            }
            Work::Replace { name, new_parent, new_name, flags } => {
                reply.outcome(self.rename_name(&header, &name, (new_parent, &new_name), flags));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_serves_what_waits_ends_with_the_connection() {
        let pending = PendingRequests::default();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                while matches!(pending.next(), Next::Nothing) {}
                matches!(pending.next(), Next::End)
            });
            pending.end();
            assert!(serving.join().unwrap());
        });
    }
}
