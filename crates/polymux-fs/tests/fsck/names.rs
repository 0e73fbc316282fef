//! Damage to names, the tree and counts.

use polymux_types::Ino;

use super::cases::repaired;
use super::raw::{self, DIRECTORY, DIRECTORY_ENTRIES, DIRECTORY_PARENT, INODE_LINKS, REGULAR};
use super::world::{World, content, cookie, edit_inode, get, ino};

pub const KINDS: [&str; 22] = [
    "name-dangling",
    "name-type",
    "name-unlisted",
    "name-lost",
    "name-taken",
    "name-of-nothing",
    "name-invalid",
    "position-missing",
    "position-stale",
    "cookie-duplicate",
    "cookie-high",
    "directory-missing",
    "directory-named-twice",
    "directory-loop",
    "directory-unreferenced",
    "inode-unreferenced",
    "parent-wrong",
    "orphan-named",
    "orphan-missing",
    "link-count",
    "entry-count",
    "root-missing",
];

const ROOT: Ino = Ino::ROOT;

#[test]
fn a_name_that_leads_nowhere_is_removed() {
    let contents = repaired("name-dangling", Some("/empty"), |world: &World| {
        world.plant(|store, batch| batch.delete(raw::inode(ino(store, "/empty"))));
    });
    assert!(!contents.contains_key("/empty"));
    assert!(contents["/large"].is_ok());
}

#[test]
fn a_name_takes_the_type_of_its_inode() {
    let contents = repaired("name-type", Some("/small"), |world| {
        world.plant(|store, batch| {
            let (at, position) = (ino(store, "/small"), cookie(store, ROOT, "small"));
            batch.put(raw::dirent(ROOT, "small"), raw::dirent_value(at, raw::SYMLINK, position));
            batch.put(raw::position(ROOT, position), raw::position_value(at, raw::SYMLINK, "small"));
        });
    });
    assert_eq!(contents["/small"].as_deref(), Ok(b"a few bytes in the store".as_slice()));
}

#[test]
fn a_name_comes_into_the_list_of_its_inode() {
    repaired("name-unlisted", Some("/outer/linked"), |world| {
        world.plant(|store, batch| {
            let outer = ino(store, "/outer");
            batch.delete(raw::listed(ino(store, "/outer/linked"), outer, "linked"));
        });
    });
}

#[test]
fn a_directory_gets_a_name_back_that_it_lost() {
    let contents = repaired("name-lost", Some("/outer/inner/file-3"), |world| {
        world.plant(|store, batch| {
            let inner = ino(store, "/outer/inner");
            batch.delete(raw::position(inner, cookie(store, inner, "file-3")));
            batch.delete(raw::dirent(inner, "file-3"));
        });
    });
    assert_eq!(contents["/outer/inner/file-3"], Ok(content(3, 350)));
}

#[test]
fn a_name_that_only_its_position_knows_comes_back_with_it() {
    let contents = repaired("name-lost", Some("/large"), |world| {
        world.plant(|_, batch| batch.delete(raw::dirent(ROOT, "large")));
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
}

#[test]
fn a_name_that_leads_to_another_inode_is_taken_off_the_list() {
    repaired("name-taken", Some("/small"), |world| {
        world.plant(|store, batch| batch.put(raw::listed(ino(store, "/large"), ROOT, "small"), []));
    });
}

#[test]
fn a_list_of_names_without_an_inode_is_removed() {
    repaired("name-of-nothing", Some("/ghost"), |world| {
        world.plant(|_, batch| batch.put(raw::listed(Ino(40_000), ROOT, "ghost"), []));
    });
}

#[test]
fn a_listed_name_in_a_directory_that_is_none_is_removed() {
    repaired("name-of-nothing", Some("/small/ghost"), |world| {
        world.plant(|store, batch| {
            batch.put(raw::listed(ino(store, "/large"), ino(store, "/small"), "ghost"), []);
        });
    });
}

#[test]
fn a_file_whose_name_cannot_be_one_is_renamed() {
    let contents = repaired("name-invalid", Some("/a/b"), |world| {
        world.plant(|store, batch| {
            let (at, position) = (ino(store, "/large"), cookie(store, ROOT, "large"));
            batch.delete(raw::dirent(ROOT, "large"));
            batch.delete(raw::listed(at, ROOT, "large"));
            batch.put(raw::dirent(ROOT, "a/b"), raw::dirent_value(at, REGULAR, position));
            batch.put(raw::position(ROOT, position), raw::position_value(at, REGULAR, "a/b"));
            batch.put(raw::listed(at, ROOT, "a/b"), []);
        });
    });
    assert!(contents.iter().any(|(path, of)| path.starts_with("/#") && *of == Ok(content(1, 65_536))), "{contents:?}");
}

#[test]
fn a_name_without_a_position_gets_one() {
    repaired("position-missing", Some("/outer/inner/file-1"), |world| {
        world.plant(|store, batch| {
            let inner = ino(store, "/outer/inner");
            batch.delete(raw::position(inner, cookie(store, inner, "file-1")));
        });
    });
}

#[test]
fn a_position_without_a_name_is_removed() {
    repaired("position-stale", Some("/nobody"), |world| {
        world.plant(|store, batch| {
            let at = ino(store, "/small");
            batch.put(raw::position(ROOT, 1), raw::position_value(at, REGULAR, "nobody"));
        });
    });
}

#[test]
fn two_names_with_one_position_get_two() {
    repaired("cookie-duplicate", Some("/small"), |world| {
        world.plant(|store, batch| {
            let (at, taken) = (ino(store, "/small"), cookie(store, ROOT, "large"));
            batch.delete(raw::position(ROOT, cookie(store, ROOT, "small")));
            batch.put(raw::dirent(ROOT, "small"), raw::dirent_value(at, REGULAR, taken));
        });
    });
}

#[test]
fn the_next_position_is_raised_above_those_in_use() {
    repaired("cookie-high", Some("/outer/inner"), |world| {
        world.plant(|store, batch| {
            let inner = ino(store, "/outer/inner");
            edit_inode(store, batch, inner, raw::DIRECTORY_COOKIE, &17_u64.to_le_bytes());
        });
    });
}

#[test]
fn files_of_a_directory_that_is_gone_go_to_lost_and_found() {
    let contents = repaired("directory-missing", None, |world| {
        world.plant(|store, batch| batch.delete(raw::inode(ino(store, "/outer/inner"))));
    });
    let rescued = contents.iter().filter(|(path, _)| path.starts_with("/lost+found/#")).count();
    assert_eq!(rescued, 6, "{:?}", contents.keys());
    assert!(contents.values().any(|of| *of == Ok(content(3, 350))));
}

#[test]
fn a_directory_keeps_one_name() {
    let contents = repaired("directory-named-twice", None, |world| {
        world.plant(|store, batch| {
            let outer = ino(store, "/outer");
            let root = get(store, &raw::inode(ROOT));
            let next = raw::number(&root, raw::DIRECTORY_COOKIE);
            edit_inode(store, batch, ROOT, raw::DIRECTORY_COOKIE, &(next + 1).to_le_bytes());
            batch.put(raw::dirent(ROOT, "again"), raw::dirent_value(outer, DIRECTORY, next));
            batch.put(raw::position(ROOT, next), raw::position_value(outer, DIRECTORY, "again"));
            batch.put(raw::listed(outer, ROOT, "again"), []);
        });
    });
    assert!(contents.contains_key("/outer") != contents.contains_key("/again"));
}

#[test]
fn directories_that_lie_in_one_another_go_to_lost_and_found() {
    let contents = repaired("directory-loop", None, |world| {
        world.plant(|store, batch| {
            // `outer` is moved into `inner`, which lies in it.
            let (outer, inner) = (ino(store, "/outer"), ino(store, "/outer/inner"));
            batch.delete(raw::position(ROOT, cookie(store, ROOT, "outer")));
            batch.delete(raw::dirent(ROOT, "outer"));
            batch.delete(raw::listed(outer, ROOT, "outer"));
            let next = raw::number(&get(store, &raw::inode(inner)), raw::DIRECTORY_COOKIE);
            edit_inode(store, batch, inner, raw::DIRECTORY_COOKIE, &(next + 1).to_le_bytes());
            edit_inode(store, batch, outer, DIRECTORY_PARENT, &inner.0.to_le_bytes());
            batch.put(raw::dirent(inner, "outer"), raw::dirent_value(outer, DIRECTORY, next));
            batch.put(raw::position(inner, next), raw::position_value(outer, DIRECTORY, "outer"));
            batch.put(raw::listed(outer, inner, "outer"), []);
        });
    });
    assert!(contents.iter().any(|(path, of)| path.ends_with("/inner/file-3") && *of == Ok(content(3, 350))));
}

#[test]
fn a_directory_without_a_name_goes_to_lost_and_found_with_everything_in_it() {
    let contents = repaired("directory-unreferenced", None, |world| {
        world.plant(|store, batch| {
            let (outer, inner) = (ino(store, "/outer"), ino(store, "/outer/inner"));
            batch.delete(raw::position(outer, cookie(store, outer, "inner")));
            batch.delete(raw::dirent(outer, "inner"));
            batch.delete(raw::listed(inner, outer, "inner"));
        });
    });
    assert!(contents.iter().any(|(path, of)| path.ends_with("/file-3") && *of == Ok(content(3, 350))));
}

#[test]
fn a_file_without_a_name_goes_to_lost_and_found() {
    let contents = repaired("inode-unreferenced", None, |world| {
        world.plant(|store, batch| {
            let at = ino(store, "/large");
            batch.delete(raw::position(ROOT, cookie(store, ROOT, "large")));
            batch.delete(raw::dirent(ROOT, "large"));
            batch.delete(raw::listed(at, ROOT, "large"));
        });
    });
    let rescued = contents.iter().find(|(path, _)| path.starts_with("/lost+found/#"));
    assert_eq!(rescued.map(|(_, of)| of), Some(&Ok(content(1, 65_536))));
}

#[test]
fn the_parent_of_a_directory_is_where_its_name_is() {
    repaired("parent-wrong", Some("/outer/inner"), |world| {
        world.plant(|store, batch| {
            let inner = ino(store, "/outer/inner");
            edit_inode(store, batch, inner, DIRECTORY_PARENT, &1_u64.to_le_bytes());
        });
    });
}

#[test]
fn a_file_with_a_name_is_not_deleted_whatever_its_orphan_record_says() {
    let contents = repaired("orphan-named", Some("/large"), |world| {
        world.plant(|store, batch| batch.put(raw::key(b'o', &[ino(store, "/large").0], &[]), []));
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
}

#[test]
fn an_orphan_record_without_an_inode_is_removed() {
    repaired("orphan-missing", None, |world| {
        world.plant(|_, batch| batch.put(raw::key(b'o', &[50_000], &[]), []));
    });
}

#[test]
fn links_are_counted_anew() {
    for path in ["/outer/linked", "/outer", "/small"] {
        repaired("link-count", None, |world| {
            world.plant(|store, batch| edit_inode(store, batch, ino(store, path), INODE_LINKS, &9_u32.to_le_bytes()));
        });
    }
}

#[test]
fn names_of_a_directory_are_counted_anew() {
    repaired("entry-count", Some("/outer/inner"), |world| {
        world.plant(|store, batch| {
            edit_inode(store, batch, ino(store, "/outer/inner"), DIRECTORY_ENTRIES, &99_u64.to_le_bytes());
        });
    });
}

#[test]
fn a_root_directory_that_is_gone_is_made_anew_with_its_names() {
    let contents = repaired("root-missing", Some("/"), |world| {
        world.plant(|_, batch| batch.delete(raw::inode(ROOT)));
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
    assert!(contents.contains_key("/outer/inner/link"));
}
