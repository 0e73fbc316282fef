//! Tickets: issued through the kernel to a process that has a file open, shown once at the door.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use polymux_fs::HandleId;
use polymux_types::sync::{Mutex, MutexGuard};
use polymux_types::{LeaseApplicant, LeaseRefusal, LeaseTicket, LeaseWish, Secret};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::limits::{TICKET_LIFE, TICKETS_MAX, TICKETS_OF_USER_MAX};

/// A number that cannot be guessed.
pub fn secret() -> io::Result<Secret> {
    let mut secret = [0; 16];
    // Sixteen bytes are never delivered in part.
    let count = getrandom(&mut secret, GetRandomFlags::empty())?;
    if count == secret.len() { Ok(secret) } else { Err(io::Error::other("the kernel gives no random numbers")) }
}

/// A ticket that was not shown yet.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    pub handle: HandleId,
    pub uid: u32,
    pub wish: LeaseWish,
    pub proof: Secret,
    at: Instant,
}

/// All of them.
pub struct Tickets {
    door: Secret,
    issued: Mutex<HashMap<Secret, Issued>>,
}

impl Tickets {
    pub fn new(door: Secret) -> Self {
        Self { door, issued: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Secret, Issued>> {
        self.issued.lock()
    }

    pub fn issue(&self, handle: HandleId, applicant: LeaseApplicant) -> Result<LeaseTicket, LeaseRefusal> {
        let failed = |error: io::Error| {
            log::warn!("no ticket for a lease: {error}");
            LeaseRefusal::Failed
        };
        let (ticket, proof) = (secret().map_err(failed)?, secret().map_err(failed)?);
        let LeaseApplicant { uid, wish } = applicant;
        let mut issued = self.lock();
        let of_user = issued.values().filter(|known| known.uid == uid).count();
        if issued.len() >= TICKETS_MAX || of_user >= TICKETS_OF_USER_MAX {
            return Err(LeaseRefusal::TooMany);
        }
        issued.insert(ticket, Issued { handle, uid, wish, proof, at: Instant::now() });
        Ok(LeaseTicket { door: self.door, ticket, proof })
    }

    /// Takes the ticket that a process of a user shows. One that another user shows stays with its owner.
    pub fn take(&self, ticket: &Secret, uid: u32) -> Option<Issued> {
        let mut issued = self.lock();
        let known = issued.get(ticket).filter(|known| known.uid == uid && known.at.elapsed() < TICKET_LIFE).copied()?;
        issued.remove(ticket);
        Some(known)
    }

    /// Forgets those that were not shown in time. Returns whether any is left.
    pub fn forget_old(&self) -> bool {
        let mut issued = self.lock();
        issued.retain(|_, known| known.at.elapsed() < TICKET_LIFE);
        !issued.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32) -> LeaseApplicant {
        LeaseApplicant { uid, wish: LeaseWish::UnchangedFile }
    }

    #[test]
    fn a_ticket_is_good_once_and_for_its_user() {
        let tickets = Tickets::new([1; 16]);
        let ticket = tickets.issue(HandleId(7), of(1000)).unwrap();
        assert!(tickets.take(&ticket.ticket, 1001).is_none(), "another user has seen it somewhere");
        assert_eq!(tickets.take(&ticket.ticket, 1000).unwrap().handle, HandleId(7));
        assert!(tickets.take(&ticket.ticket, 1000).is_none());
        assert!(!tickets.forget_old());
    }

    #[test]
    fn a_user_who_shows_none_takes_no_tickets_from_others() {
        let tickets = Tickets::new([1; 16]);
        for _ in 0..TICKETS_OF_USER_MAX {
            tickets.issue(HandleId(7), of(1000)).unwrap();
        }
        assert_eq!(tickets.issue(HandleId(7), of(1000)), Err(LeaseRefusal::TooMany));
        assert!(tickets.issue(HandleId(7), of(1001)).is_ok());
        assert!(tickets.forget_old(), "they are good for some seconds");
    }
}
