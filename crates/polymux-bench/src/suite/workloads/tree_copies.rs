//! Copying and removing a tree of 2,000 files: `cp -a`, `git clone`, `rm -rf`.

use std::process::Command;

use anyhow::Result;

use super::git_status::{self, git};
use super::grounds;
use crate::suite::durable;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Each of them made durable.
pub struct TreeCopies;

impl Workload for TreeCopies {
    fn name(&self) -> &'static str {
        "tree-copies"
    }

    fn about(&self) -> &'static str {
        "a tree of 2,000 files copied with cp -a, cloned with git, and the copy removed with rm -rf"
    }

    fn ends_with(&self) -> &'static str {
        durable::IN_WORDS
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::ms("cp -a"), Figure::ms("git clone"), Figure::ms("rm -rf")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn needs_archive(&self) -> bool {
        true
    }

    fn obstacle(&self) -> Option<String> {
        git_status::obstacle()
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        git_status::make_repository(place).map(|_| ())
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?;
        let [tree, copy, clone] = ["tree", "copy", "clone"].map(|name| directory.join(name));
        let durably =
            |command: &mut Command| place.ms_until_durable(|| programs::run(place.devices, command).map(drop));
        let figures = vec![
            durably(Command::new("cp").arg("--archive").arg(&tree).arg(&copy))?,
            durably(git(&directory).args(["clone", "--quiet", "--no-hardlinks"]).arg(&tree).arg(&clone))?,
            durably(Command::new("rm").args(["--recursive", "--force"]).arg(&copy))?,
        ];
        std::fs::remove_dir_all(&clone)?;
        Ok(figures)
    }
}
