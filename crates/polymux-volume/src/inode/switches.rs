//! Tiers that a durable record may still name as the size authority of a file.

use std::sync::atomic::Ordering;

use polymux_types::TierId;
use smallvec::SmallVec;

use super::{AwaitedSwitch, FileState};

impl FileState {
    /// Notes that a tier is no longer recorded as the size authority of the file once a transaction is durable, and the byte from
    /// which other tiers may have the file.
    pub fn await_switch(&self, switch: AwaitedSwitch) {
        let mut switches = self.spreading.switches.lock();
        match switches.iter_mut().find(|earlier| earlier.tier == switch.tier) {
            Some(earlier) => {
                earlier.from = earlier.from.min(switch.from);
                earlier.sequence = earlier.sequence.max(switch.sequence);
            }
            None => switches.push(switch),
        }
        self.spreading.awaits_switch.store(true, Ordering::Release);
    }

    /// Tiers that a durable record may name as the size authority: the present one, and before the file is spread for the first time
    /// since it was loaded any that it has an object on, because earlier ones are not remembered.
    pub fn possible_extenders(&self) -> SmallVec<[TierId; 4]> {
        let layout = self.layout.read();
        if self.spreading.may_grow_unsettled.load(Ordering::Acquire) {
            return layout.extender().map(|(_, entry)| entry.tier).into_iter().collect();
        }
        layout.objects.iter().map(|entry| entry.tier).collect()
    }
}
