//! The command line's end of the control socket, and how it finds the volume that is meant.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::mount_table::{MountTable, is_polymux, volumes};
use crate::protocol::{Answer, Request};
use polymux_config::config::VolumeConfig;
use polymux_config::registry::{Registry, VolumeReference};

/// How long the daemon may take to say something: longer than a tier that wakes its disks.
const DAEMON_PATIENCE: Duration = Duration::from_secs(60);

/// Asks the daemon of a volume; `None` where the volume is not mounted.
pub fn ask(registry: &Registry, name: &str, request: &Request) -> Result<Option<Answer>> {
    ask_with_progress(registry, name, request, &mut |_| ())
}

/// As [`ask`], of a volume that has to be mounted.
pub fn ask_mounted(registry: &Registry, name: &str, request: &Request) -> Result<Answer> {
    ask(registry, name, request)?.ok_or_else(|| anyhow!("volume `{name}` is not mounted: mount it first"))
}

/// The error for a daemon whose answer does not match the request.
pub fn answered_something_else(name: &str) -> anyhow::Error {
    anyhow!("the daemon of volume `{name}` answered something else")
}

/// As [`ask`], for a long request: `on_progress` receives each progress message before the answer.
pub fn ask_with_progress(
    registry: &Registry,
    name: &str,
    request: &Request,
    on_progress: &mut dyn FnMut(&Answer),
) -> Result<Option<Answer>> {
    for path in registry.socket_paths(name) {
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => continue,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!("volume `{name}` was mounted by another user: {} may not be opened", path.display())
            }
            Err(error) => return Err(error).with_context(|| format!("cannot connect to {}", path.display())),
        };
        return converse(&stream, request, on_progress)
            .with_context(|| format!("the daemon of volume `{name}`"))
            .map(Some);
    }
    Ok(None)
}

fn converse(stream: &UnixStream, request: &Request, on_progress: &mut dyn FnMut(&Answer)) -> Result<Answer> {
    stream.set_read_timeout(Some(DAEMON_PATIENCE))?;
    stream.set_write_timeout(Some(DAEMON_PATIENCE))?;
    let mut text = serde_json::to_string(request)?;
    text.push('\n');
    let mut target = stream;
    target.write_all(text.as_bytes())?;
    let mut reader = BufReader::new(stream);
    loop {
        match next_answer(&mut reader)? {
            progress @ (Answer::CheckProgress(_) | Answer::MeasureProgress(_) | Answer::TierLossPart(_)) => {
                on_progress(&progress)
            }
            Answer::Error(text) => return Err(anyhow!(text)),
            answer => return Ok(answer),
        }
    }
}

fn next_answer(reader: &mut BufReader<&UnixStream>) -> Result<Answer> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) => bail!("closed the connection without an answer"),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("said nothing for {} s", DAEMON_PATIENCE.as_secs())
        }
        Err(error) => return Err(error.into()),
    }
    serde_json::from_str(&line).context("gave an answer of another version")
}

/// The name of the volume that a name, a mount point or a configuration file means.
pub fn volume_name(registry: &Registry, text: &str) -> Result<String> {
    match VolumeReference::parse(text) {
        VolumeReference::Name(name) => {
            // A directory in the working directory may be meant, but only where no mounted volume has that name.
            let table = MountTable::read()?;
            if !volumes(&table).any(|mount| mount.source == name)
                && let Ok(path) = mount_point_path(Path::new(&name))
                && let Some(mount) = table.at(&path).filter(|mount| is_polymux(mount))
            {
                return Ok(mount.source.clone());
            }
            polymux_config::names::check("volume", &name)?;
            Ok(name)
        }
        VolumeReference::File(path) => {
            let path = mount_point_path(&path)?;
            if let Some(mount) = MountTable::read()?.at(&path).filter(|mount| is_polymux(mount)) {
                return Ok(mount.source.clone());
            }
            if path.extension().is_some_and(|extension| extension == "toml") {
                let path = registry.config_path(&VolumeReference::File(path))?;
                return Ok(VolumeConfig::read(&path)?.name);
            }
            bail!("no Polymux volume is mounted on {}", path.display())
        }
    }
}

/// The true path of a directory that is, or will be, mounted on. Where a dead mount makes that impossible, the path with
/// links resolved in its parent only: naming a dead mount must work so that it can be unmounted.
pub fn mount_point_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize().or_else(|_| path_without_following(path))
}

/// The absolute form of a path with links resolved in its parent only.
pub fn path_without_following(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = parent.canonicalize().with_context(|| format!("cannot find {}", parent.display()))?;
            Ok(parent.join(name))
        }
        _ => Ok(absolute),
    }
}
