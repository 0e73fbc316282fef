//! One object in memory: sparse pages, and their durable state.
//!
//! Invariants:
//! * Bytes at and beyond the size are zero in every page, so extending never uncovers old bytes.
//! * A page that differs from its durable twin is in `dirty`; the reverse need not hold.
//! * A reserved page takes space and reads as zeros; for `SEEK_DATA` it is a hole, like an unwritten extent of ext4.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use polymux_tier::SeekTarget;
use polymux_types::Timestamp;
use polymux_types::limits::BLOCK_SIZE;

const PAGE_LENGTH: usize = 4096;
const _: () = assert!(PAGE_LENGTH as u64 == BLOCK_SIZE);

const ZEROS: [u8; PAGE_LENGTH] = [0; PAGE_LENGTH];

/// A page of zeros that all objects share: simulations of gigabytes write them.
fn zero_page() -> Arc<[u8; PAGE_LENGTH]> {
    static PAGE: OnceLock<Arc<[u8; PAGE_LENGTH]>> = OnceLock::new();
    Arc::clone(PAGE.get_or_init(|| Arc::new(ZEROS)))
}

#[derive(Clone, Hash)]
enum Page {
    Written(Arc<[u8; PAGE_LENGTH]>),
    Reserved,
}

#[derive(Clone, Default, Hash)]
pub(crate) struct Image {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

/// Numbers of the pages that a range touches.
pub(crate) fn pages_of(offset: u64, length: u64) -> std::ops::Range<u64> {
    if length == 0 { 0..0 } else { offset / BLOCK_SIZE..(offset + length).div_ceil(BLOCK_SIZE) }
}

/// The changes of an object without tracking of durability, for crash states.
impl Image {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn has_page(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut MemoryObject) -> T) -> T {
        let mut object = MemoryObject::new(Timestamp::default());
        object.current = std::mem::take(self);
        let result = change(&mut object);
        *self = object.current;
        result
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], room: u64) -> usize {
        self.change(|object| object.write(offset, data, room))
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        self.change(|object| object.truncate(size));
    }

    pub(crate) fn punch(&mut self, offset: u64, length: u64) {
        self.change(|object| object.punch(offset, length));
    }

    pub(crate) fn reserve(&mut self, offset: u64, length: u64) {
        self.change(|object| object.reserve(offset, length));
    }

    pub(crate) fn extend(&mut self, size: u64) {
        self.change(|object| object.extend(size));
    }

    /// For people: the size and the pages.
    pub(crate) fn describe(&self) -> String {
        let page = |(number, page): (&u64, &Page)| match page {
            Page::Written(bytes) => format!("{number}={:02x}{:02x}", bytes[0], bytes[PAGE_LENGTH - 1]),
            Page::Reserved => format!("{number}=reserved"),
        };
        let pages: Vec<String> = self.pages.iter().map(page).collect();
        format!("{} bytes, pages {}", self.size, pages.join(" "))
    }
}

#[derive(Clone)]
pub(crate) struct MemoryObject {
    current: Image,
    durable: Option<Image>,
    dirty: BTreeSet<u64>,
    unsynced: bool,
    pub(crate) modified: Timestamp,
}

/// The part of one page that a range covers.
struct Piece {
    page: u64,
    within: std::ops::Range<usize>,
}

fn pieces(offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = offset + length;
    let pages = if length == 0 { 0..0 } else { offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE) };
    pages.map(move |page| {
        let start = page * BLOCK_SIZE;
        let position = |absolute: u64| usize::try_from(absolute - start).expect("within a page");
        Piece { page, within: position(offset.max(start))..position(end.min(start + BLOCK_SIZE)) }
    })
}

impl MemoryObject {
    pub(crate) fn new(modified: Timestamp) -> Self {
        Self { current: Image::default(), durable: None, dirty: BTreeSet::new(), unsynced: false, modified }
    }

    /// An object that is durable as it is.
    pub(crate) fn of_image(image: Image, modified: Timestamp) -> Self {
        let durable = Some(image.clone());
        Self { current: image, durable, dirty: BTreeSet::new(), unsynced: false, modified }
    }

    pub(crate) fn size(&self) -> u64 {
        self.current.size
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.current.pages.len() as u64 * BLOCK_SIZE
    }

    /// Bytes that take space and were never written.
    pub(crate) fn reserved(&self) -> u64 {
        self.current.pages.values().filter(|page| matches!(page, Page::Reserved)).count() as u64 * BLOCK_SIZE
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// An object whose creation was never made durable counts too.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced || self.durable.is_none()
    }

    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let length = self.current.size.saturating_sub(offset).min(buffer.len() as u64);
        let mut done = 0;
        for piece in pieces(offset, length) {
            let target = &mut buffer[done..done + piece.within.len()];
            done += target.len();
            match self.current.pages.get(&piece.page) {
                Some(Page::Written(bytes)) => target.copy_from_slice(&bytes[piece.within]),
                Some(Page::Reserved) | None => target.fill(0),
            }
        }
        done
    }

    /// Writes until `room` (free space in pages) is used up; returns the number of bytes written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], room: u64) -> usize {
        let (mut done, mut taken) = (0, 0);
        for piece in pieces(offset, data.len() as u64) {
            if !self.current.pages.contains_key(&piece.page) {
                if taken == room {
                    break;
                }
                taken += 1;
            }
            let source = &data[done..done + piece.within.len()];
            done += source.len();
            if source == ZEROS {
                self.dirty.insert(piece.page);
                self.current.pages.insert(piece.page, Page::Written(zero_page()));
                continue;
            }
            self.bytes_mut(piece.page)[piece.within].copy_from_slice(source);
        }
        if done > 0 {
            self.current.size = self.current.size.max(offset + done as u64);
            self.unsynced = true;
        }
        done
    }

    fn bytes_mut(&mut self, page: u64) -> &mut [u8; PAGE_LENGTH] {
        self.dirty.insert(page);
        let entry = self.current.pages.entry(page).or_insert(Page::Reserved);
        if matches!(entry, Page::Reserved) {
            *entry = Page::Written(Arc::new([0; PAGE_LENGTH]));
        }
        match entry {
            Page::Written(bytes) => Arc::make_mut(bytes),
            Page::Reserved => unreachable!("a reserved page was just replaced"),
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        let first_gone = size.div_ceil(BLOCK_SIZE);
        let gone = self.current.pages.split_off(&first_gone);
        self.dirty.extend(gone.into_keys());
        let tail = size % BLOCK_SIZE;
        if tail != 0 {
            self.zero(size, BLOCK_SIZE - tail);
        }
        self.current.size = size;
        self.unsynced = true;
    }

    /// Zeros bytes within one page, if it was ever written.
    fn zero(&mut self, offset: u64, length: u64) {
        for piece in pieces(offset, length) {
            if matches!(self.current.pages.get(&piece.page), Some(Page::Written(_))) {
                self.bytes_mut(piece.page)[piece.within].fill(0);
            }
        }
    }

    pub(crate) fn punch(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let whole = offset.div_ceil(BLOCK_SIZE)..end / BLOCK_SIZE;
        if whole.start > whole.end {
            self.zero(offset, length);
        } else {
            self.zero(offset, whole.start * BLOCK_SIZE - offset);
            self.zero(whole.end * BLOCK_SIZE, end - whole.end * BLOCK_SIZE);
            let gone: Vec<u64> = self.current.pages.range(whole).map(|(page, _)| *page).collect();
            for page in gone {
                self.current.pages.remove(&page);
                self.dirty.insert(page);
            }
        }
        self.unsynced = true;
    }

    /// Pages that reserving a range would take.
    pub(crate) fn pages_missing(&self, offset: u64, length: u64) -> u64 {
        let pages = offset / BLOCK_SIZE..(offset + length).div_ceil(BLOCK_SIZE);
        pages.end - pages.start - self.current.pages.range(pages.clone()).count() as u64
    }

    /// The first pages of a range that follow each other and are written or reserved.
    pub(crate) fn allocated_range(&self, start: u64, end: u64) -> Option<Range<u64>> {
        let pages = start / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE);
        let first = self.current.pages.range(pages.clone()).next().map(|(page, _)| *page)?;
        let last = (first..pages.end).find(|page| !self.current.pages.contains_key(page)).unwrap_or(pages.end);
        let found = (first * BLOCK_SIZE).max(start)..(last * BLOCK_SIZE).min(end);
        (!found.is_empty()).then_some(found)
    }

    pub(crate) fn reserve(&mut self, offset: u64, length: u64) {
        for piece in pieces(offset, length) {
            self.current.pages.entry(piece.page).or_insert_with(|| {
                self.dirty.insert(piece.page);
                Page::Reserved
            });
        }
        self.unsynced = true;
    }

    /// Grows the size; never cuts.
    pub(crate) fn extend(&mut self, size: u64) {
        self.current.size = self.current.size.max(size);
        self.unsynced = true;
    }

    pub(crate) fn seek(&self, offset: u64, target: SeekTarget) -> Option<u64> {
        if offset >= self.current.size {
            return None;
        }
        let first = offset / BLOCK_SIZE;
        let mut written = self
            .current
            .pages
            .range(first..)
            .filter(|(_, page)| matches!(page, Page::Written(_)))
            .map(|(page, _)| *page);
        let page = match target {
            SeekTarget::Data => written.next()?,
            SeekTarget::Hole => {
                let mut candidate = first;
                for page in written {
                    if page != candidate {
                        break;
                    }
                    candidate += 1;
                }
                candidate
            }
        };
        Some(offset.max(page * BLOCK_SIZE)).filter(|found| *found < self.current.size)
    }

    pub(crate) fn sync(&mut self) {
        let durable = self.durable.get_or_insert_default();
        for page in std::mem::take(&mut self.dirty) {
            match self.current.pages.get(&page) {
                Some(contents) => durable.pages.insert(page, contents.clone()),
                None => durable.pages.remove(&page),
            };
        }
        durable.size = self.current.size;
        self.unsynced = false;
    }

    /// The object after a crash; `None` where the object's creation was never made durable. `survives` says which pages
    /// the file system happened to write back on its own before; their bytes never extend the durable size.
    pub(crate) fn after_crash(mut self, mut survives: impl FnMut(u64) -> bool) -> Option<Self> {
        let mut image = self.durable?;
        for page in std::mem::take(&mut self.dirty) {
            if page < image.size / BLOCK_SIZE && survives(page) {
                match self.current.pages.get(&page) {
                    Some(contents) => image.pages.insert(page, contents.clone()),
                    None => image.pages.remove(&page),
                };
            }
        }
        let modified = self.modified;
        Some(Self { current: image.clone(), durable: Some(image), dirty: BTreeSet::new(), unsynced: false, modified })
    }

    /// Replaces unsynced bytes by the durable ones; the size stays. A file system may do this after it failed to
    /// write pages back.
    pub(crate) fn lose_unsynced(&mut self) {
        let size = self.current.size;
        for page in std::mem::take(&mut self.dirty) {
            match self.durable.as_ref().and_then(|durable| durable.pages.get(&page)) {
                Some(contents) => self.current.pages.insert(page, contents.clone()),
                None => self.current.pages.remove(&page),
            };
        }
        // The durable image may be longer than the object, if that was truncated since: keep the bytes beyond the size zero.
        self.truncate(size);
    }
}
