//! Listing of directories. Where it goes on is said by the offset alone, so that `seekdir`, NFS and a restart of a listing
//! work whatever was created or removed meanwhile. Where it ends is kept for each open directory (`listings`).
//!
//! `.` and `..` are made here; they are never pinned, because the kernel does not count them.

use std::time::Duration;

use polymux_fs::{Attributes, Caller, DirectoryEntry, FileSystem};
use polymux_transport::wire::{Attr, EntryReply, Header, Listing, OpenFlags, OpenReply, Room};
use polymux_types::Ino;

use crate::adapter::{Adapter, Outcome, caller, ino};
use crate::convert::{self, KEEP, OFFSET_AFTER_DOT, OFFSET_AFTER_DOT_DOT};
use crate::listings::KernelCopy;
use crate::names::is_missing_name;
use crate::threads::is_of_kernel_thread;

/// Entries asked for at once: about as many as fit in the kernel's usual buffer of 32 KiB.
const NAMES_AT_ONCE: usize = 512;
/// Entries fetched at once with their attributes, which take more space.
const ENTRIES_AT_ONCE: usize = 128;

/// How long the kernel answers listings from its copy before it is sent attributes again: those that it keeps have to last for another listing.
const COPY_USED_MAX: Duration = Duration::from_secs(KEEP.as_secs() / 2);

impl Adapter {
    pub(crate) fn open_listing(&self, header: &Header) -> Outcome<OpenReply> {
        let directory = ino(header);
        self.run("opendir", directory, |fs| {
            let opened = fs.open_directory(&caller(header), directory)?;
            let has_attributes = opened.since_listed.is_none_or(|since| since < COPY_USED_MAX);
            let may_use = has_attributes && !is_of_kernel_thread(header);
            let allowed = if may_use { KernelCopy::Used } else { KernelCopy::NotUsed };
            let (handle, copy) = self.listings.open(directory, opened.end, allowed);
            let uses = if copy == KernelCopy::Used { OpenFlags::CACHE_DIRECTORY } else { OpenFlags::default() };
            let keeps = if opened.is_outdated { OpenFlags::default() } else { OpenFlags::KEEP_CACHE };
            Ok(OpenReply::new(handle, uses.and(keeps)))
        })
    }

    /// The entries of an open directory, a handle and an offset, from that offset to the end of the listing.
    fn walk<'a>(&self, fs: &'a FileSystem, header: &Header, place: (u64, u64)) -> polymux_fs::Result<Walk<'a>> {
        let directory = ino(header);
        let end = self.listings.read(directory, place.0, place.1, fs.directory_end(directory)?);
        Ok(Walk { fs, caller: caller(header), directory, offset: place.1, end })
    }

    /// Marks the end of a listing, which has no more entries, as one that does not complete the kernel's copy, where it must not.
    fn mark_end(&self, handle: u64, listing: &mut Listing) {
        if listing.is_empty() && !self.listings.may_complete_copy(handle) {
            listing.end_without_copy();
        }
    }

    pub(crate) fn sync_listing(&self, header: &Header) -> Outcome<()> {
        self.run("fsyncdir", ino(header), |fs| fs.sync_directory(&caller(header), ino(header)))
    }

    /// Adds names to an answer, from an offset of an open directory on.
    pub(crate) fn list_names(&self, header: &Header, place: (u64, u64), listing: &mut Listing) -> Outcome<()> {
        self.run("readdir", ino(header), |fs| {
            let mut walk = self.walk(fs, header, place)?;
            let dots = walk.dots(|attributes, offset, name| {
                listing.add(attributes.ino.get(), offset, attributes.kind.type_bits(), name)
            })?;
            if dots == Room::Full {
                return Ok(());
            }
            walk.entries(NAMES_AT_ONCE, |entry, offset| {
                Ok(listing.add(entry.ino.get(), offset, entry.kind.type_bits(), &entry.name))
            })?;
            self.mark_end(place.0, listing);
            Ok(())
        })
    }

    /// Returns the inodes of the entries, which were pinned.
    pub(crate) fn list_entries(
        &self,
        header: &Header,
        place: (u64, u64),
        listing: &mut Listing,
        reply: impl Fn(Attr) -> EntryReply,
    ) -> Outcome<Vec<Ino>> {
        self.run("readdirplus", ino(header), |fs| {
            let caller = caller(header);
            let mut pinned = Vec::new();
            let mut walk = self.walk(fs, header, place)?;
            if place.1 == 0 {
                fs.note_listed(ino(header))?;
            }
            let dots = walk.dots(|attributes, offset, name| {
                listing.add_with_attr(&reply(convert::attr(attributes)), offset, name)
            })?;
            if dots == Room::Full {
                return Ok(pinned);
            }
            let listed = walk.entries(ENTRIES_AT_ONCE, |entry, offset| {
                let attributes = match attributes_of_entry(fs, &caller, entry)? {
                    Known::Attributes(attributes) => attributes,
                    Known::NameOnly => {
                        let kind = entry.kind.type_bits();
                        return Ok(listing.add_without_attr(entry.ino.get(), offset, kind, &entry.name));
                    }
                    Known::Removed => return Ok(Room::Left),
                };
                let attr = Self::entry(fs, &attributes);
                let room = listing.add_with_attr(&reply(attr), offset, &entry.name);
                match room {
                    Room::Full => fs.unpin(entry.ino, 1),
                    Room::Left => pinned.push(entry.ino),
                }
                Ok(room)
            });
            if let Err(error) = listed {
                // The kernel hears of none of them.
                pinned.into_iter().for_each(|ino| fs.unpin(ino, 1));
                return Err(error);
            }
            self.mark_end(place.0, listing);
            Ok(pinned)
        })
    }
}

/// The state known of an entry of a directory.
enum Known {
    Attributes(Attributes),
    /// The tier that knows the size of the file is not there, and the kernel takes no guess (`write_back`).
    NameOnly,
    /// The file was removed after its name was read, so that it is not part of the directory any more.
    Removed,
}

fn attributes_of_entry(fs: &FileSystem, caller: &Caller, entry: &DirectoryEntry) -> polymux_fs::Result<Known> {
    match fs.attributes(caller, entry.ino) {
        Ok(attributes) => Ok(Known::Attributes(attributes)),
        Err(error) if is_missing_name(&error) => Ok(Known::Removed),
        Err(error) if error.is_about_tier() => Ok(Known::NameOnly),
        Err(error) => Err(error),
    }
}

struct Walk<'a> {
    fs: &'a FileSystem,
    caller: Caller,
    directory: Ino,
    offset: u64,
    /// Names at this cookie and behind it are not part of the listing.
    end: u64,
}

impl Walk<'_> {
    fn dots(&mut self, mut add: impl FnMut(&Attributes, u64, &[u8]) -> Room) -> polymux_fs::Result<Room> {
        if self.offset < OFFSET_AFTER_DOT {
            let own = self.fs.attributes(&self.caller, self.directory)?;
            if add(&own, OFFSET_AFTER_DOT, b".") == Room::Full {
                return Ok(Room::Full);
            }
            self.offset = OFFSET_AFTER_DOT;
        }
        if self.offset < OFFSET_AFTER_DOT_DOT {
            let parent = self.fs.parent_of(&self.caller, self.directory)?;
            if add(&parent, OFFSET_AFTER_DOT_DOT, b"..") == Room::Full {
                return Ok(Room::Full);
            }
            self.offset = OFFSET_AFTER_DOT_DOT;
        }
        Ok(Room::Left)
    }

    fn entries(
        &mut self,
        at_once: usize,
        mut add: impl FnMut(&DirectoryEntry, u64) -> polymux_fs::Result<Room>,
    ) -> polymux_fs::Result<()> {
        let mut after = convert::cookie_before(self.offset);
        loop {
            let entries = self.fs.read_directory(&self.caller, self.directory, after, at_once)?;
            for entry in &entries {
                assert!(entry.cookie > after, "positions of a directory rise");
                if entry.cookie >= self.end {
                    return Ok(());
                }
                if add(entry, convert::offset_after(entry.cookie)?)? == Room::Full {
                    return Ok(());
                }
                after = entry.cookie;
            }
            if entries.len() < at_once {
                return Ok(());
            }
        }
    }
}
