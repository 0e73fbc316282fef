//! Many small files, one kind of operation after the other.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::access;
use crate::suite::durable;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Format;

/// Bytes of each file.
const CONTENT: [u8; 2048] = [7; 2048];

/// Many small files in one directory.
pub struct ManyFiles;

impl Workload for ManyFiles {
    fn name(&self) -> &'static str {
        "many-files"
    }

    fn about(&self) -> &'static str {
        "5,000 files (quick: 500) of 2 KiB in one directory: each operation on all of them, then the next; per file"
    }

    fn ends_with(&self) -> &'static str {
        "after create, rename and unlink: syncfs of the mount, fsync of a last new file, syncfs of the devices below"
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::us("create + write + close"),
                Figure::us("stat"),
                Figure::us("readdir"),
                Figure::us("rename"),
                Figure::us("unlink"),
            ]
        }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::one(Kind::Memory, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::Transports
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?;
        let count = place.scale.choose(500, 5_000);
        let named = |prefix: &str| -> Vec<PathBuf> {
            (0..count).map(|number| directory.join(format!("{prefix}{number}"))).collect()
        };
        let (old, new) = (named("old"), named("new"));
        let mut figures = Vec::new();
        let mut timed = |change: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let begun = Instant::now();
            change()?;
            figures.push(access::us_each(begun, count));
            Ok(())
        };
        timed(&mut || {
            old.iter().try_for_each(|path| File::create_new(path)?.write_all(&CONTENT))?;
            place.end_durably()
        })?;
        // The first pass warms the caches for the second one.
        stat_all(&old)?;
        timed(&mut || stat_all(&old))?;
        timed(&mut || {
            let found = fs::read_dir(&directory)?.count();
            // And the file that was made last.
            ensure!(found == count + 1, "{found} of {count} files are listed");
            Ok(())
        })?;
        timed(&mut || {
            old.iter().zip(&new).try_for_each(|(from, to)| fs::rename(from, to))?;
            place.end_durably()
        })?;
        timed(&mut || {
            new.iter().try_for_each(fs::remove_file)?;
            place.end_durably()
        })?;
        durable::forget_end(&directory)?;
        Ok(figures)
    }
}

fn stat_all(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let metadata = fs::symlink_metadata(path)?;
        ensure!(metadata.len() == CONTENT.len() as u64, "{} has {} bytes", path.display(), metadata.len());
    }
    Ok(())
}
