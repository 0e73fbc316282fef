//! The two copies of the label on the tier.
//!
//! Each copy is replaced by rename, the first durably before the second is touched, so that a crash leaves at least one
//! valid copy. Where the file system has no space for a file beside them, a copy is written over in place while the other
//! one is valid: a full tier must not keep a volume from being mounted, or from ending cleanly.
//!
//! Reading takes the valid one of the higher epoch; of two with the same epoch the first, which is written first.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
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
    judge(NAMES.map(|name| read(own_directory, name)), path)
}

fn read(own_directory: &OwnedFd, name: &str) -> std::io::Result<Vec<u8>> {
    let opened = rustix::fs::openat(own_directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    std::fs::File::from(opened).read_to_end(&mut bytes)?;
    Ok(bytes)
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
    for (name, other) in [(NAMES[0], NAMES[1]), (NAMES[1], NAMES[0])] {
        let written = match replace(own_directory, name, &bytes) {
            Err(error) if is_full(&error) && is_valid(own_directory, other) => overwrite(own_directory, name, &bytes),
            outcome => outcome,
        };
        written.map_err(|error| TierError::Io { operation: "writing the label", errno: error.into() })?;
    }
    Ok(())
}

fn replace(own_directory: &OwnedFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(own_directory, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = std::fs::File::from(opened);
    if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
        // On a full file system the file would keep an unused entry; a leftover is replaced the next time.
        let _ = rustix::fs::unlinkat(own_directory, temporary.as_str(), AtFlags::empty());
        return Err(error);
    }
    rustix::fs::renameat(own_directory, temporary.as_str(), own_directory, name)?;
    Ok(rustix::fs::fsync(own_directory)?)
}

/// Writes over a copy in place, which takes no space. A crash damages it at most, and the other one is valid.
fn overwrite(own_directory: &OwnedFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let opened = rustix::fs::openat(own_directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let file = std::fs::File::from(opened);
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

fn is_valid(own_directory: &OwnedFd, name: &str) -> bool {
    read(own_directory, name).is_ok_and(|bytes| label_format::decode(&bytes).is_ok())
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use polymux_types::{Epoch, TierId, VolumeId};
    use rustix::fs::CWD;

    use super::*;
    use crate::label::CleanStamp;

    fn label(epoch: u64) -> Label {
        Label {
            volume: VolumeId([7; 16]),
            volume_name: "tested".to_owned(),
            tier: TierId(1),
            tier_name: "fast".to_owned(),
            instance: 9,
            epoch: Epoch(epoch),
            clean: CleanStamp::InUse,
        }
    }

    fn own_directory(path: &Path) -> OwnedFd {
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .expect("it was just made")
    }

    #[test]
    fn a_copy_written_over_in_place_counts_and_a_torn_one_leaves_the_other() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let own = own_directory(directory.path());
        let long = Label { tier_name: "a much longer name than afterwards".to_owned(), ..label(3) };
        write(&own, &long).expect("there is room");
        overwrite(&own, NAMES[0], &label_format::encode(&label(4))).expect("it is there");
        assert_eq!(require_in(&own, directory.path()).expect("both are valid"), label(4));

        overwrite(&own, NAMES[0], &label_format::encode(&label(5))[..20]).expect("it is there");
        assert!(!is_valid(&own, NAMES[0]) && is_valid(&own, NAMES[1]));
        assert_eq!(require_in(&own, directory.path()).expect("the other one is valid"), long);
    }
}
