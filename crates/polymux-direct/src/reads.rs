//! One read, and the request for a lease.

use std::os::fd::RawFd;

use polymux_client::{LeaseWish, Way};

use crate::ALLOCATOR;
use crate::files::{self, Watched};
use crate::forks;
use crate::interface::Answer;

/// Watches a number, for the report and for later requests.
pub fn watch(number: RawFd) -> Answer {
    // Without memory it is watched by the next request.
    if !forks::may_change() || !ALLOCATOR.has_reserve() {
        return Answer::NoLease;
    }
    if files::watch(number).is_some() { Answer::NoLease } else { Answer::Foreign }
}

/// Asks for a lease, if it is time for that.
pub fn ask(number: RawFd) -> Answer {
    // Descriptors that a child opens which shares the memory are not in the table of its parent.
    if !forks::may_change() || !ALLOCATOR.has_reserve() {
        return Answer::NoLease;
    }
    let Some(watched) = files::get(number).or_else(|| files::watch(number)) else { return Answer::Foreign };
    let way = match watched.reader.turn() {
        Ok(turn) => watched.reader.ask(files::borrow(number), LeaseWish::UnchangedFile, turn),
        Err(way) => way,
    };
    match way {
        Way::Directly => Answer::Leased,
        Way::NoVolume => foreign(number),
        _ => Answer::NoLease,
    }
}

/// The file is on no volume that gives leases.
fn foreign(number: RawFd) -> Answer {
    files::forget(number);
    Answer::Foreign
}

/// Fills a buffer past the mount.
pub fn read(number: RawFd, lane: usize, buffer: &mut [u8], offset: u64) -> Result<(), Answer> {
    // First: a child of a fork has no files until it is ready.
    if !forks::is_ready() {
        return Err(Answer::Kernel);
    }
    let watched = files::get(number).ok_or(Answer::NoLease)?;
    let outcome = watched.reader.read_past_mount(files::borrow(number), lane, buffer, offset);
    outcome.map_err(|way| answer_for(number, watched, way))
}

fn answer_for(number: RawFd, watched: &Watched, way: Way) -> Answer {
    match way {
        Way::NoLeaseYet => Answer::NoLease,
        Way::OtherFile => {
            files::forget(number);
            Answer::NoLease
        }
        way => {
            watched.reader.note_reads(way, 1);
            Answer::Kernel
        }
    }
}
