//! Names for files. Pure.
//!
//! Invariants: every file gets exactly one name. Where several were described with one path, it is the one that was
//! described last that keeps it, and the others are in `lost+found`.

use polymux_tier::ObjectRef;
use polymux_types::Ino;

use super::findings::{self, Findings};
use super::owners::{LostFile, RebuiltFile, Version};
use super::ranges::BlockRange;
use super::scan::Place;
use super::tree::Tree;
use super::{Numbers, SourceTier};

/// Bytes that are still to be copied to an object of the file's own.
#[derive(Clone, Debug)]
pub(super) struct ToCopy {
    /// Place of the tier in the speed order.
    pub(super) tier: usize,
    pub(super) source: ObjectRef,
    pub(super) ranges: Vec<BlockRange>,
}

/// A file with its name.
#[derive(Clone, Debug)]
pub(super) struct PlacedFile {
    pub(super) file: RebuiltFile,
    pub(super) parent: Ino,
    pub(super) name: Box<[u8]>,
    pub(super) is_lost: bool,
    pub(super) to_copy: Option<ToCopy>,
}

/// Gives every file its name.
pub(super) fn place(
    mut files: Vec<RebuiltFile>,
    lost: Vec<LostFile>,
    versions: Vec<Version>,
    tree: &mut Tree,
    numbers: &mut Numbers,
    tiers: &[SourceTier<'_>],
    findings: &mut Findings,
) -> Vec<PlacedFile> {
    tree.place_unplaced(numbers);
    files.sort_by_key(|file| {
        let order = file.told.as_ref().map(|told| told.order);
        std::cmp::Reverse((order, file.modified, file.ino))
    });
    let mut placed = Vec::with_capacity(files.len() + lost.len() + versions.len());
    for file in files {
        note_losses(&file, findings);
        placed.push(place_file(file, tree, numbers, tiers, findings));
    }
    for lost in lost {
        placed.push(place_lost(lost, None, tree, numbers, findings));
    }
    for version in versions {
        placed.push(match version {
            Version::Whole(lost) => place_lost(lost, None, tree, numbers, findings),
            Version::Copied { lost, tier, source, ranges } => {
                place_lost(lost, Some(ToCopy { tier, source, ranges }), tree, numbers, findings)
            }
        });
    }
    placed
}

/// Reports the attributes that no stamp holds.
fn note_losses(file: &RebuiltFile, findings: &mut Findings) {
    let Some(told) = &file.told else { return };
    if told.links > 1 {
        findings.add(findings::NAMES_MISSING, file.ino, format!("it had {} names", told.links));
    }
    if told.may_have_xattrs {
        let detail = if told.refreshed.is_some() { "" } else { "it was described by an older Polymux" };
        findings.add(findings::XATTRS_LOST, file.ino, detail.to_owned());
    }
}

fn place_file(
    file: RebuiltFile,
    tree: &mut Tree,
    numbers: &mut Numbers,
    tiers: &[SourceTier<'_>],
    findings: &mut Findings,
) -> PlacedFile {
    let (parent, name) = match file.place().expect("a file of a group was described").clone() {
        Place::In { parent, name } => (Some(tree.canonical(parent)), name),
        Place::Path(path) => {
            let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
            let (name, above) = names.split_last().expect("a path that was accepted has a name");
            (tree.ensure_path(above, numbers), Box::from(*name))
        }
    };
    let given = parent.map(|parent| (parent, tree.give(parent, &name, file.ino)));
    let detail = match given {
        Some((parent, Ok(()))) => return PlacedFile { file, parent, name, is_lost: false, to_copy: None },
        Some((parent, Err(taken))) => {
            let path = tree.path(parent, &name);
            format!("/{} is inode {}", path.escape_ascii(), taken.by)
        }
        None => format!("a file is in the way of {}", name.escape_ascii()),
    };
    let tier = file.objects.first().and_then(|entry| tiers.iter().find(|tier| tier.label.tier == entry.tier));
    let wanted = lost_name(Some(file.ino), &file, tier.map_or("", |tier| tier.name));
    findings.add(findings::PATH_TAKEN, file.ino, detail);
    let (parent, name) = tree.give_lost(&wanted, file.ino, numbers);
    PlacedFile { file, parent, name, is_lost: true, to_copy: None }
}

fn place_lost(
    lost: LostFile,
    to_copy: Option<ToCopy>,
    tree: &mut Tree,
    numbers: &mut Numbers,
    findings: &mut Findings,
) -> PlacedFile {
    let LostFile { mut file, why, tier, of, detail } = lost;
    file.ino = numbers.new_ino();
    let wanted = lost_name(of, &file, &tier);
    let (parent, name) = tree.give_lost(&wanted, file.ino, numbers);
    let object = match (&to_copy, file.objects.first()) {
        (Some(copy), _) => copy.source.id,
        (None, Some(entry)) => entry.object,
        (None, None) => unreachable!("a file in lost+found has an object, or a copy to be made"),
    };
    let detail = match of {
        Some(of) => format!("{detail}; it was of inode {of}"),
        None => detail,
    };
    findings.add_sized(why, file.ino, file.size, &tier, object, detail);
    PlacedFile { file, parent, name, is_lost: true, to_copy }
}

/// `INODE-TIER-SIZE`, or `object-NUMBER-TIER-SIZE` where the inode is unknown.
fn lost_name(of: Option<Ino>, file: &RebuiltFile, tier: &str) -> String {
    let object = file.objects.first().map_or(0, |entry| entry.object.0);
    match of {
        Some(ino) => format!("{ino}-{tier}-{}", file.size),
        None => format!("object-{object:016x}-{tier}-{}", file.size),
    }
}
