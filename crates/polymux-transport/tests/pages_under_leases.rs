//! The view that the real kernel gives of a file whose object is written beside the mount, under a lease: an experiment
//! that is kept as a test.
//!
//! The claim: the view through the mount stays coherent without any help of the kernel, if
//! 1. the grant of a lease makes the kernel forget all pages and attributes of the inode,
//! 2. each READ, WRITE and change of the size that comes while the lease lives ends it before it is answered,
//! 3. attributes are valid for no time while it lives, and their size is that of the object.
//!
//! Invariants:
//! * Who uses the mount is a process of its own, and so is the leaseholder, which is the same one: a page fault waits for the
//!   daemon with the memory of its process locked, and a daemon in the same process waits for that memory.
//! * A fact of the kernel that breaks the claim is asserted as it was measured, in a test that is named for it. A kernel that
//!   behaves better makes that test fail, and the rule that it is the reason for can go.

mod pages_under_leases {
    pub mod appends;
    pub mod bytes;
    pub mod daemon;
    pub mod mapping;
    pub mod mappings;
    pub mod player;
    pub mod race;
    pub mod reads;
    pub mod sizes;
}

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pages_under_leases::daemon::{Fixture, Mode};
use pages_under_leases::player::Player;
use pages_under_leases::{appends, mappings, race, reads, sizes};

/// The directory in which the process of the player finds the mount and the objects,
const PLACE: &str = "PAGES_UNDER_LEASES_PLACE";
/// the scenario that it plays,
const SCENARIO: &str = "PAGES_UNDER_LEASES_SCENARIO";
/// and how files are opened there.
const MODE: &str = "PAGES_UNDER_LEASES_MODE";

/// Far longer than any scenario takes: a player that is not done by then waits for an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs only as the child of the tests below.
#[test]
fn a_player_of_another_process_finds_what_the_leaseholder_wrote() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let of = |name| std::env::var(name).expect("set together with the place");
    let (scenario, mode) = (of(SCENARIO), of(MODE));
    let mode = Mode::ALL.into_iter().find(|known| format!("{known:?}") == mode).expect("a mode");
    let (_, play) = SCENARIOS.iter().find(|(name, _)| *name == scenario).expect("a scenario");
    play(&Player::new(place.into(), mode));
}

/// The player at work; a process that is stopped before its fixture.
struct Playing(Child);

impl Playing {
    fn start(fixture: &Fixture, scenario: &str, mode: Mode) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
        let test = "a_player_of_another_process_finds_what_the_leaseholder_wrote";
        command.args(["--exact", test, "--nocapture", "--test-threads=1", "--quiet"]);
        command.env(PLACE, fixture.place()).env(SCENARIO, scenario).env(MODE, format!("{mode:?}"));
        Self(command.spawn().expect("a process is started"))
    }

    fn wait(&mut self, what: &str) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("an own child can be asked") {
                assert!(status.success(), "{what}: the player found an error, see above");
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: the player does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn play(scenario: &str, modes: &[Mode]) {
    for mode in modes {
        let Some(fixture) = Fixture::mount_or_skip(*mode) else { return };
        Playing::start(&fixture, scenario, *mode).wait(&format!("{scenario}, {mode:?}"));
    }
}

/// One test for each scenario, which plays it in a process of its own for each of these modes.
macro_rules! scenarios {
    ($($name:ident: $module:ident in $modes:expr;)*) => {
        const SCENARIOS: &[(&str, fn(&Player))] = &[$((stringify!($name), $module::$name)),*];
        $(
            #[test]
            fn $name() {
                play(stringify!($name), $modes);
            }
        )*
    };
}

scenarios! {
    pages_that_were_cached_before_a_grant_are_not_seen_after_it: reads in &Mode::ALL;
    attributes_are_asked_for_without_a_recall_and_are_those_of_the_object: sizes in &Mode::ALL;
    a_file_that_the_leaseholder_cut_ends_there: sizes in &Mode::ALL;
    bytes_beyond_a_cut_through_the_mount_are_zeros: sizes in &Mode::ALL;
    a_write_at_a_position_keeps_what_the_leaseholder_wrote_beside_it: appends in &Mode::ALL;
    an_append_lands_at_the_end_of_the_object_although_the_kernel_gives_a_stale_offset: appends in &Mode::ALL;
    a_stale_append_of_a_whole_page_leaves_a_wrong_page_that_only_an_invalidation_mends: appends in &Mode::CACHED;
    a_store_into_a_page_that_a_stale_append_left_destroys_what_the_leaseholder_wrote: appends in &Mode::CACHED;
    without_a_page_cache_a_stale_append_of_a_whole_page_is_harmless: appends in &[Mode::Direct];
    a_look_at_the_attributes_before_makes_an_append_right: appends in &Mode::ALL;
    an_append_through_a_file_opened_after_the_object_grew_is_right: appends in &Mode::ALL;
    an_append_by_the_flag_of_a_single_write_overwrites_what_the_leaseholder_added: appends in &Mode::ALL;
    a_grant_writes_dirty_pages_of_mappings_and_takes_them_away: mappings in &Mode::ALL;
    a_store_through_an_old_mapping_recalls_and_keeps_what_the_leaseholder_wrote: mappings in &Mode::ALL;
    mappings_of_all_kinds_show_what_the_leaseholder_wrote: mappings in &Mode::ALL;
    a_mapping_ends_at_the_stale_end_until_somebody_looks: mappings in &Mode::ALL;
    what_is_sent_and_copied_from_the_mount_is_what_the_leaseholder_wrote: reads in &Mode::ALL;
    what_is_sent_or_copied_ends_at_the_stale_end_until_somebody_looks: reads in &Mode::ALL;
    a_read_never_shows_an_older_generation_than_was_written_under_a_lease_that_lived: race in &Mode::ALL;
}
