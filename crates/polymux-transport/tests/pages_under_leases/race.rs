//! Readers beside a leaseholder.
//!
//! A client stops writing when its lease is recalled; here nothing tells it in time, so that a write may come after the recall, and
//! pages that were read in between are rightly old. Therefore it asks afterwards. A lease that still lives proves that no READ was
//! received from the grant until then: that generation has to be seen by each read that starts now. One that does not
//! live proves nothing; the generation is written again through the mount, which replaces the pages, and has to be seen after that.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::bytes::page;
use super::daemon::Mode;
use super::mapping::{Kind, Mapping};
use super::player::Player;

/// Rounds of each kind, with a lease that lived and with one that was recalled, before the race may end,
const ROUNDS_MIN: u64 = 100;
/// how long it takes at least,
const TIME_MIN: Duration = Duration::from_millis(1500);
/// and at most, where one kind is rare.
const TIME_MAX: Duration = Duration::from_secs(30);

fn content(generation: u64, size: usize) -> Vec<u8> {
    generation.to_le_bytes().repeat(size / 8)
}

fn read(player: &Player, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    player.file.read_exact_at(&mut bytes, 0).expect("a file is read");
    bytes
}

/// The oldest generation in a content.
fn oldest(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word)).min().expect("there are words")
}

/// Known to both threads.
#[derive(Default)]
struct Race {
    /// Each read that starts shows it, or a later one.
    published: AtomicU64,
    reads: AtomicU64,
    is_over: AtomicBool,
}

impl Race {
    /// Looks over and over; pauses of several lengths let some leases live.
    fn look_on(&self, how: &str, pauses: [u64; 5], look: impl Fn() -> Vec<u8>) {
        for pass in 0_u64.. {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            let least = self.published.load(Ordering::Acquire);
            let seen = oldest(&look());
            assert!(seen >= least, "{how} shows generation {seen} after {least} was written");
            self.reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(pauses[usize::try_from(pass % 5).expect("five")]));
        }
    }

    /// One generation; whether the lease lived until it was written.
    fn write(&self, player: &Player, generation: u64, size: usize) -> bool {
        player.grant();
        player.overwrite(0, &content(generation, size));
        let lived = player.ask().lives;
        if !lived {
            player.file.write_all_at(&content(generation, size), 0).expect("a file is written");
            // A write without the page cache promises nothing about pages that a fault brings in meanwhile.
            if player.mode == Mode::Direct {
                player.forget();
            }
        }
        self.published.store(generation, Ordering::Release);
        let seen = oldest(&read(player, size));
        assert_eq!(seen, generation, "the lease lived: {lived}; the generation seen after the write");
        lived
    }

    fn write_on(&self, player: &Player, size: usize) {
        let (began, mut lived, mut recalled) = (Instant::now(), 0, 0);
        for generation in 1.. {
            *if self.write(player, generation, size) { &mut lived } else { &mut recalled } += 1;
            let enough = lived >= ROUNDS_MIN && recalled >= ROUNDS_MIN && began.elapsed() >= TIME_MIN;
            if enough || began.elapsed() >= TIME_MAX {
                break;
            }
        }
        let reads = self.reads.load(Ordering::Relaxed);
        println!("{:?}: leases that lived {lived}, recalled {recalled}, passes of the readers {reads}", player.mode);
        assert!(lived > 0 && recalled > 0, "both happened: lived {lived}, recalled {recalled}");
    }
}

/// Ends the race also where a thread panics, for which the other one would wait.
struct Ends<'a>(&'a Race);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

pub fn a_read_never_shows_an_older_generation_than_was_written_under_a_lease_that_lived(player: &Player) {
    let size = 64 * page();
    player.begin(&content(0, size));
    let race = Race::default();
    // Sequentially, and thus with read-ahead; the mapping is older than all leases.
    let mapping = Mapping::new(&player.file, size, Kind::Shared);
    std::thread::scope(|scope| {
        let race = &race;
        scope.spawn(move || {
            let _ends = Ends(race);
            race.look_on("a read", [0, 50, 200, 500, 2000], || read(player, size));
        });
        scope.spawn(move || {
            let _ends = Ends(race);
            race.look_on("a mapping", [100, 300, 1000, 2000, 5000], || mapping.all());
        });
        let _ends = Ends(race);
        race.write_on(player, size);
    });
    assert!(race.reads.load(Ordering::Relaxed) > 0, "the readers were there");
}
