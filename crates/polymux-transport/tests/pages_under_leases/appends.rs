//! Appends through the mount to a file whose end the leaseholder moved.
//!
//! Without the collection of writes the kernel asks for no attributes before an append, however invalid those are that it has: it
//! takes the offset from the size that it knows, and keeps pages that it fills wholly at that offset.

use std::fs::File;
use std::io::{IoSlice, Seek, Write};
use std::os::unix::fs::FileExt;

use rustix::io::{ReadWriteFlags, pwritev2};

use super::bytes::{differing_pages, expect_same, length, offset, page, pattern};
use super::mapping::{Kind, Mapping};
use super::player::{Account, Player};

/// Sizes of the file before the lease, after the leaseholder made it longer, and of the append.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    before: usize,
    grown: usize,
    appended: usize,
}

/// The beginning is common to all: pages are cached, a lease is granted, and the leaseholder makes the object longer.
fn grow(player: &Player, sizes: Sizes) {
    player.begin(&pattern(1, sizes.before));
    expect_same(&player.seen(), &pattern(1, sizes.before), "before the grant");
    player.grant();
    player.overwrite(0, &pattern(2, sizes.grown));
    player.ask().expect_alive("the leaseholder itself");
}

/// Appends, and checks that the bytes follow those of the leaseholder. Returns the account and the position of the descriptor.
fn append(player: &Player, mut through: &File, sizes: Sizes) -> (Account, usize) {
    through.write_all(&pattern(3, sizes.appended)).expect("bytes are appended");
    let account = player.ask();
    account.expect_recalled_by_write("an append");
    let expected = [pattern(2, sizes.grown), pattern(3, sizes.appended)].concat();
    expect_same(&player.content(), &expected, &format!("the object after an append, {sizes:?}"));
    (account, length(through.stream_position().expect("a position")))
}

/// The pages that are wrong through the mount, by reading and in memory. The size is never.
fn wrong_pages(player: &Player) -> (Vec<usize>, Vec<usize>) {
    let content = player.content();
    let read = differing_pages(&player.seen(), &content);
    assert_eq!((player.size(), player.size_by_path()), (content.len(), content.len()), "the size after an append");
    let mapping = Mapping::new(&player.file, content.len(), Kind::Shared);
    (read, differing_pages(&mapping.all(), &content))
}

/// Appends that fill no page at the stale offset, by sizes before and after.
fn harmless() -> impl Iterator<Item = Sizes> {
    let ends = [(2 * page() + 100, 2 * page() + 500), (2 * page() + 100, 4 * page() + 50), (2 * page(), 5 * page())];
    ends.into_iter().map(|(before, grown)| Sizes { before, grown, appended: 300 })
}

/// One that fills the page behind the end from before, and a part of the next one.
fn harmful() -> Sizes {
    Sizes { before: 2 * page(), grown: 5 * page() + 100, appended: page() + 300 }
}

pub fn an_append_lands_at_the_end_of_the_object_although_the_kernel_gives_a_stale_offset(player: &Player) {
    for sizes in harmless() {
        let through = player.open(libc::O_APPEND);
        grow(player, sizes);
        let (account, position) = append(player, &through, sizes);
        assert_eq!(
            account.append,
            Some((sizes.before, sizes.grown)),
            "{sizes:?}: the end of the kernel, of the object"
        );
        assert_eq!(position, sizes.before + sizes.appended, "{sizes:?}: the stale position of the descriptor");
        assert_eq!(wrong_pages(player), (vec![], vec![]), "{sizes:?}: wrong pages");
    }
}

pub fn a_stale_append_of_a_whole_page_leaves_a_wrong_page_that_only_an_invalidation_mends(player: &Player) {
    let sizes = harmful();
    let through = player.open(libc::O_APPEND);
    grow(player, sizes);
    let (account, _) = append(player, &through, sizes);
    assert_eq!(account.append, Some((sizes.before, sizes.grown)), "the end of the kernel, of the object");
    let wrong = vec![sizes.before / page()];
    assert_eq!(wrong_pages(player), (wrong.clone(), wrong.clone()), "wrong pages, by reading and in memory");
    let page_seen = player.seen().split_off(sizes.before)[..page()].to_vec();
    expect_same(&page_seen, &pattern(3, page()), "the wrong page has the bytes that were appended elsewhere");
    // Attributes that are asked for anew do not help.
    assert_eq!(wrong_pages(player), (wrong.clone(), wrong), "wrong pages, asked again");
    player.forget();
    assert_eq!(wrong_pages(player), (vec![], vec![]), "wrong pages after an invalidation");
}

/// A page is written back wholly: one store into it through a mapping brings all of its wrong bytes into the object.
pub fn a_store_into_a_page_that_a_stale_append_left_destroys_what_the_leaseholder_wrote(player: &Player) {
    let sizes = harmful();
    let through = player.open(libc::O_APPEND);
    grow(player, sizes);
    append(player, &through, sizes);
    let mut expected = player.content();
    let mapping = Mapping::new(&player.file, player.size(), Kind::Written);
    mapping.write(sizes.before, &[0xee]);
    mapping.sync();
    expected[sizes.before..sizes.before + page()].copy_from_slice(&pattern(3, page()));
    expected[sizes.before] = 0xee;
    expect_same(&player.content(), &expected, "the object, with the wrong page");
}

pub fn without_a_page_cache_a_stale_append_of_a_whole_page_is_harmless(player: &Player) {
    let sizes = harmful();
    let through = player.open(libc::O_APPEND);
    grow(player, sizes);
    let (account, _) = append(player, &through, sizes);
    assert_eq!(account.append, Some((sizes.before, sizes.grown)), "the end of the kernel, of the object");
    assert_eq!(wrong_pages(player), (vec![], vec![]), "wrong pages");
}

pub fn a_look_at_the_attributes_before_makes_an_append_right(player: &Player) {
    for sizes in harmless().chain([harmful()]) {
        let through = player.open(libc::O_APPEND);
        grow(player, sizes);
        assert_eq!(length(through.metadata().expect("attributes").len()), sizes.grown, "a look");
        player.ask().expect_alive("a look");
        let (account, position) = append(player, &through, sizes);
        assert_eq!(account.append, Some((sizes.grown, sizes.grown)), "{sizes:?}: the end of the kernel, of the object");
        assert_eq!(position, sizes.grown + sizes.appended, "{sizes:?}: the position of the descriptor");
        assert_eq!(wrong_pages(player), (vec![], vec![]), "{sizes:?}: wrong pages");
    }
}

/// The kernel checks permissions at each open (`default_permissions`), asks for attributes that are invalid, and gets the size.
pub fn an_append_through_a_file_opened_after_the_object_grew_is_right(player: &Player) {
    for sizes in harmless().chain([harmful()]) {
        grow(player, sizes);
        let through = player.open(libc::O_APPEND);
        player.ask().expect_alive("opening a file");
        let (account, _) = append(player, &through, sizes);
        assert_eq!(account.append, Some((sizes.grown, sizes.grown)), "{sizes:?}: the end of the kernel, of the object");
        assert_eq!(wrong_pages(player), (vec![], vec![]), "{sizes:?}: wrong pages");
    }
}

/// The message does not say that it is an append (`RWF_APPEND`): the message has the flags of the description, and a stale offset.
pub fn an_append_by_the_flag_of_a_single_write_overwrites_what_the_leaseholder_added(player: &Player) {
    let sizes = harmful();
    grow(player, sizes);
    let bytes = pattern(3, sizes.appended);
    let count = pwritev2(&player.file, &[IoSlice::new(&bytes)], 0, ReadWriteFlags::APPEND).expect("bytes are appended");
    assert_eq!(count, bytes.len(), "bytes appended");
    let account = player.ask();
    account.expect_recalled_by_write("an append by flag");
    assert_eq!(account.append, None, "the message does not say that it is an append");
    let mut expected = pattern(2, sizes.grown);
    expected[sizes.before..sizes.before + sizes.appended].copy_from_slice(&bytes);
    expect_same(&player.content(), &expected, "the object: bytes of the leaseholder are lost");
    assert_eq!(wrong_pages(player), (vec![], vec![]), "wrong pages");
    // As any write at a wrong place does.
    let mut lost = vec![0; page()];
    player.object.read_exact_at(&mut lost, offset(sizes.before)).expect("the object is read");
    expect_same(&lost, &pattern(3, page()), "the bytes are at the end from before");
}

/// In pages in part and wholly, before and behind the end that the kernel knows.
pub fn a_write_at_a_position_keeps_what_the_leaseholder_wrote_beside_it(player: &Player) {
    let (before, grown) = (2 * page() + 100, 6 * page());
    for position in [0, 50, page() - 10, page(), 2 * page() + 90, 3 * page(), 3 * page() + 50, 5 * page() - 1] {
        for count in [20, page(), page() + 200] {
            player.begin(&pattern(1, before));
            expect_same(&player.seen(), &pattern(1, before), "before the grant");
            player.grant();
            player.overwrite(0, &pattern(2, grown));
            player.file.write_all_at(&pattern(3, count), offset(position)).expect("a file is written");
            player.ask().expect_recalled_by_write("a write");
            let mut expected = pattern(2, grown.max(position + count));
            expected[position..position + count].copy_from_slice(&pattern(3, count));
            expect_same(&player.content(), &expected, &format!("the object, {count} bytes at {position}"));
            expect_same(&player.seen(), &expected, &format!("through the mount, {count} bytes at {position}"));
            assert_eq!(wrong_pages(player), (vec![], vec![]), "wrong pages, {count} bytes at {position}");
        }
    }
}
