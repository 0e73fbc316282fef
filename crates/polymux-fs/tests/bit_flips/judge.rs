//! The outcome for an image with one wrong bit: while its copy is there, while it is away and comes back, and without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_fs::{FileSystem, MountOptions};
use polymux_meta::{
    CopyPlace, CopyReport, CopyState, LogPlacement, LogStore, OpenMode, StoreView, WayOut, restore_from_copy,
    verify_copy,
};

use crate::image::{FILES, SecondCopy, content, name, open_store, options, parts, read, ship};
use crate::stand::{Stand, files_below};

/// The outcome of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Every file is there, and so is a copy that has all of them.
    Unharmed,
    /// Every file is there, and reading all of the copy, which the flip was in, finds the damage.
    CopyDamaged,
    /// The damage was reported, and the remedy named by the refusal worked.
    Reported,
    /// The copy that was away is refused, because the store lost records that it has, and stays as it is.
    CopyRefused,
    /// Without a copy, and in the last flush: taken for the torn tail of a power failure.
    LikeATornTail,
}

/// State of a volume.
enum Found {
    Whole,
    /// The operation that reported the damage.
    Reported(String),
    /// Data is lost silently: which file, counted from the newest one.
    Silent(usize, String),
}

struct Volume {
    mounted: FileSystem,
    store: Arc<LogStore>,
}

fn mount(image: &Path, copy: SecondCopy) -> Result<Volume, String> {
    let store = open_store(image, OpenMode::Existing, copy)?;
    let mounted = FileSystem::mount(parts(image, &store, OpenMode::Existing), MountOptions::default());
    let mounted = mounted.map_err(|error| format!("the mount: {error}"))?;
    Ok(Volume { mounted, store })
}

fn look(volume: &Volume) -> Found {
    for number in 0..FILES {
        let age = FILES - 1 - number;
        match read(&volume.mounted, number) {
            Ok(bytes) if bytes == content(number) => {}
            Ok(bytes) => return Found::Silent(age, format!("{} has other {} bytes", name(number), bytes.len())),
            Err(error) if error.contains("ENOENT") || error.contains("No such file") => {
                return Found::Silent(age, error);
            }
            Err(error) => return Found::Reported(error),
        }
    }
    Found::Whole
}

/// Mounts an image with its copy in place, reads all of it, and lets the copy come along.
fn look_with_copy(image: &Path) -> Found {
    let volume = match mount(image, SecondCopy::Configured) {
        Ok(volume) => volume,
        Err(error) => return Found::Reported(error),
    };
    match look(&volume) {
        Found::Whole => ship(&volume.store).map_or_else(Found::Reported, |()| Found::Whole),
        other => other,
    }
}

fn copy_places(image: &Path) -> [CopyPlace; 1] {
    [CopyPlace { name: "tier `slow`".to_owned(), path: image.join("copy") }]
}

/// The message to users where a volume reports damage, as the program puts it together.
fn refusal(image: &Path, error: &str) -> String {
    let places = copy_places(image);
    let way_out =
        WayOut::of(&image.join("store"), &places, &options(OpenMode::Existing, image, SecondCopy::Configured));
    way_out.map_or_else(|| error.to_owned(), |way_out| format!("{}: {error}", way_out.advice(&places, "test")))
}

/// Makes the store out of the copy, as `mount --from-copy` does.
fn start_from_copy(image: &Path) -> Result<(), String> {
    verify_copy(&image.join("copy"), &polymux_fs::store_boundaries()).map_err(|error| format!("the copy: {error}"))?;
    if image.join("store").exists() {
        fs::rename(image.join("store"), image.join("aside")).map_err(|error| error.to_string())?;
    }
    let restoring = options(OpenMode::Existing, image, SecondCopy::Configured);
    restore_from_copy(&image.join("copy"), &image.join("store"), &restoring)
        .map_err(|error| format!("from the copy: {error}"))?;
    Ok(())
}

/// Whether a volume that is made of the copy of the image has every file. Where the volume went on without the copy, `tiers` is
/// the image with the tiers as they were before.
fn copy_has_every_file(stand: &Stand, tiers: &Path) -> Result<(), String> {
    let scratch = stand.with_copy_alone(tiers);
    start_from_copy(scratch)?;
    match look_with_copy(scratch) {
        Found::Whole => Ok(()),
        Found::Reported(what) | Found::Silent(_, what) => Err(format!("started from the copy: {what}")),
    }
}

fn check_of_store(image: &Path) -> Result<(), String> {
    let view = StoreView::open(&image.join("store"), &LogPlacement::Block, &polymux_fs::store_boundaries());
    view.and_then(|view| view.verify()).map_err(|error| error.to_string())
}

/// Judges an image with one bit turned in `target`, and its copy in place.
pub fn with_copy(stand: &Stand, target: &Path) -> Result<Outcome, String> {
    let image = stand.image();
    let checked = check_of_store(image);
    let reported = match look_with_copy(image) {
        Found::Whole => {
            let copied = copy_has_every_file(stand, image);
            return match copied {
                // A check finds damage that no operation has read.
                Ok(()) => Ok(if checked.is_err() { Outcome::Reported } else { Outcome::Unharmed }),
                Err(_) if target.starts_with("copy") => Ok(Outcome::CopyDamaged),
                Err(error) => Err(format!("the volume is whole, and its copy is not: {error}")),
            };
        }
        Found::Reported(what) => what,
        Found::Silent(_, what) => {
            return Err(format!("lost without a word: {what}; the check of the store: {checked:?}"));
        }
    };
    if target.starts_with("copy") {
        return Err(format!("a damaged copy stops a healthy store: {reported}"));
    }
    let refusal = refusal(image, &reported);
    if !refusal.contains("--from-copy") {
        return Err(format!("no way out is named: {refusal}"));
    }
    start_from_copy(image).map_err(|error| format!("{refusal}; {error}"))?;
    match look_with_copy(image) {
        Found::Whole => Ok(Outcome::Reported),
        Found::Reported(what) | Found::Silent(_, what) => Err(format!("{refusal}; started from the copy: {what}")),
    }
}

/// Lets a store that is open find its copy again.
fn find_copy_again(store: &LogStore) -> Result<CopyReport, String> {
    for _ in 0..100 {
        store.step().map_err(|error| error.to_string())?;
        let report = store.report().copy.expect("a copy is configured");
        if matches!(report.state, CopyState::Current | CopyState::Refused) {
            return Ok(report);
        }
    }
    Err(format!("the copy is not found again: {:?}", store.report().copy))
}

/// Judges an image with one bit turned in its store, whose copy is away when it is mounted and comes back.
pub fn with_copy_away(stand: &Stand) -> Result<Outcome, String> {
    let image = stand.image();
    let (copy, away) = (image.join("copy"), image.join("away"));
    fs::rename(&copy, &away).map_err(|error| error.to_string())?;
    // Nothing can be made in its place.
    fs::write(&copy, b"").map_err(|error| error.to_string())?;
    let mounted = mount(image, SecondCopy::Configured);
    let found = mounted.as_ref().map_or_else(|error| Found::Reported(error.clone()), look);
    fs::remove_file(&copy).and_then(|()| fs::rename(&away, &copy)).map_err(|error| error.to_string())?;
    let report = mounted.as_ref().ok().map(|volume| find_copy_again(&volume.store)).transpose();
    drop(mounted);
    match (found, report?) {
        (Found::Whole, Some(report)) if report.state == CopyState::Current => {
            copy_has_every_file(stand, image).map(|()| Outcome::Unharmed)
        }
        (Found::Reported(error), None) => {
            copy_is_kept(stand)?;
            let refusal = refusal(image, &error);
            match refusal.contains("--from-copy") {
                true => Ok(Outcome::Reported),
                false => Err(format!("no way out is named: {refusal}")),
            }
        }
        (found, report) => {
            let what = match found {
                Found::Whole => "every file is there".to_owned(),
                Found::Reported(what) | Found::Silent(_, what) => what,
            };
            let refused = report.filter(|report| report.state == CopyState::Refused);
            let refused = refused.ok_or_else(|| format!("{what}, and the copy that has it is made anew"))?;
            if !refused.reason.contains("--from-copy") || !refused.reason.contains("remove") {
                return Err(format!("no way out is named: {}", refused.reason));
            }
            copy_is_kept(stand).map_err(|error| format!("{what}; {error}"))?;
            // Nor is it overwritten at the next mount, whether that is refused or not.
            if let Ok(volume) = mount(image, SecondCopy::Configured) {
                find_copy_again(&volume.store)?;
            }
            copy_is_kept(stand).map_err(|error| format!("{what}; at the next mount {error}"))?;
            Ok(Outcome::CopyRefused)
        }
    }
}

/// Whether the copy is as it was, and a volume that starts from it has every file.
fn copy_is_kept(stand: &Stand) -> Result<(), String> {
    let (image, original) = (stand.image(), stand.original());
    let files = files_below(image, &image.join("copy"));
    let same = |file: &PathBuf| fs::read(image.join(file)).ok() == fs::read(original.join(file)).ok();
    if files != files_below(original, &original.join("copy")) || !files.iter().all(same) {
        return Err("the copy was changed".to_owned());
    }
    copy_has_every_file(stand, original)
}

/// Judges an image with one bit turned in its store, which has no copy.
pub fn without_copy(stand: &Stand, target: &Path) -> Result<Outcome, String> {
    let image = stand.image();
    fs::remove_dir_all(image.join("copy")).map_err(|error| error.to_string())?;
    let checked = check_of_store(image);
    let found = match mount(image, SecondCopy::SwitchedOff) {
        Ok(volume) => look(&volume),
        Err(error) => Found::Reported(error),
    };
    match found {
        Found::Whole => Ok(if checked.is_err() { Outcome::Reported } else { Outcome::Unharmed }),
        Found::Reported(error) => {
            let refusal = refusal(image, &error);
            match refusal.contains("polymux rebuild") {
                true => Ok(Outcome::Reported),
                false => Err(format!("no way out is named: {refusal}")),
            }
        }
        Found::Silent(age, _) if age < 2 && target == Path::new("store/log") => Ok(Outcome::LikeATornTail),
        Found::Silent(_, what) => Err(format!("lost without a word: {what}; the check of the store: {checked:?}")),
    }
}
