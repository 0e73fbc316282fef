//! `git status` in a repository of 2,000 files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{access, untar};
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};
use crate::throttled::Format;

/// `git status`, first after a mount and then again.
pub struct GitStatus;

/// Git without the user's own settings.
pub fn git(tree: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree).args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    git.args(["-c", "safe.directory=*", "-c", "core.excludesFile="]);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git
}

/// Why a repository cannot be made on this machine.
pub fn obstacle() -> Option<String> {
    programs::missing(["git", "tar"])
}

/// Unpacks the tree, and commits it to a repository of its own.
pub fn make_repository(place: &Place) -> Result<PathBuf> {
    let tree = untar::unpack_tree(place)?;
    for arguments in
        [&["init", "--quiet"][..], &["add", "--all", "--force"], &["commit", "--quiet", "--message", "tree"]]
    {
        programs::run(place.devices, git(&tree).args(arguments))?;
    }
    Ok(tree)
}

impl Workload for GitStatus {
    fn name(&self) -> &'static str {
        "git-status"
    }

    fn about(&self) -> &'static str {
        "git status of the unpacked tree, first after a mount and then again"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::ms("first"), Figure::ms("again")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        match scale {
            Scale::Quick => Vec::new(),
            Scale::Full => vec![Ground::one(Kind::Memory, Format::Ext4), Ground::one(Kind::Memory, Format::Xfs)],
        }
    }

    fn routes(&self) -> Routes {
        Routes::Transports
    }

    fn temperature(&self) -> Temperature {
        Temperature::Cold
    }

    fn needs_archive(&self) -> bool {
        true
    }

    fn obstacle(&self) -> Option<String> {
        obstacle()
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let tree = make_repository(place)?;
        // Times as new as the index make git read files again and again.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        programs::run(place.devices, git(&tree).args(["status", "--porcelain"]))?;
        place.end_durably()
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let tree = place.directory(Tier::First)?.join("tree");
        let mut figures = Vec::new();
        for _ in self.figures() {
            let begun = Instant::now();
            let said = programs::run(place.devices, git(&tree).args(["--no-optional-locks", "status", "--porcelain"]))?;
            figures.push(access::seconds(begun) * 1e3);
            ensure!(said.is_empty(), "nothing was changed, but git says: {said}");
        }
        Ok(figures)
    }
}
