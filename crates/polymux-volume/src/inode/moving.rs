//! The move of a file that is under way (docs/design/0010).
//!
//! Invariants:
//! * A move begins while its mover holds the barrier alone, so no writer is inside that does not know of it.
//! * While another thread holds the barrier exclusively (`FileState::lock_alone`), no move of the file is under way.
//! * Nor does a program write to the file past the daemon then, or while it is being moved: leases are given while the barrier is shared, and ended by who holds it alone.
//! * A mover looks at the ticket between two requests, and never waits for a lock of the file without looking again.

use std::sync::Arc;

use polymux_records::blockmap::PageChange;
use polymux_types::TierId;
use polymux_types::sync::{AtomicBool, Condvar, Mutex, Ordering, RwLockWriteGuard};

use super::FileState;

/// One move of one file.
#[derive(Debug)]
pub struct MoveTicket {
    /// Only the mover may map blocks to this tier meanwhile.
    pub target: TierId,
    stop: AtomicBool,
    /// A sync of the target requested by another thread failed: the copy may have lost data.
    copy_lost: AtomicBool,
}

impl MoveTicket {
    /// Whether a caller waits for the end of the move.
    pub fn is_asked_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether copied bytes may be lost.
    pub fn is_copy_lost(&self) -> bool {
        self.copy_lost.load(Ordering::Acquire)
    }
}

/// Where the ticket of a file is kept.
#[derive(Debug, Default)]
pub(crate) struct MoveTicketPlace {
    ticket: Mutex<Option<Arc<MoveTicket>>>,
    ended: Condvar,
    /// Those who want the file alone and have not got it yet. The next move lets them pass.
    waiting: Mutex<u32>,
    none_waits: Condvar,
}

/// A caller wants the file, and no move of it begins before that caller has it.
#[derive(Debug)]
pub struct Turn<'a> {
    place: &'a MoveTicketPlace,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.place.waiting.lock();
        *waiting -= 1;
        if *waiting == 0 {
            self.place.none_waits.notify_all();
        }
    }
}

impl FileState {
    /// Holds the barrier alone, after any move was stopped.
    pub fn lock_alone(&self) -> RwLockWriteGuard<'_, ()> {
        loop {
            let _turn = self.stop_move();
            let alone = self.barrier.write();
            if self.moving.ticket.lock().is_none() {
                self.nodes.outside_users.end_changes(PageChange::Written);
                return alone;
            }
        }
    }

    /// Holds the barrier alone for the beginning of a move, after those who wanted the file before: a mover that was
    /// stopped for a waiter would otherwise be back before the waiter wakes.
    pub fn lock_for_move(&self) -> RwLockWriteGuard<'_, ()> {
        let mut waiting = self.moving.waiting.lock();
        while *waiting > 0 {
            self.moving.none_waits.wait(&mut waiting);
        }
        drop(waiting);
        let alone = self.barrier.write();
        self.nodes.outside_users.end_changes(PageChange::Written);
        alone
    }

    /// Asks the move that is under way to stop, and waits until it has. The caller holds no lock of the file. The next move
    /// begins when the returned turn was dropped: the caller does so when it holds the barrier.
    #[must_use]
    pub fn stop_move(&self) -> Turn<'_> {
        *self.moving.waiting.lock() += 1;
        let turn = Turn { place: &self.moving };
        let mut ticket = self.moving.ticket.lock();
        while let Some(running) = ticket.as_ref() {
            running.stop.store(true, Ordering::Release);
            self.moving.ended.wait(&mut ticket);
        }
        drop(ticket);
        turn
    }

    /// Whether a move is under way.
    pub fn is_moving(&self) -> bool {
        self.moving.ticket.lock().is_some()
    }

    /// Whether a move to a tier is under way: its range there belongs to the mover.
    pub fn is_moving_to(&self, tier: TierId) -> bool {
        self.moving.ticket.lock().as_ref().is_some_and(|ticket| ticket.target == tier)
    }

    /// Tells the move to a tier, where one is under way, that its copy may be lost. Returns whether there is one.
    pub fn note_copy_lost(&self, tier: TierId) -> bool {
        let ticket = self.moving.ticket.lock();
        let Some(running) = ticket.as_ref().filter(|ticket| ticket.target == tier) else { return false };
        running.copy_lost.store(true, Ordering::Release);
        true
    }

    /// Begins a move. `None` where another one is under way. The caller holds the barrier alone, and passes the guard as proof.
    pub fn begin_move(&self, target: TierId, _alone: &RwLockWriteGuard<'_, ()>) -> Option<Arc<MoveTicket>> {
        let mut place = self.moving.ticket.lock();
        if place.is_some() {
            return None;
        }
        let ticket = Arc::new(MoveTicket { target, stop: AtomicBool::new(false), copy_lost: AtomicBool::new(false) });
        *place = Some(ticket.clone());
        Some(ticket)
    }

    /// Ends the move of this ticket.
    pub fn end_move(&self, ticket: &Arc<MoveTicket>) {
        let mut place = self.moving.ticket.lock();
        let ended = place.take().expect("a move that ends was under way");
        assert!(Arc::ptr_eq(&ended, ticket), "a move is ended by its mover");
        self.moving.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Layout, SizeKnown, SizeTrust};
    use super::*;

    #[test]
    fn whoever_wants_the_file_alone_waits_for_the_end_of_the_move() {
        let file = FileState::new(Layout::default(), SizeKnown::Yes, SizeTrust::Settled);
        let ticket = file.begin_move(TierId(1), &file.barrier.write()).unwrap();
        assert!(file.is_moving_to(TierId(1)) && !file.is_moving_to(TierId(0)));
        assert!(file.begin_move(TierId(2), &file.barrier.write()).is_none(), "one move at a time");
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| drop(file.lock_alone()));
            while !ticket.is_asked_to_stop() {
                std::thread::yield_now();
            }
            assert!(!alone.is_finished());
            file.end_move(&ticket);
        });
        assert!(!file.is_moving_to(TierId(1)));
    }

    #[test]
    fn the_next_move_begins_after_those_whom_the_last_one_was_stopped_for() {
        for _ in 0..200 {
            let file = FileState::new(Layout::default(), SizeKnown::Yes, SizeTrust::Settled);
            let ticket = file.begin_move(TierId(1), &file.barrier.write()).unwrap();
            let has_had_it = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _alone = file.lock_alone();
                    has_had_it.store(true, Ordering::Release);
                });
                while !ticket.is_asked_to_stop() {
                    std::thread::yield_now();
                }
                file.end_move(&ticket);
                let _alone = file.lock_for_move();
                assert!(has_had_it.load(Ordering::Acquire), "the mover was back before he woke");
            });
        }
    }
}
