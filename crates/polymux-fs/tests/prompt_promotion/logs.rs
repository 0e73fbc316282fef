//! Files whose small writes programs wait for, as those of a log are (docs/design/0034).

use super::*;

/// Appends a block and waits for it, as a log does, `count` times.
fn append_and_sync(volume: &Volume, handle: HandleId, from: u64, count: u64) {
    for number in 0..count {
        write_all(volume.fs(), handle, from + number * 4096, &pattern(7, 4096)).expect("written");
        volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
        volume.clock.advance(Duration::from_millis(1));
        volume.fs().step();
        volume.fs().move_step();
    }
}

#[test]
fn a_log_that_is_overwritten_and_synced_on_a_slower_tier_moves_up_as_a_whole() {
    let volume = tested(Promotion::Prompt).volume;
    let (ino, handle) = create(volume.fs(), "log");
    write_all(volume.fs(), handle, 0, &pattern(2, 8 << 20)).expect("written");
    move_to_slow(&volume, ino, None);
    assert_eq!(bytes_on(volume.fs(), ino, "fast"), 0);
    // After a second and some three of its four nodes are written; the last one is there before it is needed.
    append_and_sync(&volume, handle, 0, 1300);
    assert_eq!(bytes_on(volume.fs(), ino, "fast"), 8 << 20);
}

#[test]
fn the_front_of_a_log_whose_end_is_on_the_faster_tier_stays_where_it_is() {
    let volume = tested(Promotion::Prompt).volume;
    let (ino, handle) = create(volume.fs(), "log");
    write_all(volume.fs(), handle, 0, &pattern(2, 8 << 20)).expect("written");
    move_to_slow(&volume, ino, Some(0..3 * NODE));
    assert_eq!(bytes_on(volume.fs(), ino, "fast"), NODE);
    (0..20).for_each(|_| append_and_sync(&volume, handle, 3 * NODE, 128));
    assert_eq!((bytes_on(volume.fs(), ino, "fast"), volume.counter("bytes_promoted_at_once")), (NODE, 0));
}

/// Bytes of a log before it grows, and of its records: none ends where a range node does.
const GROWS_FROM: u64 = 1 << 20;
const RECORD: u64 = 3000;

/// Lets a log that began on the slower tier, or on the faster one, grow by records that are synced, after `prepare`. Returns how many bytes of it are on
/// the slower one then, and how often a log went on elsewhere.
fn grow_log(began_on: &str, volume: &Volume, records: u64, prepare: impl FnOnce(&Volume, Ino)) -> (u64, u64) {
    let (ino, handle) = create(volume.fs(), "log");
    write_all(volume.fs(), handle, 0, &pattern(2, 1 << 20)).expect("written");
    if began_on == "slow" {
        move_to_slow(volume, ino, None);
    }
    prepare(volume, ino);
    let record = |number: u64| pattern(u8::try_from(number % 30).expect("small"), 3000);
    // Without work in the background, so that nothing moves.
    for number in 0..records {
        write_all(volume.fs(), handle, GROWS_FROM + number * RECORD, &record(number)).expect("written");
        volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    }
    for number in [0, 349, 350, records - 1] {
        let found = read_at(volume.fs(), handle, GROWS_FROM + number * RECORD, 3000).expect("read");
        assert!(found == record(number), "record {number}");
    }
    (bytes_on(volume.fs(), ino, "slow"), volume.counter("tail_switches_of_logs"))
}

/// Fills the faster tier to above its high mark.
fn fill_fast(volume: &Volume, mib: usize) {
    let (ballast, handle) = create(volume.fs(), "ballast");
    write_all(volume.fs(), handle, 0, &pattern(3, mib << 20)).expect("written");
    assert!(bytes_on(volume.fs(), ballast, "fast") > 55 * MIB);
}

#[test]
fn a_log_that_began_on_the_slower_tier_goes_on_on_the_faster_one_from_its_next_range_node() {
    let volume = || tested(Promotion::Prompt).volume;
    assert_eq!(grow_log("slow", &volume(), 1700, |_, _| ()), (NODE, 1));
    // Also where both tiers are known by their syncs.
    let (volume, services) = two_tiers([64 * MIB, 256 * MIB], [100, 100], Promotion::Prompt);
    begin_service(&volume, &services);
    (services.iter().zip([50, 1000])).for_each(|(service, us)| service.syncs_take_us.store(us, Ordering::Relaxed));
    assert_eq!(grow_log("slow", &volume, 1700, |_, _| ()), (NODE, 1));
}

#[test]
fn a_log_goes_on_where_it_is_if_that_is_asked_for_or_the_faster_tier_has_no_room_for_it() {
    let all = GROWS_FROM + 1700 * RECORD;
    let volume = |promotion| tested(promotion).volume;
    assert_eq!(grow_log("slow", &volume(Promotion::Polite), 1700, |_, _| ()), (all, 0));
    let pin = |volume: &Volume, ino| volume.fs().pin_to_tier(ino, Some("slow")).expect("pinned");
    assert_eq!(grow_log("slow", &volume(Promotion::Prompt), 1700, pin), (all, 0));
    assert_eq!(grow_log("slow", &volume(Promotion::Prompt), 1700, |volume, _| fill_fast(volume, 61)), (all, 0));
}

#[test]
fn a_log_goes_on_where_it_is_if_every_tier_is_above_its_mark() {
    let (volume, _services) = two_tiers([64 * MIB; 2], [100, 1000], Promotion::Prompt);
    let fill_both = |volume: &Volume, _| {
        fill_fast(volume, 61);
        let (ballast, handle) = create(volume.fs(), "other ballast");
        write_all(volume.fs(), handle, 0, &pattern(3, 58 << 20)).expect("written");
        assert!(bytes_on(volume.fs(), ballast, "slow") > 57 * MIB);
    };
    assert_eq!(grow_log("slow", &volume, 500, fill_both), (GROWS_FROM + 500 * RECORD, 0));
}

#[test]
fn a_log_on_the_faster_tier_stays_there_above_its_high_mark() {
    for reads_take_us in [[100, 1000], [100, 100]] {
        let volume = tested_on(reads_take_us, Promotion::Prompt).volume;
        assert_eq!(grow_log("fast", &volume, 500, |volume, _| fill_fast(volume, 59)), (0, 0));
    }
}

/// Makes logs in a directory while the faster tier is full of something else up to its high mark. Returns how many bytes of each lie there.
fn bytes_of_logs_on_fast(promotion: Promotion) -> Vec<u64> {
    let volume = tested(promotion).volume;
    let (ballast, handle) = create(volume.fs(), "ballast");
    write_all(volume.fs(), handle, 0, &pattern(3, 58 << 20)).expect("written");
    assert_eq!(bytes_on(volume.fs(), ballast, "fast"), 58 << 20);
    let directory = make_directory(volume.fs(), "logs");
    (0..4)
        .map(|number| {
            let (ino, handle) = create_in(volume.fs(), directory, &format!("log-{number}"));
            // It gets its space first, and is a log afterwards.
            write_all(volume.fs(), handle, 0, &pattern(4, 64 << 10)).expect("written");
            let on_fast = bytes_on(volume.fs(), ino, "fast");
            (0..8).for_each(|block| {
                write_all(volume.fs(), handle, block * 4096, &pattern(5, 4096)).expect("written");
                volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
            });
            close(volume.fs(), handle).expect("closed");
            on_fast
        })
        .collect()
}

#[test]
fn logs_of_a_directory_that_had_some_begin_on_the_faster_tier_although_it_is_above_its_mark() {
    assert_eq!(bytes_of_logs_on_fast(Promotion::Prompt), [0, 0, 64 << 10, 64 << 10]);
    assert_eq!(bytes_of_logs_on_fast(Promotion::Polite), [0; 4]);
}

#[test]
fn segments_of_a_log_that_are_full_within_a_second_stay_on_the_slower_tier_until_they_are_used_for_longer() {
    let volume = tested(Promotion::Prompt).volume;
    let make = |number| {
        let (ino, handle) = create(volume.fs(), &format!("segment-{number}"));
        write_all(volume.fs(), handle, 0, &pattern(2, 2 << 20)).expect("written");
        // From now on it is overwritten.
        close(volume.fs(), handle).expect("closed");
        move_to_slow(&volume, ino, None);
        (ino, volume.fs().open(&Caller::root(), ino, read_write()).expect("opened"))
    };
    let segments: Vec<_> = (0..24).map(make).collect();
    let promoted = || volume.counter("bytes_promoted_at_once");
    for _ in 0..3 {
        segments.iter().for_each(|(_, handle)| append_and_sync(&volume, *handle, 0, 500));
    }
    assert_eq!(promoted(), 0);
    let (ino, handle) = segments.iter().find(|(ino, _)| bytes_on(volume.fs(), *ino, "slow") > 0).expect("one stayed");
    (0..8).for_each(|_| append_and_sync(&volume, *handle, 0, 500));
    assert_eq!((promoted(), bytes_on(volume.fs(), *ino, "slow")), (2 << 20, 0));
}

/// Lets a log on the slower tier go round, while nothing moves, syncs take so long on each tier, and reads are answered alike. Returns the benefit that
/// it would have on the faster one.
fn benefit_of_log(syncs_take_us: [u64; 2]) -> Option<Benefit> {
    let (volume, services) = two_tiers([64 * MIB, 256 * MIB], [50, 50], Promotion::Prompt);
    let make = |name| {
        let (ino, handle) = create(volume.fs(), name);
        write_all(volume.fs(), handle, 0, &pattern(2, 2 << 20)).expect("written");
        (ino, handle)
    };
    let (_, on_fast) = make("other");
    let (ino, on_slow) = make("log");
    move_to_slow(&volume, ino, None);
    for _ in 0..100 {
        volume.clock.advance(Duration::from_secs(1));
        volume.fs().step();
    }
    volume.fs().set_movers(MoversState::Paused);
    begin_service(&volume, &services);
    for (service, microseconds) in services.iter().zip(syncs_take_us) {
        service.syncs_take_us.store(microseconds, Ordering::Relaxed);
    }
    for handle in [on_fast, on_slow] {
        (0..300).for_each(|number| drop(read_at(volume.fs(), handle, at_random(number).0 % NODE, 4096)));
        (0..8).for_each(|_| append_and_sync(&volume, handle, 0, 512));
    }
    let explained = volume.fs().explain(ino).expect("explained");
    explained.ranges[0].benefit.as_ref().map(|(_, benefit)| *benefit)
}

/// A device with a limit of requests answers reads at once while it has time to spare, and those of an idle disk were taken for the cost of writes:
/// logs and tables that kept it at that limit had nothing to gain elsewhere.
#[test]
fn a_log_gains_from_a_tier_whose_syncs_are_faster_although_reads_are_alike() {
    let benefit = benefit_of_log([60, 350]).expect("it gains");
    assert!(benefit.is_soon(), "{benefit:?}");
    assert_eq!(benefit_of_log([300, 350]), None, "syncs take about as long");
}
