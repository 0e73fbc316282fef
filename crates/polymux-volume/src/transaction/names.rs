//! Names: a pair of records (`d`, `c`) and an entry in the list of the inode's names (`p`), changed together.

use polymux_records::attributes::FileKind;
use polymux_records::store::{Dirent, PositionEntry, keys};
use polymux_types::Ino;

use super::Transaction;
use crate::inode::DirectoryState;

impl Transaction {
    /// Gives a name to an inode in a directory, which is `parent` and has this state.
    pub fn add_name(&mut self, parent: Ino, state: &mut DirectoryState, name: &[u8], ino: Ino, kind: FileKind) {
        let cookie = state.next_cookie;
        state.next_cookie += 1;
        state.entries = state.entries.map(|count| count + 1);
        self.put_name(parent, name, ino, kind, cookie);
    }

    /// Gives a name to an inode in a directory, at a position that a name which was just removed had: who lists the directory
    /// meanwhile neither misses the name nor sees the file twice.
    pub fn add_name_at(
        &mut self,
        parent: Ino,
        state: &mut DirectoryState,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
        cookie: u64,
    ) {
        state.entries = state.entries.map(|count| count + 1);
        self.put_name(parent, name, ino, kind, cookie);
    }

    /// Writes the records of a name at a given position.
    pub fn put_name(&mut self, parent: Ino, name: &[u8], ino: Ino, kind: FileKind, cookie: u64) {
        self.put_record_with(keys::dirent(parent, name), |bytes| Dirent { ino, kind, cookie }.encode(bytes));
        self.put_record_with(keys::position(parent, cookie), |bytes| PositionEntry { ino, kind, name }.encode(bytes));
        self.batch.put(keys::parent_name(ino, parent, name), []);
    }

    /// Takes a name away.
    pub fn remove_name(&mut self, parent: Ino, state: &mut DirectoryState, name: &[u8], dirent: &Dirent) {
        state.entries = state.entries.map(|count| count.checked_sub(1).expect("a directory with a name has an entry"));
        self.delete_name(parent, name, dirent);
    }

    /// Deletes the records of a name.
    pub fn delete_name(&mut self, parent: Ino, name: &[u8], dirent: &Dirent) {
        self.batch.delete(keys::dirent(parent, name));
        self.batch.delete(keys::position(parent, dirent.cookie));
        self.batch.delete(keys::parent_name(dirent.ino, parent, name));
    }
}
