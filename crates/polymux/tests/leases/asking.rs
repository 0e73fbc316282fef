//! Leases as a program without the library may ask for them, and moves beside readers.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polymux_lease::message::{Granted, redeem};
use polymux_lease::{LeasedMap, command};
use polymux_types::{LeaseTicket, LeaseWish};

use crate::mounted::native::text;
use crate::mounted::{Random, TestVolume, skip};

/// How long anything may take that is waited for.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whether the kernel has forgotten a page only when it was written, without which there are no leases for changing files. Says that the test is skipped where it does not.
pub fn has_leases_for_changing_files() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let has_them = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    if !has_them {
        skip(&format!("programs overwrite files past the mount from Linux 6.16 on, and this is {release}"));
    }
    has_them
}

/// Waits until something is so.
pub fn wait_until(condition: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{condition}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A ticket for an open file, as the kernel hands it out; `None` where it is refused.
pub fn ticket_of(file: &File) -> Option<LeaseTicket> {
    command::decode(&command::ask(file, LeaseWish::AnyFile).expect("asked")).ok()
}

/// A lease that is current; waits until there is one. A daemon that is busy may be late once, and a mover may recall one at once.
pub fn granted(file: &File) -> (OwnedFd, Granted, LeasedMap) {
    let began = Instant::now();
    loop {
        if let Some(Ok(Ok((connection, granted)))) = ticket_of(file).map(|ticket| redeem(&ticket)) {
            let map = LeasedMap::map(&granted.map).expect("mapped");
            if map.is_current() {
                return (connection, granted, map);
            }
        }
        assert!(began.elapsed() < DEADLINE, "no lease within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Moves a range of a file, and waits for that.
pub fn migrate(volume: &TestVolume, path: &Path, tier: &str, range: &str) {
    volume.polymux(["migrate", text(path), "--to", tier, "--range", range, "--wait"]).assert_success();
}

/// Moves ranges of a file of 8 MiB to and fro, with a pause after each move, until that is over.
pub fn move_ranges(volume: &TestVolume, path: &Path, is_over: &AtomicBool, pause: impl Fn(usize) -> Duration) {
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let tier = if round % 2 == 0 { "slow" } else { "fast" };
        migrate(volume, path, tier, ["0-2MiB", "2MiB-4MiB", "4MiB-8MiB"][round % 3]);
        std::thread::sleep(pause(round));
    }
}

/// Random numbers from `POLYMUX_SEED`, or from a seed that is printed, so that a test that failed can be repeated.
pub fn seeded() -> Random {
    let seed = std::env::var("POLYMUX_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("POLYMUX_SEED={seed}");
    Random::new(seed)
}

/// Ends the other threads of a test, also where it failed.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
