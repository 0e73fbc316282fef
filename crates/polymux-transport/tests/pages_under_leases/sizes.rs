//! The size of a file, which the leaseholder changes beside the mount and others through it.

use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use super::bytes::{expect_same, length, offset, page, pattern};
use super::mapping::{Kind, Mapping};
use super::player::{Player, read_to_end};

pub fn attributes_are_asked_for_without_a_recall_and_are_those_of_the_object(player: &Player) {
    let size = 3 * page() + 100;
    player.begin(&pattern(1, size));
    expect_same(&player.seen(), &pattern(1, size), "before the grant");
    player.grant();
    player.overwrite(0, &pattern(2, size));
    assert_eq!((player.size(), player.size_by_path()), (size, size), "a size that did not change");
    // Within the last page, into the next one, and far away.
    for longer in [size + 1, 4 * page() + 1, 50 * page()] {
        player.overwrite(0, &pattern(3, longer));
        let end = (&player.file).seek(SeekFrom::End(0)).expect("the end is sought");
        assert_eq!(length(end), longer, "seeking the end is the first look");
        player.overwrite(longer, &[7]);
        assert_eq!(player.size(), longer + 1, "a descriptor is the first look");
        player.overwrite(longer + 1, &[7]);
        assert_eq!(player.size_by_path(), longer + 2, "a path is the first look");
        player.object.set_len(offset(longer)).expect("an object is cut");
        assert_eq!(player.size(), longer, "the leaseholder cut it");
    }
    player.ask().expect_alive("looking at attributes");

    let longer = 50 * page();
    let mut bytes = vec![0; 10];
    player.file.read_exact_at(&mut bytes, offset(size)).expect("bytes beyond the old end");
    expect_same(&bytes, &pattern(3, longer)[size..size + 10], "bytes at the old end");
    player.ask().expect_recalled_by_read("reading");
    expect_same(&player.seen(), &pattern(3, longer), "all bytes");

    // The same without any look at the attributes in between.
    player.begin(&pattern(1, size));
    player.grant();
    player.overwrite(0, &pattern(4, longer));
    expect_same(&read_to_end(&player.file, size), &pattern(4, longer)[size..], "bytes from the old end on, at once");
    player.ask().expect_recalled_by_read("reading from the old end on");
    expect_same(&player.seen(), &pattern(4, longer), "all bytes");
}

/// A read that goes beyond the end which the kernel knows makes it ask for the size first: one that finds no bytes then is
/// no READ and no recall. One within the old size is a READ, whose short answer tells the kernel the size.
pub fn a_file_that_the_leaseholder_cut_ends_there(player: &Player) {
    let (size, shorter) = (5 * page() + 100, page() + 50);
    // In the last page that is left, and beyond it.
    for position in [page(), shorter - 5, shorter, 2 * page(), 4 * page()] {
        let left = pattern(1, shorter).get(position..).unwrap_or_default().to_vec();
        for is_short in [true, false] {
            player.begin(&pattern(1, size));
            expect_same(&player.seen(), &pattern(1, size), "before the grant");
            player.grant();
            player.object.set_len(offset(shorter)).expect("an object is cut");
            let what = format!("read at {position}, a short read: {is_short}");
            if is_short {
                let mut bytes = [0; 10];
                let count = player.file.read_at(&mut bytes, offset(position)).expect("a file is read");
                expect_same(&bytes[..count], &left[..left.len().min(10)], &what);
                player.ask().expect_recalled_by_read(&what);
            } else {
                expect_same(&read_to_end(&player.file, position), &left, &what);
            }
            assert_eq!((player.size(), player.size_by_path()), (shorter, shorter), "the size after that");
            expect_same(&player.seen(), &pattern(1, shorter), "all bytes after that");
        }
    }
}

pub fn bytes_beyond_a_cut_through_the_mount_are_zeros(player: &Player) {
    let (size, longer) = (5 * page() + 100, 6 * page() + 10);
    for shorter in [0, 100, page(), 2 * page() + 50] {
        player.begin(&pattern(1, size));
        expect_same(&player.seen(), &pattern(1, size), "before the grant");
        let mapping = Mapping::new(&player.file, size, Kind::Written);
        expect_same(&mapping.all(), &pattern(1, size), "the mapping before the grant");
        player.grant();
        // Longer than the kernel knows.
        player.overwrite(0, &pattern(2, longer));
        player.file.set_len(offset(shorter)).expect("a file is cut");
        let account = player.ask();
        assert!(!account.lives && account.resizes == 1, "a cut recalls the lease: {account:?}");
        expect_same(&player.content(), &pattern(2, shorter), "the object that was cut");
        player.file.set_len(offset(longer)).expect("a file is made longer");
        let mut expected = pattern(2, shorter);
        expected.resize(longer, 0);
        expect_same(&player.content(), &expected, "the object");
        expect_same(&player.seen(), &expected, "read through the mount");
        expect_same(&mapping.all(), &expected[..size], "the mapping from before the grant");
        let whole = Mapping::new(&player.file, longer, Kind::Shared);
        expect_same(&whole.all(), &expected, "a mapping from after it");
        assert_eq!((player.size(), player.size_by_path()), (longer, longer), "the size");
    }
}
