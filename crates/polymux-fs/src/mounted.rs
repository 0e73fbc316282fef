//! One mounted volume with all its services, as the operations of the public face and recovery use them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use polymux_data::data_path::DataPath;
use polymux_data::namespace::Namespace;
use polymux_data::placement::Placement;
use polymux_mover::Mover;
use polymux_records::error::Result;
use polymux_types::sync::Mutex;
use polymux_volume::inode::Editions;
use polymux_volume::stamps::Stamps;
use polymux_volume::volume::Volume;

/// The services of one mount, each of which owns its state and stands on those before it.
pub(crate) struct Mounted {
    pub(crate) volume: Arc<Volume>,
    pub(crate) stamps: Arc<Stamps>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) data: Arc<DataPath>,
    pub(crate) namespace: Namespace,
    pub(crate) mover: Mover,
    /// Editions of the names in directories.
    pub(crate) editions: Editions,
    /// Seed of random choices.
    pub(crate) seed: u64,
    /// Numbers of objects that may have been made before this mount, and that are not known to be accounted for.
    pub(crate) made_before_mount: Range<u64>,
    /// When the log is flushed next, in milliseconds since mounting.
    pub(crate) flush_due_ms: AtomicU64,
    /// When the measured speeds of tiers are examined next, in milliseconds since mounting.
    pub(crate) profiles_due_ms: AtomicU64,
    /// Held while a tier is measured.
    pub(crate) measuring: Mutex<()>,
}

impl Mounted {
    pub(crate) fn new(volume: Volume, seed: u64, made_before_mount: Range<u64>) -> Result<Self> {
        let volume = Arc::new(volume);
        let stamps = Arc::new(Stamps::new(Arc::clone(&volume)));
        let placement = Arc::new(Placement::new(Arc::clone(&volume))?);
        let data = Arc::new(DataPath::new(Arc::clone(&volume), Arc::clone(&stamps), Arc::clone(&placement)));
        let namespace =
            Namespace::new(Arc::clone(&volume), Arc::clone(&stamps), Arc::clone(&placement), Arc::clone(&data));
        let mover = Mover::new(Arc::clone(&volume), Arc::clone(&stamps), Arc::clone(&placement), Arc::clone(&data));
        Ok(Self {
            volume,
            stamps,
            placement,
            data,
            namespace,
            mover,
            editions: Editions::default(),
            seed,
            made_before_mount,
            flush_due_ms: AtomicU64::new(0),
            profiles_due_ms: AtomicU64::new(0),
            measuring: Mutex::new(()),
        })
    }
}
