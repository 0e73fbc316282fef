//! The performance of the tiers' devices: measured on request, and refined from their work (docs/design/0019).
//!
//! Invariants:
//! * One tier of a volume is measured at a time: two at once would measure one another.
//! * A measurement is logged durably, and only while the tier still belongs to the volume. Learnt values are logged seldom,
//!   without a flush of their own: they are a hint.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_records::error::{Error, Result};
use polymux_records::parts::VolumeError;
use polymux_records::report::{MeasuredProfile, TierProfile};
use polymux_tier::TierError;
use polymux_tier::measure::{
    MeasureError, MeasureOptions, MeasureProgress, OnMeasureProgress, file_bytes_for, measure,
};
use polymux_types::{Errno, Ino};
use polymux_volume::inode::reference_of;
use polymux_volume::space::TierHandle;

use crate::mounted::Mounted;

/// Time between two checks of the learnt values.
const KEEP_INTERVAL_MS: u64 = 600_000;

impl Mounted {
    /// Measures the device of a tier; see [`crate::FileSystem::measure_tier`].
    pub(crate) fn measure_tier(
        &self,
        name: &str,
        time: Duration,
        on_progress: OnMeasureProgress<'_>,
    ) -> std::result::Result<TierProfile, VolumeError> {
        self.volume.check_writable()?;
        let refused = |reason: String| VolumeError::TierRefused(reason);
        let handle =
            self.volume.tiers.by_name(name).ok_or_else(|| refused(format!("the volume has no tier `{name}`")))?;
        let Some(_one_at_a_time) = self.measuring.try_lock() else {
            return Err(refused("a tier of this volume is being measured already: try again in a moment".to_owned()));
        };
        if handle.present().is_none() {
            return Err(refused(format!("tier `{name}` is missing: nothing of it can be measured")));
        }
        if handle.is_failing() {
            return Err(refused(format!("tier `{name}` fails or does not answer: nothing of it can be measured now")));
        }
        let mut unless_unmounted = |progress: &MeasureProgress| match self.volume.unmounted.load(Ordering::Acquire) {
            true => ControlFlow::Break(()),
            false => on_progress(progress),
        };
        let measured = self.measure_device(&handle, time, &mut unless_unmounted).map_err(|error| match error {
            MeasureError::Ended => Error::from(Errno::EINTR).into(),
            MeasureError::Tier(error) => handle.note_error(error).into(),
            error @ MeasureError::TooLittleRoom { .. } => refused(format!("tier `{name}`: {error}")),
        })?;
        let profile = TierProfile { measured: Some(measured), live: Vec::new() };
        let _no_event = self.volume.epochs.tier_event.lock();
        let present =
            self.volume.tiers.by_id(handle.id).map_err(|_| refused(format!("tier `{name}` has left the volume")))?;
        let sequence = self.volume.metadata.put_profile(handle.id, &profile)?;
        self.volume.flush_through(sequence)?;
        present.set_profile(profile.clone());
        Ok(profile)
    }

    fn measure_device(
        &self,
        handle: &TierHandle,
        time: Duration,
        on_progress: OnMeasureProgress<'_>,
    ) -> std::result::Result<MeasuredProfile, MeasureError> {
        let now = self.volume.now();
        let seed = self.seed ^ now.seconds.unsigned_abs().rotate_left(32) ^ u64::from(now.nanoseconds);
        let options = MeasureOptions { time, file_bytes_max: file_bytes_for(handle.headroom())?, seed };
        let Some(tier) = handle.present() else { return Err(MeasureError::Tier(TierError::NotAnswering)) };
        let ground = tier.measuring_ground()?;
        let measurement = measure(ground.as_ref(), self.volume.clock.as_ref(), &options, on_progress)?;
        Ok(MeasuredProfile { at: self.volume.now(), measurement })
    }

    /// Drops the bytes of a file's objects from memory.
    pub(crate) fn forget_pages(&self, ino: Ino) -> Result<()> {
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(()) };
        let objects = file.layout.read().objects.clone();
        for entry in &objects {
            let handle = self.volume.tiers.by_id(entry.tier)?;
            handle.get()?.drop_behind(reference_of(entry), 0, file.size());
        }
        Ok(())
    }

    /// Logs the values learnt of tiers, now and then.
    pub(super) fn keep_profiles(&self) -> Result<()> {
        let now_ms = self.volume.elapsed_ms();
        let due = self.profiles_due_ms.load(Ordering::Relaxed);
        if now_ms < due {
            return Ok(());
        }
        self.profiles_due_ms.store(now_ms.saturating_add(KEEP_INTERVAL_MS), Ordering::Relaxed);
        // The first look comes when there may be something to see.
        if due == 0 { Ok(()) } else { self.save_profiles() }
    }

    /// Logs the values learnt of tiers, if they changed enough.
    pub(super) fn save_profiles(&self) -> Result<()> {
        // A tier that comes, goes or hangs does not block a stop of the volume; the next time will do.
        let Some(_no_event) = self.volume.epochs.tier_event.try_lock() else { return Ok(()) };
        for handle in self.volume.tiers.all().iter() {
            if let Some(profile) = handle.refined_profile(self.volume.now()) {
                self.volume.metadata.put_profile(handle.id, &profile)?;
                handle.set_profile(profile);
            }
        }
        Ok(())
    }
}
