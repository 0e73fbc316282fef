//! All devices at one point of a journal: the durable state, and the changes that may be durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use polymux_meta::{Batch, Sequence};
use polymux_tier::{AllocateMode, Label, ObjectRef};
use polymux_types::{Bucket, Clock, ObjectId, Timestamp};

use super::choice::{Choice, Keep, Random};
use super::files::{DEVICES, FilesKeep, FilesWorld, Ignored};
use super::state::{State, TierState};
use crate::memory_object::{Image, pages_of};
use crate::memory_store::apply;
use crate::recording::{Event, TierChange};
use crate::recording_file_system::Record;

type Key = (Bucket, ObjectId);

/// The atomic unit of a tier in bytes.
const PAGE: u64 = 4096;

/// Whether a sync of an object also makes its directory entry durable, as [`polymux_tier::Tier::sync`] promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryDurability {
    /// As promised.
    WithObject,
    /// Only a sync of the whole tier does: the planted mistake of a tier that forgets to sync the directory.
    WithTierOnly,
}

/// A piece that may be lost: one change of an object, or one page of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Piece {
    /// Place in the journal: the order of a tier.
    pub(super) order: usize,
    pub(super) key: Key,
    /// Number of the page; `None` for an own change of the object.
    pub(super) page: Option<u64>,
}

/// An object, with its unsynced changes.
#[derive(Clone, Default)]
struct ObjectWorld {
    /// The state that is certain to survive, once there is an entry.
    durable: Option<Image>,
    /// A sync covered the bytes and not the directory entry.
    entry_missing: bool,
    pending: Vec<(usize, Timestamp, TierChange)>,
    /// Pages that a failed sync dropped, with the data written to them: in the cache, and clean for the kernel.
    dropped: BTreeMap<u64, Vec<Dropped>>,
    modified: Timestamp,
}

/// A part of a write that lies in one page: when, and where it begins.
type Dropped = (usize, Timestamp, u64, Arc<[u8]>);

#[derive(Clone, Default)]
struct TierWorld {
    label: Option<Label>,
    objects: BTreeMap<Key, ObjectWorld>,
}

/// All devices at one point of a journal.
#[derive(Clone)]
pub struct World {
    tiers: Vec<TierWorld>,
    store: BTreeMap<Vec<u8>, Vec<u8>>,
    pending: VecDeque<(Sequence, Arc<Batch>)>,
    /// Where the store has files.
    files: Option<FilesWorld>,
    configuration: Vec<usize>,
    entry_durability: EntryDurability,
    position: usize,
    now: Timestamp,
}

fn key(object: ObjectRef) -> Key {
    (object.bucket, object.id)
}

/// Pages that lie in a range as a whole.
fn whole_pages(offset: u64, length: u64) -> std::ops::Range<u64> {
    let pages = offset.div_ceil(PAGE)..(offset + length) / PAGE;
    pages.start..pages.end.max(pages.start)
}

/// Pages that lie in a range in part.
fn partial_pages(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let whole = whole_pages(offset, length);
    pages_of(offset, length).filter(move |page| !whole.contains(page))
}

/// An object while the changes that survive are carried out.
struct Survivor {
    image: Option<Image>,
    /// All own changes so far survived.
    own_alive: bool,
    /// Pages of which an earlier write or cut is lost.
    broken: BTreeSet<u64>,
    broken_from: u64,
    modified: Timestamp,
}

impl Survivor {
    fn is_broken(&self, page: u64) -> bool {
        page >= self.broken_from || self.broken.contains(&page)
    }

    fn lose_own(&mut self, change: &TierChange) {
        self.own_alive = false;
        match change {
            TierChange::Truncate { size, .. } => self.broken_from = self.broken_from.min(size / PAGE),
            TierChange::Punch { offset, length, .. } => self.broken.extend(whole_pages(*offset, *length)),
            TierChange::Create(_) | TierChange::Remove(_) => self.broken_from = 0,
            _ => {}
        }
    }

    fn keep_own(&mut self, change: &TierChange) {
        match change {
            TierChange::Create(_) => self.image = Some(Image::default()),
            TierChange::Remove(_) => self.image = None,
            _ => {}
        }
        let Some(image) = &mut self.image else { return };
        match change {
            TierChange::Truncate { size, .. } => image.truncate(*size),
            TierChange::Punch { offset, length, .. } => {
                let pages = whole_pages(*offset, *length);
                if !pages.is_empty() {
                    image.punch(pages.start * PAGE, (pages.end - pages.start) * PAGE);
                }
            }
            TierChange::Allocate { offset, length, mode, .. } => {
                image.reserve(*offset, *length);
                if *mode == AllocateMode::Extend {
                    image.extend(offset + length);
                }
            }
            _ => {}
        }
    }

    /// Zeros in pages that are not punched as a whole are written like any bytes.
    fn zero_parts(&mut self, offset: u64, length: u64, mut keeps: impl FnMut(u64) -> bool) {
        for page in partial_pages(offset, length) {
            if !keeps(page) || self.is_broken(page) {
                self.broken.insert(page);
                continue;
            }
            let (from, to) = (offset.max(page * PAGE), (offset + length).min((page + 1) * PAGE));
            if let Some(image) = &mut self.image {
                image.punch(from, to - from);
            }
        }
    }

    /// A cut within a page goes to the device with the page, so with the earlier writes to it.
    fn can_keep(&self, change: &TierChange) -> bool {
        match change {
            TierChange::Truncate { size, .. } => size % PAGE == 0 || !self.is_broken(size / PAGE),
            _ => true,
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], mut keeps: impl FnMut(u64) -> bool) {
        let end = offset + data.len() as u64;
        for page in pages_of(offset, data.len() as u64) {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            let needs_own = self.image.as_ref().is_none_or(|image| !image.has_page(page) || to > image.size());
            if !keeps(page) || self.is_broken(page) || (needs_own && !self.own_alive) {
                self.broken.insert(page);
                continue;
            }
            let Some(image) = &mut self.image else { continue };
            let within = |at: u64| usize::try_from(at - offset).expect("within the data");
            image.write(from, &data[within(from)..within(to)], u64::MAX);
        }
    }
}

impl ObjectWorld {
    /// The object after a crash that keeps of the pending pieces those that `keeps` wants and that can be kept.
    fn after(&self, key: Key, keep: &Keep) -> Option<(Image, Timestamp)> {
        let mut left = Survivor {
            image: self.durable.clone().filter(|_| !self.entry_missing),
            own_alive: true,
            broken: BTreeSet::new(),
            broken_from: u64::MAX,
            modified: self.modified,
        };
        for (order, at, change) in &self.pending {
            match change {
                TierChange::Write { offset, data, .. } => {
                    left.write(*offset, data, |page| keep.wants(&Piece { order: *order, key, page: Some(page) }));
                    left.modified = *at;
                }
                own => {
                    if let TierChange::Punch { offset, length, .. } = own {
                        let keeps = |page| keep.wants(&Piece { order: *order, key, page: Some(page) });
                        left.zero_parts(*offset, *length, keeps);
                    }
                    if left.own_alive && left.can_keep(own) && keep.wants(&Piece { order: *order, key, page: None }) {
                        if self.entry_missing && matches!(own, TierChange::Create(_)) {
                            left.image.clone_from(&self.durable);
                        } else {
                            left.keep_own(own);
                        }
                        left.modified = *at;
                    } else {
                        left.lose_own(own);
                    }
                }
            }
        }
        left.image.map(|image| (image, left.modified))
    }

    fn sync(&mut self, key: Key, entry: EntryDurability) {
        let made_here = self.durable.is_none() || self.entry_missing;
        let creation = self.pending.iter().rev().find(|(.., change)| matches!(change, TierChange::Create(_))).cloned();
        let after = self.after(key, &Keep::All);
        self.pending.clear();
        self.entry_missing = false;
        match after {
            Some((image, modified)) => {
                self.durable = Some(image);
                self.modified = modified;
                if let (EntryDurability::WithTierOnly, true, Some(creation)) = (entry, made_here, creation) {
                    self.entry_missing = true;
                    self.pending.push(creation);
                }
            }
            None => self.durable = None,
        }
    }

    /// A sync failed: the written data can no longer become durable, unless its page is written again. Logged changes of
    /// the file system (sizes that were set, holes, the object itself) are unaffected.
    fn fail_sync(&mut self) {
        for (order, at, change) in std::mem::take(&mut self.pending) {
            let TierChange::Write { offset, data, .. } = &change else {
                self.pending.push((order, at, change));
                continue;
            };
            let end = offset + data.len() as u64;
            for page in pages_of(*offset, data.len() as u64) {
                let (from, to) = ((*offset).max(page * PAGE), end.min((page + 1) * PAGE));
                let within = |at: u64| usize::try_from(at - offset).expect("within the data");
                let part = Arc::from(&data[within(from)..within(to)]);
                self.dropped.entry(page).or_default().push((order, at, from, part));
            }
        }
    }

    /// A change to pages that were dropped: a write takes the whole page of the cache to the device with it, a cut or a
    /// punch leaves nothing of it.
    fn touch_dropped(&mut self, change: &TierChange) {
        if self.dropped.is_empty() {
            return;
        }
        let (object, dirtied): (ObjectRef, Vec<u64>) = match change {
            TierChange::Write { object, offset, data } => (*object, pages_of(*offset, data.len() as u64).collect()),
            TierChange::Truncate { object, size } => {
                drop(self.dropped.split_off(&size.div_ceil(PAGE)));
                (*object, partial_pages(*size, PAGE - size % PAGE).collect())
            }
            TierChange::Punch { object, offset, length } => {
                let pages = whole_pages(*offset, *length);
                self.dropped.retain(|page, _| !pages.contains(page));
                (*object, partial_pages(*offset, *length).collect())
            }
            TierChange::Remove(_) => return self.dropped.clear(),
            _ => return,
        };
        for (order, at, offset, data) in dirtied.iter().filter_map(|page| self.dropped.remove(page)).flatten() {
            self.pending.push((order, at, TierChange::Write { object, offset, data }));
        }
    }

    fn pieces(&self, key: Key, pieces: &mut Vec<Piece>) {
        for (order, _, change) in &self.pending {
            match change {
                TierChange::Write { offset, data, .. } => {
                    let pages = pages_of(*offset, data.len() as u64);
                    pieces.extend(pages.map(|page| Piece { order: *order, key, page: Some(page) }));
                }
                own => {
                    pieces.push(Piece { order: *order, key, page: None });
                    if let TierChange::Punch { offset, length, .. } = own {
                        let parts = partial_pages(*offset, *length);
                        pieces.extend(parts.map(|page| Piece { order: *order, key, page: Some(page) }));
                    }
                }
            }
        }
    }
}

impl World {
    /// Devices that hold nothing: so many tiers, and a store.
    #[must_use]
    pub fn new(tiers: usize, configuration: Vec<usize>) -> Self {
        Self {
            tiers: vec![TierWorld::default(); tiers],
            store: BTreeMap::new(),
            pending: VecDeque::new(),
            files: None,
            configuration,
            entry_durability: EntryDurability::WithObject,
            position: 0,
            now: Timestamp::default(),
        }
    }

    /// Devices as a crash left them.
    #[must_use]
    pub fn of_state(state: &State) -> Self {
        let tier = |kept: &TierState| TierWorld {
            label: kept.label.clone(),
            objects: kept
                .objects
                .iter()
                .map(|(key, (image, modified))| {
                    let object =
                        ObjectWorld { durable: Some(image.clone()), modified: *modified, ..ObjectWorld::default() };
                    (*key, object)
                })
                .collect(),
        };
        Self {
            tiers: state.tiers.iter().map(tier).collect(),
            store: state.store.clone(),
            configuration: state.configuration.clone(),
            ..Self::new(0, Vec::new())
        }
    }

    /// Whether a sync of an object covers its entry.
    #[must_use]
    pub fn with_entry_durability(mut self, entry: EntryDurability) -> Self {
        self.entry_durability = entry;
        self
    }

    /// The store has files, which are these at the beginning; some of their syncs may do nothing.
    #[must_use]
    pub fn with_files(mut self, beginning: &Record, ignored: Option<Ignored>) -> Self {
        self.files = Some(FilesWorld::new(beginning, ignored));
        self
    }

    /// Modification times that are recorded from here on.
    pub fn set_time(&mut self, clock: &dyn Clock) {
        self.now = clock.now();
    }

    /// Goes on by one entry of the journal.
    pub fn apply(&mut self, event: &Event) {
        let order = self.position;
        self.position += 1;
        match event {
            Event::Tier(place, change) => self.apply_to_tier(*place, order, change),
            // Nothing of it is on a device before the log is written.
            Event::Commit(..) if self.files.is_some() => {}
            Event::Commit(sequence, batch) => self.pending.push_back((*sequence, Arc::clone(batch))),
            Event::SyncStore(through) => {
                while let Some((_, batch)) = self.pending.pop_front_if(|(sequence, _)| *sequence <= *through) {
                    apply(&mut self.store, &batch);
                }
            }
            Event::Files(operation) => self.files_recorded().apply(operation),
            Event::FilesDurable(operation) => self.files_recorded().complete(operation),
            Event::Configure(listed) => self.configuration.clone_from(listed),
        }
    }

    fn files_recorded(&mut self) -> &mut FilesWorld {
        self.files.as_mut().expect("a world that is told of files has some")
    }

    fn apply_to_tier(&mut self, place: usize, order: usize, change: &TierChange) {
        let (now, entry) = (self.now, self.entry_durability);
        let tier = &mut self.tiers[place];
        let object = match change {
            TierChange::Create(object) | TierChange::Remove(object) => *object,
            TierChange::Write { object, .. }
            | TierChange::Truncate { object, .. }
            | TierChange::Allocate { object, .. }
            | TierChange::Punch { object, .. } => *object,
            TierChange::Stamp(_) => return,
            TierChange::Label(label) => {
                tier.label = label.as_deref().cloned();
                return;
            }
            TierChange::Sync(object) => {
                if let Some(found) = tier.objects.get_mut(&key(*object)) {
                    found.sync(key(*object), entry);
                }
                return;
            }
            TierChange::SyncFailed(object) => {
                if let Some(found) = tier.objects.get_mut(&key(*object)) {
                    found.fail_sync();
                }
                return;
            }
            TierChange::SyncAllFailed => {
                tier.objects.values_mut().for_each(ObjectWorld::fail_sync);
                return;
            }
            TierChange::SyncAll => {
                for (key, object) in &mut tier.objects {
                    object.sync(*key, EntryDurability::WithObject);
                }
                tier.objects.retain(|_, object| object.durable.is_some());
                return;
            }
        };
        let found = tier.objects.entry(key(object)).or_default();
        found.touch_dropped(change);
        found.pending.push((order, now, change.clone()));
    }

    /// Number of tiers.
    pub(super) fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Ways in which the files of the store and of its copy may be left.
    pub(super) fn ways_of_files(&self, random: &mut Random) -> Vec<Vec<FilesKeep>> {
        let Some(files) = &self.files else { return Vec::new() };
        (0..DEVICES).map(|device| files.ways(device, random)).collect()
    }

    /// The pieces that may be lost on a tier, in the order of the tier.
    pub(super) fn pieces(&self, place: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (key, object) in &self.tiers[place].objects {
            object.pieces(*key, &mut pieces);
        }
        pieces.sort_unstable();
        pieces
    }

    /// Transactions that may be lost.
    #[must_use]
    pub fn transactions_pending(&self) -> usize {
        self.pending.len()
    }

    /// The state after a crash here.
    #[must_use]
    pub fn crash(&self, choice: &Choice) -> State {
        let tier = |(place, tier): (usize, &TierWorld)| TierState {
            label: tier.label.clone(),
            objects: tier
                .objects
                .iter()
                .filter_map(|(key, object)| Some((*key, object.after(*key, &choice.tiers[place])?)))
                .collect(),
        };
        let mut store = self.store.clone();
        for (_, batch) in self.pending.iter().take(choice.transactions) {
            apply(&mut store, batch);
        }
        State {
            tiers: self.tiers.iter().enumerate().map(tier).collect(),
            store,
            files: self.files.as_ref().map(|files| files.crash(&choice.files)),
            configuration: self.configuration.clone(),
        }
    }
}
