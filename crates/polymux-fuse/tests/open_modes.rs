//! Random sequences of opening, mapping, writing, cutting, moving and closing against the real kernel: no mix of open modes is
//! ever answered with `EIO`, and reads return the bytes that were written (docs/design/0017).
//!
//! Invariants:
//! * Each player has files of its own, whose content it knows. All players open and map the files of all, and blocks of all
//!   of them move meanwhile: modes are per file, no matter who has it open.
//! * The players are a process of their own. A page fault waits for the daemon with the memory of its process locked, and a
//!   daemon in the same process waits for that memory as soon as it needs more.
//! * `OPEN_MODES_SEQUENCES` says how many sequences are played in all; the run of the issue has 1,000,000.

mod open_modes {
    pub mod history;
    pub mod mapping;
    pub mod player;
    pub mod volume;
}

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use open_modes::player::Player;
use open_modes::volume::{Fixture, Random, file};

const PLAYERS: u64 = 4;
const SEQUENCES_DEFAULT: u64 = 4000;
/// The slowest machine plays more than this in a second.
const SEQUENCES_PER_SECOND_MIN: u64 = 100;

/// Where the process of the players plays.
const PLACE: &str = "OPEN_MODES_PLACE";

fn sequences() -> u64 {
    let named = std::env::var("OPEN_MODES_SEQUENCES").ok();
    named.map_or(SEQUENCES_DEFAULT, |text| text.parse().expect("OPEN_MODES_SEQUENCES is a number"))
}

/// Runs only as the child of the test below.
#[test]
fn players_of_another_process_find_what_they_wrote() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let (place, played) = (Path::new(&place), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..PLAYERS {
            let played = &played;
            scope.spawn(move || {
                let mut player = Player::new(place, number);
                while played.fetch_add(1, Ordering::Relaxed) < sequences() {
                    player.play();
                }
            });
        }
    });
}

/// The players at work; a process that is stopped with its fixture.
struct Players(Child);

impl Players {
    fn start(fixture: &Fixture) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
        command.args(["--exact", "players_of_another_process_find_what_they_wrote", "--nocapture", "--test-threads=1"]);
        Self(command.env(PLACE, fixture.mountpoint()).spawn().expect("a process is started"))
    }
}

impl Drop for Players {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Moves random files, as a whole and in part, between the tiers, until the players end. Returns how many moves were asked for.
fn keep_moving(fixture: &Fixture, players: &mut Players) -> u64 {
    let mut random = Random::new(99);
    let (mut asked, began) = (0, Instant::now());
    let deadline = Duration::from_secs(120 + sequences() / SEQUENCES_PER_SECOND_MIN);
    loop {
        if let Some(status) = players.0.try_wait().expect("an own child can be asked") {
            assert!(status.success(), "a player found an error");
            return asked;
        }
        assert!(began.elapsed() < deadline, "the players do not end");
        let path = file(fixture.mountpoint(), random.below(PLAYERS), random.below(Player::FILES));
        if fixture.migrate(&path, &mut random) {
            asked += 1;
        }
        thread::sleep(Duration::from_millis(random.below(4)));
    }
}

#[test]
fn no_sequence_of_opens_maps_moves_and_closes_gives_an_error_or_wrong_bytes() {
    let Some(fixture) = Fixture::mount_or_skip() else { return };
    let began = Instant::now();
    let mut players = Players::start(&fixture);
    let asked = keep_moving(&fixture, &mut players);
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
