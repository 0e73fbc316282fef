//! Free space of a tier: as the tier reports it, less what was written since and what is promised.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use polymux_tier::{Space, TierError};
use polymux_types::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use polymux_types::{ByteSize, Watermark};

use super::tier_handle::Purpose;
use super::tier_handle::TierHandle;

/// Maximum age of a tier's space information before the tier is asked again.
const ROOM_AGE_MAX: Duration = Duration::from_millis(100);
/// Below this much free space the tier is asked each time.
const ROOM_LOW_BYTES: u64 = 256 * 1024 * 1024;
/// Free space below which in-place writers respect the pending claims of others: as much as all request threads may write at once.
pub const LAST_ROOM_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum space reserved for the metadata store on its tier.
const METADATA_RESERVE_MAX: u64 = 64 * 1024 * 1024;
/// Divisor that yields the reserve on a small tier from its capacity.
const METADATA_RESERVE_DIVISOR: u64 = 32;

/// Objects less than could be made on a tier that holds the metadata store: its tables are files as well.
const METADATA_OBJECTS: u64 = 64;

/// Bytes reserved for the metadata store on a tier of this capacity.
fn metadata_reserve_of(space: &Space) -> u64 {
    METADATA_RESERVE_MAX.min(space.total / METADATA_RESERVE_DIVISOR)
}

/// Free space of a tier, and the promises on it.
pub(super) struct FreeSpace {
    /// Bytes that data leaves free.
    reserve: u64,
    /// Use from which files leave the tier.
    high_mark: Watermark,
    /// Use at which that ends.
    low_mark: Watermark,
    /// The last answer of the tier, and when it was given.
    room: Mutex<Option<(Duration, Space)>>,
    /// Bytes written here since the answer was refreshed.
    written_since: AtomicI64,
    /// Space that passthrough-open files may still take, as far as it was counted.
    granted_bytes: AtomicU64,
    /// Bytes that writers side by side are about to take here.
    taking_bytes: AtomicU64,
    /// Grows whenever there may be more free space here than before.
    room_generation: AtomicU64,
    /// The file system is busy with [`super::TierSet::give_back_room_ahead`].
    pub(super) is_giving_back: Arc<AtomicBool>,
}

impl FreeSpace {
    /// Of a tier that was not asked yet, with its reserve and its marks.
    pub(super) fn new(reserve: ByteSize, high_mark: Watermark, low_mark: Watermark) -> Self {
        Self {
            reserve: reserve.0,
            high_mark,
            low_mark,
            room: Mutex::new(None),
            written_since: AtomicI64::new(0),
            granted_bytes: AtomicU64::new(0),
            taking_bytes: AtomicU64::new(0),
            room_generation: AtomicU64::new(0),
            is_giving_back: Arc::default(),
        }
    }

    /// There may be more free space than at a handle of the tier before this one.
    pub(super) fn follow(&self, generation: u64) {
        self.room_generation.store(generation + 1, Ordering::Release);
    }
}

/// Free space of a tier that a caller is about to take.
pub struct TakenRoom<'a> {
    handle: &'a TierHandle,
    bytes: u64,
    /// Bytes available to this claim: the headroom less the earlier claims of others.
    pub left: u64,
}

impl Drop for TakenRoom<'_> {
    fn drop(&mut self) {
        self.handle.free_space.taking_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl TierHandle {
    /// Notes that there may be more free space here than before: operations waiting for space are worth retrying.
    pub fn note_room_freed(&self) {
        // The known value is from before.
        *self.free_space.room.lock() = None;
        self.free_space.room_generation.fetch_add(1, Ordering::AcqRel);
    }

    /// A number that grows whenever there may be more free space here than before.
    pub fn room_generation(&self) -> u64 {
        self.free_space.room_generation.load(Ordering::Acquire)
    }

    /// Used bytes of a tier of this capacity above which files leave it (DESIGN section 9).
    pub fn high_mark_bytes(&self, space: &Space) -> u64 {
        self.bytes_at(self.free_space.high_mark, space)
    }

    /// Used bytes at which that ends.
    pub fn low_mark_bytes(&self, space: &Space) -> u64 {
        self.bytes_at(self.free_space.low_mark, space)
    }

    fn bytes_at(&self, mark: Watermark, space: &Space) -> u64 {
        mark.of(space.total, space.total.saturating_sub(self.reserve_of(space)))
    }

    /// Bytes that data must leave free on a tier of this capacity.
    pub fn reserve_of(&self, space: &Space) -> u64 {
        match self.purpose {
            Purpose::Data => self.free_space.reserve,
            Purpose::DataAndMetadata => self.free_space.reserve.max(metadata_reserve_of(space)),
        }
    }

    /// Whether new objects may be created on a tier with this free space.
    pub fn takes_objects(&self, space: &Space) -> bool {
        let kept = if self.holds_metadata() { METADATA_OBJECTS } else { 0 };
        space.objects_free > kept
    }

    /// Whether the file system of the tier keeps as much for root as metadata needs.
    pub(super) fn keeps_root_reserve(&self) -> bool {
        self.space().is_some_and(|space| space.root_reserve >= metadata_reserve_of(&space))
    }

    /// Whether so much is in use that files leave the tier.
    pub fn is_above_high_mark(&self) -> bool {
        self.space().is_some_and(|space| space.unavailable() > self.high_mark_bytes(&space))
    }

    /// Whether so much is in use that nothing more comes for its use alone.
    pub fn is_above_low_mark(&self) -> bool {
        self.space().is_some_and(|space| space.unavailable() > self.low_mark_bytes(&space))
    }

    /// Free space as the tier reports it right now.
    ///
    /// Does not wait for a silent tier: then the last known value is returned, if any.
    pub fn space_now(&self) -> Option<Space> {
        let tier = self.tier.as_ref()?;
        self.free_space.written_since.store(0, Ordering::Relaxed);
        self.note_space(tier.ask(|tier| tier.space()))
    }

    fn note_space(&self, answer: std::result::Result<Space, TierError>) -> Option<Space> {
        let space = match answer {
            Ok(space) => space,
            Err(TierError::NotAnswering) => return self.free_space.room.lock().map(|(_, space)| space),
            Err(error) => {
                self.note_error(error);
                return None;
            }
        };
        *self.free_space.room.lock() = Some((self.clock.elapsed(), space));
        Some(space)
    }

    /// The last reported free space, less the bytes written since.
    pub fn space(&self) -> Option<Space> {
        let known = *self.free_space.room.lock();
        if let Some((asked, mut space)) = known {
            let written = u64::try_from(self.free_space.written_since.load(Ordering::Relaxed)).unwrap_or(0);
            space.free = space.free.saturating_sub(written);
            let fresh = self.clock.elapsed().saturating_sub(asked) < ROOM_AGE_MAX;
            if fresh && space.free > self.reserve_of(&space).saturating_add(ROOM_LOW_BYTES) {
                return Some(space);
            }
        }
        let tier = self.tier.as_ref()?;
        self.free_space.written_since.store(0, Ordering::Relaxed);
        self.note_space(tier.ask_often(|tier| tier.space()))
    }

    /// Notes that the caller is about to take so much free space, until this is dropped: others, who look at it meanwhile, would take the same.
    pub fn take_room(&self, bytes: usize) -> TakenRoom<'_> {
        let bytes = bytes as u64;
        let by_others = self.free_space.taking_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Asked afterwards: space that another caller has taken is in one of the two.
        TakenRoom { handle: self, bytes, left: self.headroom().saturating_sub(by_others) }
    }

    /// Bytes that new data may still take here, beside those promised to files that the kernel changes directly.
    pub fn headroom(&self) -> u64 {
        let granted = self.free_space.granted_bytes.load(Ordering::Relaxed);
        self.space().map_or(0, |space| space.free.saturating_sub(self.reserve_of(&space)).saturating_sub(granted))
    }

    /// A passthrough-open file may take so many bytes more without a request to the daemon.
    pub fn grant_bytes(&self, bytes: u64) {
        self.free_space.granted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes back that were granted.
    pub fn return_bytes(&self, bytes: u64) {
        let less = |granted: u64| Some(granted.saturating_sub(bytes));
        let _ = self.free_space.granted_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Bytes were written since the free space was last asked for.
    #[inline]
    pub fn note_written(&self, bytes: usize) {
        self.free_space.written_since.fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}
