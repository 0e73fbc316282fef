//! Permitted and observed states after a crash.
//!
//! Invariants: [`Observed`] is the state that a program sees after recovery; [`judge`] compares it with a history at a crash
//! point and knows nothing of how the volume works, but for the place of the tiers that an append was spread over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polymux_fs::{FileKind, FileSystem, SeekTarget, check_records};
use polymux_meta::MetadataStore;
use polymux_tier::Tier;
use polymux_types::{Errno, Ino, Timestamp};

use super::history::{Facts, History, Names, Version, XATTR};
use super::scene::Mounted;
use crate::common::{read_at, read_only, read_whole, walk};

const BLOCK: usize = 4096;

/// One file as it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub content: Arc<Vec<u8>>,
    /// Offset and tier of each run.
    pub places: Vec<(usize, Option<String>)>,
    /// Blocks that cannot be read, because a sync of them failed.
    pub lost: BTreeSet<usize>,
    pub permissions: u32,
    pub modified: Timestamp,
    pub xattr: Option<Vec<u8>>,
}

/// A volume as a program finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub names: Names,
    pub files: BTreeMap<Ino, Found>,
}

impl Observed {
    /// Walks over everything and reads it.
    pub fn of(fs: &FileSystem) -> Result<Self, String> {
        let failed = |what: &str, error: &polymux_fs::Error| format!("{what}: {error}");
        let mut names = Names::new();
        let mut files = BTreeMap::new();
        for (path, ino) in walk(fs).map_err(|error| failed("walking over the names", &error))? {
            let attributes =
                fs.attributes(&polymux_fs::Caller::root(), ino).map_err(|error| failed("an inode", &error))?;
            if path.is_empty() {
                continue;
            }
            let name = String::from_utf8_lossy(path.strip_prefix(b"/").unwrap_or(&path)).into_owned();
            if attributes.kind == FileKind::Directory {
                names.insert(name, ino);
                continue;
            }
            let (content, lost) = read_all(fs, ino).map_err(|error| failed(&format!("reading `{name}`"), &error))?;
            if content.len() as u64 != attributes.size {
                return Err(format!("`{name}` has a size of {} and {} bytes", attributes.size, content.len()));
            }
            let location = fs.locate(ino).map_err(|error| failed("locating", &error))?;
            let place = |extent: &polymux_fs::ExtentReport| {
                (usize::try_from(extent.offset).expect("files are small"), extent.tier.clone())
            };
            let places = location.extents.iter().map(place).collect();
            names.insert(name, ino);
            let xattr = fs.xattr(&polymux_fs::Caller::root(), ino, XATTR).ok();
            let (permissions, modified) = (attributes.permissions, attributes.modified);
            files.insert(ino, Found { content: Arc::new(content), places, lost, permissions, modified, xattr });
        }
        Ok(Self { names, files })
    }

    /// Whether both agree on everything but the tiers of the bytes.
    pub fn agrees(&self, other: &Self) -> Result<(), String> {
        if self.names != other.names {
            return Err(format!("the names were {:?} and are {:?}", self.names, other.names));
        }
        for (ino, found) in &self.files {
            let before = &other.files[ino];
            if found.content != before.content {
                return Err(format!("inode {ino}: {}", difference(&found.content, &before.content)));
            }
            if (found.permissions, &found.xattr, &found.lost) != (before.permissions, &before.xattr, &before.lost) {
                return Err(format!("inode {ino}: the attributes were {found:?} and are {before:?}"));
            }
        }
        Ok(())
    }
}

/// The content of a file, with zeros for the blocks that cannot be read, and those blocks.
fn read_all(fs: &FileSystem, ino: Ino) -> polymux_fs::Result<(Vec<u8>, BTreeSet<usize>)> {
    match read_whole(fs, ino) {
        Ok(content) => return Ok((content, BTreeSet::new())),
        Err(error) if error.errno() != Errno::EIO => return Err(error),
        Err(_) => {}
    }
    let size = usize::try_from(fs.attributes(&polymux_fs::Caller::root(), ino)?.size).expect("files are small");
    let handle = fs.open(&polymux_fs::Caller::root(), ino, read_only())?;
    let (mut content, mut lost) = (vec![0; size], BTreeSet::new());
    for block in 0..size.div_ceil(BLOCK) {
        let (from, to) = (block * BLOCK, size.min((block + 1) * BLOCK));
        match read_at(fs, handle, from as u64, to - from) {
            Ok(bytes) => content[from..from + bytes.len()].copy_from_slice(&bytes),
            Err(_) => drop(lost.insert(block)),
        }
    }
    fs.release(handle)?;
    Ok((content, lost))
}

fn difference(was: &[u8], is: &[u8]) -> String {
    let first = was.iter().zip(is).position(|(was, is)| was != is).unwrap_or(was.len().min(is.len()));
    let byte = |content: &[u8]| content.get(first).map_or("nothing".to_owned(), |byte| format!("{byte:#04x}"));
    format!("{} bytes and {} bytes differ from byte {first} on: {} and {}", was.len(), is.len(), byte(was), byte(is))
}

/// Whether the observed state is allowed after a crash at this point.
pub fn judge(history: &History, point: usize, observed: &Observed) -> Result<(), String> {
    judge_by(history, point, observed, judge_file)
}

/// Whether the state observed from the second copy is allowed. It may lag, except for blocks missing from its map: each block is one
/// that the file had since the copy was brought up to date, or a hole that a cut left.
pub fn judge_copy(history: &History, point: usize, observed: &Observed) -> Result<(), String> {
    judge_by(&history.of_copy(point), point, observed, judge_file_of_copy)
}

type JudgeFile = fn(&History, &[&Version], &Found) -> Result<(), String>;

fn judge_by(history: &History, point: usize, observed: &Observed, judge_file: JudgeFile) -> Result<(), String> {
    let possible = history.names_possible(point);
    let mut complaint = None;
    for index in possible.iter().copied().filter(|index| history.names[*index].1 == observed.names) {
        match judge_files(history, point, index, observed, judge_file) {
            Ok(()) => return Ok(()),
            Err(found) => complaint = Some(found),
        }
    }
    let expected = || possible.iter().map(|index| format!("\n    {:?}", history.names[*index].1)).collect::<String>();
    Err(complaint.unwrap_or_else(|| format!("the names are {:?}, possible are{}", observed.names, expected())))
}

fn judge_files(
    history: &History,
    point: usize,
    names: usize,
    observed: &Observed,
    judge_file: JudgeFile,
) -> Result<(), String> {
    for (ino, found) in &observed.files {
        let name = observed.names.iter().find(|(_, of)| *of == ino).map_or("", |(name, _)| name);
        let versions = history.versions_possible(point, names, *ino);
        judge_facts(&history.facts_possible(point, *ino), found)
            .map_err(|text| format!("`{name}` (inode {ino}): {text}"))?;
        if !found.lost.is_empty() && !history.has_failed_syncs {
            return Err(format!("`{name}` (inode {ino}): blocks {:?} cannot be read", found.lost));
        }
        judge_file(history, &versions, found).map_err(|text| {
            let versions: Vec<(usize, usize)> =
                versions.iter().map(|version| (version.step, version.content.len())).collect();
            format!(
                "`{name}` (inode {ino}): {text}; possible versions (step, size): {versions:?}; places {:?}",
                found.places
            )
        })?;
    }
    Ok(())
}

fn judge_facts(possible: &[&Facts], found: &Found) -> Result<(), String> {
    let is_like = |facts: &&&Facts| {
        facts.permissions == found.permissions
            && facts.modified.is_none_or(|modified| modified == found.modified)
            && facts.xattr == found.xattr
    };
    if possible.iter().any(|facts| is_like(&facts)) {
        return Ok(());
    }
    let Found { permissions, modified, xattr, .. } = found;
    Err(format!("permissions {permissions:o}, modified {modified:?}, xattr {xattr:?}; possible are {possible:?}"))
}

fn judge_file(history: &History, versions: &[&Version], found: &Found) -> Result<(), String> {
    let size = found.content.len();
    if !is_size_possible(versions, size) {
        return Err(format!("a size of {size} that it never had"));
    }
    for block in (0..size.div_ceil(BLOCK)).filter(|block| !found.lost.contains(block)) {
        judge_block(versions, found, block)?;
    }
    judge_spread(history, versions, found)
}

fn judge_file_of_copy(_: &History, versions: &[&Version], found: &Found) -> Result<(), String> {
    let size = found.content.len();
    if !is_size_possible(versions, size) {
        return Err(format!("a size of {size} that it had neither then nor later"));
    }
    for block in 0..size.div_ceil(BLOCK) {
        let bytes = &found.content[block * BLOCK..size.min((block + 1) * BLOCK)];
        if !versions.iter().any(|version| block_of(version, block, size) == bytes) {
            let shown = &bytes[..bytes.len().min(4)];
            return Err(format!("block {block} of {size} bytes was never like this: it begins with {shown:02x?}"));
        }
    }
    Ok(())
}

/// A write that made the file longer may be torn between blocks.
fn is_size_possible(versions: &[&Version], size: usize) -> bool {
    let grown_to = |pair: &[&Version]| {
        let (before, after) = (pair[0].content.len(), pair[1].content.len());
        size.is_multiple_of(BLOCK) && before < size && size < after
    };
    // A write inside the range that an earlier one had just extended may be durable without it: the file ends where it did.
    let is_end_of_write = |(index, version): (usize, &&Version)| {
        let was_shorter = versions[..index].iter().any(|before| before.content.len() < size);
        was_shorter && version.written_to == Some(size) && size < version.content.len()
    };
    versions.iter().any(|version| version.content.len() == size)
        || versions.windows(2).any(grown_to)
        || versions.iter().enumerate().any(is_end_of_write)
}

/// Bytes of a block of a version, as long as the file that was found; zeros beyond the end of the version.
fn block_of(version: &Version, block: usize, size: usize) -> Vec<u8> {
    let (from, to) = (block * BLOCK, size.min((block + 1) * BLOCK));
    let there = &version.content[from.min(version.content.len())..to.min(version.content.len())];
    let mut bytes = there.to_vec();
    bytes.resize(to - from, 0);
    bytes
}

fn judge_block(versions: &[&Version], found: &Found, block: usize) -> Result<(), String> {
    let size = found.content.len();
    let bytes = &found.content[block * BLOCK..size.min((block + 1) * BLOCK)];
    // A file that is longer than it was before a cut was cut before: the range that was cut off does not come back.
    let cut_happened = |(index, version): (usize, &&Version)| {
        // The second of two cuts in one replacement counts only where the first is not possible any more.
        let cut = version.cut.filter(|_| index == 0 || versions[index - 1].cut.is_none())?;
        let longest_before = versions[..index].iter().map(|before| before.content.len()).max()?;
        (size > longest_before && cut < (block + 1) * BLOCK).then_some(index)
    };
    let first = versions.iter().enumerate().skip(1).filter_map(cut_happened).max().unwrap_or(0);
    // Zeros behind the end of a version are there only where a later one is that long.
    let block_end = size.min((block + 1) * BLOCK);
    let reaches = |index: usize| {
        let is_long = versions[index..].iter().any(|later| later.content.len() >= size);
        is_long || versions[index].content.len() >= block_end || !versions.iter().any(|of| of.content.len() == size)
    };
    let is_like = |index: usize| reaches(index) && block_of(versions[index], block, size) == bytes;
    if (first..versions.len()).any(is_like) {
        return Ok(());
    }
    let shown = &bytes[..bytes.len().min(4)];
    Err(format!("block {block} of {size} bytes was never like this: it begins with {shown:02x?}"))
}

/// An unsynced append that went over several tiers is a prefix: no hole lies before the second tier. Where files grow over several
/// tiers at once, there is none anywhere behind the range in which growth began, whichever tiers have the bytes: until there the file
/// is on one tier and as its file system leaves it.
fn judge_spread(history: &History, versions: &[&Version], found: &Found) -> Result<(), String> {
    let size = found.content.len();
    let synced = versions[0].content.len();
    let is_append_only = versions.windows(2).all(|pair| pair[1].content.starts_with(&pair[0].content));
    if !is_append_only {
        return Ok(());
    }
    let newest = &versions[versions.len() - 1].content;
    // Data lost by a failed sync reads as an error, never as a hole that looks like data.
    let is_told = |at: usize| found.lost.contains(&(at / BLOCK));
    let is_lost = |at: &usize| found.content[*at] == 0 && newest[*at] != 0 && !is_told(*at);
    for (start, _) in found.places.iter().skip(1).filter(|(start, _)| *start < size) {
        if let Some(at) = (synced.min(*start)..*start).find(is_lost) {
            return Err(format!(
                "an append over two tiers lost byte {at}, and what follows on the next tier at {start} is there"
            ));
        }
    }
    let Some(spreading) = history.spreading else { return Ok(()) };
    let begins_to_spread = synced.max(1).next_multiple_of(spreading.range).max(spreading.from);
    match (synced..size).find(is_lost).filter(|_| size > begins_to_spread) {
        Some(at) => Err(format!("an append that grows over tiers lost byte {at}, and its size is {size}")),
        None => Ok(()),
    }
}

/// The records keep to their rules.
pub fn check_store(store: &dyn MetadataStore) -> Result<(), String> {
    let report = check_records(store).map_err(|error| format!("the records cannot be read: {error}"))?;
    if report.violation_count == 0 { Ok(()) } else { Err(format!("the records break rules: {:?}", report.violations)) }
}

/// Space in use on all tiers is that of the files, no more and no less. Nothing is left to be freed. Bytes that a failed sync may have
/// lost count as data, and may be absent. Blocks that were reserved in an object and not written are no data, and stay with its file,
/// also where a crash left them behind the end.
pub fn check_space(mounted: &Mounted) -> Result<(), String> {
    let written = |space: polymux_tier::Space, reserved: u64| space.used.saturating_sub(reserved);
    let used: u64 =
        mounted.memory.iter().map(|tier| tier.space().map_or(0, |space| written(space, tier.reserved_bytes()))).sum();
    let (mut data, mut lost) = (0, 0);
    let failed = |error: polymux_fs::Error| format!("walking over the data: {error}");
    for ino in walk(&mounted.fs).map_err(failed)?.into_values().collect::<std::collections::BTreeSet<_>>() {
        let caller = polymux_fs::Caller::root();
        let attributes = mounted.fs.attributes(&caller, ino).map_err(failed)?;
        let location = mounted.fs.locate(ino).map_err(failed)?;
        if attributes.kind != FileKind::Regular || location.bytes_inline > 0 || attributes.size == 0 {
            continue;
        }
        let end = attributes.size.next_multiple_of(BLOCK as u64);
        lost +=
            location.damaged.iter().map(|(start, length)| end.min(start + length).saturating_sub(*start)).sum::<u64>();
        let handle = mounted.fs.open(&caller, ino, read_only()).map_err(failed)?;
        let mut at = 0;
        while let Ok(start) = mounted.fs.seek(&caller, handle, at, SeekTarget::Data) {
            let end = mounted.fs.seek(&caller, handle, start, SeekTarget::Hole).map_err(failed)?;
            data += end.next_multiple_of(BLOCK as u64) - start / BLOCK as u64 * BLOCK as u64;
            at = end.max(start + 1);
            if at >= attributes.size {
                break;
            }
        }
        mounted.fs.release(handle).map_err(failed)?;
    }
    match used {
        _ if used <= data && data <= used + lost => Ok(()),
        _ => Err(format!("the tiers hold {used} bytes, the files have {data}, of which {lost} may be lost")),
    }
}
