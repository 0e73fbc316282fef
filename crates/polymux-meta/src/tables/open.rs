//! Opening the trees of a store.
//!
//! Invariants:
//! * Trees have nothing to do with one another, and opening one reads the head of each of its tables in many small steps.
//!   So a few threads open them, and each takes the next tree that no other has begun.
//! * Filters and indexes of tables are not pinned in memory: they would grow with the volume, and a table that is moved
//!   keeps the pins of the youngest level. They are in the block cache, within its budget.
//! * `lsm-tree` asserts some of its expectations of its files. Damage by a crash or a bad medium is not an error of
//!   the program: the file of a version is checked before, and a panic becomes an error that names the tree.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lsm_tree::checksum::ChecksummedWriter;
use lsm_tree::config::PinningPolicy;
use lsm_tree::{AnyTree, Cache, DescriptorTable, SequenceNumberCounter};

use super::snapshot::{CURRENT_FILE, version_of};
use super::{Partition, error_of};
use crate::error::StoreError;

/// File descriptors that all trees together keep open.
const DESCRIPTORS_MAX: usize = 256;

/// Kind of a checksum in the pointer to a version.
const CHECKSUM_XXH3: u8 = 0;

/// Threads that open trees; more than there are processors, because they wait for the device too.
const OPENERS: usize = 4;

/// State that all trees share.
struct Shared {
    cache: Arc<Cache>,
    descriptors: Arc<DescriptorTable>,
}

/// Opens the tree of each partition below a directory, or makes it. `first_keys` are those of the partitions, in order.
pub(super) fn open_partitions(
    path: &Path,
    first_keys: Vec<Vec<u8>>,
    cache_bytes: u64,
) -> Result<Vec<Partition>, StoreError> {
    let shared = Shared {
        cache: Arc::new(Cache::with_capacity_bytes(cache_bytes)),
        descriptors: Arc::new(DescriptorTable::new(DESCRIPTORS_MAX)),
    };
    let paths: Vec<PathBuf> = (0..first_keys.len()).map(|index| path.join(format!("part{index}"))).collect();
    let trees = open_trees(&paths, &shared)?;
    let partitions = first_keys.into_iter().zip(trees).zip(paths);
    Ok(partitions.map(|((first_key, tree), path)| Partition { first_key, tree, path }).collect())
}

/// Opens all trees, in their order; the first error in that order counts.
fn open_trees(paths: &[PathBuf], shared: &Shared) -> Result<Vec<AnyTree>, StoreError> {
    let openers = OPENERS.min(paths.len());
    let begun = AtomicUsize::new(0);
    let work = || {
        let mut opened = Vec::new();
        while let Some((index, path)) =
            Some(begun.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, paths.get(index)?)))
        {
            opened.push((index, open_tree(path, shared)));
        }
        opened
    };
    let mut opened = std::thread::scope(|scope| {
        // A thread that the system refuses is no loss: the other threads do its share.
        let others: Vec<_> =
            (1..openers).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut opened = work();
        for other in others {
            match other.join() {
                Ok(some) => opened.extend(some),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        opened
    });
    opened.sort_by_key(|(index, _)| *index);
    opened.into_iter().map(|(_, tree)| tree).collect()
}

fn open_tree(path: &Path, shared: &Shared) -> Result<AnyTree, StoreError> {
    make_names_durable(path)?;
    check_version(path)?;
    let (sequence, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
    let config = lsm_tree::Config::new(path, sequence, visible)
        .use_cache(shared.cache.clone())
        .use_descriptor_table(Some(shared.descriptors.clone()))
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(false));
    // Nothing of a tree that could not be opened is used afterwards.
    match catch_unwind(AssertUnwindSafe(|| config.open())) {
        Ok(opened) => opened.map_err(|error| error_of(&error)),
        Err(panic) => {
            Err(StoreError::Corrupted(format!("{} cannot be read: {}", path.display(), panic_message(&*panic))))
        }
    }
}

/// Refuses a version file that differs from the one written. `lsm-tree` stores a checksum beside its number and does
/// not look at it; a file with fewer tables than there were would make it delete the others.
fn check_version(tree: &Path) -> Result<(), StoreError> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|error| StoreError::Io(format!("{} cannot be read: {error}", file.display())))
    };
    let current_path = tree.join(CURRENT_FILE);
    if !current_path.exists() {
        return Ok(());
    }
    let damaged = |file: &Path| StoreError::Corrupted(format!("{} is damaged", file.display()));
    let current = read(&current_path)?;
    let (Some(version), Some((checksum, kind))) =
        (version_of(&current), current.get(8..).and_then(<[u8]>::split_first_chunk::<16>))
    else {
        return Err(damaged(&current_path));
    };
    if kind != [CHECKSUM_XXH3] {
        return Err(damaged(&current_path));
    }
    let version_path = tree.join(format!("v{version}"));
    let mut hasher = ChecksummedWriter::new(std::io::sink());
    hasher.write_all(&read(&version_path)?).expect("a sink takes everything");
    let fits = hasher.checksum().into_u128() == u128::from_le_bytes(*checksum);
    if fits { Ok(()) } else { Err(damaged(&version_path)) }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("an assertion of its format failed")
}

/// Makes the files durable that a killed process left of a tree. It may have named a new version and not synced that name, and
/// opening the tree removes the file of the version before: a power failure that kept the removal and not the new name
/// would leave a name without a version. `lsm-tree` syncs each of its own changes of names, but not those it finds.
fn make_names_durable(tree: &Path) -> Result<(), StoreError> {
    match std::fs::File::open(tree).and_then(|directory| directory.sync_all()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::Io(format!("{}: {error}", tree.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::memtable::Memtable;
    use crate::tables::{TABLES_FOLDER, Tables, TablesOptions};

    fn options() -> TablesOptions {
        TablesOptions { boundaries: vec![b"h".to_vec()], cache_bytes: 1 << 20, table_bytes_max: 1 << 20 }
    }

    fn make(directory: &Path) {
        let memtable = Memtable::new(0);
        let mut batch = Batch::new();
        batch.put(b"a", b"1");
        batch.put(b"z", b"2");
        memtable.apply(&batch, 1);
        Tables::open(directory, &options()).unwrap().write(&memtable).unwrap();
    }

    fn refusal(directory: &Path) -> String {
        let error = Tables::open(directory, &options()).map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Corrupted(_)), "{error}");
        error.to_string()
    }

    #[test]
    fn a_version_file_that_is_torn_or_damaged_anywhere_is_refused_by_its_name_and_nothing_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path());
        let tree = directory.path().join("part1");
        let current = tree.join(CURRENT_FILE);
        let version = version_of(&std::fs::read(&current).unwrap()).unwrap();
        for file in [tree.join(format!("v{version}")), current] {
            let whole = std::fs::read(&file).unwrap();
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x40;
                // The beginning of the pointer is a number, which then names a file that is not there.
                if file.ends_with(CURRENT_FILE) && at < 8 {
                    damaged.truncate(at);
                }
                for bytes in [&whole[..at], &damaged] {
                    std::fs::write(&file, bytes).unwrap();
                    let refusal = refusal(directory.path());
                    assert!(refusal.contains("part1"), "{refusal}");
                }
            }
            std::fs::write(&file, &whole).unwrap();
        }
        let tables = Tables::open(directory.path(), &options()).unwrap();
        assert_eq!(tables.get(b"z").unwrap().as_deref(), Some(b"2".as_slice()));
    }

    #[test]
    fn a_panic_of_the_trees_while_they_are_opened_is_an_error_that_names_the_tree() {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path());
        // `lsm-tree` asserts that no directory is in the place of a table.
        std::fs::create_dir(directory.path().join("part0").join(TABLES_FOLDER).join("77")).unwrap();
        let refusal = refusal(directory.path());
        assert!(refusal.contains("part0"), "{refusal}");
    }
}
