//! Read-ahead of files on several tiers.

mod common;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use common::{Hook, HookedTier, Verdict, Volume, bytes_on, create, pattern, read_at, write_all};
use polymux_fs::{HandleId, PolicyKind};
use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::sync::Mutex;

const MIB: u64 = 1 << 20;
const TIERS: [&str; 3] = ["fast", "middle", "slow"];
/// Where the file is spread from.
const SPREAD_FROM: u64 = 16 * MIB;
const SIZE: u64 = 56 * MIB;

/// A request to a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    Begin(Range<u64>),
    Read(Range<u64>),
}

/// All that it was asked for, in order.
#[derive(Default)]
struct Asked(Mutex<Vec<Request>>);

impl Hook for Asked {
    fn before_read_ahead(&self, _object: ObjectRef, offset: u64, length: u64) {
        self.0.lock().push(Request::Begin(offset..offset + length));
    }

    fn before_read(&self, _object: ObjectRef, offset: u64, length: usize) -> Verdict {
        self.0.lock().push(Request::Read(offset..offset + length as u64));
        Verdict::Pass
    }
}

impl Asked {
    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.0.lock())
    }

    /// The requests to begin work since the last call.
    fn take_begun(&self) -> Vec<Range<u64>> {
        let begun = |request| match request {
            Request::Begin(range) => Some(range),
            Request::Read(_) => None,
        };
        self.take().into_iter().filter_map(begun).collect()
    }
}

/// A file that begins on the fastest tier and is spread from there on.
fn volume_with_file() -> (Volume, HandleId, Vec<Arc<Asked>>) {
    let asked: Vec<Arc<Asked>> = TIERS.iter().map(|_| Arc::default()).collect();
    let hook = |tier: usize| Arc::clone(&asked[tier]);
    let volume = Volume::wrapping(&[256 * MIB; 3], |tier, inner| Arc::new(HookedTier::new(inner, hook(tier))));
    let fs = volume.fs();
    let (ino, handle) = create(fs, "f");
    let content = pattern(5, usize::try_from(SIZE).expect("small"));
    let (first, rest) = content.split_at(usize::try_from(SPREAD_FROM).expect("small"));
    write_all(fs, handle, 0, first).expect("written");
    assert_eq!(bytes_on(fs, ino, "fast"), SPREAD_FROM);
    fs.set_steering(PolicyKind::Spread, &[]).expect("taken");
    write_all(fs, handle, SPREAD_FROM, rest).expect("written");
    assert!(TIERS.iter().all(|tier| bytes_on(fs, ino, tier) > 4 * RANGE_NODE_SIZE));
    (volume, handle, asked)
}

fn read(volume: &Volume, handle: HandleId, range: Range<u64>) {
    for offset in range.step_by(128 << 10) {
        read_at(volume.fs(), handle, offset, 128 << 10).expect("read");
    }
}

/// A device without data of a reader's next range would idle now, and be waited for later.
#[test]
fn tiers_that_have_nothing_of_what_comes_next_begin_with_what_comes_then() {
    let (volume, handle, asked) = volume_with_file();
    read(&volume, handle, 0..3 * MIB / 2);
    assert!(!asked[0].take_begun().is_empty(), "it is a stream");
    assert_eq!((asked[1].take_begun(), asked[2].take_begun()), (vec![], vec![]), "which may end soon");
    read(&volume, handle, 3 * MIB / 2..4 * MIB);
    assert!(asked[0].take_begun().iter().all(|range| range.end <= SPREAD_FROM), "the fast one has enough to do");
    for tier in &asked[1..] {
        let begun = tier.take_begun();
        let first = begun.first().expect("it begins").clone();
        assert_eq!(first.end - first.start, RANGE_NODE_SIZE, "with one range");
        assert!(begun.iter().all(|range| *range == first), "{begun:?}");
    }
}

#[test]
fn what_a_stream_reads_was_begun_as_a_whole_before() {
    let (volume, handle, asked) = volume_with_file();
    read(&volume, handle, 0..SIZE);
    for (tier, asked) in TIERS.iter().zip(&asked) {
        let (mut begun, mut reads) = (HashSet::new(), 0);
        for request in asked.take() {
            match request {
                Request::Begin(range) => begun.extend(range.step_by(4096)),
                // The first ones make it a stream.
                Request::Read(range) if range.start < MIB => {}
                Request::Read(range) => {
                    reads += 1;
                    assert!(range.step_by(4096).all(|byte| begun.contains(&byte)), "unexpected on {tier}");
                }
            }
        }
        assert!(reads > 0, "{tier} has a part of it");
    }
}

/// The devices work side by side: the second one has begun when the first one is waited for.
#[test]
fn the_later_parts_of_a_read_are_begun_before_the_first_is_waited_for() {
    let log: Arc<Mutex<Vec<(usize, Request)>>> = Arc::default();
    struct Logged(usize, Arc<Mutex<Vec<(usize, Request)>>>);
    impl Hook for Logged {
        fn before_read_ahead(&self, _object: ObjectRef, offset: u64, length: u64) {
            self.1.lock().push((self.0, Request::Begin(offset..offset + length)));
        }

        fn before_read(&self, _object: ObjectRef, offset: u64, length: usize) -> Verdict {
            self.1.lock().push((self.0, Request::Read(offset..offset + length as u64)));
            Verdict::Pass
        }
    }
    let volume = Volume::wrapping(&[MIB / 2, 64 * MIB], |tier, inner| {
        Arc::new(HookedTier::new(inner, Arc::new(Logged(tier, Arc::clone(&log)))))
    });
    let (ino, handle) = create(volume.fs(), "f");
    let content = pattern(7, usize::try_from(MIB).expect("small"));
    write_all(volume.fs(), handle, 0, &content).expect("written");
    let on_fast = bytes_on(volume.fs(), ino, "fast");
    assert!(on_fast > 0 && on_fast < MIB, "it lies on both tiers");
    let before = counter(&volume, "reads_of_parts");
    log.lock().clear();
    assert_eq!(read_at(volume.fs(), handle, 0, content.len()).expect("read"), content);
    let asked: Vec<_> = std::mem::take(&mut *log.lock());
    assert_eq!(asked.first(), Some(&(1, Request::Begin(on_fast..MIB))), "{asked:?}");
    assert!(asked.contains(&(0, Request::Read(0..on_fast))) && asked.contains(&(1, Request::Read(on_fast..MIB))));
    assert_eq!(counter(&volume, "reads_of_parts"), before + 1);
    log.lock().clear();
    read_at(volume.fs(), handle, 0, 4096).expect("read");
    assert!(!log.lock().iter().any(|(_, request)| matches!(request, Request::Begin(_))), "one part is only read");
}

fn counter(volume: &Volume, name: &str) -> u64 {
    let counters = volume.fs().status().expect("told").counters;
    counters.into_iter().find(|(of, _)| *of == name).map_or(0, |(_, count)| count)
}
