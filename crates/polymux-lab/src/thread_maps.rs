//! Which tier each writing thread is mapped to, for the policies `poly-static`, `poly-dynamic` and `poly-climb` (P7, P11).
//!
//! Invariants:
//! * A thread is the one that began the request as the kernel says ([`StreamId`]); write-back by the page cache for no particular
//!   thread counts as one thread for each file.
//! * Threads are numbered in the order in which they came. A thread that asked for no range for [`THREAD_GONE`] has ended. With each
//!   thread that comes or ends the mapping begins anew with the static one (P7).
//! * Files that may go to other tiers have a mapping of their own.
//! * An epoch (P11: 200 ms) ends at the first query after it is over; measured are the bytes that the devices took in it, so that a
//!   rule sees no bytes that only lie in memory.
//! * One small lock, a leaf, taken twice for each range: before its writer waits for space, and when it is given to a tier.

use std::collections::HashMap;
use std::time::Duration;

use polymux_policy::{Device, WriterMap};
use polymux_types::sync::Mutex;
use polymux_types::{StreamId, TierId};

use crate::threads::{Mapping, ThreadController, ThreadRule};

/// Length of an epoch (P11).
const EPOCH: Duration = Duration::from_millis(200);

/// A thread that began no range for so long has ended: longer than a writer is held up for space.
const THREAD_GONE: Duration = Duration::from_secs(10);

/// Threads that are distinguished; those beyond share the places of the others.
const THREADS_MAX: usize = 4096;

#[derive(Debug)]
struct Running {
    controller: ThreadController,
    devices: Vec<Device>,
    epoch_began: Duration,
}

/// The threads that write to the same tiers.
#[derive(Debug, Default)]
struct ThreadMap {
    /// Each with when it last asked, in the order in which they came.
    threads: Vec<(StreamId, Duration)>,
    running: Option<Running>,
}

/// The tiers that files may go to.
type Scope = Vec<TierId>;

/// Scopes that are distinguished; beyond these all begin anew.
const SCOPES_MAX: usize = 64;

/// The threads of one policy on one volume.
#[derive(Debug)]
pub struct ThreadMaps {
    rule: ThreadRule,
    maps: Mutex<HashMap<Scope, ThreadMap>>,
}

impl ThreadMaps {
    /// No threads, which will be mapped by this rule.
    #[must_use]
    pub fn new(rule: ThreadRule) -> Self {
        Self { rule, maps: Mutex::default() }
    }
}

impl WriterMap for ThreadMaps {
    fn tier_for_range(&self, writer: StreamId, devices: &[Device], now: Duration) -> Option<TierId> {
        let scope = devices.iter().map(|device| device.tier).collect();
        let mut maps = self.maps.lock();
        if maps.len() >= SCOPES_MAX && !maps.contains_key(&scope) {
            maps.clear();
        }
        maps.entry(scope).or_default().tier_for_range(self.rule, writer, devices, now)
    }

    fn present_tier(&self, tiers: &[TierId], writer: StreamId) -> Option<TierId> {
        self.maps.lock().get(tiers)?.present_tier(writer)
    }

    fn writers_of_tiers(&self, tiers: &[TierId]) -> Vec<(TierId, u32)> {
        let maps = self.maps.lock();
        let Some(running) = maps.get(tiers).and_then(|map| map.running.as_ref()) else { return Vec::new() };
        let tiers = running.devices.iter().map(|device| device.tier);
        tiers.zip(running.controller.mapping().threads().iter().copied()).collect()
    }
}

impl ThreadMap {
    fn tier_for_range(
        &mut self,
        rule: ThreadRule,
        thread: StreamId,
        devices: &[Device],
        now: Duration,
    ) -> Option<TierId> {
        let count_before = self.threads.len();
        self.threads.retain(|(of, seen)| *of == thread || now.saturating_sub(*seen) < THREAD_GONE);
        let count = self.threads.len();
        match self.threads.iter_mut().find(|(of, _)| *of == thread) {
            Some((_, seen)) => *seen = now,
            None if count < THREADS_MAX => self.threads.push((thread, now)),
            None => {}
        }
        // No thread comes and goes in one call: the one that asks is kept.
        let is_same = count_before == self.threads.len();
        match self.running.as_mut().filter(|_| is_same) {
            Some(running) => running.end_epoch_where_it_is_over(devices, now),
            None => self.begin(rule, devices, now),
        }
        self.present_tier(thread)
    }

    fn begin(&mut self, rule: ThreadRule, devices: &[Device], now: Duration) {
        // Where of one nothing is known, nothing can be compared, and all are the same.
        let least = devices.iter().map(|device| device.bytes_per_second).min().unwrap_or(0);
        let weight =
            |device: &Device| device.bytes_per_second.saturating_add(least / 2).checked_div(least).unwrap_or(1);
        let saturating: Vec<u32> =
            devices.iter().map(|device| u32::try_from(weight(device)).unwrap_or(u32::MAX).clamp(1, 1000)).collect();
        let threads = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        let initial = Mapping::fill_fastest_first(threads, &saturating);
        let controller = ThreadController::new(rule, initial);
        self.running = Some(Running { controller, devices: devices.to_vec(), epoch_began: now });
    }

    fn present_tier(&self, thread: StreamId) -> Option<TierId> {
        let running = self.running.as_ref()?;
        let is_full = self.threads.len() >= THREADS_MAX;
        let place = self.threads.iter().position(|(of, _)| *of == thread);
        // Those who are too many share the places of the others.
        let shared = || is_full.then(|| usize::try_from(thread.0 % self.threads.len() as u64).unwrap_or(0));
        let number = u32::try_from(place.or_else(shared)?).ok()?;
        let device = running.controller.mapping().device_of(number)?;
        running.devices.get(device).map(|device| device.tier)
    }
}

impl Running {
    fn end_epoch_where_it_is_over(&mut self, devices: &[Device], now: Duration) {
        let elapsed = now.saturating_sub(self.epoch_began);
        if elapsed < EPOCH {
            return;
        }
        let per_second = |(before, after): (&Device, &Device)| {
            let bytes = u128::from(after.delivered_bytes.saturating_sub(before.delivered_bytes));
            u64::try_from(bytes * 1_000_000 / elapsed.as_micros().max(1)).unwrap_or(u64::MAX)
        };
        let measured: Vec<u64> = self.devices.iter().zip(devices).map(per_second).collect();
        self.controller.end_epoch(&measured);
        self.devices = devices.to_vec();
        self.epoch_began = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    const TIERS: [TierId; 2] = [TierId(0), TierId(1)];

    fn devices(delivered: [u64; 2]) -> Vec<Device> {
        let device = |(tier, delivered_bytes)| Device { tier: TierId(tier), delivered_bytes, bytes_per_second: 0 };
        (0..).zip(delivered).map(device).collect()
    }

    fn ask(maps: &ThreadMaps, thread: u64, delivered: [u64; 2], ms: u64) -> Option<TierId> {
        maps.tier_for_range(StreamId(thread), &devices(delivered), Duration::from_millis(ms))
    }

    #[test]
    fn threads_fill_the_fastest_device_first_and_keep_theirs() {
        let maps = ThreadMaps::new(ThreadRule::Fixed);
        let ask = |thread, ms| ask(&maps, thread, [0, 0], ms);
        let first: Vec<_> = (10..14).map(|thread| ask(thread, 0)).collect();
        assert_eq!(first, [0, 1, 1, 1].map(|tier| Some(TierId(tier))), "each as it comes");
        let now: Vec<_> = (10..14).map(|thread| ask(thread, 10)).collect();
        assert_eq!(now, [0, 0, 1, 1].map(|tier| Some(TierId(tier))), "when all are there");
        assert_eq!(now, (10..14).map(|thread| ask(thread, 2000)).collect::<Vec<_>>());
        assert_eq!(maps.writers_of_tiers(&TIERS), [(TierId(0), 2), (TierId(1), 2)]);
        assert_eq!(maps.present_tier(&TIERS, StreamId(13)), Some(TierId(1)));
        assert_eq!(maps.present_tier(&TIERS, StreamId(99)), None);
    }

    #[test]
    fn a_thread_that_ended_makes_room_for_the_others() {
        let maps = ThreadMaps::new(ThreadRule::Fixed);
        let ask = |thread, ms| ask(&maps, thread, [0, 0], ms);
        assert_eq!((ask(1, 0), ask(2, 0)), (Some(TierId(0)), Some(TierId(1))));
        assert_eq!(ask(2, 9900), Some(TierId(1)));
        assert_eq!(ask(2, 10_100), Some(TierId(0)), "it is the only one");
    }

    /// Devices of 120 and 60 MB/s with eight writers, of which each has as much as its share of the device; all epochs long.
    fn threads_after(rule: ThreadRule, epochs: u64) -> Vec<u32> {
        let maps = ThreadMaps::new(rule);
        let mut delivered = [0; 2];
        for epoch in 0..epochs {
            for thread in 0..8 {
                ask(&maps, thread, delivered, epoch * 201);
            }
            // A thread does 25 MB/s, so that four of them do not saturate the first device and three do the second.
            let threads = maps.writers_of_tiers(&TIERS);
            for (device, limit) in [120, 60].into_iter().enumerate() {
                delivered[device] += (u64::from(threads[device].1) * 25).min(limit) * MB / 5;
            }
        }
        maps.writers_of_tiers(&TIERS).into_iter().map(|(_, threads)| threads).collect()
    }

    #[test]
    fn the_printed_rule_stays_where_it_began_and_the_climb_finds_what_is_best() {
        assert_eq!(threads_after(ThreadRule::Fixed, 60), [4, 4]);
        assert_eq!(threads_after(ThreadRule::Printed, 60), [4, 4]);
        let climbed = threads_after(ThreadRule::Climb, 60);
        assert!(climbed[0] >= 5, "{climbed:?}");
    }

    #[test]
    fn a_device_that_is_twice_as_fast_gets_twice_as_many_threads() {
        let maps = ThreadMaps::new(ThreadRule::Fixed);
        let device = |tier, bytes_per_second| Device { tier: TierId(tier), delivered_bytes: 0, bytes_per_second };
        for (known, threads) in [([120 * MB, 56 * MB], [6, 3]), ([120 * MB, 0], [5, 4])] {
            let devices = [device(0, known[0]), device(1, known[1])];
            for thread in 0..9 {
                maps.tier_for_range(StreamId(thread), &devices, Duration::ZERO);
            }
            let found = maps.writers_of_tiers(&TIERS);
            assert_eq!(found.iter().map(|(_, threads)| *threads).collect::<Vec<_>>(), threads, "{known:?}");
            maps.maps.lock().clear();
        }
    }

    #[test]
    fn files_that_may_go_to_other_tiers_disturb_nobody() {
        let maps = ThreadMaps::new(ThreadRule::Fixed);
        for round in 0..100 {
            ask(&maps, 1, [0, 0], round);
            ask(&maps, 2, [0, 0], round);
            let alone = [Device { tier: TierId(1), delivered_bytes: 0, bytes_per_second: 0 }];
            let now = Duration::from_millis(round);
            assert_eq!(maps.tier_for_range(StreamId(3), &alone, now), Some(TierId(1)));
        }
        assert_eq!(maps.writers_of_tiers(&TIERS), [(TierId(0), 1), (TierId(1), 1)]);
        assert_eq!(maps.present_tier(&TIERS, StreamId(3)), None);
        assert_eq!(maps.present_tier(&TIERS[1..], StreamId(3)), Some(TierId(1)));
    }

    #[test]
    fn threads_beyond_those_that_are_told_apart_share_places_and_disturb_nobody() {
        let maps = ThreadMaps::new(ThreadRule::Fixed);
        for thread in 0..THREADS_MAX as u64 + 10 {
            assert!(ask(&maps, thread + 1, [0, 0], 0).is_some(), "{thread}");
        }
        let half = u32::try_from(THREADS_MAX / 2).unwrap();
        assert_eq!(maps.writers_of_tiers(&TIERS), [(TierId(0), half), (TierId(1), half)]);
    }
}
