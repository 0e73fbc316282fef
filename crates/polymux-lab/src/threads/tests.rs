//! Each line of the printed table, and both rules on simulated devices.

use super::*;

const MB: u64 = 1_000_000;

#[test]
fn the_static_mapping_fills_the_fastest_device_first_and_shares_out_the_rest() {
    assert_eq!(Mapping::fill_fastest_first(3, &[4, 2]).threads(), [3, 0]);
    assert_eq!(Mapping::fill_fastest_first(5, &[4, 2]).threads(), [4, 1]);
    assert_eq!(Mapping::fill_fastest_first(32, &[4, 2, 2]).threads(), [16, 8, 8]);
    assert_eq!(Mapping::fill_fastest_first(7, &[0, 0]).threads(), [0, 0]);
    let mapping = Mapping::fill_fastest_first(5, &[4, 2]);
    let devices: Vec<Option<usize>> = (0..6).map(|thread| mapping.device_of(thread)).collect();
    assert_eq!(devices, [Some(0), Some(0), Some(0), Some(0), Some(1), None]);
}

#[test]
fn half_as_much_more_or_less_counts_as_a_change() {
    let changes =
        [(100, 150), (100, 149), (100, 51), (100, 50), (0, 1), (0, 0)].map(|(one, two)| Change::between(one, two));
    let expected = [Change::Improved, Change::Same, Change::Same, Change::Dropped, Change::Improved, Change::Same];
    assert_eq!(changes, expected);
}

/// One test for each line of the printed algorithm that decides something; `None` stands for any global change.
macro_rules! lines {
    ($($name:ident: $state:ident, $high:ident, $global:expr => $next:ident, $step:ident;)+) => {
        $(#[test]
        fn $name() {
            let globals: Option<Change> = $global;
            for global in [Change::Improved, Change::Dropped, Change::Same] {
                if globals.is_none_or(|of| of == global) {
                    let found = printed_step(PairState::$state, Change::$high, global);
                    assert_eq!(found, (PairState::$next, PairStep::$step), "{global:?}");
                }
            }
        })+
    };
}

lines! {
    line_10_low_to_high_goes_on_while_the_fast_device_improves: LowToHigh, Improved, None => LowToHigh, ToHigh;
    line_12_low_to_high_turns_where_the_fast_device_drops: LowToHigh, Dropped, None => HighToLow, ToLow;
    line_15_low_to_high_is_stable_otherwise: LowToHigh, Same, None => Stable, None;
    line_18_high_to_low_goes_on_while_the_fast_device_improves: HighToLow, Improved, None => HighToLow, ToLow;
    line_20_high_to_low_turns_where_the_fast_device_drops: HighToLow, Dropped, None => LowToHigh, ToHigh;
    line_23_high_to_low_is_stable_otherwise: HighToLow, Same, None => Stable, None;
    line_26_stable_does_nothing_where_the_fast_device_improves: Stable, Improved, None => Stable, None;
    line_28_stable_begins_again_where_the_fast_device_drops: Stable, Dropped, None => LowToHigh, None;
    line_30_stable_is_reset_where_all_together_drop: Stable, Same, Some(Change::Dropped) => Stable, Reset;
    stable_stays_where_nothing_changes: Stable, Same, Some(Change::Same) => Stable, None;
}

/// Devices of these bandwidths, each thread of which writes as much as `thread` at most.
struct Devices {
    bandwidths: Vec<u64>,
    thread: u64,
}

impl Devices {
    fn measure(&self, mapping: &Mapping) -> Vec<u64> {
        let of = |(threads, bandwidth): (&u32, &u64)| (u64::from(*threads) * self.thread).min(*bandwidth);
        mapping.threads().iter().zip(&self.bandwidths).map(of).collect()
    }

    fn sum(&self) -> u64 {
        self.bandwidths.iter().sum()
    }
}

/// Eight threads, all of which were mapped to the fast device, which four saturate.
fn all_on_the_fast_one() -> (Mapping, Devices) {
    (Mapping::fill_fastest_first(8, &[8, 0]), Devices { bandwidths: vec![120 * MB, 56 * MB], thread: 28 * MB })
}

#[test]
fn the_printed_rule_is_stable_after_its_first_epochs_and_leaves_a_device_idle() {
    let (mapping, devices) = all_on_the_fast_one();
    let mut printed = Printed::new(mapping);
    for _ in 0..100 {
        let measured = devices.measure(printed.mapping());
        printed.end_epoch(&measured);
    }
    assert_eq!((printed.state(0), printed.mapping().threads()), (PairState::Stable, [8, 0].as_slice()));
    let reached: u64 = devices.measure(printed.mapping()).iter().sum();
    assert!(reached * 100 < devices.sum() * 70, "{reached}");
}

#[test]
fn the_corrected_rule_reaches_the_sum_from_there_and_from_a_device_that_was_cut() {
    let (mapping, mut devices) = all_on_the_fast_one();
    let mut climb = Climb::new(mapping);
    let run = |climb: &mut Climb, devices: &Devices, epochs: usize| -> u64 {
        let mut best = 0;
        for _ in 0..epochs {
            let measured = devices.measure(climb.mapping());
            best = measured.iter().sum();
            climb.end_epoch(&measured);
        }
        best
    };
    run(&mut climb, &devices, 20);
    let reached = run(&mut climb, &devices, 1);
    assert!(reached * 100 >= devices.sum() * 95, "{reached}: {:?}", climb.mapping());
    // Ten epochs are two seconds.
    devices.bandwidths[0] = 12 * MB;
    run(&mut climb, &devices, 20);
    let reached = run(&mut climb, &devices, 1);
    assert!(reached * 100 >= devices.sum() * 90, "{reached} of {}: {:?}", devices.sum(), climb.mapping());
}

#[test]
fn no_step_makes_or_loses_a_thread() {
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let initial = Mapping::fill_fastest_first(9, &[2, 3, 1]);
    let (mut printed, mut climb) = (Printed::new(initial), Climb::new(initial));
    for _ in 0..10_000 {
        let measured = [next(500), next(300), next(100)];
        printed.end_epoch(&measured);
        climb.end_epoch(&measured);
        assert_eq!(printed.mapping().threads().iter().sum::<u32>(), 9);
        assert_eq!(climb.mapping().threads().iter().sum::<u32>(), 9);
    }
}
