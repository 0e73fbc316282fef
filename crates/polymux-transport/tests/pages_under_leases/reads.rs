//! Reading through the mount the bytes that the leaseholder wrote.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::pipe::{SpliceFlags, pipe, splice};

use super::bytes::{expect_same, offset, page, pattern};
use super::daemon::FILES;
use super::player::{Player, read_to_end};

pub fn pages_that_were_cached_before_a_grant_are_not_seen_after_it(player: &Player) {
    let size = 5 * page() + 100;
    for who in ["a descriptor from before", "a descriptor of the lease"] {
        player.begin(&pattern(1, size));
        expect_same(&player.seen(), &pattern(1, size), "before the grant");
        player.grant();
        player.overwrite(0, &pattern(2, size));
        let later = player.open(0);
        player.ask().expect_alive("opening a file");
        let reader = if who == "a descriptor from before" { &player.file } else { &later };
        expect_same(&read_to_end(reader, 0), &pattern(2, size), who);
        player.ask().expect_recalled_by_read(who);
    }
    // One byte only: the pages beside it are not those from before either.
    player.begin(&pattern(1, size));
    expect_same(&player.seen(), &pattern(1, size), "before the grant");
    player.grant();
    player.overwrite(page() + 7, &[0xee]);
    let mut byte = [0];
    player.file.read_exact_at(&mut byte, offset(page() + 7)).expect("a byte is read");
    assert_eq!(byte, [0xee], "the only byte that the leaseholder wrote");
    player.ask().expect_recalled_by_read("a read of one byte");
}

/// The ways for bytes to leave a file without being read by the program.
const WAYS: [Way; 3] = [Way::Send, Way::Splice, Way::Copy];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// sendfile(2), to a file beside the mount.
    Send,
    /// splice(2) into a pipe and on to a file beside the mount.
    Splice,
    /// copy_file_range(2), to the other file on the mount: the kernel copies between file systems of one kind only.
    Copy,
}

/// Moves the bytes from a position on this way until nothing comes, and returns them.
fn moved(player: &Player, way: Way, position: usize) -> Vec<u8> {
    let beside = player.beside("moved");
    let make = |path| File::options().read(true).write(true).create(true).truncate(true).open(path);
    let target = match way {
        Way::Copy => File::options().read(true).write(true).open(player.path(FILES[1])),
        Way::Send | Way::Splice => make(&beside),
    };
    let target = target.expect("a file is opened");
    target.set_len(0).expect("a file is emptied");
    let (mut from, mut to) = (offset(position), 0);
    while moved_once(player, way, &target, (&mut from, &mut to)) > 0 {}
    read_to_end(&target, 0)
}

fn moved_once(player: &Player, way: Way, target: &File, (from, to): (&mut u64, &mut u64)) -> usize {
    // No more than a pipe takes.
    let most = 8 * page();
    match way {
        Way::Send => rustix::fs::sendfile(target, &player.file, Some(from), most).expect("bytes are sent"),
        Way::Copy => {
            let (source, flags) = (&player.file, (Some(from), Some(to)));
            rustix::fs::copy_file_range(source, flags.0, target, flags.1, most).expect("bytes are copied")
        }
        Way::Splice => {
            let (exit, entrance) = pipe().expect("a pipe is made");
            let none = SpliceFlags::empty();
            let count = splice(&player.file, Some(from), &entrance, None, most, none).expect("bytes go into a pipe");
            let mut left = count;
            while left > 0 {
                left -= splice(&exit, None, target, Some(to), left, none).expect("bytes leave a pipe");
            }
            count
        }
    }
}

pub fn what_is_sent_and_copied_from_the_mount_is_what_the_leaseholder_wrote(player: &Player) {
    let size = 5 * page() + 100;
    for way in WAYS {
        player.begin(&pattern(1, size));
        expect_same(&moved(player, way, 0), &pattern(1, size), &format!("before the grant, {way:?}"));
        player.grant();
        player.overwrite(0, &pattern(2, size));
        expect_same(&moved(player, way, 0), &pattern(2, size), &format!("under the lease, {way:?}"));
        player.ask().expect_recalled_by_read(&format!("{way:?}"));
    }
}

/// How many bytes leave the file from its old end on, before and after a look at the attributes, where the leaseholder added some.
fn moved_of_added(player: &Player, way: Way, added: usize) -> (usize, usize) {
    let size = 5 * page() + 100;
    player.begin(&pattern(1, size));
    player.grant();
    player.overwrite(0, &pattern(2, size + added));
    let expected = pattern(2, size + added).split_off(size);
    let before = moved(player, way, size);
    expect_same(&before, &expected[..before.len()], &format!("{way:?} before a look"));
    assert_eq!(player.size(), size + added, "the new size");
    let after = moved(player, way, size);
    expect_same(&after, &expected[..after.len()], &format!("{way:?} after a look"));
    (before.len(), after.len())
}

/// Also of files that are opened without the page cache: sent bytes go through it in any case.
pub fn what_is_sent_or_copied_ends_at_the_stale_end_until_somebody_looks(player: &Player) {
    for way in WAYS {
        let added = 3 * page();
        assert_eq!(moved_of_added(player, way, added), (0, added), "{way:?}: bytes from the old end on");
    }
}
