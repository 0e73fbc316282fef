//! Operations on names and attributes.
//!
//! Invariants: a path is `name` in the root directory or `directory/name`; an operation does nothing where something that it
//! needs is missing, or where its result exists already.

use polymux_fs::{RenameMode, SetAttributes, SetTime, XattrMode};
use polymux_types::{Ino, Timestamp};

use super::history::{Facts, Names, XATTR};
use super::workload::{Runner, root};
use crate::common::read_write;

impl Runner {
    /// Directory and last component of a path, where the directory is there.
    fn place<'a>(&self, path: &'a str) -> Option<(Ino, &'a [u8])> {
        match path.split_once('/') {
            Some((directory, name)) => Some((self.ino(directory)?, name.as_bytes())),
            None => Some((Ino::ROOT, path.as_bytes())),
        }
    }

    fn names_now(&self) -> Names {
        self.state.lock().history.names_now().clone()
    }

    pub fn create(&self, path: &str, step: usize) {
        let Some((parent, name)) = self.place(path) else { return };
        let made = self.fs().create(&root(), parent, name, 0o644, read_write()).expect("made");
        let mut names = self.names_now();
        let mut state = self.state.lock();
        let ino = made.0.ino;
        state.handles.entry(ino).or_default().push(made.1);
        names.insert(path.to_owned(), ino);
        state.history.set_content(step, ino, Vec::new(), None);
        state.history.set_names(step, names, &[ino, parent]);
    }

    pub fn make_directory(&self, path: &str, step: usize) {
        let (Some((parent, name)), None) = (self.place(path), self.ino(path)) else { return };
        let made = self.fs().make_directory(&root(), parent, name, 0o755).expect("made");
        let mut names = self.names_now();
        names.insert(path.to_owned(), made.ino);
        let mut state = self.state.lock();
        state.directories.insert(made.ino);
        state.history.set_names(step, names, &[made.ino, parent]);
    }

    pub fn remove_directory(&self, path: &str, step: usize) {
        let (Some((parent, name)), Some(ino)) = (self.place(path), self.ino(path)) else { return };
        let mut names = self.names_now();
        let is_used = names.keys().any(|name| name.starts_with(&format!("{path}/")));
        if is_used || !self.state.lock().directories.contains(&ino) {
            return;
        }
        names.remove(path);
        self.state.lock().history.set_names(step, names, &[ino, parent]);
        self.fs().remove_directory(&root(), parent, name).expect("removed");
    }

    pub fn rename(&self, from: &str, to: &str, step: usize) {
        let (Some(ino), replaced) = (self.ino(from), self.ino(to)) else { return };
        let (Some(old), Some(new)) = (self.place(from), self.place(to)) else { return };
        let is_directory = |ino: Ino| self.state.lock().directories.contains(&ino);
        if replaced == Some(ino) || (replaced.is_some() && is_directory(ino)) || replaced.is_some_and(is_directory) {
            return;
        }
        let below = format!("{from}/");
        let moved = |(path, ino): (&String, &Ino)| match path.strip_prefix(&below) {
            Some(rest) => (format!("{to}/{rest}"), *ino),
            None if path == from => (to.to_owned(), *ino),
            None => (path.clone(), *ino),
        };
        let mut names = self.names_now();
        names.remove(to);
        let names: Names = names.iter().map(moved).collect();
        {
            let mut state = self.state.lock();
            let concerned: Vec<Ino> = [Some(ino), replaced, Some(old.0), Some(new.0)].into_iter().flatten().collect();
            state.history.set_names(step, names, &concerned);
            if replaced.is_some() {
                state.history.promise_replaced(0, ino);
            }
        }
        self.fs().rename(&root(), old.0, old.1, new.0, new.1, RenameMode::Replace).expect("renamed");
    }

    pub fn link(&self, from: &str, to: &str, step: usize) {
        let (Some(ino), None, Some((parent, name))) = (self.ino(from), self.ino(to), self.place(to)) else { return };
        if self.state.lock().directories.contains(&ino) {
            return;
        }
        let mut names = self.names_now();
        names.insert(to.to_owned(), ino);
        self.state.lock().history.set_names(step, names, &[ino, parent]);
        self.fs().link(&root(), ino, parent, name).expect("linked");
    }

    pub fn unlink(&self, path: &str, step: usize) {
        let (Some(ino), Some((parent, name))) = (self.ino(path), self.place(path)) else { return };
        if self.state.lock().directories.contains(&ino) {
            return;
        }
        let mut names = self.names_now();
        names.remove(path);
        self.state.lock().history.set_names(step, names, &[ino, parent]);
        self.fs().unlink(&root(), parent, name).expect("unlinked");
    }

    pub fn sync_directory(&self, path: &str) {
        let ino = if path.is_empty() { Some(Ino::ROOT) } else { self.ino(path) };
        let Some(ino) = ino else { return };
        self.fs().sync_directory(&root(), ino).expect("synced");
        self.state.lock().history.promise_directory(self.journal.position(), ino);
    }

    /// The file that a path names.
    fn file(&self, path: &str) -> Option<Ino> {
        self.ino(path).filter(|ino| !self.state.lock().directories.contains(ino))
    }

    /// New permissions and a new time of modification, both of which tell the step.
    pub fn set_attributes(&self, path: &str, step: usize) {
        let Some(ino) = self.file(path) else { return };
        let number = u32::try_from(step).expect("few steps");
        let (permissions, modified) = (0o600 | (number % 0o100), Timestamp::new(500_000 + i64::from(number), number));
        let facts = Facts { permissions, modified: Some(modified), ..self.state.lock().history.facts_now(ino) };
        self.state.lock().history.set_facts(step, ino, facts);
        let change = SetAttributes {
            permissions: Some(permissions),
            modified: Some(SetTime::To(modified)),
            ..SetAttributes::default()
        };
        self.fs().set_attributes(&root(), ino, &change).expect("attributes are set");
    }

    /// Sets an extended attribute to a value that tells the step, or removes it where it is there.
    pub fn set_xattr(&self, path: &str, step: usize) {
        let Some(ino) = self.file(path) else { return };
        let before = self.state.lock().history.facts_now(ino);
        let xattr = if before.xattr.is_some() { None } else { Some(format!("step {step}").into_bytes()) };
        let facts = Facts { xattr: xattr.clone(), ..before };
        self.state.lock().history.set_facts(step, ino, facts);
        let outcome = match xattr {
            Some(value) => self.fs().set_xattr(&root(), ino, XATTR, &value, XattrMode::CreateOrReplace),
            None => self.fs().remove_xattr(&root(), ino, XATTR),
        };
        outcome.expect("the extended attribute is changed");
    }
}
