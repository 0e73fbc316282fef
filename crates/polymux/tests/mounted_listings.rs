//! Listings of directories that the kernel answers from its copy of the names (docs/design/0043): each shows the directory as it was when the
//! listing was opened or began anew, or as it became since.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mounted::random::Random;
use mounted::{Plan, TestVolume};
use rustix::fs::{CWD, Mode, OFlags, RawDir, RenameFlags, SeekFrom, renameat_with, seek};

/// Space for about ten names, so that a listing takes many calls.
const SMALL: usize = 256;

/// A directory that is open for listing.
struct Open {
    directory: OwnedFd,
}

impl Open {
    fn new(path: &Path) -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { directory: rustix::fs::open(path, flags, Mode::empty()).expect("the directory can be opened") }
    }

    /// The names that the next call returns, with their inodes; none at the end.
    fn next_names(&self) -> Vec<(String, u64)> {
        let mut buffer = [MaybeUninit::uninit(); SMALL];
        let mut names = RawDir::new(self.directory.as_fd(), &mut buffer);
        let mut found = Vec::new();
        while let Some(entry) = names.next() {
            let entry = entry.expect("the directory can be listed");
            found.push((entry.file_name().to_str().unwrap().to_owned(), entry.ino()));
            if names.is_buffer_empty() {
                break;
            }
        }
        found
    }

    fn rewind(&self) {
        seek(&self.directory, SeekFrom::Start(0)).expect("a directory begins anew");
    }

    /// All names that are left, with their inodes.
    fn rest(&self) -> Vec<(String, u64)> {
        let next = || Some(self.next_names()).filter(|names| !names.is_empty());
        std::iter::from_fn(next).flatten().collect()
    }
}

fn is_dots(name: &str) -> bool {
    name == "." || name == ".."
}

/// The names in a directory and their inodes.
fn listed(path: &Path) -> BTreeMap<String, u64> {
    Open::new(path).rest().into_iter().filter(|(name, _)| !is_dots(name)).collect()
}

fn sent(volume: &TestVolume, kind: &str) -> u64 {
    volume.messages().get(kind).copied().unwrap_or(0)
}

/// Files in a directory of their own, with names of one length.
fn make_files(directory: &Path, numbers: std::ops::Range<u32>) {
    fs::create_dir_all(directory).unwrap();
    numbers.for_each(|number| drop(File::create(directory.join(format!("{number:03}"))).unwrap()));
}

/// A volume, and a directory in it that has such files.
fn start_with_files(numbers: std::ops::Range<u32>) -> Option<(TestVolume, PathBuf)> {
    let volume = TestVolume::start(&Plan::anywhere())?;
    let directory = volume.path().join("directory");
    make_files(&directory, numbers);
    Some((volume, directory))
}

/// Reads from a listing a few times; returns the number of names.
fn begin(listing: &Open) -> usize {
    (0..3).map(|_| listing.next_names().len()).sum()
}

#[test]
fn an_unchanged_directory_is_listed_again_without_asking() {
    let Some((volume, directory)) = start_with_files(0..300) else { return };
    let read = || sent(&volume, "readdir") + sent(&volume, "readdirplus");
    let list = || {
        // Also beside each other: a listing that the kernel answers does not hinder another one.
        let open = Open::new(&directory);
        assert_eq!(listed(&directory).len(), 300);
        assert_eq!(open.rest().len(), 302);
    };
    list();
    let reads = read();
    assert!(reads > 0);
    list();
    assert_eq!(read(), reads);
    File::create(directory.join("new")).unwrap();
    assert_eq!(listed(&directory).len(), 301);
    assert!(read() > reads, "the directory has changed");
    assert_eq!(listed(&directory).len(), 301);
    let reads = read();
    assert_eq!(listed(&directory).len(), 301);
    assert_eq!(read(), reads);
}

#[test]
fn directories_are_opened_and_closed_without_a_message() {
    let Some((volume, directory)) = start_with_files(0..30) else { return };
    listed(&directory);
    let opened = || (sent(&volume, "opendir"), sent(&volume, "releasedir"));
    let before = opened();
    assert!(before.0 <= 1, "the kernel asks once whether it has to: {before:?}");
    for number in 0..50 {
        let _open = Open::new(&directory);
        File::create(directory.join(format!("new {number}"))).unwrap();
        assert_eq!(listed(&directory).len(), 31 + number);
    }
    assert_eq!(opened(), before);
}

/// The kernel puts its copy together from the answers to all listings, so one that ends earlier could cut it off.
#[test]
fn a_listing_that_is_older_than_some_names_does_not_hide_them_from_others() {
    let Some((_volume, directory)) = start_with_files(0..200) else { return };
    let old = Open::new(&directory);
    let begun = begin(&old);
    make_files(&directory, 200..250);
    assert_eq!(listed(&directory).len(), 250);
    let new = Open::new(&directory);
    assert_eq!(begin(&new), begun, "both are at the same place");
    assert_eq!(begun + old.rest().len(), 202);
    assert_eq!(listed(&directory).len(), 250);
    assert_eq!(begun + new.rest().len(), 252);
}

/// As above, where both may use the copy, because neither had begun when the other one was opened.
#[test]
fn a_listing_that_begins_anew_shows_names_that_another_one_is_older_than() {
    let Some((_volume, directory)) = start_with_files(0..100) else { return };
    let [first, second] = [(); 2].map(|()| Open::new(&directory));
    let begun = begin(&first);
    make_files(&directory, 100..150);
    second.rewind();
    assert_eq!(begin(&second), begun);
    assert_eq!(begun + first.rest().len(), 102);
    assert_eq!(listed(&directory).len(), 150);
    assert_eq!(begun + second.rest().len(), 152);
}

/// A listing that was given up half way leaves entries in the kernel's copy, and a listing of another program may complete that later.
#[test]
fn names_that_were_renamed_before_a_listing_are_shown_as_they_are() {
    let Some((_volume, directory)) = start_with_files(0..100) else { return };
    let given_up = Open::new(&directory);
    assert!((0..6).map(|_| given_up.next_names().len()).sum::<usize>() > 22);
    drop(given_up);
    fs::rename(directory.join("020"), directory.join("r20")).unwrap();
    fs::remove_file(directory.join("021")).unwrap();
    let listing = Open::new(&directory);
    assert!(listing.next_names().len() < 20);
    // It reads the rest and completes the kernel's copy, where it may.
    let beside = listed(&directory);
    let rest: BTreeSet<String> = listing.rest().into_iter().map(|(name, _)| name).collect();
    for names in [rest, beside.into_keys().collect()] {
        assert!(names.contains("r20") && !names.contains("020") && !names.contains("021"), "{names:?}");
    }
    drop(listing);
    let now = listed(&directory);
    assert!(now.len() == 99 && now.contains_key("r20"), "{now:?}");
}

/// A listing that the kernel answered from its copy goes on with requests when the copy is dropped.
#[test]
fn a_listing_that_loses_the_copy_half_way_shows_what_that_had_and_leaves_the_next_one_whole() {
    let Some((_volume, directory)) = start_with_files(0..60) else { return };
    let [silent, other] = [(); 2].map(|()| Open::new(&directory));
    make_files(&directory, 60..100);
    assert_eq!(listed(&directory).len(), 100);
    silent.rewind();
    let begun = begin(&silent);
    fs::remove_file(directory.join("099")).unwrap();
    // It drops the copy, which is outdated, and begins another one.
    assert_eq!(begin(&other), begun);
    assert_eq!(begun + silent.rest().len(), 101);
    assert_eq!(listed(&directory).len(), 99);
    assert_eq!(begun + other.rest().len(), 101);
    assert_eq!(listed(&directory).len(), 99);
}

#[test]
fn a_directory_that_was_moved_lists_its_new_parent() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let [one, two] = ["one", "two"].map(|name| volume.path().join(name));
    for path in [&one, &two, &one.join("moved"), &two.join("other")] {
        fs::create_dir(path).unwrap();
    }
    let ino = |path: &Path| path.metadata().unwrap().ino();
    let parent_in_listing = |path: &Path| {
        let parents = Open::new(path).rest().into_iter().filter(|(name, _)| name == "..");
        parents.map(|(_, ino)| ino).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(parent_in_listing(&one.join("moved")), [ino(&one)]);
        assert_eq!(parent_in_listing(&two.join("other")), [ino(&two)]);
    }
    fs::rename(one.join("moved"), two.join("moved")).unwrap();
    assert_eq!(parent_in_listing(&two.join("moved")), [ino(&two)]);
    fs::rename(two.join("moved"), one.join("moved")).unwrap();
    assert_eq!(parent_in_listing(&one.join("moved")), [ino(&one)]);
    renameat_with(CWD, one.join("moved"), CWD, two.join("other"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(parent_in_listing(&one.join("moved")), [ino(&one)]);
    assert_eq!(parent_in_listing(&two.join("other")), [ino(&two)]);
}

/// The kernel has a part of its copy then, which no later listing may complete.
#[test]
fn a_directory_that_was_moved_while_it_was_listed_lists_its_new_parent() {
    let Some((volume, directory)) = start_with_files(0..100) else { return };
    let other = volume.path().join("other");
    fs::create_dir(&other).unwrap();
    let under_way = Open::new(&directory);
    let begun = begin(&under_way);
    let moved = other.join("moved");
    fs::rename(&directory, &moved).unwrap();
    assert_eq!(begun + under_way.rest().len(), 102);
    for _ in 0..3 {
        let names = Open::new(&moved).rest();
        assert_eq!(names.len(), 102);
        let parent = names.iter().find(|(name, _)| name == "..").unwrap();
        assert_eq!(parent.1, other.metadata().unwrap().ino());
    }
}

#[test]
fn a_listing_that_was_sought_beyond_its_end_ends_and_leaves_others_whole() {
    let Some((_volume, directory)) = start_with_files(0..100) else { return };
    let listing = Open::new(&directory);
    let begun = begin(&listing);
    for offset in [1 << 40, (1 << 40) + 7, 1 << 20] {
        seek(&listing.directory, SeekFrom::Start(offset)).unwrap();
        assert_eq!(listing.next_names(), []);
    }
    make_files(&directory, 100..110);
    fs::remove_file(directory.join("000")).unwrap();
    assert_eq!(listed(&directory).len(), 109);
    listing.rewind();
    assert_eq!(begin(&listing), begun);
    assert_eq!(begun + listing.rest().len(), 111);
}

/// A listing under way.
struct UnderWay {
    open: Open,
    /// Names that have been in the directory since it was opened or began anew.
    stays: BTreeSet<String>,
    /// Names that were in the directory at some time since then.
    possible: BTreeSet<String>,
    seen: Vec<String>,
}

impl UnderWay {
    fn new(path: &Path, names: &BTreeSet<String>) -> Self {
        Self { open: Open::new(path), stays: names.clone(), possible: names.clone(), seen: Vec::new() }
    }

    fn rewind(&mut self, names: &BTreeSet<String>) {
        self.open.rewind();
        self.stays.clone_from(names);
        self.possible.clone_from(names);
        self.seen.clear();
    }

    /// Goes on, and checks the names that were seen so far. Returns whether this is the end.
    fn go_on(&mut self) -> bool {
        let names = self.open.next_names();
        let is_end = names.is_empty();
        self.seen.extend(names.into_iter().map(|(name, _)| name).filter(|name| !is_dots(name)));
        for name in &self.seen {
            assert!(self.possible.contains(name), "{name} was not there since the listing began");
        }
        if is_end {
            for name in &self.stays {
                let times = self.seen.iter().filter(|seen| *seen == name).count();
                assert_eq!(times, 1, "{name} was there all the time");
            }
        }
        is_end
    }
}

/// Random changes of a directory, and the names that it has.
struct Changes {
    directory: PathBuf,
    /// A directory beside it, in which names come and go.
    other: PathBuf,
    names: BTreeSet<String>,
    random: Random,
}

impl Changes {
    fn new(root: &Path, seed: u64) -> Self {
        let [directory, other] = ["directory", "other"].map(|name| root.join(name));
        fs::create_dir(&directory).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("linked"), "x").unwrap();
        Self { directory, other, names: BTreeSet::new(), random: Random::new(seed) }
    }

    /// One that the directory may have.
    fn any_name(&mut self) -> String {
        format!("name {}", self.random.below(80))
    }

    fn any_of(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).expect("an index fits")
    }

    /// Makes, removes or renames a name. Returns the names that came.
    fn change(&mut self) -> Option<String> {
        let name = self.any_name();
        let path = self.directory.join(&name);
        if !self.names.contains(&name) {
            match self.random.below(5) {
                0 => fs::create_dir(&path).unwrap(),
                1 => symlink("target", &path).unwrap(),
                2 => fs::hard_link(self.other.join("linked"), &path).unwrap(),
                3 => {
                    fs::write(self.other.join("comes"), "y").unwrap();
                    fs::rename(self.other.join("comes"), &path).unwrap();
                }
                _ => drop(File::create(&path).unwrap()),
            }
            self.names.insert(name.clone());
            return Some(name);
        }
        match self.random.below(3) {
            0 => {
                let to = self.any_name();
                let target = self.directory.join(&to);
                // Refused where one is a directory and the other is not, or is full.
                if to != name && fs::rename(&path, &target).is_ok() && fs::symlink_metadata(&path).is_err() {
                    self.names.remove(&name);
                    self.names.insert(to.clone());
                    return Some(to);
                }
            }
            1 => {
                fs::rename(&path, self.other.join("went")).unwrap();
                let went = self.other.join("went");
                fs::remove_file(&went).or_else(|_| fs::remove_dir(&went)).unwrap();
                self.names.remove(&name);
            }
            _ => {
                fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
                self.names.remove(&name);
            }
        }
        None
    }
}

#[test]
fn a_listing_shows_a_directory_as_it_is_at_its_beginning_or_became_since() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    for seed in 0..25 {
        let root = volume.path().join(format!("{seed}"));
        fs::create_dir(&root).unwrap();
        change_and_list(&root, seed);
    }
}

fn change_and_list(root: &Path, seed: u64) {
    let mut changes = Changes::new(root, seed);
    let mut under_way: Vec<UnderWay> = Vec::new();
    for step in 0..1_500 {
        match changes.random.below(8) {
            0..2 => {
                let came = changes.change();
                for listing in &mut under_way {
                    listing.stays.retain(|name| changes.names.contains(name) && came.as_ref() != Some(name));
                    listing.possible.extend(came.clone());
                }
            }
            2 if under_way.len() < 6 => under_way.push(UnderWay::new(&changes.directory, &changes.names)),
            3 if !under_way.is_empty() => {
                let index = changes.any_of(under_way.len());
                under_way[index].rewind(&changes.names);
            }
            4 => {
                let now: BTreeSet<_> = listed(&changes.directory).into_keys().collect();
                assert_eq!(now, changes.names, "seed {seed}, step {step}");
            }
            _ if !under_way.is_empty() => {
                let index = changes.any_of(under_way.len());
                if under_way[index].go_on() && changes.random.below(2) == 0 {
                    under_way.swap_remove(index);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn names_are_listed_once_they_are_made_while_others_list_the_directory() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = volume.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let until = Instant::now() + Duration::from_secs(6);
    thread::scope(|scope| {
        for writer in 0..2 {
            let directory = &directory;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                let mut own = BTreeSet::new();
                while Instant::now() < until {
                    let name = format!("{writer} {}", random.below(60));
                    match own.remove(&name) {
                        true => fs::remove_file(directory.join(&name)).unwrap(),
                        false => {
                            File::create(directory.join(&name)).unwrap();
                            own.insert(name);
                        }
                    }
                    let prefix = format!("{writer} ");
                    let found: BTreeSet<_> =
                        listed(directory).into_keys().filter(|name| name.starts_with(&prefix)).collect();
                    assert_eq!(found, own);
                }
            });
        }
        // Listings that begin, stop half way and go on later.
        for reader in 10..13 {
            let directory = &directory;
            scope.spawn(move || {
                let mut random = Random::new(reader);
                let mut open = Open::new(directory);
                while Instant::now() < until {
                    if random.below(4) == 0 {
                        open = Open::new(directory);
                    }
                    for _ in 0..random.below(30) {
                        if open.next_names().is_empty() {
                            break;
                        }
                        thread::sleep(Duration::from_micros(random.below(300)));
                    }
                    if random.below(3) == 0 {
                        open.rewind();
                    }
                }
            });
        }
    });
}
