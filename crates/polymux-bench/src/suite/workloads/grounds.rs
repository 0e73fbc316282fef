//! Grounds that several workloads run on.

use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::Scale;
use crate::throttled::Format;

/// A ground in each format; the quick form has ext4 alone.
pub fn of_each_format(ground: impl Fn(Format) -> Ground, scale: Scale) -> Vec<Ground> {
    match scale {
        Scale::Quick => vec![ground(Format::Ext4)],
        Scale::Full => vec![ground(Format::Ext4), ground(Format::Xfs)],
    }
}

/// Devices without limits in each format: one, or two for a file that is split.
pub fn in_memory(tier: Tier, scale: Scale) -> Vec<Ground> {
    let ground = |format| match tier {
        Tier::Split => Ground::two(Kind::Memory, Kind::Memory, format),
        Tier::First | Tier::Second => Ground::one(Kind::Memory, format),
    };
    of_each_format(ground, scale)
}

/// Each device whose bandwidth is limited; the quick form has one of them.
pub fn throttled(scale: Scale) -> Vec<Ground> {
    match scale {
        Scale::Quick => vec![Ground::one(Kind::Middle, Format::Xfs)],
        Scale::Full => vec![
            Ground::one(Kind::Fast, Format::Ext4),
            Ground::one(Kind::Middle, Format::Xfs),
            Ground::one(Kind::Slow, Format::Ext4),
        ],
    }
}
