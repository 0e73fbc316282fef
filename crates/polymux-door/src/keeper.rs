//! Accepts connections, sees them end, and collects the counters of programs.
//!
//! Invariant: it sleeps while there is neither a lease nor a caller nor a ticket, and looks around each second otherwise.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use polymux_fs::FileSystem;
use polymux_lease::message::{self, Rights};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::connections::{Accepted, Callers};
use crate::giver::Request;
use crate::lease::Believed;
use crate::limits::{ACCEPTED_AT_ONCE, LOOK_INTERVAL};
use crate::{Asked, Shared};

/// Numbers of the watched descriptors; those of connections follow.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// Events that are looked at together.
const EVENTS: usize = 64;

pub struct Keeper {
    file_system: Weak<FileSystem>,
    shared: Arc<Shared>,
    listener: OwnedFd,
    callers: Callers,
    giver: Asked,
    next: u64,
    /// Descriptors are short, and connections wait until the next look. How many looks in a row that was so.
    pauses: u32,
    has_paused: bool,
    /// Use that is still believed before the next look.
    believed: Believed,
    /// The lease after which the next look begins to collect, so that each has its turn.
    collected_up_to: u64,
}

impl Keeper {
    pub fn new(
        file_system: Weak<FileSystem>,
        shared: Arc<Shared>,
        (listener, rights): (OwnedFd, Rights),
        giver: Asked,
    ) -> io::Result<Self> {
        shared.watch(&listener, LISTENER)?;
        shared.watch(&shared.wake, WAKE)?;
        let callers = Callers::new(shared.permits.clone(), rights);
        let next = FIRST_CONNECTION;
        Ok(Self {
            file_system,
            shared,
            listener,
            callers,
            giver,
            next,
            pauses: 0,
            has_paused: false,
            believed: Believed::default(),
            collected_up_to: 0,
        })
    }

    /// Serves until the door is closed or the file system is gone.
    pub fn run(mut self) {
        let (mut events, mut looked_at, mut is_idle) = (Vec::with_capacity(EVENTS), Instant::now(), true);
        while !self.shared.is_over() {
            events.clear();
            let second = Timespec { tv_sec: LOOK_INTERVAL.as_secs().cast_signed(), tv_nsec: 0 };
            let patience = if is_idle { None } else { Some(&second) };
            match epoll::wait(&self.shared.watched, spare_capacity(&mut events), patience) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    log::error!("no more leases are given: {error}");
                    return;
                }
            }
            for event in &events {
                self.see(event.data.u64());
            }
            // The first event after a rest may be the beginning of something to look after; a pause lasts until the next look.
            let is_due = looked_at.elapsed() >= LOOK_INTERVAL;
            if is_due || is_idle && !self.has_paused {
                looked_at = Instant::now();
                let Some(file_system) = self.file_system.upgrade() else { return };
                is_idle = !self.look_around(&file_system);
            }
            is_idle &= !self.has_paused;
        }
    }

    fn see(&mut self, number: u64) {
        match number {
            LISTENER => self.accept(),
            WAKE => {
                let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
            }
            number if self.callers.get(number).is_some() => self.hear(number),
            // The program with a lease is gone.
            number => self.end(number),
        }
    }

    /// Accepts some connections; further ones are another event.
    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.callers.accept(&self.listener, &mut self.next) {
                Ok(Accepted::None) => return,
                Ok(Accepted::Refused) => {}
                Ok(Accepted::Caller(number)) => {
                    let watched = self.callers.get(number).map(|connection| self.shared.watch(connection, number));
                    if !matches!(watched, Some(Ok(()))) {
                        drop(self.callers.take(number));
                    }
                }
                Err(error) => {
                    if self.pauses == 0 {
                        log::warn!("programs get no leases for now: {error}");
                    }
                    // Trying again at once would only spin.
                    self.has_paused = epoll::delete(&self.shared.watched, &self.listener).is_ok();
                    return;
                }
            }
        }
    }

    /// A caller shows its ticket, or is gone.
    fn hear(&mut self, number: u64) {
        let Some(connection) = self.callers.get(number) else { return };
        let shown = match message::shown_ticket(connection, connection.rights()) {
            Ok(None) => return,
            Ok(Some(ticket)) => self.shared.tickets.take(&ticket, connection.peer.uid),
            Err(_) => None,
        };
        // It is watched again once it has a lease: one that ends meanwhile would be seen again and again, and nothing could be done about it.
        let _ = epoll::delete(&self.shared.watched, connection);
        let Some(connection) = self.callers.take(number) else { return };
        // A wrong ticket is not answered: there is no proof to answer with.
        let Some(issued) = shown else { return };
        // A giver that has too much to do, or is gone, refuses without a word: the program goes through the kernel.
        let _ = self.giver.try_send(Request { number, connection, issued });
    }

    /// The program with a lease is gone.
    fn end(&mut self, number: u64) {
        if let Some((lease, connection)) = self.shared.leases.take(number) {
            let _ = epoll::delete(&self.shared.watched, &connection);
            if let Some(file_system) = self.file_system.upgrade() {
                lease.collect(&file_system, &mut self.believed);
            }
        }
    }

    /// Returns whether there is a reason to look again.
    fn look_around(&mut self, file_system: &FileSystem) -> bool {
        self.collect(file_system);
        if std::mem::take(&mut self.has_paused) {
            self.pauses += 1;
            if let Err(error) = self.shared.watch(&self.listener, LISTENER) {
                log::error!("no more leases are given: {error}");
            }
        } else {
            self.pauses = 0;
        }
        let has_tickets = self.shared.tickets.forget_old();
        let has_callers = self.callers.close_old();
        has_tickets || has_callers || self.pauses > 0 || !self.shared.leases.is_empty()
    }

    fn collect(&mut self, file_system: &FileSystem) {
        self.believed = Believed::default();
        let leases = self.shared.leases.all();
        let begin = leases.partition_point(|(number, _)| *number <= self.collected_up_to);
        for (number, lease) in leases[begin..].iter().chain(&leases[..begin]) {
            if !self.believed.is_more() {
                return;
            }
            lease.collect(file_system, &mut self.believed);
            self.collected_up_to = *number;
        }
    }
}
