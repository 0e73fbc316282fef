//! A disk in memory. Copies share their pages until one of them writes, so that hundreds of images cost little.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: usize = 4096;

type Page = [u8; PAGE];

/// Bytes by place; bytes that were never written are zero.
#[derive(Clone)]
pub struct Disk {
    pages: HashMap<u64, Arc<Page>>,
    length: u64,
}

impl Disk {
    pub fn new(length: u64) -> Self {
        Self { pages: HashMap::new(), length }
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads the bytes there, up to the end of the disk.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let rest = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(rest)];
        for (page, within, piece) in pieces(offset, bytes.len()) {
            if let Some(stored) = self.pages.get(&page) {
                let end = within + piece.len();
                bytes[piece].copy_from_slice(&stored[within..end]);
            }
        }
        bytes
    }

    /// Programmer error: the write ends behind the disk.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.length, "a write of {} bytes at {offset}", bytes.len());
        for (page, within, piece) in pieces(offset, bytes.len()) {
            let stored = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            let end = within + piece.len();
            Arc::make_mut(stored)[within..end].copy_from_slice(&bytes[piece]);
        }
    }

    /// Writes it as a sparse file, to be looked at by hand.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.length)?;
        let mut pages: Vec<_> = self.pages.iter().filter(|(_, page)| page.iter().any(|byte| *byte != 0)).collect();
        pages.sort_unstable_by_key(|(number, _)| **number);
        pages.into_iter().try_for_each(|(number, page)| file.write_all_at(&page[..], number * PAGE as u64))
    }
}

/// Number of a page, where in it, and which bytes of the whole, for each page that is touched.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let within = usize::try_from(at % PAGE as u64).expect("a page is small");
        let count = (PAGE - within).min(length - done);
        let piece = (at / PAGE as u64, within, done..done + count);
        done += count;
        Some(piece)
    })
}

#[test]
fn a_copy_of_a_disk_does_not_see_later_writes() {
    let mut disk = Disk::new(1 << 20);
    disk.write(4000, &[1; 5000]);
    let copy = disk.clone();
    disk.write(8000, &[2; 512]);
    assert_eq!(copy.read(8000, 512), [1; 512]);
    assert_eq!(disk.read(8000, 512), [2; 512]);
    assert_eq!(disk.read(3990, 20), [[0; 10], [1; 10]].concat());
    assert_eq!(disk.read((1 << 20) - 3, 10), [0; 3], "the end of the disk");
}
