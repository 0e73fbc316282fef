//! Truncation against readers and writers: a reader sees bytes of a write to that place, or zeros, and nothing else.

use polymux_fs::{AllocateKind, Caller, SetAttributes, WriteOrigin};

use super::*;
use crate::common::{PosixVolume, create};

const FILE_SIZE: u64 = 2 * MIB;

/// The content that any write puts into a cell.
fn cell(offset: u64) -> u64 {
    (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

#[test]
fn a_file_that_shrinks_and_grows_never_shows_foreign_bytes() {
    with_watchdog(|| {
        let volume = PosixVolume::new(&[Some(512 << 10), None]);
        let (ino, handle) = create(volume.fs(), "f");
        let (fs, until) = (volume.fs(), Until::after(test_length() / 3));
        let root = Caller::root;
        std::thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                let until = &until;
                scope.spawn(move || {
                    let mut random = Random::new(thread + 1);
                    while until.goes_on() {
                        let offset = 8 * random.below(FILE_SIZE / 8);
                        let length = 8 * (1 + random.below(8192));
                        match thread % 8 {
                            0 => {
                                let change = SetAttributes { size: Some(offset), ..SetAttributes::default() };
                                fs.set_attributes(&root(), ino, &change).expect("cut");
                            }
                            1 => {
                                fs.allocate(&root(), handle, offset, length, AllocateKind::PunchHole).expect("punched");
                            }
                            2..=4 => {
                                let data: Vec<u8> =
                                    (0..length / 8).flat_map(|index| cell(offset + index * 8).to_le_bytes()).collect();
                                let count = fs.write(&root(), handle, offset, &data, WriteOrigin::Call);
                                assert_eq!(count.expect("written"), data.len());
                            }
                            _ => {
                                let mut buffer = vec![0xa5; usize_of(length)];
                                let count = fs.read(&root(), handle, offset, &mut buffer).expect("read");
                                for (index, bytes) in (0_u64..).zip(buffer[..count].chunks_exact(8)) {
                                    let found = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                                    let position = offset + index * 8;
                                    assert!(found == 0 || found == cell(position), "{found:#x} at {position}");
                                }
                            }
                        }
                    }
                });
            }
        });
        let size = fs.attributes(&root(), ino).expect("known").size;
        let content = crate::common::read_whole(fs, ino).expect("read");
        assert_eq!(content.len() as u64, size);
    });
}

/// A query of the space that objects take reads the block map, beside threads that change it: neither waits for the other for ever.
#[test]
fn a_file_is_asked_for_its_attributes_while_it_is_cut_and_grows() {
    with_watchdog(|| {
        let volume = PosixVolume::new(&[None, None]);
        let (ino, handle) = create(volume.fs(), "f");
        let (fs, until) = (volume.fs(), Until::after(test_length() / 3));
        let root = Caller::root;
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let until = &until;
                scope.spawn(move || {
                    let mut random = Random::new(thread + 1);
                    while until.goes_on() {
                        if thread < 2 {
                            let size = 8192 + random.below(64 << 10);
                            let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
                            fs.set_attributes(&root(), ino, &change).expect("cut");
                            fs.write(&root(), handle, random.below(size), &[7; 5000], WriteOrigin::Call)
                                .expect("written");
                        } else {
                            fs.attributes(&root(), ino).expect("known");
                        }
                    }
                });
            }
        });
    });
}
