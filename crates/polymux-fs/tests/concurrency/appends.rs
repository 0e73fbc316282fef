//! Appends from many threads: none overlaps another, and none leaves a gap.

use polymux_fs::{Caller, OpenOptions, WriteOrigin};
use polymux_types::Ino;

use super::*;
use crate::common::{PosixVolume, read_whole, read_write};

/// A record says who wrote it, its number, its length, and ends with the same number of bytes of the writer.
fn record(writer: u8, number: u64, length: usize) -> Vec<u8> {
    let mut record = vec![writer; length];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    record
}

#[test]
fn appends_never_overlap_or_leave_gaps() {
    const WRITERS: u8 = 16;
    const RECORDS: u64 = 60;
    with_watchdog(|| {
        let volume = PosixVolume::new(&[Some(MIB), None]);
        let fs = volume.fs();
        let append = OpenOptions { append: true, ..read_write() };
        let (made, first) = fs.create(&Caller::root(), Ino::ROOT, b"log", 0o644, append).expect("made");
        std::thread::scope(|scope| {
            for writer in 1..=WRITERS {
                scope.spawn(move || {
                    // Half of them share a description.
                    let own = fs.open(&Caller::root(), made.ino, append).expect("opened");
                    let handle = if writer % 2 == 0 { first } else { own };
                    let mut random = Random::new(u64::from(writer));
                    for number in 0..RECORDS {
                        let data = record(writer, number, 17 + usize_of(random.below(9000)));
                        let count = fs.write(&Caller::root(), handle, 0, &data, WriteOrigin::Call).expect("written");
                        assert_eq!(count, data.len());
                    }
                    fs.release(own).expect("released");
                });
            }
        });
        let content = read_whole(fs, made.ino).expect("read");
        let mut next = [0; WRITERS as usize + 1];
        let mut rest = content.as_slice();
        while !rest.is_empty() {
            let number = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes"));
            let length = usize_of(u64::from_le_bytes(rest[8..16].try_into().expect("eight bytes")));
            let writer = rest[16];
            assert_eq!(rest[..length], record(writer, number, length), "a record is whole");
            assert_eq!(next[usize::from(writer)], number, "the records of a writer are in order");
            next[usize::from(writer)] += 1;
            rest = &rest[length..];
        }
        assert!(next[1..].iter().all(|count| *count == RECORDS), "no record is lost");
        assert_eq!(fs.locate(made.ino).expect("located").shares.len(), 2, "the file is split");
    });
}
