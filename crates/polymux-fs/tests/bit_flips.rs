//! Single wrong bits in everything that a volume keeps about its files, of volumes that a crash left and of those that were
//! unmounted in order.
//!
//! Invariants:
//! * The volume has the real store with a second copy and two directories as tiers. Everything in it was synced, and the copy
//!   has it. For each flip one bit is turned in an image of its own.
//! * With the copy in place one of these holds, or the flip is a violation: every file is there and right, and a volume that
//!   starts from the copy has them, too; or the damage is reported, the report names `--from-copy`, and doing that brings back
//!   every file. Where the flip was in the copy, the volume is whole.
//! * Where the copy is away at the mount and comes back during it, the copy is whole afterwards: current again because nothing
//!   was lost, or untouched because something was, at this mount and at the next.
//! * Without a copy the damage is reported, with `polymux rebuild` as the way out, or nothing is lost. The last flush alone may
//!   look like the torn tail of a power failure (docs/design/0022).
//!
//! `POLYMUX_BIT_FLIPS=N` (by `make test-bit-flips`) tries N flips.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "bit_flips/image.rs"]
mod image;
#[path = "bit_flips/judge.rs"]
mod judge;
#[path = "bit_flips/stand.rs"]
mod stand;

use image::{Random, Stop, flip};
use judge::Outcome;
use stand::Stand;

/// Flips of the short form.
const FLIPS: u64 = 60;

/// Whether the second copy is there when the volume with the wrong bit is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Copy {
    There,
    Away,
    Without,
}

fn flips() -> u64 {
    let wanted = std::env::var("POLYMUX_BIT_FLIPS").ok();
    wanted.map_or(FLIPS, |wanted| wanted.parse().expect("POLYMUX_BIT_FLIPS is a number"))
}

/// Where a bit is flipped, and where the copy is meanwhile: each kind of file as often, however many tables there are; the
/// log of the store most often.
const KINDS: [(&str, Copy); 12] = [
    ("store/log", Copy::There),
    ("store/part", Copy::There),
    ("store/log", Copy::Away),
    ("copy/", Copy::There),
    ("fast/", Copy::There),
    ("store/log", Copy::Without),
    ("store/part", Copy::Away),
    ("store/log", Copy::There),
    ("slow/", Copy::There),
    ("store/part", Copy::Without),
    ("store/part", Copy::There),
    ("store/log", Copy::Away),
];

fn campaign(stop: Stop, seed: u64) {
    let stand = Stand::new(stop);
    let targets = stand.targets();
    let mut random = Random(seed);
    let mut outcomes: BTreeMap<(Copy, Outcome), u64> = BTreeMap::new();
    let mut violations = Vec::new();
    for number in 0..flips() / 2 {
        let (kind, copy) = KINDS[usize::try_from(number).expect("a count") % KINDS.len()];
        let of_kind: Vec<&PathBuf> =
            targets.iter().filter(|path| path.to_str().is_some_and(|path| path.starts_with(kind))).collect();
        let target = of_kind[random.below(of_kind.len())];
        let (at, bit) = flip(&stand.lay_out().join(target), &mut random);
        let outcome = match copy {
            Copy::There => judge::with_copy(&stand, target),
            Copy::Away => judge::with_copy_away(&stand),
            Copy::Without => judge::without_copy(&stand, target),
        };
        match outcome {
            Ok(outcome) => *outcomes.entry((copy, outcome)).or_default() += 1,
            Err(violation) => {
                violations.push(format!("{} byte {at} bit {bit}, copy {copy:?}: {violation}", target.display()));
            }
        }
    }
    println!("{stop:?}: {outcomes:?} of {} files", targets.len());
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// Zeros the end of the log of an image, as a device does that lost it.
fn lose_tail(image: &Path, bytes: usize) {
    let path = image.join("store/log");
    let mut log = fs::read(&path).expect("the log is read");
    let used = log.iter().rposition(|byte| *byte != 0).expect("the log holds something");
    log[used.saturating_sub(bytes).next_multiple_of(64)..].fill(0);
    fs::write(&path, log).expect("the log is written");
}

#[test]
fn a_wrong_bit_of_a_volume_that_a_crash_left_loses_nothing_without_a_word() {
    campaign(Stop::Crash, 1);
}

#[test]
fn a_wrong_bit_of_a_volume_that_was_unmounted_loses_nothing_without_a_word() {
    campaign(Stop::Unmount, 2);
}

#[test]
fn the_campaign_notices_a_loss_without_a_word() {
    let stand = Stand::new(Stop::Crash);
    let image = stand.lay_out();
    // The result of a log that takes damage for its end, and of a copy that is made anew from the rest.
    fs::remove_dir_all(image.join("copy")).expect("the copy goes");
    lose_tail(image, 3000);
    let violation = judge::with_copy(&stand, Path::new("store/log")).expect_err("files are lost");
    assert!(violation.contains("lost without a word"), "{violation}");
}

#[test]
fn the_campaign_notices_a_copy_that_is_not_whole_beside_a_whole_volume() {
    let stand = Stand::new(Stop::Unmount);
    let table = stand.targets().into_iter().find(|path| path.starts_with("copy/part0/tables"));
    let table = stand.lay_out().join(table.expect("the copy has tables"));
    let mut bytes = fs::read(&table).expect("a table is read");
    bytes[40] ^= 1;
    fs::write(&table, bytes).expect("a table is written");
    let violation = judge::with_copy(&stand, Path::new("store/log")).expect_err("the copy is no copy");
    assert!(violation.contains("its copy is not"), "{violation}");
}

#[test]
fn a_copy_that_was_away_while_the_store_lost_its_tail_is_kept() {
    let stand = Stand::new(Stop::Crash);
    lose_tail(stand.lay_out(), 3000);
    assert_eq!(judge::with_copy_away(&stand), Ok(Outcome::CopyRefused));
}
