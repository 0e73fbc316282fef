//! Small appends: with one fsync at the end, and with one after each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::access;
use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Bytes of a line of a log.
const LINE: [u8; 100] = [b'x'; 100];

/// Bytes of a page of one.
const PAGE: [u8; 4096] = [b'x'; 4096];

/// Bytes of the file that is appended to where it is split: its second half is on the second tier.
const SPLIT_BYTES: u64 = 4 << 20;

/// Small appends to a new file, or to one that is on two tiers.
pub struct Append {
    name: &'static str,
    about: &'static str,
    tier: Tier,
}

impl Append {
    /// To a new file.
    pub const NEW: Self = Self {
        name: "append",
        about: "appends of 100 bytes and of 4 KiB to a new file, as a program writes its log",
        tier: Tier::First,
    };

    /// To a file whose end is on the second tier.
    pub const SPLIT: Self = Self {
        name: "append-split",
        about: "the same to a file of 4 MiB whose second half is on the second tier (native: all on the first device)",
        tier: Tier::Split,
    };

    fn open(&self, path: &Path) -> Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create_new(self.tier != Tier::Split);
        options.open(path).with_context(|| path.display().to_string())
    }

    /// Undoes the appends.
    fn reset(&self, path: &Path) -> Result<()> {
        match self.tier {
            Tier::Split => Ok(OpenOptions::new().write(true).open(path)?.set_len(SPLIT_BYTES)?),
            _ => Ok(std::fs::remove_file(path)?),
        }
    }
}

impl Workload for Append {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn ends_with(&self) -> &'static str {
        "fsync of the file at the end, or fdatasync after each append"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("append"), Figure::us("append of 4 KiB"), Figure::us("append + fdatasync")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(self.tier, scale)
    }

    fn routes(&self) -> Routes {
        if self.tier == Tier::Split { Routes::Cached } else { Routes::Programs }
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        if self.tier == Tier::Split {
            let path = place.directory(self.tier)?.join("log");
            access::write_file(&path, SPLIT_BYTES)?;
            place.side.split(place.devices, &path, SPLIT_BYTES)?;
        }
        Ok(())
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let path = place.directory(self.tier)?.join("log");
        let lines = (LINE.as_slice(), place.scale.choose(2_000, 20_000));
        let pages = (PAGE.as_slice(), place.scale.choose(1_000, 10_000));
        let mut figures = Vec::new();
        for (piece, count) in [lines, pages] {
            let mut file = self.open(&path)?;
            let begun = Instant::now();
            for _ in 0..count {
                file.write_all(piece)?;
            }
            file.sync_all()?;
            figures.push(access::us_each(begun, count));
            self.reset(&path)?;
        }
        let count = place.scale.choose(200, 1_000);
        let mut file = self.open(&path)?;
        file.sync_all()?;
        let begun = Instant::now();
        for _ in 0..count {
            file.write_all(&LINE)?;
            file.sync_data()?;
        }
        figures.push(access::us_each(begun, count));
        self.reset(&path)?;
        Ok(figures)
    }
}
