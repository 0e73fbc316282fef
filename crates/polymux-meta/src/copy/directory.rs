//! The files of a second copy.
//!
//! Invariants:
//! * The directory has the shape of a store (`log`, `part0` ..), so that it can become one; beside that there are `copy`,
//!   the slots, and `incoming`, where a table lies until it is whole. A file below `tables` is whole and durable.
//! * [`CopyDirectory`] only carries out steps; the order that keeps the copy usable is that of `ship` and `rebuild`.
//! * Numbers of tables are not used twice by one opening of the store. So a table that is here needs no comparison, as long
//!   as each opening attached to the copy and found no table here that it could still make itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::slot_format::{self, FILE_LENGTH, Slot, SlotState};
use crate::error::StoreError;
use crate::log::{BLOCK, BlockBuffer, BlockFile, HEADER_LENGTH, Log, LogHeader, LogMedium, pieces, write_header};
use crate::slots::{SLOT_LENGTH, SlotError, SlotRecord};
use crate::tables::{CURRENT_FILE, PartitionSnapshot, version_of};

pub(crate) const SLOT_FILE: &str = "copy";
pub(crate) const LOG_FILE: &str = "log";
const INCOMING_FOLDER: &str = "incoming";
const TABLES_FOLDER: &str = "tables";

/// One partition of a copy.
#[derive(Default)]
struct Partition {
    /// Tables that are here, and their lengths.
    tables: BTreeMap<u64, u64>,
    /// The version that the pointer names.
    version: Option<u64>,
}

/// The files of a copy that is open for writing.
pub(crate) struct CopyDirectory {
    path: PathBuf,
    ring: Arc<dyn LogMedium>,
    slots: Arc<dyn LogMedium>,
    header: Option<LogHeader>,
    slot: Option<Slot>,
    partitions: Vec<Partition>,
    #[cfg(test)]
    pub(crate) faults: Arc<super::tests::Faults>,
}

impl CopyDirectory {
    /// Whether there is a copy, whatever it is worth.
    pub(crate) fn is_there(path: &Path) -> bool {
        path.join(SLOT_FILE).exists()
    }

    /// Opens a copy, or makes an empty one, for a store of so many partitions and a log of so many bytes.
    pub(crate) fn open(path: &Path, partitions: usize, ring_length: u64) -> Result<Self, StoreError> {
        make_directory(path)?;
        let slots = open_file(&path.join(SLOT_FILE), FILE_LENGTH)?;
        lock(&slots, path)?;
        let ring = open_file(&path.join(LOG_FILE), HEADER_LENGTH + ring_length)?;
        sync_directory(path)?;
        Self::open_with(path, partitions, Arc::new(ring), Arc::new(slots))
    }

    /// As [`CopyDirectory::open`], with its log and its slots on these.
    pub(crate) fn open_with(
        path: &Path,
        partitions: usize,
        ring: Arc<dyn LogMedium>,
        slots: Arc<dyn LogMedium>,
    ) -> Result<Self, StoreError> {
        let incoming = path.join(INCOMING_FOLDER);
        make_directory(&incoming)?;
        for left in list(&incoming)? {
            fs::remove_file(&left).map_err(|error| failed(&left, &error))?;
        }
        let mut directory = Self {
            path: path.to_owned(),
            slot: read_slot(&*slots)?,
            header: Log::read_header(&*ring).ok(),
            ring,
            slots,
            partitions: Vec::new(),
            #[cfg(test)]
            faults: Arc::default(),
        };
        for index in 0..partitions {
            directory.partitions.push(directory.read_partition(index)?);
        }
        Ok(directory)
    }

    fn read_partition(&self, index: usize) -> Result<Partition, StoreError> {
        let mut partition = Partition::default();
        let (path, tables) = (self.partition_path(index), self.tables_path(index));
        make_directory(&path)?;
        make_directory(&tables)?;
        for file in list(&tables)? {
            let number = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let length = fs::metadata(&file).map_err(|error| failed(&file, &error))?.len();
            if let Some(number) = number {
                partition.tables.insert(number, length);
            }
        }
        partition.version = match fs::read(path.join(CURRENT_FILE)) {
            Ok(current) => version_of(&current),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&path, &error)),
        };
        Ok(partition)
    }

    pub(crate) fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    pub(crate) fn header(&self) -> Option<&LogHeader> {
        self.header.as_ref()
    }

    /// Versions that the pointers name.
    pub(crate) fn versions(&self) -> Vec<Option<u64>> {
        self.partitions.iter().map(|partition| partition.version).collect()
    }

    /// Tables of a partition that are here.
    pub(crate) fn tables(&self, partition: usize) -> impl Iterator<Item = u64> + '_ {
        self.partitions[partition].tables.keys().copied()
    }

    /// Whether a table of this length is here.
    pub(crate) fn has(&self, partition: usize, table: u64, length: u64) -> bool {
        self.partitions[partition].tables.get(&table) == Some(&length)
    }

    /// Bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.partitions.iter().flat_map(|partition| partition.tables.values()).sum()
    }

    /// Removes every table, and the pointers to them. Only of a copy that says that it is incomplete.
    pub(crate) fn wipe(&mut self) -> Result<(), StoreError> {
        assert!(self.is_incomplete(), "a copy that is worth something is not wiped");
        for index in 0..self.partitions.len() {
            self.step()?;
            for file in list(&self.partition_path(index))?.into_iter().chain(list(&self.tables_path(index))?) {
                fs::remove_file(&file).map_err(|error| failed(&file, &error))?;
            }
            self.partitions[index] = Partition::default();
        }
        Ok(())
    }

    fn is_incomplete(&self) -> bool {
        self.slot.is_none_or(|slot| slot.state == SlotState::Incomplete)
    }

    /// Records the state of the copy durably.
    pub(crate) fn write_slot(&mut self, slot: Slot) -> Result<(), StoreError> {
        self.step()?;
        let slot = Slot { turn: self.slot.map_or(1, |slot| slot.turn + 1), ..slot };
        let mut block = BlockBuffer::new(SLOT_LENGTH);
        block.as_mut_slice().copy_from_slice(&slot.encode());
        let written = self.slots.write_durable(slot.offset(), block.as_slice());
        written.map_err(|error| failed(&self.path.join(SLOT_FILE), &error))?;
        self.slot = Some(slot);
        Ok(())
    }

    /// Writes the header of the log, durably; its turn is that of the copy.
    pub(crate) fn write_header(&mut self, header: LogHeader) -> Result<(), StoreError> {
        self.step()?;
        let turn = self.header.map_or(0, |header| header.turn + 1);
        let header = LogHeader { turn, ..header };
        write_header(&*self.ring, &header)?;
        self.header = Some(header);
        Ok(())
    }

    /// Puts blocks at their place in the ring, durable after [`CopyDirectory::flush_ring`].
    pub(crate) fn write_ring(&self, ring_length: u64, from: u64, blocks: &[u8]) -> Result<(), StoreError> {
        self.step()?;
        for (offset, start, end) in pieces(ring_length, from, from + blocks.len() as u64) {
            let index = |position: u64| usize::try_from(position - from).expect("the blocks fit into memory");
            let mut aligned = BlockBuffer::new(index(end) - index(start));
            aligned.as_mut_slice().copy_from_slice(&blocks[index(start)..index(end)]);
            let written = self.ring.write(offset, aligned.as_slice());
            written.map_err(|error| failed(&self.path.join(LOG_FILE), &error))?;
        }
        Ok(())
    }

    pub(crate) fn flush_ring(&self) -> Result<(), StoreError> {
        self.step()?;
        #[cfg(test)]
        if self.faults.plant() == Some(super::tests::Plant::NoFlush) {
            return Ok(());
        }
        self.ring.flush().map_err(|error| failed(&self.path.join(LOG_FILE), &error))
    }

    /// The medium of its log.
    pub(crate) fn ring(&self) -> &dyn LogMedium {
        &*self.ring
    }

    /// Begins to take over a table.
    pub(crate) fn begin_table(&self, partition: usize, table: u64) -> Result<Incoming, StoreError> {
        self.step()?;
        let path = self.path.join(INCOMING_FOLDER).join(format!("{partition}-{table}"));
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|error| failed(&path, &error))?;
        Ok(Incoming { path, file, partition, table, length: 0 })
    }

    /// Ends it: the table is here, whole and durable after [`CopyDirectory::sync_tables`].
    pub(crate) fn finish_table(&mut self, incoming: Incoming) -> Result<(), StoreError> {
        self.step()?;
        incoming.file.sync_all().map_err(|error| failed(&incoming.path, &error))?;
        self.step()?;
        let target = self.tables_path(incoming.partition).join(incoming.table.to_string());
        fs::rename(&incoming.path, &target).map_err(|error| failed(&target, &error))?;
        self.partitions[incoming.partition].tables.insert(incoming.table, incoming.length);
        Ok(())
    }

    /// Makes the names of tables durable.
    pub(crate) fn sync_tables(&self, partition: usize) -> Result<(), StoreError> {
        self.step()?;
        sync_directory(&self.tables_path(partition))
    }

    /// Makes a version the current one: its file, then the pointer to it, each durable (as `lsm-tree` does it).
    pub(crate) fn put_version(&mut self, partition: usize, snapshot: &PartitionSnapshot) -> Result<(), StoreError> {
        let path = self.partition_path(partition);
        self.step()?;
        write_file(&path.join(format!("v{}", snapshot.version)), &snapshot.version_bytes)?;
        self.step()?;
        sync_directory(&path)?;
        let incoming = self.path.join(INCOMING_FOLDER).join(format!("{partition}-{CURRENT_FILE}"));
        self.step()?;
        write_file(&incoming, &snapshot.current_bytes)?;
        self.step()?;
        let target = path.join(CURRENT_FILE);
        fs::rename(&incoming, &target).map_err(|error| failed(&target, &error))?;
        self.partitions[partition].version = Some(snapshot.version);
        self.step()?;
        sync_directory(&path)
    }

    /// Removes files that the current version does not name.
    pub(crate) fn remove_obsolete(&mut self, partition: usize, snapshot: &PartitionSnapshot) -> Result<(), StoreError> {
        assert_eq!(self.partitions[partition].version, Some(snapshot.version), "the version that counts is kept");
        let live: Vec<u64> = snapshot.tables.iter().map(lsm_tree::Table::id).collect();
        let obsolete: Vec<u64> = self.tables(partition).filter(|table| !live.contains(table)).collect();
        for table in obsolete {
            self.step()?;
            remove_if_there(&self.tables_path(partition).join(table.to_string()))?;
            self.partitions[partition].tables.remove(&table);
        }
        let version = format!("v{}", snapshot.version);
        for file in list(&self.partition_path(partition))? {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name != version && name != CURRENT_FILE {
                self.step()?;
                remove_if_there(&file)?;
            }
        }
        Ok(())
    }

    fn partition_path(&self, partition: usize) -> PathBuf {
        self.path.join(format!("part{partition}"))
    }

    fn tables_path(&self, partition: usize) -> PathBuf {
        self.partition_path(partition).join(TABLES_FOLDER)
    }

    /// A moment at which a test may let the machine stop.
    #[cfg(not(test))]
    fn step(&self) -> Result<(), StoreError> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self) -> Result<(), StoreError> {
        self.faults.step()
    }
}

/// A table that is on its way.
pub(crate) struct Incoming {
    path: PathBuf,
    file: File,
    partition: usize,
    table: u64,
    length: u64,
}

impl Incoming {
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| failed(&self.path, &error))?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Reads the slot that counts; `None` where there is none yet.
pub(crate) fn read_slot(slots: &dyn LogMedium) -> Result<Option<Slot>, StoreError> {
    let mut bytes = vec![0; 2 * SLOT_LENGTH];
    slots.read(0, &mut bytes).map_err(|error| StoreError::Io(format!("reading a second copy: {error}")))?;
    match slot_format::Slot::newest(&bytes) {
        Ok(slot) => Ok(Some(slot)),
        Err(SlotError::Damaged) => Ok(None),
        Err(SlotError::NewerVersion(version)) => {
            Err(StoreError::Open(format!("the second copy has format version {version}, made by a newer Polymux")))
        }
    }
}

/// Locks a copy for this process.
pub(crate) fn lock(slots: &BlockFile, path: &Path) -> Result<(), StoreError> {
    slots.lock().map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            StoreError::Open(format!("the second copy in {} is in use by another process", path.display()))
        }
        _ => failed(path, &error),
    })
}

/// Opens a file of this length, or makes it anew. The content of a file of another length is useless.
fn open_file(path: &Path, length: u64) -> Result<BlockFile, StoreError> {
    match fs::metadata(path) {
        Ok(found) if found.len() == length => return BlockFile::open(path).map_err(|error| failed(path, &error)),
        Ok(_) => fs::remove_file(path).map_err(|error| failed(path, &error))?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(path, &error)),
    }
    debug_assert!(length.is_multiple_of(BLOCK));
    BlockFile::create(path, length).map_err(|error| failed(path, &error))
}

/// Plain files of a directory.
fn list(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        let entry = entry.map_err(|error| failed(path, &error))?;
        if entry.file_type().map_err(|error| failed(path, &error))?.is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all())).map_err(|error| failed(path, &error))
}

fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path, &error)),
        _ => Ok(()),
    }
}

/// Makes a directory where there is none.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_directory),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(path, &error)),
    }
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(|error| failed(path, &error))
}

/// Copies the next bytes of a file; fewer than asked for at its end.
pub(crate) fn read_some(file: &mut File, path: &Path, buffer: &mut [u8]) -> Result<usize, StoreError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(path, &error)),
        }
    }
    Ok(filled)
}

pub(crate) fn failed(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Io(format!("{}: {error}", path.display()))
}
