//! The contents of the tiers: every object with its stamp, and the directory information in the stamps.

use std::collections::BTreeMap;

use polymux_records::attributes::FileKind;
use polymux_records::error::Result;
use polymux_tier::{ObjectRef, ObjectStamp, StampOrder};
use polymux_types::limits::{BUCKETS, NAME_LENGTH_MAX};
use polymux_types::{Bucket, Ino, Timestamp, VolumeId};

use super::findings::{self, Findings};
use super::tree::Tree;
use super::{FIRST_INO, Meter, SourceTier, is_of};

/// Type bits of a mode.
const TYPE_MASK: u32 = 0o170_000;

/// Where a file was when it was described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this directory under this name.
    In { parent: Ino, name: Box<[u8]> },
    /// At this path: version 1 of the stamp knows no numbers of directories.
    Path(Box<[u8]>),
}

/// The information of an object about its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) ino: Ino,
    pub(super) generation: u32,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Timestamp,
    pub(super) order: StampOrder,
    /// Moment and size as of the refresh; `None` in version 1.
    pub(super) refreshed: Option<(Timestamp, u64)>,
    /// Number of links; 0 where unknown.
    pub(super) links: u32,
    pub(super) may_have_xattrs: bool,
    pub(super) place: Place,
}

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Scanned {
    /// Place of its tier in the speed order.
    pub(super) tier: usize,
    pub(super) reference: ObjectRef,
    pub(super) size: u64,
    pub(super) modified: Timestamp,
    pub(super) told: Option<Box<Told>>,
    /// It has a stamp, and that cannot be.
    pub(super) is_invalid: bool,
}

/// The information of the newest stamps about a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) order: StampOrder,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// As of when, in which directory and under which name it lies.
    pub(super) name: Option<(StampOrder, Ino, Box<[u8]>)>,
}

/// Everything on the tiers.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) objects: Vec<Scanned>,
    pub(super) directories: BTreeMap<Ino, Evidence>,
    pub(super) ino_max: u64,
    pub(super) object_max: u64,
    pub(super) epoch_max: u64,
}

/// Reads all tiers.
pub(super) fn scan(
    tiers: &[SourceTier<'_>],
    volume: VolumeId,
    findings: &mut Findings,
    meter: &mut Meter<'_>,
) -> Result<Scan> {
    let mut scan = Scan::default();
    meter.begin("reading objects", 0);
    for (place, tier) in tiers.iter().enumerate() {
        scan.epoch_max = scan.epoch_max.max(tier.label.epoch.0);
        for bucket in (0..BUCKETS).map(Bucket) {
            let mut ids = tier.tier.list(bucket).map_err(|error| crate::Error::tier(tier.label.tier, error))?;
            ids.sort_unstable();
            for id in &ids {
                scan.object_max = scan.object_max.max(id.0);
                scan.read(place, tier, ObjectRef::new(*id, bucket), volume, findings);
            }
            meter.add(ids.len() as u64)?;
        }
    }
    Ok(scan)
}

impl Scan {
    fn read(
        &mut self,
        place: usize,
        tier: &SourceTier<'_>,
        reference: ObjectRef,
        volume: VolumeId,
        findings: &mut Findings,
    ) {
        let read = tier.tier.stat(reference).and_then(|stat| Ok((stat, tier.tier.read_stamp(reference)?)));
        let (stat, stamp) = match read {
            Ok(read) => read,
            Err(error) => {
                findings.add_object(findings::OBJECT_UNREADABLE, tier.name, reference.id, error.to_string());
                return;
            }
        };
        if let Some(stamp) = stamp.as_ref().filter(|stamp| !is_of(volume, stamp)) {
            let detail = format!("volume {}", stamp.volume);
            findings.add_object(findings::OBJECT_FOREIGN, tier.name, reference.id, detail);
            return;
        }
        let told = stamp.as_ref().and_then(|stamp| self.learn(stamp));
        let is_invalid = stamp.is_some() && told.is_none();
        self.objects.push(Scanned {
            tier: place,
            reference,
            size: stat.size,
            modified: stat.modified,
            told: told.map(Box::new),
            is_invalid,
        });
    }

    /// Records the directory information of a stamp; returns its file information. `None` where it is invalid.
    fn learn(&mut self, stamp: &ObjectStamp) -> Option<Told> {
        let names: Vec<&[u8]> = stamp.names().collect();
        let is_file = stamp.mode & TYPE_MASK == FileKind::Regular.type_bits() && stamp.ino.0 >= FIRST_INO;
        let (name, above) = names.split_last()?;
        if !is_file || !names.iter().all(|name| is_name(name)) {
            return None;
        }
        let order = stamp.refresh.as_ref().map_or(StampOrder::default(), |refresh| refresh.order);
        let place = match &stamp.refresh {
            None => Place::Path(stamp.path.clone().into_boxed_slice()),
            Some(refresh) => {
                let is_directory = |ino: Ino| ino == Ino::ROOT || ino.0 >= FIRST_INO;
                let fits = refresh.directories.len() == names.len();
                if !fits || !refresh.directories.iter().all(|directory| is_directory(directory.ino)) {
                    return None;
                }
                self.learn_directories(order, refresh, above);
                let parent = refresh.directories.last()?.ino;
                Place::In { parent, name: Box::from(*name) }
            }
        };
        self.ino_max = self.ino_max.max(stamp.ino.0);
        self.epoch_max = self.epoch_max.max(order.epoch.0);
        Some(Told {
            ino: stamp.ino,
            generation: stamp.generation,
            permissions: stamp.mode & 0o7777,
            uid: stamp.uid,
            gid: stamp.gid,
            modified: stamp.modified,
            order,
            refreshed: stamp.refresh.as_ref().map(|refresh| (refresh.at, refresh.size)),
            links: stamp.refresh.as_ref().map_or(0, |refresh| refresh.links),
            may_have_xattrs: stamp.refresh.as_ref().is_none_or(|refresh| refresh.may_have_xattrs),
            place,
        })
    }

    fn learn_directories(&mut self, order: StampOrder, refresh: &polymux_tier::StampRefresh, names: &[&[u8]]) {
        for (depth, directory) in refresh.directories.iter().enumerate() {
            self.ino_max = self.ino_max.max(directory.ino.0);
            let name = depth.checked_sub(1).map(|above| (refresh.directories[above].ino, names[above]));
            let known = self.directories.get_mut(&directory.ino);
            let is_newer = |than: StampOrder| order > than;
            match known {
                Some(known) => {
                    if is_newer(known.order) {
                        known.order = order;
                        known.permissions = u32::from(directory.permissions) & 0o7777;
                        (known.uid, known.gid) = (directory.uid, directory.gid);
                    }
                    if let Some((parent, name)) = name
                        && known.name.as_ref().is_none_or(|(than, ..)| is_newer(*than))
                    {
                        known.name = Some((order, parent, Box::from(name)));
                    }
                }
                None => {
                    let evidence = Evidence {
                        order,
                        permissions: u32::from(directory.permissions) & 0o7777,
                        uid: directory.uid,
                        gid: directory.gid,
                        name: name.map(|(parent, name)| (order, parent, Box::from(name))),
                    };
                    self.directories.insert(directory.ino, evidence);
                }
            }
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_LENGTH_MAX && !name.contains(&0) && !matches!(name, b"." | b"..")
}

/// Objects that are one file, by their places in the scan; the first has the newest stamp.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) objects: Vec<usize>,
}

/// An object that becomes a file of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) object: usize,
    pub(super) why: findings::RebuildFindingKind,
}

/// All objects, sorted out.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) files: Vec<Group>,
    pub(super) lost: Vec<Lost>,
}

/// Puts the objects of each file together. A file has one object a tier: of several the newest one is its own.
pub(super) fn group(objects: &[Scanned], tree: &Tree) -> Groups {
    let mut by_ino: BTreeMap<Ino, Vec<usize>> = BTreeMap::new();
    let mut groups = Groups::default();
    for (place, object) in objects.iter().enumerate() {
        match &object.told {
            // A number is of a file or of a directory.
            Some(told) if !tree.contains(told.ino) => by_ino.entry(told.ino).or_default().push(place),
            Some(_) => groups.lost.push(Lost { object: place, why: findings::STAMP_INVALID }),
            None if object.is_invalid => groups.lost.push(Lost { object: place, why: findings::STAMP_INVALID }),
            None => groups.lost.push(Lost { object: place, why: findings::WITHOUT_STAMP }),
        }
    }
    for mut places in by_ino.into_values() {
        let age = |place: &usize| {
            let object = &objects[*place];
            let order = object.told.as_ref().map_or(StampOrder::default(), |told| told.order);
            (order, object.modified, object.reference.id)
        };
        places.sort_by_key(|place| std::cmp::Reverse(age(place)));
        let mut own: Vec<usize> = Vec::new();
        for place in places {
            if own.iter().any(|other| objects[*other].tier == objects[place].tier) {
                groups.lost.push(Lost { object: place, why: findings::OLDER_OBJECT });
            } else {
                own.push(place);
            }
        }
        groups.files.push(Group { objects: own });
    }
    groups
}
