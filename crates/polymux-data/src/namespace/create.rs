//! Making inodes with a name, and without one.

use std::sync::Arc;

use polymux_meta::Sequence;
use polymux_records::attributes::{AttributeFlags, FileKind};
use polymux_records::caller::Caller;
use polymux_records::counters::Counters;
use polymux_records::error::{Error, Result};
use polymux_records::store::{EntryCount, FileRecord, InodeBody, InodeRecord, keys, put_xattr};
use polymux_types::{Errno, Ino, Timestamp};
use polymux_volume::access::{ACCESS_ACL, Acl, DEFAULT_ACL, EXECUTE, WRITE};
use polymux_volume::inode::{Inode, SizeTrust, check_not_immutable};
use polymux_volume::transaction::Transaction;

use super::change::LinkChange;
use super::check_name;
use crate::namespace::Namespace;

/// The first cookie of a directory. Smaller ones are left to front ends for `.` and `..`.
pub const COOKIE_FIRST: u64 = 16;

/// The kind of inode to make.
pub enum NewInode<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A pipe, a socket or a device with this number.
    Special(FileKind, u64),
}

impl NewInode<'_> {
    fn kind(&self) -> FileKind {
        match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Special(kind, _) => *kind,
        }
    }

    fn body(&self, parent: Ino) -> InodeBody {
        match self {
            Self::Regular => InodeBody::Regular(FileRecord::default()),
            Self::Directory => {
                InodeBody::Directory { parent, next_cookie: COOKIE_FIRST, entries: EntryCount::Exact(0) }
            }
            Self::Symlink(target) => InodeBody::Symlink { target: target.to_vec() },
            Self::Special(kind, device) => InodeBody::Special { kind: *kind, device: *device },
        }
    }
}

/// A new inode and the ACLs it inherits.
pub(super) struct Prepared {
    pub(super) inode: Arc<Inode>,
    acls: Vec<(&'static [u8], Vec<u8>)>,
}

impl Namespace {
    /// Makes an inode under a name.
    pub fn create_inode(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        permissions: u32,
    ) -> Result<Arc<Inode>> {
        self.volume.check_writable()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EEXIST.into());
        }
        let directory = self.directory_inode(parent)?;
        self.volume.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        if directory.common.read().links == 0 {
            return Err(Errno::ENOENT.into());
        }
        // In an empty directory there is no name to look for.
        if state.entries != Some(0) && self.find_name(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        check_not_immutable(&directory)?;
        self.volume.check_access(caller, &directory, WRITE)?;
        self.volume.check_metadata_room()?;
        let now = self.volume.now();
        let prepared = self.prepare(caller, &directory, new, permissions, 1, now)?;
        // In the table before the record can be found, so that no thread loads a second copy.
        self.volume.inodes.insert(prepared.inode.clone());
        let made = self.volume.transact(&[&directory, &prepared.inode], |transaction| {
            let kind = new.kind();
            transaction.add_name(parent, &mut state, name, prepared.inode.ino, kind);
            note_entry_change(&directory, i64::from(kind == FileKind::Directory), now);
            put_new(transaction, &prepared);
            let links = if kind == FileKind::Directory { LinkChange::Changed } else { LinkChange::Same };
            self.put_names_changed(transaction, &directory, &mut state, links);
            Ok(())
        });
        if let Err(error) = made {
            self.volume.inodes.remove(prepared.inode.ino);
            return Err(error);
        }
        let inode = prepared.inode;
        if let Some(file) = inode.file() {
            self.data.expect_use_of(file, parent);
        }
        Counters::count(&self.volume.counters.creates);
        Ok(inode)
    }

    /// Makes a regular file without a name: it goes with its last description unless it is linked before.
    pub fn create_unnamed_inode(&self, caller: &Caller, parent: Ino, permissions: u32) -> Result<Arc<Inode>> {
        self.volume.check_writable()?;
        let directory = self.directory_inode(parent)?;
        check_not_immutable(&directory)?;
        self.volume.check_access(caller, &directory, WRITE | EXECUTE)?;
        self.volume.check_metadata_room()?;
        let prepared = self.prepare(caller, &directory, &NewInode::Regular, permissions, 0, self.volume.now())?;
        self.volume.transact(&[&prepared.inode], |transaction| {
            put_new(transaction, &prepared);
            transaction.batch.put(keys::orphan(prepared.inode.ino), []);
            Ok(())
        })?;
        let inode = prepared.inode;
        self.volume.inodes.insert(inode.clone());
        Counters::count(&self.volume.counters.creates);
        Ok(inode)
    }

    /// An inode with `names` names, made `now`, that is neither in the table nor in the store yet.
    pub(super) fn prepare(
        &self,
        caller: &Caller,
        directory: &Inode,
        new: &NewInode<'_>,
        permissions: u32,
        names: u32,
        now: Timestamp,
    ) -> Result<Prepared> {
        let kind = new.kind();
        let above = directory.common.read().clone();
        let inherits_group = above.permissions & libc::S_ISGID != 0;
        let gid = if inherits_group { above.gid } else { caller.gid };
        let mut permissions = permissions & 0o7777;
        let mut acls: Vec<(&'static [u8], Vec<u8>)> = Vec::new();
        let inherits_acl = above.has_default_acl && kind != FileKind::Symlink;
        let default = if inherits_acl { self.volume.metadata.xattr(directory.ino, DEFAULT_ACL)? } else { None };
        match default {
            Some(value) => {
                let damaged =
                    || Error::corrupted(format!("the default ACL of inode {}", directory.ino), "it is invalid");
                let acl = Acl::parse(&value).map_err(|_| damaged())?.ok_or_else(damaged)?;
                let (inherited, bits) = acl.inherit(permissions);
                permissions = bits;
                if !inherited.is_plain() {
                    acls.push((ACCESS_ACL, inherited.encode()));
                }
                if kind == FileKind::Directory {
                    acls.push((DEFAULT_ACL, value));
                }
            }
            None if kind == FileKind::Symlink => permissions = 0o777,
            None => permissions &= !caller.umask,
        }
        if inherits_group {
            if kind == FileKind::Directory {
                permissions |= libc::S_ISGID;
            } else if caller.checks_permissions() && !caller.is_privileged() && !caller.is_in_group(gid) {
                // No caller gets a set-group-id file of a group it is not in.
                permissions &= !libc::S_ISGID;
            }
        }
        let has = |name: &[u8]| acls.iter().any(|(of, _)| *of == name);
        let record = InodeRecord {
            permissions,
            uid: caller.uid,
            gid,
            links: names * if kind == FileKind::Directory { 2 } else { 1 },
            generation: 1,
            has_access_acl: has(ACCESS_ACL),
            has_default_acl: has(DEFAULT_ACL),
            lacks_xattrs: acls.is_empty(),
            attribute_flags: AttributeFlags::known(above.attribute_flags).inherited().bits(),
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            body: new.body(directory.ino),
        };
        let ino = self.volume.metadata.allocate_ino(|sequence| self.volume.flush_through_copy(sequence))?;
        // The transaction that makes it is the first that concerns it.
        let inode = Inode::from_record(ino, record, &[], Sequence(0), SizeTrust::Settled)?;
        inode.parent.store(directory.ino.0, std::sync::atomic::Ordering::Relaxed);
        if let Some(file) = inode.file() {
            file.sizes.is_known.store(true, std::sync::atomic::Ordering::Release);
        }
        Ok(Prepared { inode: Arc::new(inode), acls })
    }
}

/// Adds the record and the inherited ACLs of a new inode.
pub(super) fn put_new(transaction: &mut Transaction, prepared: &Prepared) {
    for (name, value) in &prepared.acls {
        put_xattr(&mut transaction.batch, prepared.inode.ino, name, value);
    }
    match prepared.inode.directory() {
        Some(directory) => transaction.put_directory(&prepared.inode, &directory.read()),
        None => transaction.put_inode(&prepared.inode),
    }
}

/// A name came or went: times of the directory, and its links where a directory came or went.
pub(crate) fn note_entry_change(directory: &Inode, subdirectories: i64, now: Timestamp) {
    let mut common = directory.common.write();
    common.modified = now;
    common.changed = now;
    let links = i64::from(common.links) + subdirectories;
    common.links = u32::try_from(links).expect("links of a directory are counted with its subdirectories");
}
