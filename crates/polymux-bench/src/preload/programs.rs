//! Programs that change files of a mounted volume: the library must not be in their way.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{PreloadArguments, builds, in_turns, is_installed, pair_columns, pair_row, preload, seconds_of};
use crate::leases::volume::MountedVolume;
use crate::report::Section;
use crate::scratch::Scratch;

/// Files and bytes of the tree that is packed, unpacked and cloned.
const TREE_FILES: usize = 600;
const FILE_BYTES: usize = 20_000;
/// Requests of one turn of Redis, each of which is synced.
const REQUESTS: &str = "4000";
const PORT: &str = "16479";

/// Where programs run, and on what.
struct Stage {
    mounted: PathBuf,
    archive: PathBuf,
    repository: PathBuf,
    library: PathBuf,
}

impl Stage {
    fn command(&self, place: usize, name: &str) -> Command {
        let mut command = Command::new(name);
        command.current_dir(&self.mounted).stderr(Stdio::null());
        if place == 1 {
            preload(&mut command, &self.library);
        }
        command
    }

    /// An empty directory on the volume.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let directory = self.mounted.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir(&directory)?;
        Ok(directory)
    }

    fn unpack(&self, place: usize) -> Result<f64> {
        let directory = self.fresh("unpacked")?;
        let mut command = self.command(place, "tar");
        seconds_of(command.arg("-xf").arg(&self.archive).arg("-C").arg(directory))
    }

    fn pack(&self, place: usize) -> Result<f64> {
        let mut command = self.command(place, "tar");
        seconds_of(command.arg("-cf").arg(self.mounted.join("packed.tar")).arg("-C").arg(&self.repository).arg("."))
    }

    fn clone(&self, place: usize) -> Result<f64> {
        let directory = self.fresh("clone")?;
        let mut command = self.command(place, "git");
        seconds_of(command.args(["clone", "-q", "--no-hardlinks"]).arg(&self.repository).arg(directory.join("twin")))
    }

    fn build(&self, place: usize) -> Result<f64> {
        let project = builds::make_project(&self.fresh("project")?)?;
        let mut command = builds::build(&project)?;
        if place == 1 {
            preload(&mut command, &self.library);
        }
        seconds_of(&mut command)
    }

    /// Requests to a server that syncs each of them.
    fn redis(&self, place: usize) -> Result<f64> {
        let directory = self.fresh("redis")?;
        let mut command = self.command(place, "redis-server");
        command.args(["--port", PORT, "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir"]);
        let server = Server::start(command.arg(directory))?;
        let mut client = Command::new("redis-benchmark");
        let seconds = seconds_of(client.args(["-p", PORT, "-t", "set", "-c", "4", "-n", REQUESTS, "-q"]));
        drop(server);
        seconds
    }
}

/// A server that ends with its value.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output")?;
        let server = Self(child);
        let is_ready = |line: &String| line.contains("Ready to accept connections");
        ensure!(BufReader::new(output).lines().map_while(Result::ok).any(|line| is_ready(&line)), "no server");
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A repository with a tree of files that do not compress well, and an archive of it.
fn make_sources(scratch: &Scratch) -> Result<[PathBuf; 2]> {
    let repository = scratch.directory("repository")?;
    for number in 0..TREE_FILES {
        let directory = repository.join(format!("directory{}", number % 20));
        fs::create_dir_all(&directory)?;
        let noise = crate::noise::Noise::new(number as u64).bytes(FILE_BYTES);
        fs::write(directory.join(format!("file{number}")), noise)?;
    }
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&repository).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
        seconds_of(&mut command)
    };
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "all"])?;
    let archive = scratch.directory("archive")?.join("tree.tar");
    seconds_of(Command::new("tar").arg("-cf").arg(&archive).arg("--exclude=.git").arg("-C").arg(&repository).arg("."))?;
    Ok([repository, archive])
}

/// Measures each program on the volume, without the library and with it.
pub(super) fn measure(
    scratch: &Scratch,
    volume: &MountedVolume,
    library: &Path,
    arguments: &PreloadArguments,
) -> Result<Section> {
    let title = "Programs that change files of a volume, without and with the library";
    let mut section = Section::new(title, &pair_columns("program"));
    let [repository, archive] = make_sources(scratch)?;
    let stage = Stage { mounted: volume.mount_point().to_owned(), archive, repository, library: library.to_owned() };
    type Measure = fn(&Stage, usize) -> Result<f64>;
    let programs: [(&str, &str, Measure); 5] = [
        ("tar", "tar -xf, 600 files", Stage::unpack),
        ("tar", "tar -cf", Stage::pack),
        ("git", "git clone", Stage::clone),
        ("make", "make -j2 of a C project", Stage::build),
        ("redis-server", "redis-benchmark, appendfsync always", Stage::redis),
    ];
    for (program, name, measure) in programs {
        if is_installed(program, &mut section) {
            let times = in_turns(arguments.pairs, |place| measure(&stage, place))?;
            section.row(pair_row(name, &times));
        }
    }
    Ok(section)
}
