//! The workloads, one a file.

mod access;
mod append;
mod build;
mod create_unlink;
mod dbench;
mod direct_jobs;
mod direct_read;
mod filebench;
mod git_status;
mod grounds;
mod listing;
mod many_files;
mod mixed_load;
pub mod pgbench;
pub mod postgres;
mod random_read;
mod random_write;
pub mod redis;
pub mod rocksdb;
mod sequential;
pub mod sqlite;
mod streams;
mod tree_copies;
mod tree_walks;
mod untar;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::random_read::RandomRead;
use self::random_write::RandomWrite;
use self::sequential::{SequentialRead, SequentialWrite};
use super::workload::Workload;

/// All of them, in the order in which they are reported.
pub static ALL: &[&dyn Workload] = &[
    &RandomRead::WARM,
    &RandomRead::WARM_SPLIT,
    &RandomRead::COLD,
    &SequentialWrite::OVER,
    &SequentialWrite::NEW,
    &SequentialRead::ONE_TIER,
    &SequentialRead::SPLIT,
    &RandomWrite::BUFFERED,
    &RandomWrite::SPLIT,
    &RandomWrite::DIRECT,
    &append::Append::NEW,
    &append::Append::SPLIT,
    &streams::Streams,
    &create_unlink::CreateUnlink,
    &many_files::ManyFiles,
    &listing::Listing,
    &untar::Untar,
    &git_status::GitStatus,
    &tree_copies::TreeCopies,
    &tree_walks::TreeWalks,
    &sqlite::Sqlite,
    &rocksdb::RocksDb,
    &redis::Redis,
    &pgbench::Pgbench,
    &dbench::Dbench,
    &filebench::Filebench,
    &build::Build,
    &direct_jobs::DirectJobs,
    &direct_read::DirectRead,
    &mixed_load::MixedLoad,
];

/// Most files of the tree that is unpacked.
const TREE_FILES: usize = 2000;

/// Largest of them, in bytes.
const TREE_FILE_BYTES_MAX: u64 = 1 << 20;

/// Puts the first files of a tree, by name, into an archive. Returns how many there are, and their bytes.
///
/// # Errors
/// Where the tree has too few files, or `tar` fails.
pub fn pack(tree: &Path, archive: &Path) -> Result<(usize, u64)> {
    let mut files = Vec::new();
    let mut bytes = 0;
    collect(tree, &mut files, &mut bytes)?;
    ensure!(files.len() == TREE_FILES, "{} has {} files, not {TREE_FILES}", tree.display(), files.len());
    let list = archive.with_extension("list");
    let names: Vec<_> = files.iter().filter_map(|path| path.strip_prefix(tree).ok()?.to_str()).collect();
    std::fs::write(&list, names.join("\n"))?;
    let mut command = std::process::Command::new("tar");
    command.arg("--create").arg("--file").arg(archive).arg("--directory").arg(tree).arg("--files-from").arg(&list);
    let output = command.output().context("cannot start tar")?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok((files.len(), bytes))
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>, bytes: &mut u64) -> Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(directory)?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let metadata = entry.metadata()?;
        // A repository in the tree would be another one for git.
        let is_plain =
            entry.file_name().to_str().is_some_and(|name| name != ".git" && !name.contains(['\n', '\\', '"']));
        if files.len() == TREE_FILES || !is_plain {
            continue;
        }
        if metadata.is_dir() {
            collect(&entry.path(), files, bytes)?;
        } else if metadata.is_file() && metadata.len() <= TREE_FILE_BYTES_MAX {
            *bytes += metadata.len();
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::workload::Scale;
    use super::*;

    #[test]
    fn names_of_workloads_and_their_figures_are_unique() {
        let names: BTreeSet<_> = ALL.iter().map(|workload| workload.name()).collect();
        assert_eq!(names.len(), ALL.len());
        for workload in ALL {
            let figures: BTreeSet<_> = workload.figures().iter().map(|figure| figure.name).collect();
            assert_eq!(figures.len(), workload.figures().len(), "{}", workload.name());
            assert!(!workload.ends_with().is_empty() && !workload.about().is_empty());
        }
    }

    #[test]
    fn the_quick_form_runs_on_grounds_of_the_full_one() {
        for workload in ALL {
            let full = workload.grounds(Scale::Full);
            let quick = workload.grounds(Scale::Quick);
            assert!(!full.is_empty() && quick.iter().all(|ground| full.contains(ground)), "{}", workload.name());
        }
    }

    #[test]
    fn a_tree_of_too_few_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("one"), b"1").unwrap();
        let refused = pack(directory.path(), &directory.path().join("archive.tar")).unwrap_err().to_string();
        assert!(refused.contains("has 1 files, not 2000"), "{refused}");
    }
}
