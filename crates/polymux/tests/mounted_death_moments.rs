//! The daemon dies at random moments under a load that syncs nothing: by `kill -9`, by SIGSEGV, and for want of memory in its
//! control group. After the next mount every operation that returned is there, on volumes of every kind.
//!
//! Invariants:
//! * Each writer knows the answers it received, in the memory of the test, outside the volume. At most one operation of each writer was
//!   under way when the daemon died: it may be there, or not, and of a write any part.
//! * `POLYMUX_DEATH_MOMENTS` says how often the daemon dies; `make test-death MOMENTS=500` is the long form.

#[path = "death_moments/cause.rs"]
mod cause;
#[path = "death_moments/model.rs"]
mod model;
mod mounted;
#[path = "death_moments/writer.rs"]
mod writer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cause::{Cause, MemoryGroup};
use model::Judged;
use mounted::environment::skip_where_writes_are_collected;
use mounted::native::text;
use mounted::{Plan, Random, TestVolume, is_root, one_at_a_time, skip};
use writer::Writer;

const WRITERS: u64 = 3;

/// How the bytes of open files go.
const WAYS: [&[&str]; 3] = [&[], &["-o", "passthrough=off"], &["-o", "passthrough=off,page_cache=off"]];

const POLICIES: [&str; 3] = ["hot-cold", "spread", "adaptive"];

fn moments() -> u64 {
    let chosen = std::env::var("POLYMUX_DEATH_MOMENTS").ok();
    chosen.map_or(20, |text| text.parse().expect("POLYMUX_DEATH_MOMENTS is a number"))
}

/// A volume on which nothing is flushed by itself while a test runs.
fn volume_of(policy: &str) -> Option<TestVolume> {
    let plan = Plan::anywhere().with_reserve().with_fast_capacity("48 MiB");
    let volume = TestVolume::create_with_options(&plan, "flush_interval = 60")?;
    volume.set_policy(policy);
    Some(volume)
}

/// Asks for moves of whatever files there are until `stop` is set.
fn move_about(volume: &TestVolume, stop: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let directory = volume.path().join(Writer::directory_of(random.below(WRITERS)));
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        let names: Vec<_> = entries.map(|entry| entry.path()).collect();
        if !names.is_empty() {
            let chosen = usize::try_from(random.below(names.len() as u64)).expect("an index fits");
            let tier = random.pick(&["fast", "slow"]);
            volume.polymux(["migrate", text(&names[chosen]), "--to", tier]);
        }
        std::thread::sleep(Duration::from_millis(random.below(30)));
    }
}

/// One life and death of the daemon. Returns the verdict after it.
fn round(volume: &mut TestVolume, writers: &mut [Writer], cause: Cause, random: &mut Random) -> Judged {
    let group = (cause == Cause::OutOfMemory).then(|| MemoryGroup::around(volume)).flatten();
    let stop = AtomicBool::new(false);
    let root = volume.path().to_path_buf();
    let (life_ms, seed) = (20 + random.below(350), random.next());
    std::thread::scope(|scope| {
        let workers: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| writer.work(&root, &stop))).collect();
        let mover = scope.spawn(|| move_about(volume, &stop, seed));
        std::thread::sleep(Duration::from_millis(life_ms));
        cause.strike(volume, group.as_ref());
        stop.store(true, Ordering::Relaxed);
        let ended = workers.into_iter().all(|worker| worker.join().is_ok()) & mover.join().is_ok();
        assert!(ended, "a writer gave up");
    });
    volume.wait_for_unclean_end();
    drop(group);
    volume.mount_with(WAYS[usize::try_from(random.below(3)).expect("an index")]);
    let mut judged = Judged::default();
    for writer in writers {
        judged += writer.judge(&root).unwrap_or_else(|what| panic!("after {cause:?} in {life_ms} ms: {what}"));
    }
    judged
}

fn die_at_moments(policy: &str, seed: u64, moments: u64) {
    if skip_where_writes_are_collected("what the kernel had collected is lost with the daemon") {
        return;
    }
    let Some(mut volume) = volume_of(policy) else { return };
    volume.mount();
    if !volume.has_surviving_memory() {
        return skip("there is no tmpfs for memory that outlives the daemon");
    }
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(volume.path(), number, seed)).collect();
    let causes = Cause::possible();
    let mut judged = Judged::default();
    for moment in 0..moments {
        let cause = causes[usize::try_from(moment).expect("few") % causes.len()];
        judged += round(&mut volume, &mut writers, cause, &mut random);
    }
    println!("{policy}: {moments} deaths, {judged}");
    volume.unmount();
    let checked = volume.polymux(["fsck", &volume.name]);
    assert!(checked.is_success(), "{}", checked.text());
}

#[test]
fn every_operation_that_returned_is_there_whenever_and_however_the_daemon_dies() {
    let _turn = one_at_a_time();
    if !is_root() {
        return skip("the volumes stand on loop devices");
    }
    if mounted::environment::are_supervised() {
        return skip("the death of a daemon ends no mount");
    }
    let (moments, kinds) = (moments(), POLICIES.len() as u64);
    for (number, policy) in (0..).zip(POLICIES) {
        die_at_moments(policy, 20 + number, moments / kinds + u64::from(number < moments % kinds));
    }
}
