//! The parts of a volume, as passed to a mount.

use std::sync::Arc;

use polymux_meta::MetadataStore;
use polymux_policy::PassthroughUse;
use polymux_tier::Tier;
use polymux_types::{ByteSize, Clock, Percent, TierId, VolumeId, Watermark};

/// The default of [`MountOptions::deferral_ms_max`].
pub const DEFERRAL_MS_MAX_DEFAULT: u32 = 60;

/// One tier as the configuration lists it.
#[derive(Clone)]
pub struct TierMember {
    /// Name in the configuration.
    pub name: String,
    /// Space that is left free on the tier: new blocks go elsewhere once only this much is left.
    pub reserve: ByteSize,
    /// Fill level of the tier above which files leave it for slower ones (DESIGN section 9).
    pub high_mark: Watermark,
    /// Fill level at which that ends; below `high_mark`.
    pub low_mark: Watermark,
    /// The tier, or why it is not there.
    pub presence: TierPresence,
    /// Looks for the tier where it is missing, or was lost while in use; `None`: it stays away until the next mount.
    pub source: Option<Arc<dyn TierSource>>,
}

/// Where a tier that is missing may appear again.
pub trait TierSource: Send + Sync {
    /// Opens the tier where it is there now: the same directory of the configuration, opened in the same way as for a
    /// mount. The caller checks the content of its label. The answer's own `source` is not used.
    ///
    /// # Errors
    /// Why it still is missing.
    fn open(&self) -> std::result::Result<TierMember, String>;
}

impl TierMember {
    /// [`TierMember::high_mark`] where the configuration says nothing.
    pub const HIGH_MARK_DEFAULT: Watermark = Watermark::with_free_at_most(Percent::new(90), ByteSize(32 << 30));
    /// [`TierMember::low_mark`] where the configuration says nothing.
    pub const LOW_MARK_DEFAULT: Watermark = Watermark::with_free_at_most(Percent::new(80), ByteSize(64 << 30));

    /// A tier without a reserve, with the usual watermarks.
    #[must_use]
    pub fn new(name: impl Into<String>, presence: TierPresence) -> Self {
        Self {
            name: name.into(),
            reserve: ByteSize(0),
            high_mark: Self::HIGH_MARK_DEFAULT,
            low_mark: Self::LOW_MARK_DEFAULT,
            presence,
            source: None,
        }
    }
}

/// Whether a tier can be reached.
#[derive(Clone)]
pub enum TierPresence {
    /// Open, probed and locked.
    Present(Arc<dyn Tier>),
    /// Not present; the text gives the reason and a remedy.
    Missing(String),
}

/// Everything that `FileSystem` stands on.
pub struct Parts {
    /// Name of the volume.
    pub name: String,
    /// The tiers in speed order, fastest first.
    pub tiers: Vec<TierMember>,
    /// The metadata store.
    pub store: Arc<dyn MetadataStore>,
    /// Name of the tier whose file system also holds the store: some of its space is left to it. `None` where the store
    /// is elsewhere.
    pub metadata_tier: Option<String>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Seed of all randomness in the file system (tier instances, for example).
    pub seed: u64,
}

/// Whether a mount may change the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes.
    ReadWrite,
    /// Reads only; nothing on any tier changes, not even the epoch.
    ReadOnly,
}

/// Policy for a missing tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingTiers {
    /// Refuse to mount.
    Refuse,
    /// Mount: all names are visible, blocks on the missing tier give EIO (`--degraded`).
    Degraded,
}

/// When access times change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// When the old one is not later than the modification or change time, or older than a day.
    Relative,
    /// Never (`noatime`).
    Never,
}

/// Identifies a boot of the kernel; with the same number, files that were open before may still be open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// It may be any, the present one among them.
    pub const UNKNOWN: Self = Self([0; 16]);
}

/// Use of the kernel's page cache for files whose reads and writes go through the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// It keeps them.
    On,
    /// Each read and write is asked of the daemon; only mappings are kept.
    Off,
}

/// When spread files are laid out for those who read them, where their devices were measured (docs/design/0021).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderLayout {
    /// When one was written, for who reads it from its beginning to its end; and when its readers waited.
    WhenWritten,
    /// When its readers waited for one of its devices.
    WhenRead,
    /// They stay as they were written.
    Never,
}

/// Choices of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Whether the volume may be changed.
    pub access: Access,
    /// Policy for a missing tier.
    pub missing: MissingTiers,
    /// When access times change.
    pub access_times: AccessTimes,
    /// Whether rename over a file, and close after emptying one, wait for the new data to be durable, so that a crash
    /// never leaves an empty file where an editor saved. Of a close that is not heard of, the sync follows it.
    pub sync_on_replace: bool,
    /// Milliseconds between flushes of the log.
    pub flush_interval_ms: u32,
    /// Longest file in bytes that lives in the metadata store instead of on a tier; 0: none, and at most 64 KiB count.
    /// Longer ones that are there already stay until they are written to.
    pub inline_size_max: u32,
    /// Seconds after its last use when an inline file may move to another tier, where the metadata tier is short of space.
    pub inline_idle_seconds: u32,
    /// Milliseconds after which a tier whose calls do not return counts as not answering: operations that need it fail
    /// then, until it answers again. 0: never.
    pub hang_after_ms: u32,
    /// Milliseconds that the copies of moves and write-behind yield at most to reads and syncs on the same tier,
    /// the time that it takes to wake up included; 0: they do not.
    pub deferral_ms_max: u32,
    /// Milliseconds after which the description on objects follows a change of names or attributes.
    pub stamp_delay_ms: u32,
    /// Which files the kernel may use directly, where it can.
    pub passthrough: PassthroughUse,
    /// Whether the kernel keeps pages of files that it does not use directly.
    pub page_cache: PageCache,
    /// The boot of the kernel that may use files directly.
    pub boot: BootId,
    /// Bytes of memory for statistics on the use of files.
    pub heat_memory_bytes: u64,
    /// Seconds in which heat halves, while the volume is mounted; at least 1.
    pub heat_half_life_seconds: u32,
    /// Bytes of a file that the policy `spread` gives to a tier at a time (PolyStore's range, P2). Counts in whole blocks, as
    /// one at least.
    pub spread_range_bytes: u32,
    /// How the policy `adaptive` finds out that writers saturate a tier.
    pub saturation: SaturationSource,
    /// When spread files are laid out for readers.
    pub reader_layout: ReaderLayout,
    /// Whether ranges that keep a slower device busy move up beside their readers.
    pub promotion: Promotion,
    /// Whether the kernel has inodes and open files of this volume since before the mount.
    pub connection: KernelConnection,
}

/// State that the kernel holds of a volume when it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelConnection {
    /// Nothing: files without a name are deleted.
    New,
    /// State from an earlier daemon (docs/design/0037): files without a name stay until the kernel forgets them, and each inode that
    /// loses its last name counts as referred to, however many references were counted since.
    TakenOver,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            missing: MissingTiers::Refuse,
            access_times: AccessTimes::Relative,
            sync_on_replace: true,
            flush_interval_ms: 5000,
            inline_size_max: 4096,
            inline_idle_seconds: 600,
            hang_after_ms: 10_000,
            deferral_ms_max: DEFERRAL_MS_MAX_DEFAULT,
            stamp_delay_ms: 10_000,
            passthrough: PassthroughUse::Auto,
            page_cache: PageCache::On,
            boot: BootId::default(),
            heat_memory_bytes: 32 << 20,
            heat_half_life_seconds: 3600,
            spread_range_bytes: 2 << 20,
            saturation: SaturationSource::Measured,
            reader_layout: ReaderLayout::WhenWritten,
            promotion: Promotion::Prompt,
            connection: KernelConnection::New,
        }
    }
}

/// How soon ranges that keep a slower device busy move up, under the policies `hot-cold` and `adaptive` (docs/design/0033).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// When programs leave the devices time for it.
    Polite,
    /// At once, beside programs, where that pays back in device time within seconds.
    Prompt,
}

/// How it is found out that writers saturate a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaturationSource {
    /// By the amount and age of the data that waits to be written to its device.
    Measured,
    /// Every tier counts as saturated: for simulated devices, which take no time to write.
    Assumed,
}

/// Identity of a new volume, for `FileSystem::format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Random identity.
    pub id: VolumeId,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permission bits of the root directory.
    pub root_permissions: u32,
}

/// Why a volume was not made or not mounted. Each names a remedy; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// A tier is missing and the mount is not `--degraded`.
    #[error("tier `{name}` is missing: {reason}")]
    TierMissing {
        /// The tier.
        name: String,
        /// The reason and a remedy.
        reason: String,
    },
    /// The tier carries the label of another volume.
    #[error("tier `{name}` belongs to volume `{found}`, not to `{expected}`")]
    OtherVolume {
        /// The tier as configured.
        name: String,
        /// Name of the volume its label gives.
        found: String,
        /// Name of the volume being mounted.
        expected: String,
    },
    /// The directory holds another tier of this volume.
    #[error(
        "tier `{name}` leads to the directory of tier `{found}`: the paths of the two are swapped, or one is wrong"
    )]
    OtherTier {
        /// The tier as configured.
        name: String,
        /// Name its label gives.
        found: String,
    },
    /// The label is older than the metadata says: restored from a copy, or cloned.
    #[error(
        "tier `{name}` is stale: its label is of epoch {found}, the metadata recorded {expected}; it was restored from an \
         older copy or cloned, and using it could return old data"
    )]
    StaleTier {
        /// The tier.
        name: String,
        /// Epoch of its label.
        found: u64,
        /// Epoch recorded.
        expected: u64,
    },
    /// The label is newer than the metadata.
    #[error(
        "the metadata is older than tier `{name}` (epoch {expected}, the tier has {found}): the metadata was restored \
         from an older copy; writing now could destroy newer data"
    )]
    StaleMetadata {
        /// The tier.
        name: String,
        /// Epoch of its label.
        found: u64,
        /// Epoch recorded.
        expected: u64,
    },
    /// The configuration does not list a tier that the volume has, or lists one it does not have.
    #[error("{0}")]
    TierTable(String),
    /// A tier cannot join, be drained or leave as things are.
    #[error("{0}")]
    TierRefused(String),
    /// A tier cannot leave at this moment, for a reason that passes by itself: something moves to it, or data removed
    /// from it is not yet freed. The request may be repeated.
    #[error("{0}")]
    TierBusy(String),
    /// The volume was written by a newer Polymux.
    #[error("volume `{name}` has format version {found}; this program knows up to {known}: use a newer Polymux")]
    NewerFormat {
        /// The volume.
        name: String,
        /// Its version.
        found: u32,
        /// The newest one known here.
        known: u32,
    },
    /// The store holds no volume, or one already where a new one was to be made.
    #[error("{0}")]
    Store(String),
    /// Anything that failed underneath.
    #[error(transparent)]
    FileSystem(#[from] crate::error::Error),
}

/// Name of a tier in the configuration, next to its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierName {
    /// Number of the tier.
    pub id: TierId,
    /// Its name.
    pub name: String,
}

/// The work of `FileSystem::step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing was waiting, or nothing could be done about it now.
    Idle,
    /// Work was done; there may be more.
    Worked,
}
