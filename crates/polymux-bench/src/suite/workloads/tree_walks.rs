//! Programs that walk a tree of 2,000 files: `grep -r`, `find`, `ls -lR` and `du`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{access, grounds, untar};
use crate::machine::drop_caches;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};

/// Each program after the kernel's caches were dropped, and once more.
pub struct TreeWalks;

/// The programs, with their arguments. Each prints at least one line.
const WALKS: [&[&str]; 4] = [
    // Every line counts, so that all files are read to their ends. (Whether `--files-without-match` succeeds depends on the version.)
    &["grep", "--recursive", "--count", "--text", "--fixed-strings", "", "."],
    &["find", ".", "-type", "f", "-size", "+0"],
    &["ls", "-lR", "."],
    &["du", "--summarize", "."],
];

impl Workload for TreeWalks {
    fn name(&self) -> &'static str {
        "tree-walks"
    }

    fn about(&self) -> &'static str {
        "programs that walk an unpacked tree of 2,000 files, after the caches were dropped and again"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::ms("grep -r, cold"),
                Figure::ms("grep -r, warm"),
                Figure::ms("find -size, cold"),
                Figure::ms("find -size, warm"),
                Figure::ms("ls -lR, cold"),
                Figure::ms("ls -lR, warm"),
                Figure::ms("du, cold"),
                Figure::ms("du, warm"),
            ]
        }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn temperature(&self) -> Temperature {
        Temperature::Cold
    }

    fn needs_archive(&self) -> bool {
        true
    }

    fn obstacle(&self) -> Option<String> {
        programs::missing(WALKS.iter().map(|walk| walk[0]).chain(["tar"]))
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        untar::unpack_tree(place)?;
        place.end_durably()
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let tree = place.directory(Tier::First)?.join("tree");
        let mut figures = Vec::new();
        for walk in WALKS {
            drop_caches()?;
            // The program itself is in memory.
            programs::run(place.devices, Command::new(walk[0]).arg("--version"))?;
            let cold = run(place, &tree, walk)?;
            let warm = run(place, &tree, walk)?;
            ensure!(
                !cold.printed.is_empty() && cold.printed == warm.printed,
                "{walk:?} found another tree when run again"
            );
            figures.extend([cold.ms, warm.ms]);
        }
        Ok(figures)
    }
}

/// A run of a program.
struct Run {
    ms: f64,
    printed: String,
}

fn run(place: &Place, tree: &Path, walk: &[&str]) -> Result<Run> {
    let begun = Instant::now();
    let printed = programs::run(place.devices, Command::new(walk[0]).args(&walk[1..]).current_dir(tree))?;
    Ok(Run { ms: access::seconds(begun) * 1e3, printed })
}
