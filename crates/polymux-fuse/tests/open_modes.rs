//! Random sequences of opening, mapping, writing, cutting, moving and closing against the real kernel: no mix of open modes is
//! ever answered with `EIO`, and what is read is what was written (docs/design/0017).
//!
//! What is true here:
//! * Each player has files of its own, whose content it knows. Everybody opens and maps everybody's files, and blocks of all
//!   of them move meanwhile: modes are per file, whoever has it open.
//! * `OPEN_MODES_SEQUENCES` says how many sequences are played in all; the run of the issue has 1,000,000.

mod open_modes {
    pub mod mapping;
    pub mod player;
    pub mod volume;
}

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use open_modes::player::Player;
use open_modes::volume::{Fixture, Random};

const PLAYERS: u64 = 4;
const SEQUENCES_DEFAULT: u64 = 4000;

fn sequences() -> u64 {
    let named = std::env::var("OPEN_MODES_SEQUENCES").ok();
    named.map_or(SEQUENCES_DEFAULT, |text| text.parse().expect("OPEN_MODES_SEQUENCES is a number"))
}

/// Moves random files, as a whole and in part, between the tiers, until it is told to stop. Returns how many were asked for.
fn keep_moving(fixture: &Fixture, must_stop: &AtomicBool) -> u64 {
    let mut random = Random::new(99);
    let mut asked = 0;
    while !must_stop.load(Ordering::Acquire) {
        let path = fixture.file(random.below(PLAYERS), random.below(Player::FILES));
        if fixture.migrate(&path, &mut random) {
            asked += 1;
        }
        thread::sleep(Duration::from_millis(random.below(4)));
    }
    asked
}

#[test]
fn no_sequence_of_opens_maps_moves_and_closes_gives_an_error_or_wrong_bytes() {
    let Some(fixture) = Fixture::mount_or_skip() else { return };
    let (must_stop, played) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let asked = thread::scope(|scope| {
        let mover = scope.spawn(|| keep_moving(&fixture, &must_stop));
        let players: Vec<_> = (0..PLAYERS)
            .map(|number| {
                let (fixture, played) = (&fixture, &played);
                scope.spawn(move || {
                    let mut player = Player::new(fixture, number);
                    while played.fetch_add(1, Ordering::Relaxed) < sequences() {
                        player.play();
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = players.into_iter().map(thread::ScopedJoinHandle::join).collect();
        must_stop.store(true, Ordering::Release);
        let asked = mover.join().expect("the mover does not panic");
        assert!(outcomes.iter().all(Result::is_ok), "a player found an error");
        asked
    });
    let counts = fixture.open_counts();
    println!(
        "{} sequences in {:.1} s, {asked} moves asked for, opens: {counts:?}",
        sequences(),
        began.elapsed().as_secs_f64()
    );
    let of = |name: &str| counts.iter().find(|(counted, _)| counted == name).map_or(0, |(_, count)| *count);
    assert!(of("opens_cached") > 0, "some files went through the daemon: {counts:?}");
    if fixture.kernel_passes_through() {
        assert!(of("opens_passed_through") > 0 && of("opens_beside_passthrough") > 0, "all modes were met: {counts:?}");
    }
}
