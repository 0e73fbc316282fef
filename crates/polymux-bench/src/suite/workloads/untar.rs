//! Unpacking a tree of 2,000 files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::suite::durable;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Format;

/// `tar -x`.
pub struct Untar;

/// Unpacks the archive in a directory.
fn unpack(place: &Place, directory: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(place.archive()?).arg("--directory").arg(directory);
    programs::run(place.devices, &mut tar).map(|_| ())
}

/// Unpacks the archive in a new directory of the workload, and returns that.
pub fn unpack_tree(place: &Place) -> Result<PathBuf> {
    let tree = place.directory(Tier::First)?.join("tree");
    std::fs::create_dir(&tree)?;
    unpack(place, &tree)?;
    Ok(tree)
}

impl Workload for Untar {
    fn name(&self) -> &'static str {
        "untar"
    }

    fn about(&self) -> &'static str {
        "tar --extract of the first 2,000 files of a tree of sources, from memory"
    }

    fn ends_with(&self) -> &'static str {
        durable::IN_WORDS
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::ms("untar")] }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::one(Kind::Memory, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::Transports
    }

    fn needs_archive(&self) -> bool {
        true
    }

    fn obstacle(&self) -> Option<String> {
        programs::missing(["tar"])
    }

    fn prepare(&self, _: &Place) -> Result<()> {
        Ok(())
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let tree = place.directory(Tier::First)?.join("tree");
        std::fs::create_dir(&tree)?;
        let figure = place.ms_until_durable(|| unpack(place, &tree))?;
        std::fs::remove_dir_all(&tree)?;
        Ok(vec![figure])
    }
}
