//! Many threads in one tree: no deadlock, no cycle, no lost entry, and the right number of links at the end.

use std::collections::BTreeMap;

use polymux_fs::{Caller, FileKind, NodeKind, RenameMode};
use polymux_types::{Errno, Ino};

use super::*;
use crate::common::{PosixVolume, make_directory, walk};

const SHARED: usize = 4;

/// Errors that a race may cause.
fn tolerate(result: polymux_fs::Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            let races = [Errno::ENOENT, Errno::EEXIST, Errno::EINVAL, Errno::ENOTEMPTY, Errno::ENOTDIR];
            assert!(races.contains(&error.errno()), "{error}");
            false
        }
    }
}

/// Makes, renames, links and removes files of its own in shared directories; returns where they are.
fn juggle_files(
    fs: &polymux_fs::FileSystem,
    shared: &[Ino],
    thread: u64,
    until: &Until,
) -> BTreeMap<(Ino, String), Ino> {
    let root = Caller::root();
    let mut random = Random::new(thread + 1);
    let mut mine: BTreeMap<(Ino, String), Ino> = BTreeMap::new();
    let mut made = 0;
    while until.goes_on() {
        let place = shared[usize_of(random.below(shared.len() as u64))];
        made += 1;
        let new = format!("t{thread}-{made}");
        let index = usize_of(random.below(mine.len().max(1) as u64));
        let Some(((from, name), ino)) = mine.iter().nth(index).map(|(key, ino)| (key.clone(), *ino)) else {
            let file = fs.make_node(&root, place, new.as_bytes(), NodeKind::Regular, 0o644).expect("made");
            mine.insert((place, new), file.ino);
            continue;
        };
        match random.below(5) {
            0 | 1 if mine.len() < 50 => {
                let file = fs.make_node(&root, place, new.as_bytes(), NodeKind::Regular, 0o644).expect("made");
                mine.insert((place, new), file.ino);
            }
            2 => {
                fs.link(&root, ino, place, new.as_bytes()).expect("linked");
                mine.insert((place, new), ino);
            }
            3 => {
                fs.unlink(&root, from, name.as_bytes()).expect("unlinked");
                mine.remove(&(from, name));
            }
            _ => {
                fs.rename(&root, from, name.as_bytes(), place, new.as_bytes(), RenameMode::Replace).expect("renamed");
                mine.remove(&(from, name));
                mine.insert((place, new), ino);
            }
        }
    }
    mine
}

/// Moves a few directories into one another, both ways.
fn juggle_directories(fs: &polymux_fs::FileSystem, nodes: &[Ino], thread: u64, until: &Until) -> u64 {
    let root = Caller::root();
    let mut random = Random::new(thread + 100);
    let mut moved = 0;
    while until.goes_on() {
        let pick = |random: &mut Random| nodes[usize_of(random.below(nodes.len() as u64))];
        let (from, to) = (pick(&mut random), pick(&mut random));
        let (name, new) = (format!("n{}", random.below(6)), format!("n{}", random.below(6)));
        let mode = match random.below(4) {
            0 => RenameMode::Exchange,
            _ => RenameMode::NoReplace,
        };
        moved += u64::from(tolerate(fs.rename(&root, from, name.as_bytes(), to, new.as_bytes(), mode)));
    }
    moved
}

fn check_links(fs: &polymux_fs::FileSystem) -> BTreeMap<Vec<u8>, Ino> {
    let tree = walk(fs).expect("walked");
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    for ino in tree.values() {
        *names.entry(*ino).or_default() += 1;
    }
    for (path, ino) in &tree {
        let attributes = fs.attributes(&Caller::root(), *ino).expect("known");
        let expected = match attributes.kind {
            FileKind::Directory => {
                assert_eq!(names[ino], 1, "directory {ino} has two names");
                let below = tree.iter().filter(|(other, child)| {
                    other.len() > path.len() + 1
                        && other.starts_with(&[path.as_slice(), b"/"].concat())
                        && !other[path.len() + 1..].contains(&b'/')
                        && fs.attributes(&Caller::root(), **child).expect("known").kind == FileKind::Directory
                });
                2 + u32::try_from(below.count()).expect("few")
            }
            _ => names[ino],
        };
        assert_eq!(attributes.links, expected, "links of {}", String::from_utf8_lossy(path));
    }
    tree
}

#[test]
fn names_survive_many_threads_in_shared_directories() {
    with_watchdog(|| {
        let volume = PosixVolume::new(&[Some(MIB), None]);
        let fs = volume.fs();
        let shared: Vec<Ino> = (0..SHARED).map(|index| make_directory(fs, &format!("d{index}"))).collect();
        let until = Until::after(test_length() / 3);
        let expected: BTreeMap<(Ino, String), Ino> = std::thread::scope(|scope| {
            let (shared, until) = (&shared, &until);
            let threads: Vec<_> = (0..THREADS as u64)
                .map(|thread| scope.spawn(move || juggle_files(fs, shared, thread, until)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no thread failed")).collect()
        });
        let tree = check_links(fs);
        let found: BTreeMap<(Ino, String), Ino> = tree
            .iter()
            .filter_map(|(path, ino)| {
                let path = String::from_utf8(path.clone()).expect("names of this test are text");
                let (directory, name) = path.rsplit_once('/')?;
                let place = *tree.get(directory.as_bytes())?;
                name.starts_with('t').then(|| ((place, name.to_owned()), *ino))
            })
            .collect();
        assert!(found == expected, "{} entries, {} expected", found.len(), expected.len());
    });
}

#[test]
fn directories_moved_both_ways_make_no_cycle_and_no_deadlock() {
    with_watchdog(|| {
        let volume = PosixVolume::new(&[None]);
        let fs = volume.fs();
        let nodes: Vec<Ino> = (0..6).map(|index| make_directory(fs, &format!("n{index}"))).collect();
        let everywhere: Vec<Ino> = nodes.iter().copied().chain([Ino::ROOT]).collect();
        let until = Until::after(test_length() / 3);
        let moved: u64 = std::thread::scope(|scope| {
            let (everywhere, until) = (&everywhere, &until);
            let threads: Vec<_> = (0..THREADS as u64)
                .map(|thread| scope.spawn(move || juggle_directories(fs, everywhere, thread, until)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread failed")).sum()
        });
        assert!(moved > 10, "hardly anything was moved");
        let tree = check_links(fs);
        for node in nodes {
            assert!(tree.values().any(|ino| *ino == node), "directory {node} cannot be reached any more");
        }
    });
}
