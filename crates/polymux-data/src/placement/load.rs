//! How busy the tiers are, in the words of the policies.

use polymux_policy::TierFill;
use polymux_records::parts::SaturationSource;
use polymux_volume::space::TierHandle;

use crate::placement::Placement;

impl Placement {
    pub(super) fn fill_load(&self, tier: &TierHandle, fill: &mut TierFill) {
        let now = self.volume.clock.elapsed();
        let load = tier.speed.schedule.load(now);
        let percent = |rate: u64, best: u64| {
            u16::try_from(rate.saturating_mul(100).checked_div(best).unwrap_or(0).min(100)).expect("at most 100")
        };
        fill.read_load_percent = percent(load.foreground_read, load.read_best);
        fill.write_load_percent = percent(load.foreground_written, load.written_best);
        fill.read_latency_us = u32::try_from(tier.speed.read_lane.small_service_us_lately(now)).unwrap_or(u32::MAX);
        fill.write_latency_us = load.latency_us_p50;
        fill.outstanding_bytes = tier.bytes_behind();
        fill.write_bytes_per_second = tier.speed.write_lane.state(now).bytes_per_second;
        let is_assumed = self.volume.options.saturation == SaturationSource::Assumed;
        if tier.speed.saturation.note(fill.outstanding_bytes, fill.write_bytes_per_second, now) || is_assumed {
            fill.flags |= TierFill::SATURATED_BY_WRITERS;
        }
    }
}
