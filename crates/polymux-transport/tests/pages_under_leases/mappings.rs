//! Loads and stores through mappings of a file on the mount.

use super::bytes::{expect_same, page, pattern};
use super::mapping::{Kind, Mapping};
use super::player::Player;

pub fn a_grant_writes_dirty_pages_of_mappings_and_takes_them_away(player: &Player) {
    let size = 4 * page();
    player.begin(&pattern(1, size));
    let mapping = Mapping::new(&player.file, size, Kind::Written);
    let mut expected = pattern(1, size);
    // Two of the pages, one of which is not dirty from its start on.
    for position in [0, page() + 300] {
        mapping.write(position, &[0xee; 50]);
        expected[position..position + 50].fill(0xee);
    }
    player.grant();
    expect_same(&player.content(), &expected, "the object when the grant is answered");
    let account = player.ask();
    account.expect_alive("a dirty page that is written for the grant");
    assert!(account.written_back > 0, "dirty pages are written before the grant is answered: {account:?}");

    player.overwrite(0, &pattern(2, size));
    player.ask().expect_alive("a mapping that nobody uses");
    expect_same(&mapping.all(), &pattern(2, size), "loaded through the mapping from before the grant");
    player.ask().expect_recalled_by_read("a load");
    mapping.sync();
    expect_same(&player.content(), &pattern(2, size), "the object after a sync: no page was dirty");
}

pub fn a_store_through_an_old_mapping_recalls_and_keeps_what_the_leaseholder_wrote(player: &Player) {
    let size = 4 * page();
    // The page was never touched, was loaded, or is dirty when the lease is granted.
    for (what, touch) in [("untouched", None), ("loaded", Some(false)), ("dirty", Some(true))] {
        player.begin(&pattern(1, size));
        let mapping = Mapping::new(&player.file, size, Kind::Written);
        let mut expected = pattern(1, size);
        match touch {
            None => {}
            Some(false) => expect_same(&mapping.all(), &expected, "before the grant"),
            Some(true) => {
                mapping.write(page() + 10, &[0xaa; 10]);
                expected[page() + 10..page() + 20].fill(0xaa);
            }
        }
        player.grant();
        player.overwrite(page() + 100, &[0xbb; 100]);
        expected[page() + 100..page() + 200].fill(0xbb);
        player.ask().expect_alive("the leaseholder itself");
        mapping.write(page() + 150, &[0xcc; 10]);
        expected[page() + 150..page() + 160].fill(0xcc);
        player.ask().expect_recalled_by_read(&format!("a store into a page that was {what}"));
        mapping.sync();
        expect_same(&player.content(), &expected, &format!("the object, page {what} before"));
        expect_same(&player.seen(), &expected, &format!("read through the mount, page {what} before"));
        expect_same(&mapping.all(), &expected, &format!("loaded through the mapping, page {what} before"));
    }
}

pub fn mappings_of_all_kinds_show_what_the_leaseholder_wrote(player: &Player) {
    let size = 4 * page() + 100;
    for kind in [Kind::Written, Kind::Shared, Kind::Private] {
        player.begin(&pattern(1, size));
        let old = Mapping::new(&player.file, size, kind);
        expect_same(&old.all(), &pattern(1, size), "before the grant");
        player.grant();
        player.overwrite(0, &pattern(2, size));
        let during = Mapping::new(&player.file, size, kind);
        player.ask().expect_alive("mapping a file");
        expect_same(&during.read(10, 10), &pattern(2, size)[10..20], &format!("{kind:?}, made under the lease"));
        player.ask().expect_recalled_by_read("a load");
        expect_same(&during.all(), &pattern(2, size), &format!("{kind:?}, made under the lease"));
        expect_same(&old.all(), &pattern(2, size), &format!("{kind:?}, made before it"));

        // The mapping from before is the first that is used.
        player.grant();
        player.overwrite(0, &pattern(3, size));
        expect_same(&old.read(page(), 10), &pattern(3, size)[page()..page() + 10], &format!("{kind:?}, made before"));
        player.ask().expect_recalled_by_read("a load");
        expect_same(&during.all(), &pattern(3, size), &format!("{kind:?}, the other mapping"));
    }
}

/// A page fault asks for no attributes. Bytes in the last page that the kernel knows are seen, and loads behind it end the program.
pub fn a_mapping_ends_at_the_stale_end_until_somebody_looks(player: &Player) {
    let (size, longer) = (2 * page() + 100, 4 * page());
    player.begin(&pattern(1, size));
    let mapping = Mapping::new(&player.file, longer, Kind::Shared);
    expect_same(&mapping.read(0, size), &pattern(1, size), "before the grant");
    player.grant();
    player.overwrite(0, &pattern(2, longer));
    let beyond = mapping.populate(3 * page(), page());
    assert_eq!(beyond, Err(rustix::io::Errno::FAULT), "loads from pages beyond the stale end");
    player.ask().expect_alive("a fault beyond the stale end");
    expect_same(&mapping.read(0, 3 * page()), &pattern(2, 3 * page()), "up to the end of the last page known");
    player.ask().expect_recalled_by_read("a load");
    let beyond = mapping.populate(3 * page(), page());
    assert_eq!(beyond, Err(rustix::io::Errno::FAULT), "a recall is no look at the attributes");
    assert_eq!(player.size(), longer, "a look at the attributes");
    expect_same(&mapping.all(), &pattern(2, longer), "after the look");
}
