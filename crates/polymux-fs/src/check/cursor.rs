//! A walk over a range of keys, some records at a time. It sees records committed meanwhile that lie ahead of it.

use polymux_meta::{Entry, MetadataStore};
use polymux_records::error::Result;
use polymux_records::store::keys::{self, KeyRange};
use polymux_types::Ino;

use super::Meter;

/// Records read at once.
const STEP: usize = 2048;

pub(super) struct Cursor<'a> {
    store: &'a dyn MetadataStore,
    meter: &'a Meter<'a>,
    from: Vec<u8>,
    to: Vec<u8>,
    entries: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    is_at_end: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(store: &'a dyn MetadataStore, meter: &'a Meter<'a>, (from, to): KeyRange) -> Self {
        let entries = Vec::new().into_iter().peekable();
        Self { store, meter, from: from.to_vec(), to: to.to_vec(), entries, is_at_end: false }
    }

    fn fill(&mut self) -> Result<()> {
        if self.is_at_end || self.entries.peek().is_some() {
            return Ok(());
        }
        let entries = self.store.range(&self.from, &self.to, STEP)?;
        self.meter.add(entries.len())?;
        match entries.last() {
            Some((last, _)) => {
                self.from.clone_from(last);
                self.from.push(0);
                self.is_at_end = entries.len() < STEP;
            }
            None => self.is_at_end = true,
        }
        self.entries = entries.into_iter().peekable();
        Ok(())
    }

    /// The next record.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        self.fill()?;
        Ok(self.entries.next())
    }

    /// The inode that the next record belongs to. Records whose key names none are passed over: the pass over all records
    /// has found them.
    pub(super) fn ino(&mut self) -> Result<Option<Ino>> {
        loop {
            self.fill()?;
            let Some((key, _)) = self.entries.peek() else { return Ok(None) };
            match keys::ino_of_inode_key(key) {
                Some(ino) => return Ok(Some(ino)),
                None => self.entries.next(),
            };
        }
    }

    /// The next record, if it belongs to this inode.
    pub(super) fn next_of(&mut self, ino: Ino) -> Result<Option<Entry>> {
        if self.ino()? == Some(ino) { self.next() } else { Ok(None) }
    }

    /// Passes over everything that belongs to inodes before this one.
    pub(super) fn skip_to(&mut self, ino: Ino) -> Result<()> {
        while self.ino()?.is_some_and(|at| at < ino) {
            self.entries.next();
        }
        Ok(())
    }
}

/// The smallest of several inodes that are there.
pub(super) fn first_of<const N: usize>(inos: [Option<Ino>; N]) -> Option<Ino> {
    inos.into_iter().flatten().min()
}
