//! Listings of directories that the kernel answers from its copy of the names (docs/design/0043): each shows the directory as it was when the
//! listing was opened or began anew, or as it became since.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mounted::random::Random;
use mounted::{Plan, TestVolume};
use rustix::fs::{CWD, Mode, OFlags, RawDir, RenameFlags, SeekFrom, renameat_with, seek};

/// Space for about six names, so that a listing takes many calls.
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
            found.push((OsString::from_vec(entry.file_name().to_bytes().to_vec()).into_string().unwrap(), entry.ino()));
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

#[test]
fn an_unchanged_directory_is_listed_again_without_asking() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = volume.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..300 {
        File::create(directory.join(format!("{number}"))).unwrap();
    }
    let before = listed(&directory);
    assert_eq!(before.len(), 300);
    let sent = |kind: &str| volume.messages().get(kind).copied().unwrap_or(0);
    let read = || sent("readdir") + sent("readdirplus");
    let before_again = (sent("opendir"), read());
    assert!(before_again.1 > 0);
    assert_eq!(listed(&directory), before);
    assert_eq!((sent("opendir"), read()), (before_again.0 + 1, before_again.1));
    File::create(directory.join("new")).unwrap();
    assert_eq!(listed(&directory).len(), 301);
    assert!(read() > before_again.1, "the directory has changed");
}

/// The kernel puts its copy together from the answers to all listings, so one that ends earlier could cut it off.
#[test]
fn a_listing_that_is_older_than_some_names_does_not_hide_them_from_others() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = volume.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let make = |number: u32| drop(File::create(directory.join(format!("{number:03}"))).unwrap());
    (0..200).for_each(make);
    let old = Open::new(&directory);
    let begin = |listing: &Open| (0..3).map(|_| listing.next_names().len()).sum::<usize>();
    let begun = begin(&old);
    (200..250).for_each(make);
    assert_eq!(listed(&directory).len(), 250);
    let new = Open::new(&directory);
    assert_eq!(begin(&new), begun, "both are at the same place");
    assert_eq!(begun + old.rest().len(), 202);
    assert_eq!(listed(&directory).len(), 250);
    assert_eq!(begun + new.rest().len(), 252);
    // A listing that begins anew shows names that were made since it was opened, and so do those beside it.
    (250..300).for_each(make);
    let [first, second] = [(); 2].map(|()| Open::new(&directory));
    begin(&first);
    (300..350).for_each(make);
    second.rewind();
    assert_eq!(begin(&second), begun);
    first.rest();
    assert_eq!(listed(&directory).len(), 350);
    assert_eq!(begun + second.rest().len(), 352);
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

    fn fresh_or_taken(&mut self) -> (String, bool) {
        let name = format!("name {}", self.random.below(80));
        let is_taken = self.names.contains(&name);
        (name, is_taken)
    }

    fn any_of(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).expect("an index fits")
    }

    /// Makes, removes or renames a name. Returns the names that came.
    fn change(&mut self) -> Option<String> {
        let (name, is_taken) = self.fresh_or_taken();
        let path = self.directory.join(&name);
        if !is_taken {
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
                let (to, _) = self.fresh_or_taken();
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
    let mut changes = Changes::new(volume.path(), 43);
    let mut under_way: Vec<UnderWay> = Vec::new();
    for step in 0..4_000 {
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
                assert_eq!(now, changes.names, "step {step}");
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
                let open = Open::new(directory);
                while Instant::now() < until {
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
