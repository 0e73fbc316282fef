//! Comparing tables with their recorded checksums.
//!
//! The version of a tree records a checksum of each table's whole file. `lsm-tree` looks at those of single
//! blocks, when it reads them; a damaged block that nothing has read is found here only.

use std::fs::File;
use std::io;

use lsm_tree::checksum::ChecksummedWriter;
use lsm_tree::{AbstractTree, Table};

use super::Tables;
use crate::error::StoreError;

impl Tables {
    /// Reads every table, and fails with the name of one that is not as it was written.
    pub(crate) fn verify(&self) -> Result<(), StoreError> {
        for partition in &self.partitions {
            for table in partition.tree.current_version().iter_tables() {
                verify(table)?;
            }
        }
        Ok(())
    }
}

fn verify(table: &Table) -> Result<(), StoreError> {
    let mut hasher = ChecksummedWriter::new(io::sink());
    File::open(&*table.path)
        .and_then(|mut file| io::copy(&mut file, &mut hasher))
        .map_err(|error| StoreError::Io(format!("{} cannot be read: {error}", table.path.display())))?;
    if hasher.checksum() == table.checksum() {
        return Ok(());
    }
    Err(StoreError::Corrupted(format!("{} is damaged", table.path.display())))
}
