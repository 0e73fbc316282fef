//! Where the log of a store is, and finding it again.
//!
//! ```text
//! file `region`: magic 8 bytes | version u32 | kind u32 | bytes of data u64 | length of the path u32 | path | checksum u32
//! ```
//!
//! Invariants:
//! * A store whose log is in files only has a file `log`. One whose log ends in a region has a file `log-backing` in its
//!   place, so no opening that knows nothing of regions takes it for whole, and a file `region` that describes the region.
//! * Acknowledged entries may exist only in the region. So where it is missing, foreign or an old copy, the
//!   store does not open, and nothing is changed.
//! * The path of a region may differ from mount to mount; its content identifies it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use polymux_tier::mapped::RegionKind;

use super::open::{failed, sync_directory};
use crate::error::StoreError;
use crate::log::{LogRegion, REGION_DATA_LENGTH_MIN, REGION_HEADER_LENGTH, RegionLog};

const BLOCK_LOG_FILE: &str = "log";
const BACKING_LOG_FILE: &str = "log-backing";
const REGION_FILE: &str = "region";

const MAGIC: [u8; 8] = *b"PMUXREGN";
const VERSION: u32 = 1;

/// Where the log of a store is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogPlacement {
    /// In a file beside the tables.
    #[default]
    Block,
    /// Its end in byte-addressable memory, the rest in a file beside the tables (A8).
    Region {
        /// File of the region. It is made with the store, and must not be there before.
        path: PathBuf,
        /// Bytes of the log that it holds, a power of two, at least 32 KiB; 4 KiB more are used for its header. Half of
        /// it bounds the size of a transaction.
        length_bytes: u64,
        /// The kind of memory or device.
        kind: RegionKind,
        /// Time added for each line of 64 bytes written back: stands for a slower medium (A15). 0 but for measurements.
        write_back_delay_ns: u64,
    },
}

/// The description of a region that a store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RegionRecord {
    path: PathBuf,
    length_bytes: u64,
    kind: RegionKind,
}

impl LogPlacement {
    /// The placement that a store was made with, its region where it was then.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where there is no store, [`StoreError::Io`] or [`StoreError::Corrupted`] where it cannot be
    /// read.
    pub fn recorded(store: &Path) -> Result<Self, StoreError> {
        if !store.join(BACKING_LOG_FILE).exists() {
            Self::Block.check_existing(store)?;
            return Ok(Self::Block);
        }
        let RegionRecord { path, length_bytes, kind } = RegionRecord::read(store)?;
        Ok(Self::Region { path, length_bytes, kind, write_back_delay_ns: 0 })
    }

    /// Name of the file of the log below the directory of the store.
    pub(super) fn log_file(&self) -> &'static str {
        match self {
            Self::Block => BLOCK_LOG_FILE,
            Self::Region { .. } => BACKING_LOG_FILE,
        }
    }

    /// Bytes that the ring of the log has at least: it can take all that is in the region.
    pub(super) fn ring_length_min(&self) -> u64 {
        match self {
            Self::Block => 0,
            Self::Region { length_bytes, .. } => *length_bytes,
        }
    }

    /// Refuses an invalid placement, and a store that was made with another one.
    pub(super) fn check_existing(&self, store: &Path) -> Result<(), StoreError> {
        self.check()?;
        let refuse = |text: String| Err(StoreError::Open(format!("the metadata store in {} {text}", store.display())));
        let (block, backing) = (store.join(BLOCK_LOG_FILE).exists(), store.join(BACKING_LOG_FILE).exists());
        if !block && !backing {
            return Err(StoreError::Open(format!("there is no metadata store in {}", store.display())));
        }
        if block && backing {
            return Err(StoreError::Corrupted(format!("there are two logs in {}", store.display())));
        }
        let Self::Region { length_bytes, kind, .. } = self else {
            if block {
                return Ok(());
            }
            let record = RegionRecord::read(store)?;
            return refuse(format!("keeps the end of its log in the region {} and needs it", record.path.display()));
        };
        if block {
            return refuse("was made without a region".to_owned());
        }
        let record = RegionRecord::read(store)?;
        if record.length_bytes != *length_bytes || record.kind != *kind {
            let (bytes, kind) = (record.length_bytes, record.kind);
            return refuse(format!("was made with a region of {bytes} bytes on {kind:?}"));
        }
        Ok(())
    }

    /// Refuses an invalid placement.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self {
            Self::Region { length_bytes, .. }
                if !length_bytes.is_power_of_two() || *length_bytes < REGION_DATA_LENGTH_MIN =>
            {
                let text = format!("a region of {length_bytes} bytes: a power of two from {REGION_DATA_LENGTH_MIN} on");
                Err(StoreError::Open(text))
            }
            _ => Ok(()),
        }
    }

    /// Makes the region of a new store, and its description in the directory of the store.
    pub(super) fn create(&self, store: &Path, seeds: [u64; 2]) -> Result<(), StoreError> {
        let Self::Region { path, length_bytes, kind, .. } = self else { return Ok(()) };
        let path = std::path::absolute(path).map_err(|error| failed(path, &error))?;
        let region = map(&path, *length_bytes, *kind, 0, Mapping::New)?;
        let made = RegionLog::format(&*region, seeds[0], seeds[1]).and_then(|()| {
            sync_directory(path.parent().unwrap_or_else(|| Path::new("/")))?;
            RegionRecord { path: path.clone(), length_bytes: *length_bytes, kind: *kind }.write(store)
        });
        if made.is_err() {
            // It was made a moment ago, by us.
            let _ = fs::remove_file(&path);
        }
        made
    }

    /// The region of a store, where it has one.
    pub(super) fn open(&self) -> Result<Option<Arc<dyn LogRegion>>, StoreError> {
        let Self::Region { path, length_bytes, kind, write_back_delay_ns } = self else { return Ok(None) };
        if !path.exists() {
            return Err(StoreError::Open(format!(
                "the region {} is missing: the end of the metadata log is in it, and without it the store does not open",
                path.display()
            )));
        }
        map(path, *length_bytes, *kind, *write_back_delay_ns, Mapping::Existing).map(Some)
    }
}

enum Mapping {
    New,
    Existing,
}

#[cfg(not(shuttle))]
fn map(
    path: &Path,
    data_length: u64,
    kind: RegionKind,
    delay_ns: u64,
    mapping: Mapping,
) -> Result<Arc<dyn LogRegion>, StoreError> {
    use polymux_tier::mapped::MappedRegion;
    let length = REGION_HEADER_LENGTH + data_length;
    let region = match mapping {
        Mapping::New => MappedRegion::create(path, length, kind),
        Mapping::Existing => MappedRegion::open(path, length, kind),
    };
    let region = region.map_err(|error| StoreError::Open(format!("the region of the metadata log: {error}")))?;
    Ok(Arc::new(region.with_delay_per_line(std::time::Duration::from_nanos(delay_ns))))
}

/// The model checker knows only its own atomics, and no mapping has those.
#[cfg(shuttle)]
fn map(path: &Path, _: u64, _: RegionKind, _: u64, _: Mapping) -> Result<Arc<dyn LogRegion>, StoreError> {
    Err(StoreError::Open(format!("{}: a mapped region cannot be model-checked", path.display())))
}

impl RegionRecord {
    fn write(&self, store: &Path) -> Result<(), StoreError> {
        let path = store.join(REGION_FILE);
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut file| {
            file.write_all(&self.encode())?;
            file.sync_all()
        });
        written.map_err(|error| failed(&path, &error))
    }

    fn read(store: &Path) -> Result<Self, StoreError> {
        let path = store.join(REGION_FILE);
        let bytes = File::open(&path).and_then(|mut file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).map(|_| bytes)
        });
        let bytes = bytes.map_err(|error| failed(&path, &error))?;
        Self::decode(&bytes)
            .ok_or_else(|| StoreError::Corrupted(format!("{} is damaged or of a newer version", path.display())))
    }

    fn encode(&self) -> Vec<u8> {
        let path = self.path.as_os_str().as_bytes();
        let kind: u32 = match self.kind {
            RegionKind::Dax => 1,
            RegionKind::TestDouble => 2,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&self.length_bytes.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(path.len()).expect("a path is short").to_le_bytes());
        bytes.extend_from_slice(path);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, checksum) = bytes.split_last_chunk::<4>()?;
        let (head, path) = content.split_first_chunk::<28>()?;
        let number = |at: usize| head[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        let whole = u32::from_le_bytes(*checksum) == crc32c::crc32c(content)
            && head[..8] == MAGIC
            && number(8)? == VERSION
            && u32::try_from(path.len()) == Ok(number(24)?);
        let kind = match number(12)? {
            1 => RegionKind::Dax,
            2 => RegionKind::TestDouble,
            _ => return None,
        };
        let length_bytes = u64::from_le_bytes(head[16..24].try_into().ok()?);
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        whole.then_some(Self { path, length_bytes, kind })
    }
}

/// The format of the description of a region, for its fuzz targets.
pub(crate) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    OnDiskFormat {
        name: "region-record",
        samples: || {
            let record = |kind| RegionRecord { path: PathBuf::from("/mnt/pmem/log"), length_bytes: 1 << 20, kind };
            [RegionKind::Dax, RegionKind::TestDouble].map(|kind| record(kind).encode()).to_vec()
        },
        repair: |bytes| {
            if let Some((content, checksum)) = bytes.split_last_chunk_mut::<4>() {
                *checksum = crc32c::crc32c(content).to_le_bytes();
            }
        },
        read_and_write: |bytes| RegionRecord::decode(bytes).map(|record| record.encode()),
        form: FormatForm::Unique,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_one_with_any_bit_turned_is_refused() {
        for kind in [RegionKind::Dax, RegionKind::TestDouble] {
            let record = RegionRecord { path: PathBuf::from("/mnt/pmem/log"), length_bytes: 1 << 20, kind };
            let bytes = record.encode();
            assert_eq!(RegionRecord::decode(&bytes), Some(record));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RegionRecord::decode(&damaged), None, "bit {bit}");
            }
            assert_eq!(RegionRecord::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(RegionRecord::decode(&[]), None);
    }
}
