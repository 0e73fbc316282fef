//! Small appends: with one fsync at the end, and with one after each.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};

use super::access;
use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Bytes of a line of a log.
const LINE: [u8; 100] = [b'x'; 100];

/// Appends of 100 bytes.
pub struct Append;

impl Workload for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn about(&self) -> &'static str {
        "appends of 100 bytes to a new file, as a program writes its log"
    }

    fn ends_with(&self) -> &'static str {
        "fsync of the file at the end, or fdatasync after each append"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("append"), Figure::us("append + fdatasync")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::of_each_format(|format| Ground::one(Kind::Memory, format), scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let path = place.directory(Tier::First)?.join("log");
        let open = || {
            let opened = OpenOptions::new().append(true).create_new(true).open(&path);
            opened.with_context(|| path.display().to_string())
        };
        let count = place.scale.choose(2_000, 20_000);
        let mut file = open()?;
        let begun = Instant::now();
        for _ in 0..count {
            file.write_all(&LINE)?;
        }
        file.sync_all()?;
        let buffered = access::us_each(begun, count);
        std::fs::remove_file(&path)?;
        let count = place.scale.choose(200, 1_000);
        let mut file = open()?;
        file.sync_all()?;
        let begun = Instant::now();
        for _ in 0..count {
            file.write_all(&LINE)?;
            file.sync_data()?;
        }
        let synced = access::us_each(begun, count);
        std::fs::remove_file(&path)?;
        Ok(vec![buffered, synced])
    }
}
