//! A queue of mail, and mailboxes: small files, each durable before its message is acknowledged.
//!
//! Invariant: threads share nothing but the counter of completed operations; each works on files of its own names, in directories
//! that all of them share.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, anyhow, ensure};

use super::{Program, rates_of_rounds};
use crate::noise::Noise;
use crate::tiering::hot_set::index_below;
use crate::tiering::sides::Side;

/// Required share of the SSD-only rate.
const TARGET: f64 = 0.9;
/// Threads that deliver.
const THREADS: u64 = 16;
/// Size of a message: up to so many bytes, a half of it on average.
const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// Files of each thread, and bytes that are appended to one: a thousand of 16 KiB in all, as `varmail` of filebench has them.
const MAILBOXES_OF_THREAD: u64 = 63;
const APPENDED_BYTES: usize = 16 << 10;

/// Messages go through two directories, as in Postfix: written and synced in the first, renamed to the second, read there, removed.
pub(super) struct Queue;

/// The loop of filebench's `varmail`: a file is removed, another one made, written and synced, another one read, appended to and synced, and
/// another one read. Loops are counted, two syncs each.
pub(super) struct Mailboxes;

impl Program for Queue {
    fn name(&self) -> &'static str {
        "mail queue"
    }

    fn target(&self) -> f64 {
        TARGET
    }

    fn prepare(&self, _side: &Side, directory: &Path) -> Result<()> {
        ["incoming", "active"].into_iter().try_for_each(|name| Ok(fs::create_dir(directory.join(name))?))
    }

    fn run(&self, _side: &Side, directory: &Path, rounds: u16) -> Result<Vec<f64>> {
        count_rounds(rounds, |thread, number, noise| {
            let name = format!("{thread}-{number}");
            let (incoming, active) = (directory.join("incoming").join(&name), directory.join("active").join(&name));
            let length = 1 + index_below(noise, MESSAGE_BYTES_MAX);
            let message = noise.bytes(length);
            let mut file = File::create_new(&incoming)?;
            file.write_all(&message)?;
            file.sync_all()?;
            drop(file);
            fs::rename(&incoming, &active)?;
            ensure!(fs::read(&active)? == message, "{} is not what was written", active.display());
            Ok(fs::remove_file(active)?)
        })
    }
}

impl Program for Mailboxes {
    fn name(&self) -> &'static str {
        "varmail"
    }

    fn target(&self) -> f64 {
        TARGET
    }

    fn prepare(&self, _side: &Side, directory: &Path) -> Result<()> {
        let message = Noise::new(0x517c_c1b7_2722_0a95).bytes(APPENDED_BYTES);
        let all = (0..THREADS).flat_map(|thread| (0..MAILBOXES_OF_THREAD).map(move |number| (thread, number)));
        all.map(|(thread, number)| mailbox(directory, thread, number))
            .try_for_each(|path| Ok(fs::write(path, &message)?))
    }

    fn run(&self, _side: &Side, directory: &Path, rounds: u16) -> Result<Vec<f64>> {
        // Numbers of the files that each thread has.
        let of_threads: Vec<Mutex<Vec<u64>>> =
            (0..THREADS).map(|_| Mutex::new((0..MAILBOXES_OF_THREAD).collect())).collect();
        count_rounds(rounds, |thread, number, noise| {
            let mut existing = of_threads[usize::try_from(thread)?].lock().unwrap_or_else(PoisonError::into_inner);
            let message = noise.bytes(APPENDED_BYTES);
            let removed = index_below(noise, existing.len());
            fs::remove_file(mailbox(directory, thread, existing.swap_remove(removed)))?;
            let made = MAILBOXES_OF_THREAD + number;
            append(&mailbox(directory, thread, made), &message)?;
            existing.push(made);
            let mut any = || mailbox(directory, thread, existing[index_below(noise, existing.len())]);
            let (appended, read) = (any(), any());
            ensure!(fs::read(&appended)?.len().is_multiple_of(APPENDED_BYTES), "{} is cut", appended.display());
            append(&appended, &message)?;
            fs::read(read)?;
            Ok(())
        })
    }
}

fn mailbox(directory: &Path, thread: u64, number: u64) -> PathBuf {
    directory.join(format!("{thread}-{number}"))
}

fn append(path: &Path, message: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(message)?;
    Ok(file.sync_all()?)
}

/// Repeats `once` (of a thread, a number that it has not had, and random numbers) in all threads; how often each second, in each round.
fn count_rounds(rounds: u16, once: impl Fn(u64, u64, &mut Noise) -> Result<()> + Sync) -> Result<Vec<f64>> {
    let (is_over, all) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (once, is_over, all) = (&once, &is_over, &all);
        let repeat = move |thread: u64| {
            let mut noise = Noise::new(0x9e37_79b9_7f4a_7c15 ^ (thread + 1).wrapping_mul(0xd134_2543_de82_ef95));
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                once(thread, number, &mut noise)?;
                number += 1;
                all.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || repeat(thread))).collect();
        let rates = rates_of_rounds(rounds, || {
            ensure!(!threads.iter().any(|thread| thread.is_finished()), "a thread ended early");
            Ok(all.load(Ordering::Relaxed) as f64)
        });
        is_over.store(true, Ordering::Relaxed);
        // The error of a thread says more than that it ended.
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        rates
    })
}
