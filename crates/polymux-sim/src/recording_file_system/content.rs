//! The bytes of a file in memory.
//!
//! Invariants: bytes that are zero may take no memory, and copies share common data. Two contents of
//! the same bytes are equal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: usize = 4096;

type Page = [u8; PAGE];

/// Bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    length: u64,
    /// Pages by number; none is all zero.
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Up to `length` bytes from `offset` on, fewer at the end.
    #[must_use]
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.length.min(offset.saturating_add(length as u64));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).expect("a read fits into memory")];
        for (page, at, range) in pieces(offset, bytes.len()) {
            if let Some(page) = self.pages.get(&page) {
                let piece = &page[at..at + range.len()];
                bytes[range].copy_from_slice(piece);
            }
        }
        bytes
    }

    /// Puts bytes at `offset`; the content grows as far as they reach.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.length = self.length.max(offset + bytes.len() as u64);
        for (number, at, range) in pieces(offset, bytes.len()) {
            let piece = &bytes[range];
            let mut page = match self.pages.remove(&number) {
                Some(page) => page,
                None if is_zero(piece) => continue,
                None => Arc::new([0; PAGE]),
            };
            Arc::make_mut(&mut page)[at..at + piece.len()].copy_from_slice(piece);
            self.keep(number, page);
        }
    }

    /// Cuts or extends with zeros.
    pub fn resize(&mut self, length: u64) {
        if length < self.length {
            drop(self.pages.split_off(&length.div_ceil(PAGE as u64)));
            let at = usize::try_from(length % PAGE as u64).expect("less than a page");
            if at > 0
                && let Some(mut page) = self.pages.remove(&(length / PAGE as u64))
            {
                Arc::make_mut(&mut page)[at..].fill(0);
                self.keep(length / PAGE as u64, page);
            }
        }
        self.length = length;
    }

    /// Gives a new file these bytes.
    pub(super) fn write_to(&self, file: &File) -> io::Result<()> {
        file.set_len(self.length)?;
        for (number, page) in &self.pages {
            let offset = number * PAGE as u64;
            let rest = usize::try_from(self.length - offset).unwrap_or(PAGE).min(PAGE);
            file.write_all_at(&page[..rest], offset)?;
        }
        Ok(())
    }

    fn keep(&mut self, number: u64, page: Arc<Page>) {
        if !is_zero(&*page) {
            self.pages.insert(number, page);
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

/// Pages that a range of a file touches: number, offset in the page, and where its bytes are in the range.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let position = offset + done as u64;
        let at = usize::try_from(position % PAGE as u64).expect("less than a page");
        let start = done;
        done = length.min(start + PAGE - at);
        Some((position / PAGE as u64, at, start..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_what_a_vector_would_be() {
        let mut content = Content::default();
        let mut expected: Vec<u8> = Vec::new();
        let steps = [(10_usize, 5000_usize, 1_u8), (9000, 100, 2), (4096, 4096, 0), (4000, 200, 3), (20_000, 1, 4)];
        for (offset, length, byte) in steps {
            content.write(offset as u64, &vec![byte; length]);
            expected.resize(expected.len().max(offset + length), 0);
            expected[offset..offset + length].fill(byte);
            assert_eq!(content.read(0, usize::MAX), expected);
        }
        for length in [9050_usize, 4100, 4096, 8192, 12, 5000] {
            content.resize(length as u64);
            expected.resize(length, 0);
            assert_eq!(content.read(0, usize::MAX), expected, "resized to {length}");
        }
        assert_eq!(content.read(4, 3), expected[4..7]);
        assert_eq!(content.read(6000, 3), []);
    }

    #[test]
    fn contents_of_the_same_bytes_are_equal_however_they_came_about() {
        let mut written = Content::default();
        written.write(0, &[7; 9000]);
        written.write(0, &[0; 9000]);
        let mut resized = Content::default();
        resized.resize(9000);
        assert_eq!(written, resized);
    }
}
