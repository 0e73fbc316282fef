//! The two copies of the label on the tier.
//!
//! Each copy is replaced by rename, the first durably before the second is touched, so that a crash leaves at least one
//! valid copy. Reading takes the valid one of the higher epoch; of two with the same epoch the first, which is written
//! first.

use std::io::{Read, Write};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};

use super::{OWN_DIRECTORY, io_error};
use crate::error::TierError;
use crate::label::Label;
use crate::label_format;

const NAMES: [&str; 2] = ["label", "label.copy"];

/// The label of the tier that is in a directory now; an error that names the path where there is none.
pub(super) fn require(path: &Path) -> Result<Label, TierError> {
    judge(NAMES.map(|name| std::fs::read(path.join(OWN_DIRECTORY).join(name))), path)
}

/// The label of a tier that is open. Another directory may stand at its path by now, whose label says nothing of this one.
pub(super) fn require_in(own_directory: &OwnedFd, path: &Path) -> Result<Label, TierError> {
    let read = |name| {
        let opened = rustix::fs::openat(own_directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        std::fs::File::from(opened).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    judge(NAMES.map(read), path)
}

fn judge(copies: [std::io::Result<Vec<u8>>; 2], path: &Path) -> Result<Label, TierError> {
    if let [Err(error), Err(_)] = &copies {
        let detail = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "has no label: not a Polymux tier, or its file system is not mounted".to_owned()
            }
            _ => error.to_string(),
        };
        return Err(TierError::Label(format!("{}: {detail}", path.display())));
    }
    let decoded = copies.into_iter().flatten().map(|bytes| label_format::decode(&bytes).map_err(TierError::from));
    choose(decoded.collect()).map_err(|error| match error {
        TierError::Label(detail) => TierError::Label(format!("{}: {detail}", path.display())),
        other => other,
    })
}

fn choose(copies: Vec<Result<Label, TierError>>) -> Result<Label, TierError> {
    let mut refusal = TierError::Label("there is no label".to_owned());
    let mut best: Option<Label> = None;
    for copy in copies {
        match copy {
            Ok(label) if best.as_ref().is_none_or(|best| label.epoch > best.epoch) => best = Some(label),
            Ok(_) => {}
            // A newer program wrote one of the copies: nothing here is ours to judge.
            Err(TierError::Label(detail)) if detail.contains("newer Polymux") => return Err(TierError::Label(detail)),
            Err(error) => refusal = error,
        }
    }
    best.ok_or(refusal)
}

/// Removes both copies, durably. A crash in between leaves one, which counts as the label.
pub(super) fn remove(own_directory: &OwnedFd) -> Result<(), TierError> {
    for name in NAMES {
        match rustix::fs::unlinkat(own_directory, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(io_error("removing the label")(errno)),
        }
    }
    rustix::fs::fsync(own_directory).map_err(io_error("removing the label"))
}

/// Replaces both copies, one after the other, durably.
pub(super) fn write(own_directory: &OwnedFd, label: &Label) -> Result<(), TierError> {
    let bytes = label_format::encode(label);
    for name in NAMES {
        let temporary = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(own_directory, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(opened.map_err(io_error("writing the label"))?);
        let written = file.write_all(&bytes).and_then(|()| file.sync_all());
        written.map_err(|error| TierError::Io { operation: "writing the label", errno: error.into() })?;
        rustix::fs::renameat(own_directory, temporary.as_str(), own_directory, name)
            .map_err(io_error("writing the label"))?;
        rustix::fs::fsync(own_directory).map_err(io_error("writing the label"))?;
    }
    Ok(())
}
