//! Which object owns which blocks of a file.
//!
//! Invariants:
//! * Every block in which any object of the file has data is owned by one that has data there. Of several with the same
//!   bytes any will do; of several with different ones it is the one that was written last.
//! * Bytes that are in no other object and do not become the file's own are a *version*: a file of their own in `lost+found`.
//! * The size is at least the end of every object, so that nothing is cut when the volume is mounted.

use polymux_records::blockmap::{Extent, Owner};
use polymux_records::error::Result;
use polymux_records::store::ObjectEntry;
use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, Ino, Timestamp};

use super::SourceTier;
use super::findings::{self, Findings, RebuildFindingKind};
use super::ranges::{self, BlockRange, TierObject};
use super::scan::{Group, Lost, Place, Scanned, Told};

/// A file as its record will be, without a name.
#[derive(Clone, Debug)]
pub(super) struct RebuiltFile {
    pub(super) ino: Ino,
    pub(super) generation: u32,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Timestamp,
    pub(super) size: u64,
    pub(super) home: u8,
    pub(super) objects: Vec<ObjectEntry>,
    pub(super) extents: Vec<Extent>,
    pub(super) told: Option<Box<Told>>,
}

/// An object that becomes a file in `lost+found`.
#[derive(Clone, Debug)]
pub(super) struct LostFile {
    pub(super) file: RebuiltFile,
    pub(super) why: RebuildFindingKind,
    /// Name of its tier.
    pub(super) tier: String,
    /// The inode that the object belonged to, where one is known.
    pub(super) of: Option<Ino>,
    pub(super) detail: String,
}

/// Bytes of a file that are not its newest ones.
#[derive(Clone, Debug)]
pub(super) enum Version {
    /// All that the object has.
    Whole(LostFile),
    /// Some blocks of an object that the file needs: they are copied.
    Copied {
        lost: LostFile,
        /// Place of the tier in the speed order.
        tier: usize,
        source: ObjectRef,
        ranges: Vec<BlockRange>,
    },
}

/// The outcome for a group of objects.
pub(super) struct Owned {
    pub(super) file: RebuiltFile,
    pub(super) versions: Vec<Version>,
}

/// Decides over the blocks of one file.
pub(super) fn decide(
    tiers: &[SourceTier<'_>],
    objects: &[Scanned],
    group: &Group,
    findings: &mut Findings,
) -> Result<Owned> {
    let members: Vec<&Scanned> = group.objects.iter().map(|place| &objects[*place]).collect();
    let told = members[0].told.as_deref().expect("a group has a stamp");
    if members.len() == 1 {
        return Ok(Owned { file: file_of(tiers, told, &members, 0, Vec::new(), findings), versions: Vec::new() });
    }
    let split = split(tiers, told.ino, &members, findings)?;
    tell_of_growth(tiers, &members, &split.owners, findings);
    let owned_blocks = |member: usize| -> u64 {
        split.owners.iter().filter(|(_, owner)| *owner == member).map(|((start, end), _)| *end - *start).sum()
    };
    let mut versions = Vec::new();
    let mut kept = Vec::new();
    for (member, differing) in split.differing.iter().enumerate() {
        if differing.is_empty() {
            kept.push(member);
            continue;
        }
        let is_needed = owned_blocks(member) > 0;
        let version = version_of(tiers, members[member], differing, is_needed);
        if is_needed {
            kept.push(member);
        }
        versions.push(version);
    }
    let home = kept.iter().copied().max_by_key(|member| (owned_blocks(*member), std::cmp::Reverse(*member)));
    let home = home.expect("the object that was written last is kept");
    let slot = |member: usize| {
        let slot = kept.iter().position(|other| *other == member).expect("an owner is kept");
        u8::try_from(slot).expect("a file has one object a tier")
    };
    let exceptions = exceptions(&split.owners, home, slot);
    let kept_members: Vec<&Scanned> = kept.iter().map(|member| members[*member]).collect();
    let file = file_of(tiers, told, &kept_members, slot(home), exceptions, findings);
    Ok(Owned { file, versions })
}

/// Owners of all pieces, and the ranges of each object that differ from those of the owner.
struct Split {
    owners: Vec<(BlockRange, usize)>,
    differing: Vec<Vec<BlockRange>>,
}

fn split(tiers: &[SourceTier<'_>], ino: Ino, members: &[&Scanned], findings: &mut Findings) -> Result<Split> {
    let tier_of = |member: usize| &tiers[members[member].tier];
    let at = |member: usize| TierObject { tier: tier_of(member).tier, object: members[member].reference };
    let mut data = Vec::with_capacity(members.len());
    for (member, scanned) in members.iter().enumerate() {
        let TierObject { tier, object } = at(member);
        let found = ranges::data_of(tier, object, scanned.size);
        data.push(found.map_err(|error| crate::Error::tier(tier_of(member).label.tier, error))?);
    }
    let mut split = Split { owners: Vec::new(), differing: vec![Vec::new(); members.len()] };
    for (range, holders) in ranges::pieces(&data) {
        // The first of those that were written last: it has the newest stamp, too.
        let newest = |member: &usize| (members[*member].modified, std::cmp::Reverse(*member));
        let owner = holders.iter().copied().max_by_key(newest).expect("a piece has a holder");
        split.owners.push((range, owner));
        for other in holders.into_iter().filter(|other| *other != owner) {
            match ranges::differences(at(owner), at(other), range) {
                Ok(found) => found.into_iter().for_each(|found| ranges::append(&mut split.differing[other], found)),
                Err(error) => {
                    let (tier, object) = (tier_of(other).name, members[other].reference.id);
                    let bytes = Block::bytes_of(range.1 - range.0);
                    let detail = format!("{bytes} bytes from block {}: {error}", range.0);
                    findings.add_sized(findings::BYTES_UNREADABLE, ino, bytes, tier, object, detail);
                }
            }
        }
    }
    Ok(split)
}

/// When any of the objects of a file was last written.
fn last_write(members: &[&Scanned]) -> Timestamp {
    members.iter().map(|object| object.modified).max().unwrap_or_default()
}

/// A file that grew on several tiers (policy `spread`) ends at a floor that only the store knew. Data that one tier had not yet written
/// when the machine stopped is a hole up to the start of the next range, and data behind it on other tiers was not promised either.
fn tell_of_growth(
    tiers: &[SourceTier<'_>],
    members: &[&Scanned],
    owners: &[(BlockRange, usize)],
    findings: &mut Findings,
) {
    let told = members[0].told.as_deref().expect("a group has a stamp");
    let written = last_write(members);
    if told.refreshed.is_some_and(|(at, _)| written <= at) {
        return;
    }
    let begins_range = |block: Block| block.first_byte().is_multiple_of(RANGE_NODE_SIZE);
    let before = std::iter::once(Block(0)).chain(owners.iter().map(|((_, end), _)| *end));
    let mut holes = before.zip(owners).filter(|(end, ((start, _), _))| end < start && begins_range(*start));
    if let Some((hole, ((start, _), owner))) = holes.next() {
        let member = members[*owner];
        let detail = format!("bytes {} to {} are a hole", hole.first_byte(), start.first_byte() - 1);
        let (tier, object) = (tiers[member.tier].name, member.reference.id);
        findings.add_sized(findings::GROWTH_UNCERTAIN, told.ino, start.first_byte(), tier, object, detail);
    }
}

/// Extents of the blocks that home does not own. The owner of the last bytes owns the range into which the file will grow.
fn exceptions(owners: &[(BlockRange, usize)], home: usize, slot: impl Fn(usize) -> u8) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for ((start, end), owner) in owners.iter().filter(|(_, owner)| *owner != home) {
        let owner = Owner::Slot(slot(*owner));
        match extents.last_mut() {
            Some(last) if last.end == *start && last.owner == owner => last.end = *end,
            _ => extents.push(Extent { start: *start, end: *end, owner }),
        }
    }
    if let (Some((_, last)), Some(extent)) = (owners.last(), extents.last_mut())
        && *last != home
    {
        extent.end = Block::END;
    }
    extents
}

fn version_of(tiers: &[SourceTier<'_>], member: &Scanned, differing: &[BlockRange], is_needed: bool) -> Version {
    let tier = &tiers[member.tier];
    let of = member.told.as_ref().map(|told| told.ino);
    let shown: Vec<String> = differing.iter().map(|(start, end)| format!("{start}-{}", *end - 1)).collect();
    let detail = format!("blocks {} of object {:016x}", shown.join(", "), member.reference.id);
    let mut file = alone(tiers, member);
    if !is_needed {
        let lost = LostFile { file, why: findings::TWO_VERSIONS, tier: tier.name.to_owned(), of, detail };
        return Version::Whole(lost);
    }
    // Made when the copy is.
    file.objects.clear();
    let end = differing.last().map_or(0, |(_, end)| end.first_byte());
    file.size = end.min(member.size);
    let lost = LostFile { file, why: findings::TWO_VERSIONS, tier: tier.name.to_owned(), of, detail };
    Version::Copied { lost, tier: member.tier, source: member.reference, ranges: differing.to_vec() }
}

/// An object as a file of its own. It gets its number with its name.
fn alone(tiers: &[SourceTier<'_>], object: &Scanned) -> RebuiltFile {
    let told = object.told.as_deref();
    RebuiltFile {
        ino: Ino(0),
        generation: 1,
        permissions: told.map_or(0o600, |told| told.permissions & 0o777),
        uid: told.map_or(0, |told| told.uid),
        gid: told.map_or(0, |told| told.gid),
        modified: object.modified,
        size: object.size,
        home: 0,
        objects: vec![entry_of(tiers, object)],
        extents: Vec::new(),
        told: None,
    }
}

/// The file that an object becomes which belongs to none.
pub(super) fn lost_file(tiers: &[SourceTier<'_>], objects: &[Scanned], lost: &Lost) -> LostFile {
    let object = &objects[lost.object];
    LostFile {
        file: alone(tiers, object),
        why: lost.why,
        tier: tiers[object.tier].name.to_owned(),
        of: object.told.as_ref().map(|told| told.ino),
        detail: format!("object {:016x}", object.reference.id),
    }
}

fn entry_of(tiers: &[SourceTier<'_>], object: &Scanned) -> ObjectEntry {
    ObjectEntry::new(tiers[object.tier].label.tier, object.reference.id, object.reference.bucket)
}

fn file_of(
    tiers: &[SourceTier<'_>],
    told: &Told,
    members: &[&Scanned],
    home: u8,
    extents: Vec<Extent>,
    findings: &mut Findings,
) -> RebuiltFile {
    let held = members.iter().map(|object| object.size).max().unwrap_or(0);
    let written = last_write(members);
    let (size, modified) = match told.refreshed {
        Some((at, size)) if written > at => {
            if size > held {
                let tier = &tiers[members[0].tier];
                let detail = format!("its objects hold {held} bytes, and it had {size} when it was described");
                let object = members[0].reference.id;
                findings.add_sized(findings::SIZE_UNCERTAIN, told.ino, size, tier.name, object, detail);
            }
            (size.max(held), written)
        }
        Some((_, size)) => (size.max(held), told.modified),
        None => (held, told.modified.max(written)),
    };
    RebuiltFile {
        ino: told.ino,
        generation: told.generation.max(1),
        permissions: told.permissions,
        uid: told.uid,
        gid: told.gid,
        modified,
        size,
        home,
        objects: members.iter().map(|object| entry_of(tiers, object)).collect(),
        extents,
        told: Some(Box::new(told.clone())),
    }
}

impl RebuiltFile {
    /// Where it was when it was described.
    pub(super) fn place(&self) -> Option<&Place> {
        self.told.as_ref().map(|told| &told.place)
    }
}
