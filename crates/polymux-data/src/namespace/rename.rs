//! Renames. Data never moves: a rename touches records only, on no tier (DESIGN section 4).
//!
//! Invariant: a whiteout that a rename leaves is made in the transaction that moves the name, so that overlayfs finds the old name or
//! the whiteout after a crash, never a name of a lower layer that shows again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_records::attributes::{FileKind, RenameMode};
use polymux_records::caller::Caller;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{Dirent, keys};
use polymux_types::sync::RwLockWriteGuard;
use polymux_types::{Errno, Ino, Timestamp};
use polymux_volume::access::{EXECUTE, WRITE};
use polymux_volume::inode::{DirectoryState, Inode, check_not_immutable, check_removable};
use polymux_volume::transaction::Transaction;
use smallvec::SmallVec;

use super::change::LinkChange;
use super::check_name;
use super::create::{NewInode, Prepared, note_entry_change, put_new};
use crate::namespace::Namespace;

/// A name on one side of a rename.
struct Side<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
}

/// An entry and its inode.
struct Found {
    dirent: Dirent,
    inode: Arc<Inode>,
}

/// A special file that stands for a name which is gone, as overlayfs has it.
const WHITEOUT: NewInode<'static> = NewInode::Special(FileKind::CharacterDevice, 0);

/// The inodes of a rename that is no exchange.
struct Replacement<'a> {
    found: &'a Found,
    /// The inode that has the new name before the rename.
    replaced: Option<&'a Found>,
    /// The whiteout that gets the old name, if any.
    whiteout: Option<&'a Prepared>,
}

/// Directories that got another parent.
pub type MovedDirectories = SmallVec<[Ino; 2]>;

/// The result of a rename under the locks.
enum Renamed {
    Done(MovedDirectories),
    /// Nothing was done yet: the data of this file is to be made durable first.
    SyncFirst(Arc<Inode>),
}

/// The locked states of the two directories; the second is `None` where they are one.
struct Locked<'a> {
    source: RwLockWriteGuard<'a, DirectoryState>,
    target: Option<RwLockWriteGuard<'a, DirectoryState>>,
}

impl Locked<'_> {
    fn target(&mut self) -> &mut DirectoryState {
        match &mut self.target {
            Some(target) => target,
            None => &mut self.source,
        }
    }
}

impl Namespace {
    /// Renames a name, or exchanges two.
    pub fn rename_name(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<MovedDirectories> {
        self.volume.check_writable()?;
        check_rename_name(from.1, Errno::EBUSY)?;
        check_rename_name(to.1, if mode.refuses_to_replace() { Errno::EEXIST } else { Errno::EBUSY })?;
        let source_directory = self.directory_inode(from.0)?;
        let target_directory = self.directory_inode(to.0)?;
        self.volume.check_access(caller, &source_directory, EXECUTE)?;
        self.volume.check_access(caller, &target_directory, EXECUTE)?;
        let source = Side { directory: &source_directory, name: from.1 };
        let target = Side { directory: &target_directory, name: to.1 };
        // Whether a file is replaced is known only under the locks, and no lock is held while its successor is synced.
        let mut synced = None;
        let moved = loop {
            match self.rename_locked(caller, &source, &target, mode, synced)? {
                Renamed::Done(moved) => break moved,
                Renamed::SyncFirst(successor) => {
                    if let Some(file) = successor.file() {
                        self.data.sync_file(&successor, file)?;
                    }
                    synced = Some(successor.ino);
                }
            }
        };
        Counters::count(&self.volume.counters.renames);
        Ok(moved)
    }

    /// Whether the data of a file must be durable before it replaces another one (DESIGN section 6).
    fn must_sync_to_replace(&self, inode: &Inode) -> bool {
        // Inline bytes need nothing: they are logged with the rename itself.
        !is_planted(PlantedFault::ReplacedBeforeSync)
            && self.volume.options.sync_on_replace
            && inode.file().is_some_and(|file| !file.is_inline())
    }

    /// Does it under the locks; or does nothing where a file must be synced first, unless it was `synced`.
    fn rename_locked(
        &self,
        caller: &Caller,
        source: &Side<'_>,
        target: &Side<'_>,
        mode: RenameMode,
        synced: Option<Ino>,
    ) -> Result<Renamed> {
        let crosses = source.directory.ino != target.directory.ino;
        let _tree_stands_still = crosses.then(|| self.rename_lock.lock());
        let mut locked = self.lock_directories(source.directory, target.directory)?;
        let found = self.find(source)?.ok_or(Errno::ENOENT)?;
        let replaced = self.find(target)?;
        self.check_rename(caller, source, target, &found, replaced.as_ref(), mode)?;
        if replaced.as_ref().is_some_and(|replaced| replaced.inode.ino == found.inode.ino) {
            return Ok(Renamed::Done(MovedDirectories::new()));
        }
        let moved_of = |inodes: &[&Inode]| -> MovedDirectories {
            inodes.iter().filter(|inode| crosses && inode.is_directory()).map(|inode| inode.ino).collect()
        };
        if mode == RenameMode::Exchange {
            let replaced = replaced.ok_or(Errno::ENOENT)?;
            self.exchange(source, target, &mut locked, &found, &replaced)?;
            return Ok(Renamed::Done(moved_of(&[&found.inode, &replaced.inode])));
        }
        if replaced.is_some() && synced != Some(found.inode.ino) && self.must_sync_to_replace(&found.inode) {
            return Ok(Renamed::SyncFirst(found.inode));
        }
        let whiteout = match mode.leaves_whiteout() {
            true => Some(self.prepare(caller, source.directory, &WHITEOUT, 0, 1, self.volume.now())?),
            false => None,
        };
        if let Some(whiteout) = &whiteout {
            // In the table before the record can be found, so that no thread loads a second copy.
            self.volume.inodes.insert(whiteout.inode.clone());
        }
        let replacement = Replacement { found: &found, replaced: replaced.as_ref(), whiteout: whiteout.as_ref() };
        let done = self.replace(source, target, &mut locked, &replacement);
        if let (Err(_), Some(whiteout)) = (&done, &whiteout) {
            self.volume.inodes.remove(whiteout.inode.ino);
        }
        done.map(|()| Renamed::Done(moved_of(&[&found.inode])))
    }

    /// Locks two directories: an ancestor before its descendant, else by number. Across directories the rename lock is held, so no
    /// other thread locks two unrelated ones and the tree does not change.
    fn lock_directories<'a>(&self, source: &'a Inode, target: &'a Inode) -> Result<Locked<'a>> {
        let lock = |inode: &'a Inode| inode.directory().ok_or(Errno::ENOTDIR);
        if source.ino == target.ino {
            return Ok(Locked { source: lock(source)?.write(), target: None });
        }
        let target_first = if self.is_ancestor(target.ino, source.ino)? {
            true
        } else {
            !self.is_ancestor(source.ino, target.ino)? && target.ino < source.ino
        };
        if target_first {
            let target = lock(target)?.write();
            Ok(Locked { source: lock(source)?.write(), target: Some(target) })
        } else {
            let source = lock(source)?.write();
            Ok(Locked { source, target: Some(lock(target)?.write()) })
        }
    }

    fn find(&self, side: &Side<'_>) -> Result<Option<Found>> {
        match self.find_name(side.directory.ino, side.name)? {
            Some(dirent) => Ok(Some(Found { dirent, inode: self.inode_of_entry(&dirent)? })),
            None => Ok(None),
        }
    }

    fn check_rename(
        &self,
        caller: &Caller,
        source: &Side<'_>,
        target: &Side<'_>,
        found: &Found,
        replaced: Option<&Found>,
        mode: RenameMode,
    ) -> Result<()> {
        let crosses = source.directory.ino != target.directory.ino;
        if mode.refuses_to_replace() && replaced.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if mode == RenameMode::Exchange && replaced.is_none() {
            return Err(Errno::ENOENT.into());
        }
        if target.directory.common.read().links == 0 {
            return Err(Errno::ENOENT.into());
        }
        if crosses && found.inode.is_directory() && self.is_ancestor(found.inode.ino, target.directory.ino)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(replaced) = replaced.filter(|replaced| crosses && replaced.inode.is_directory())
            && self.is_ancestor(replaced.inode.ino, source.directory.ino)?
        {
            let errno = if mode == RenameMode::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY };
            return Err(errno.into());
        }
        check_removable(source.directory, &found.inode)?;
        match replaced {
            Some(replaced) => check_removable(target.directory, &replaced.inode)?,
            None => check_not_immutable(target.directory)?,
        }
        self.volume.check_access(caller, source.directory, WRITE)?;
        self.volume.check_access(caller, target.directory, WRITE)?;
        self.volume.check_sticky(caller, source.directory, &found.inode)?;
        self.check_moved_directory(caller, crosses, &found.inode)?;
        let Some(replaced) = replaced else { return self.volume.check_metadata_room() };
        self.volume.check_sticky(caller, target.directory, &replaced.inode)?;
        if mode == RenameMode::Exchange {
            return self.check_moved_directory(caller, crosses, &replaced.inode);
        }
        match (found.inode.is_directory(), replaced.inode.is_directory()) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            _ => Ok(()),
        }
    }

    /// A directory that gets another parent is written to (its `..` changes).
    fn check_moved_directory(&self, caller: &Caller, crosses: bool, inode: &Inode) -> Result<()> {
        if crosses && inode.is_directory() { self.volume.check_access(caller, inode, WRITE) } else { Ok(()) }
    }

    fn replace(
        &self,
        source: &Side<'_>,
        target: &Side<'_>,
        locked: &mut Locked<'_>,
        replacement: &Replacement<'_>,
    ) -> Result<()> {
        let Replacement { found, replaced, whiteout } = *replacement;
        let crosses = source.directory.ino != target.directory.ino;
        // Both are below the locked directories; siblings are locked by number.
        let replaced_directory = replaced.and_then(|replaced| replaced.inode.directory());
        let moved_directory = found.inode.directory().filter(|_| crosses);
        let replaced_first = replaced.is_some_and(|replaced| replaced.inode.ino < found.inode.ino);
        let mut early = replaced_directory.filter(|_| replaced_first).map(|lock| lock.write());
        let moved = moved_directory.map(|lock| lock.write());
        let late = replaced_directory.filter(|_| !replaced_first).map(|lock| lock.write());
        let emptied = early.take().or(late);
        if let (Some(replaced), Some(state)) = (replaced, &emptied)
            && !self.is_empty(&replaced.inode, state)?
        {
            return Err(Errno::ENOTEMPTY.into());
        }
        let always: [&Inode; 3] = [source.directory, target.directory, &found.inode];
        let mut members: SmallVec<[&Inode; 5]> = SmallVec::from_slice(&always);
        members.extend(replaced.map(|replaced| &*replaced.inode));
        members.extend(whiteout.map(|whiteout| &*whiteout.inode));
        let now = self.volume.now();
        let loss = self.volume.transact(&members, |transaction| {
            let xattrs = match replaced {
                Some(replaced) => self.data.xattrs_to_delete(&replaced.inode)?,
                None => Vec::new(),
            };
            transaction.remove_name(source.directory.ino, &mut locked.source, source.name, &found.dirent);
            let loss = replaced.map(|replaced| {
                transaction.remove_name(target.directory.ino, locked.target(), target.name, &replaced.dirent);
                self.drop_name(transaction, &replaced.inode, emptied.as_deref(), &xattrs, now)
            });
            put_new_names(transaction, source, target, locked, replacement);
            let moves_directory = i64::from(found.inode.is_directory());
            note_entry_change(source.directory, if crosses { -moves_directory } else { 0 }, now);
            note_entry_change(target.directory, if crosses { moves_directory } else { 0 }, now);
            if emptied.is_some() {
                note_entry_change(target.directory, -1, now);
            }
            put_moved(transaction, target.directory.ino, &found.inode, moved.as_deref(), now);
            self.put_renamed(transaction, &found.inode);
            let changes_links = emptied.is_some() || moves_directory != 0 && crosses;
            let links = if changes_links { LinkChange::Changed } else { LinkChange::Same };
            self.put_directories(transaction, source, target, locked, links);
            Ok(loss)
        })?;
        self.stamps.stamp_later(&found.inode);
        if let (Some(replaced), Some(loss)) = (replaced, loss) {
            self.data.finish_loss(&replaced.inode, loss);
        }
        Ok(())
    }

    fn exchange(
        &self,
        source: &Side<'_>,
        target: &Side<'_>,
        locked: &mut Locked<'_>,
        found: &Found,
        other: &Found,
    ) -> Result<()> {
        let crosses = source.directory.ino != target.directory.ino;
        let found_lock = found.inode.directory().filter(|_| crosses);
        let other_lock = other.inode.directory().filter(|_| crosses);
        let other_first = other.inode.ino < found.inode.ino;
        let early = other_lock.filter(|_| other_first).map(|lock| lock.write());
        let found_state = found_lock.map(|lock| lock.write());
        let other_state = early.or_else(|| other_lock.map(|lock| lock.write()));
        let members: [&Inode; 4] = [source.directory, target.directory, &found.inode, &other.inode];
        let now = self.volume.now();
        self.volume.transact(&members, |transaction| {
            let (source_ino, target_ino) = (source.directory.ino, target.directory.ino);
            transaction.delete_name(source_ino, source.name, &found.dirent);
            transaction.delete_name(target_ino, target.name, &other.dirent);
            // Each keeps the position of the name it takes, so that a concurrent listing misses none.
            let (from, to) = (&found.dirent, &other.dirent);
            transaction.put_name(target_ino, target.name, from.ino, from.kind, to.cookie);
            transaction.put_name(source_ino, source.name, to.ino, to.kind, from.cookie);
            let gain = i64::from(found.inode.is_directory()) - i64::from(other.inode.is_directory());
            note_entry_change(source.directory, if crosses { -gain } else { 0 }, now);
            note_entry_change(target.directory, if crosses { gain } else { 0 }, now);
            put_moved(transaction, target_ino, &found.inode, found_state.as_deref(), now);
            put_moved(transaction, source_ino, &other.inode, other_state.as_deref(), now);
            self.put_renamed(transaction, &found.inode);
            self.put_renamed(transaction, &other.inode);
            let links = if crosses && gain != 0 { LinkChange::Changed } else { LinkChange::Same };
            self.put_directories(transaction, source, target, locked, links);
            Ok(())
        })?;
        self.stamps.stamp_later(&found.inode);
        self.stamps.stamp_later(&other.inode);
        Ok(())
    }

    /// Puts on record that the path of everything below a directory changed: its own objects are on no tier, and those below
    /// it tell no more by themselves that they are described wrongly (docs/design/0013).
    fn put_renamed(&self, transaction: &mut Transaction, inode: &Inode) {
        if inode.is_directory() {
            transaction.batch.put(keys::renamed_directory(inode.ino), []);
            self.stamps.late_stamps.add_directory(inode.ino);
        }
    }

    fn put_directories(
        &self,
        transaction: &mut Transaction,
        source: &Side<'_>,
        target: &Side<'_>,
        locked: &mut Locked<'_>,
        links: LinkChange,
    ) {
        self.put_names_changed(transaction, source.directory, &mut locked.source, links);
        if let Some(state) = &mut locked.target {
            self.put_names_changed(transaction, target.directory, state, links);
        }
    }
}

/// Gives the new name to the moved inode, at the position of the name it replaces or, within its directory, at its own; and the
/// old name to the whiteout, which takes the position of that name.
fn put_new_names(
    transaction: &mut Transaction,
    source: &Side<'_>,
    target: &Side<'_>,
    locked: &mut Locked<'_>,
    replacement: &Replacement<'_>,
) {
    let Replacement { found, replaced, whiteout } = *replacement;
    let keeps_position = source.directory.ino == target.directory.ino && whiteout.is_none();
    let kept = replaced.or(Some(found).filter(|_| keeps_position)).map(|found| found.dirent.cookie);
    let (parent, state) = (target.directory.ino, locked.target());
    let (ino, kind) = (found.inode.ino, found.inode.kind);
    match kept {
        Some(cookie) => transaction.add_name_at(parent, state, target.name, ino, kind, cookie),
        None => transaction.add_name(parent, state, target.name, ino, kind),
    }
    if let Some(whiteout) = whiteout {
        let (ino, kind) = (whiteout.inode.ino, whiteout.inode.kind);
        let (parent, state) = (source.directory.ino, &mut locked.source);
        transaction.add_name_at(parent, state, source.name, ino, kind, found.dirent.cookie);
        put_new(transaction, whiteout);
    }
}

/// Logs the record of the moved inode. Its state is given for a directory with a new parent.
fn put_moved(
    transaction: &mut Transaction,
    parent: Ino,
    inode: &Inode,
    state: Option<&DirectoryState>,
    now: Timestamp,
) {
    inode.common.write().changed = now;
    match (state, inode.directory()) {
        (Some(state), _) => {
            inode.parent.store(parent.0, Ordering::Release);
            state.edition.end();
            transaction.put_directory(inode, state);
        }
        // Its own names are not concerned, and its parent is locked: only its times change.
        (None, Some(_)) => inode.times_dirty.store(true, Ordering::Release),
        (None, None) => transaction.put_inode(inode),
    }
}

fn check_rename_name(name: &[u8], special: Errno) -> Result<()> {
    if matches!(name, b"." | b"..") {
        return Err(special.into());
    }
    check_name(name)
}
