//! One read or write, and the request for a lease.

use std::os::fd::RawFd;

use polymux_client::{Way, wish_for};
use rustix::io::Errno;

use crate::ALLOCATOR;
use crate::bounce;
use crate::files::{self, Watched};
use crate::forks;
use crate::interface::{self, Answer, Served};
use crate::past_pages::PastPages;
use crate::registry::End;

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
    let file = files::borrow(number);
    let way = watched.reader.consider_asking(file, |refused| wish_for(file, refused));
    match way {
        Way::NoVolume => return foreign(number),
        Way::OtherFile => return Answer::NoLease,
        _ => {}
    }
    leave_pages(number, watched);
    if way == Way::Directly { Answer::Leased } else { Answer::NoLease }
}

/// While programs have leases on the file, or are about to get them, calls through the kernel leave no pages there, which would end the leases: if there is a description for that.
fn leave_pages(number: RawFd, watched: &Watched) {
    let Some(preload) = interface::preload() else { return };
    let is_needed = watched.reader.keeps_pages_away();
    let has_memory = is_needed && bounce::prepare().is_ok();
    let are_left = has_memory && watched.open_past_pages(number);
    (preload.avoid_pages)(number, i32::from(are_left));
}

/// The file is on no volume that gives leases.
fn foreign(number: RawFd) -> Answer {
    files::forget(number, End::Found);
    Answer::Foreign
}

/// Fills a buffer past the mount, or else through the kernel past the page cache.
pub fn read(number: RawFd, lane: usize, buffer: &mut [u8], offset: u64) -> Result<Served, Answer> {
    let watched = watched(number)?;
    let file = files::borrow(number);
    let Err(way) = watched.reader.read_past_mount(file, lane, buffer, offset) else { return Ok(Ok(buffer.len())) };
    check(number, way)?;
    watched.reader.note_reads(way, 1);
    read_by_kernel(number, watched, buffer, offset)
}

/// Overwrites bytes past the mount, or else through the kernel past the page cache.
pub fn write(number: RawFd, lane: usize, data: &[u8], offset: u64) -> Result<Served, Answer> {
    let watched = watched(number)?;
    let file = files::borrow(number);
    let Err(way) = watched.reader.write_past_mount(file, lane, data, offset) else { return Ok(Ok(data.len())) };
    check(number, way)?;
    watched.reader.note_writes(way, 1);
    if way == Way::TooLarge {
        return Ok(Err(Errno::FBIG));
    }
    write_by_kernel(number, watched, data, offset)
}

/// Reads through the kernel, for want of a lease.
pub fn read_past_pages(number: RawFd, buffer: &mut [u8], offset: u64) -> Result<Served, Answer> {
    read_by_kernel(number, watched(number)?, buffer, offset)
}

/// Writes through the kernel, for want of a lease.
pub fn write_past_pages(number: RawFd, data: &[u8], offset: u64) -> Result<Served, Answer> {
    write_by_kernel(number, watched(number)?, data, offset)
}

fn read_by_kernel(number: RawFd, watched: &Watched, buffer: &mut [u8], offset: u64) -> Result<Served, Answer> {
    let past_pages = past_pages_of(number, watched).ok_or(Answer::Kernel)?;
    past_pages.read(files::borrow(number), buffer, offset).ok_or(Answer::Kernel)
}

fn write_by_kernel(number: RawFd, watched: &Watched, data: &[u8], offset: u64) -> Result<Served, Answer> {
    let past_pages = past_pages_of(number, watched).ok_or(Answer::Kernel)?;
    past_pages.write(files::borrow(number), data, offset).ok_or(Answer::Kernel)
}

fn watched(number: RawFd) -> Result<&'static Watched, Answer> {
    // First: a child of a fork has no files until it is ready.
    if !forks::is_ready() {
        return Err(Answer::Kernel);
    }
    files::get(number).ok_or(Answer::NoLease)
}

/// The description for calls through the kernel; `None` where the program's own is to be used.
fn past_pages_of(number: RawFd, watched: &Watched) -> Option<&'static PastPages> {
    let past_pages = watched.past_pages()?;
    if watched.reader.keeps_pages_away() {
        return Some(past_pages);
    }
    (interface::preload()?.avoid_pages)(number, 0);
    None
}

/// Fails where the number has no lease.
fn check(number: RawFd, way: Way) -> Result<(), Answer> {
    match way {
        Way::NoLeaseYet => Err(Answer::NoLease),
        Way::OtherFile => {
            files::forget(number, End::Found);
            Err(Answer::NoLease)
        }
        _ => Ok(()),
    }
}
