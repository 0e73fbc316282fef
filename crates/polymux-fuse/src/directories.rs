//! Listing of directories. Where it goes on is said by the offset alone, so that `seekdir`, NFS and a restart of a listing
//! work whatever was created or removed meanwhile, and that directories are opened and closed without a message. Where it ends is kept for each
//! listing that has begun (`listings`).
//!
//! `.` and `..` are made here; they are never pinned, because the kernel does not count them.

use polymux_fs::{Attributes, Caller, DirectoryEntry, FileSystem};
use polymux_transport::wire::{Attr, EntryReply, Header, Listing, Room};
use polymux_types::Ino;

use crate::adapter::{Adapter, Outcome, caller, ino};
use crate::convert;
use crate::listings::Cursor;
use crate::names::is_missing_name;

/// Entries asked for at once: about as many as fit in the kernel's usual buffer of 32 KiB.
const NAMES_AT_ONCE: usize = 512;
/// Entries fetched at once with their attributes, which take more space.
const ENTRIES_AT_ONCE: usize = 128;

impl Adapter {
    /// The entries of a directory from an offset to the end of the listing.
    fn walk<'a>(&self, fs: &'a FileSystem, header: &Header, offset: u64) -> polymux_fs::Result<Walk<'a>> {
        let directory = ino(header);
        let names = fs.directory_names(directory)?;
        let (cursor, end) = match Cursor::of(offset) {
            None => (Cursor::beginning(self.listings.begin(directory, names)), names.end),
            Some(cursor) => (cursor, self.listings.end_of(directory, cursor.group, names.end)),
        };
        Ok(Walk { fs, caller: caller(header), directory, cursor, end })
    }

    /// Notes the end of a listing, which has no more entries.
    fn note_end(&self, walk: &Walk<'_>, listing: &Listing) {
        if listing.is_empty() {
            self.listings.end(walk.directory, walk.cursor.group);
        }
    }

    pub(crate) fn sync_listing(&self, header: &Header) -> Outcome<()> {
        self.run("fsyncdir", ino(header), |fs| fs.sync_directory(&caller(header), ino(header)))
    }

    /// Adds names to an answer, from an offset of a directory on.
    pub(crate) fn list_names(&self, header: &Header, offset: u64, listing: &mut Listing) -> Outcome<()> {
        self.run("readdir", ino(header), |fs| {
            let mut walk = self.walk(fs, header, offset)?;
            let dots = walk.dots(|attributes, offset, name| {
                listing.add(attributes.ino.get(), offset, attributes.kind.type_bits(), name)
            })?;
            if dots == Room::Full {
                return Ok(());
            }
            walk.entries(NAMES_AT_ONCE, |entry, offset| {
                Ok(listing.add(entry.ino.get(), offset, entry.kind.type_bits(), &entry.name))
            })?;
            self.note_end(&walk, listing);
            Ok(())
        })
    }

    /// Returns the inodes of the entries, which were pinned.
    pub(crate) fn list_entries(
        &self,
        header: &Header,
        offset: u64,
        listing: &mut Listing,
        reply: impl Fn(Attr) -> EntryReply,
    ) -> Outcome<Vec<Ino>> {
        self.run("readdirplus", ino(header), |fs| {
            let caller = caller(header);
            let mut pinned = Vec::new();
            let mut walk = self.walk(fs, header, offset)?;
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
            self.note_end(&walk, listing);
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
    /// Where it goes on.
    cursor: Cursor,
    /// Names at this cookie and behind it are not part of the listing.
    end: u64,
}

impl Walk<'_> {
    fn dots(&mut self, mut add: impl FnMut(&Attributes, u64, &[u8]) -> Room) -> polymux_fs::Result<Room> {
        let group = self.cursor.group;
        let (after_dot, after_dot_dot) = (Cursor::after_dot(group), Cursor::after_dot_dot(group));
        if self.cursor.is_before(after_dot) {
            let own = self.fs.attributes(&self.caller, self.directory)?;
            if add(&own, after_dot.offset()?, b".") == Room::Full {
                return Ok(Room::Full);
            }
            self.cursor = after_dot;
        }
        if self.cursor.is_before(after_dot_dot) {
            let parent = self.fs.parent_of(&self.caller, self.directory)?;
            if add(&parent, after_dot_dot.offset()?, b"..") == Room::Full {
                return Ok(Room::Full);
            }
            self.cursor = after_dot_dot;
        }
        Ok(Room::Left)
    }

    fn entries(
        &mut self,
        at_once: usize,
        mut add: impl FnMut(&DirectoryEntry, u64) -> polymux_fs::Result<Room>,
    ) -> polymux_fs::Result<()> {
        let mut after = self.cursor.cookie();
        loop {
            let entries = self.fs.read_directory(&self.caller, self.directory, after, at_once)?;
            for entry in &entries {
                assert!(entry.cookie > after, "positions of a directory rise");
                if entry.cookie >= self.end {
                    return Ok(());
                }
                if add(entry, Cursor::after(self.cursor.group, entry.cookie)?.offset()?)? == Room::Full {
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
