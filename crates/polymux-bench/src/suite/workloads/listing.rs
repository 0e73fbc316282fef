//! Listing a directory with the attributes of everything in it, as `ls -l` does.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::fs::AtFlags;

use super::access;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};
use crate::throttled::Format;

/// Entries of the directory.
const fn entries(scale: Scale) -> usize {
    scale.choose(4_000, 10_000)
}

/// A large directory.
pub struct Listing;

impl Workload for Listing {
    fn name(&self) -> &'static str {
        "listing"
    }

    fn about(&self) -> &'static str {
        "readdir + lstat of a directory of 10,000 entries (quick: 4,000), first after a mount and then again; per entry"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("first"), Figure::us("again")] }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::one(Kind::Memory, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::Transports
    }

    fn needs_default_mergerfs(&self) -> bool {
        true
    }

    fn temperature(&self) -> Temperature {
        Temperature::Cold
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let directory = place.directory(Tier::First)?.join("entries");
        fs::create_dir(&directory)?;
        (0..entries(place.scale))
            .try_for_each(|number| File::create_new(directory.join(format!("entry-{number}"))).map(|_| ()))?;
        place.end_durably()
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?.join("entries");
        let expected = entries(place.scale);
        Ok(vec![list(&directory, expected)?, list(&directory, expected)?])
    }
}

/// As `ls -l` does it. The standard library would ask for the time of birth as well, which the kernel asks a FUSE server for apart.
fn list(directory: &Path, expected: usize) -> Result<f64> {
    let mut entries = 0;
    let begun = Instant::now();
    let opened = File::open(directory)?;
    for entry in fs::read_dir(directory)? {
        let found = rustix::fs::statat(&opened, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        ensure!(found.st_size == 0, "an empty file has {} bytes", found.st_size);
        entries += 1;
    }
    let figure = access::us_each(begun, expected);
    ensure!(entries == expected, "{entries} of {expected} entries are listed");
    Ok(figure)
}
