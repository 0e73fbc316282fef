//! Every bad input gives one clear line with the path, file or line concerned and exit code 1, and changes nothing on
//! disk.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A place with directories for tiers, a mount point and a registry of its own.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        // Beside the build, because the usual place for temporary files may be in memory.
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory can be made");
        for name in ["fast", "slow", "mnt", "config", "run"] {
            fs::create_dir(directory.path().join(name)).expect("a directory can be made");
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn polymux(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_polymux"))
            .args(arguments)
            .env("POLYMUX_CONFIG_DIR", self.path("config"))
            .env("POLYMUX_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null())
            .output()
            .expect("polymux can be started")
    }

    fn tier(&self, name: &str) -> String {
        format!("{name}={}", self.path(name).display())
    }

    fn create(&self) {
        let output = self.polymux(&["create", "media", "--tier", &self.tier("fast"), "--tier", &self.tier("slow")]);
        assert!(output.status.success(), "{}", error_of(&output));
    }

    fn mount_point(&self) -> String {
        self.path("mnt").display().to_string()
    }

    /// Everything on disk but the runtime directory, which holds locks and logs.
    fn listing(&self) -> BTreeMap<PathBuf, Listed> {
        let mut found = BTreeMap::new();
        list(self.directory.path(), &self.path("run"), &mut found);
        found
    }

    /// Runs and checks that it is refused with one line that contains each of the needles, and that nothing changed.
    fn refused(&self, arguments: &[&str], needles: &[&str]) {
        let before = self.listing();
        let output = self.polymux(arguments);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "one line for {arguments:?}: {error}");
        for needle in needles {
            assert!(error.contains(needle), "`{needle}` is named for {arguments:?}: {error}");
        }
        let after = self.listing();
        let changed: Vec<&PathBuf> = before
            .keys()
            .chain(after.keys())
            .filter(|path| before.get(*path).map(unstamped) != after.get(*path).map(unstamped))
            .collect();
        assert!(changed.is_empty(), "{arguments:?} changed {changed:?}");
    }
}

/// Mode, size, modification time in seconds and nanoseconds, and checksum of the contents.
type Listed = (u32, u64, i64, i64, u32);

/// The compared fields: times of directories are left out, because a probe with a nameless file may move them.
fn unstamped(listed: &Listed) -> Listed {
    let is_directory = listed.0 & 0o170_000 == 0o040_000;
    if is_directory { (listed.0, 0, 0, 0, 0) } else { *listed }
}

fn list(directory: &Path, without: &Path, found: &mut BTreeMap<PathBuf, Listed>) {
    for entry in fs::read_dir(directory).expect("a directory can be listed") {
        let path = entry.expect("an entry can be read").path();
        let metadata = path.symlink_metadata().expect("an entry can be looked at");
        // The lock of a tier says who held it last; that is not part of the volume.
        let is_lock = path.ends_with(".polymux/lock");
        if path == without || is_lock {
            continue;
        }
        let contents = if metadata.is_file() { fs::read(&path).expect("a file can be read") } else { Vec::new() };
        let checksum = crc32c::crc32c(&contents);
        let (modified, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        found.insert(path.clone(), (metadata.mode(), metadata.size(), modified, nanoseconds, checksum));
        if metadata.is_dir() {
            list(&path, without, found);
        }
    }
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says loudly that a test cannot run here: past the test harness, which would swallow it.
fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    writeln!(std::io::stderr(), "skipped: {name}: {why}").expect("standard error can be written");
}

/// Mounts something for one test and unmounts it after, whatever happens. `None`, said loudly, where that cannot be.
struct TestMount {
    path: PathBuf,
}

impl TestMount {
    fn new(arguments: &[&str], path: &Path) -> Option<Self> {
        if !is_root() {
            skip(&format!("mounting {arguments:?} needs root"));
            return None;
        }
        let mounted = Command::new("mount").args(arguments).arg(path).output().expect("mount can be started");
        if !mounted.status.success() {
            skip(&format!("mount {arguments:?}: {}", error_of(&mounted)));
            return None;
        }
        Some(Self { path: path.to_owned() })
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.path).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn names_that_are_not_plain_are_refused() {
    let place = Place::new();
    for name in ["../media", "me dia", "", ".hidden", "a\nb"] {
        place.refused(&["create", name, "--tier", &place.tier("fast")], &["volume name", "not plain"]);
    }
    let tier = format!("fa/st={}", place.path("fast").display());
    place.refused(&["create", "media", "--tier", &tier], &["tier name", "fa/st"]);
    place.refused(&["mount", "me dia", &place.mount_point()], &["volume name", "not plain"]);
}

#[test]
fn a_tier_that_is_missing_or_no_directory_is_refused() {
    let place = Place::new();
    place.refused(&["create", "media", "--tier", &place.tier("nowhere")], &["`nowhere`", "nowhere"]);
    fs::write(place.path("file"), "x").unwrap();
    place.refused(&["create", "media", "--tier", &place.tier("file")], &["`file`", "not a directory"]);
}

#[test]
fn a_region_for_the_log_that_is_not_byte_addressable_is_refused_and_nothing_is_made() {
    let place = Place::new();
    let (fast, blocks) = (place.tier("fast"), place.path("slow").join("region"));
    let create = |region: &str| ["create", "media", "--tier", &fast, "--metadata-region", region].map(str::to_owned);
    let refused = |region: &Path, needles: &[&str]| {
        let arguments = create(region.to_str().expect("paths of tests are plain"));
        place.refused(&arguments.each_ref().map(String::as_str), needles);
        assert_eq!(fs::read_dir(place.path("fast")).unwrap().count(), 0, "nothing is made on the tier");
    };
    refused(&blocks, &["metadata_region", "slow", "DAX"]);
    assert!(!blocks.exists());
    refused(Path::new("/dev/shm/polymux-region"), &["/dev/shm", "ordinary memory"]);
    refused(&place.path("nowhere").join("region"), &["nowhere"]);
    fs::write(&blocks, "somebody's").unwrap();
    refused(&blocks, &["region exists already"]);
    assert_eq!(fs::read_to_string(&blocks).unwrap(), "somebody's");
}

#[test]
fn tiers_given_twice_or_nested_are_refused() {
    let place = Place::new();
    let (fast, slow) = (place.tier("fast"), place.tier("slow"));
    place.refused(&["create", "media", "--tier", &fast, "--tier", &fast], &["`fast`", "twice"]);
    let same = format!("other={}", place.path("fast").display());
    place.refused(&["create", "media", "--tier", &fast, "--tier", &same], &["same path"]);
    fs::create_dir(place.path("fast/inner")).unwrap();
    let inner = format!("inner={}", place.path("fast/inner").display());
    place.refused(&["create", "media", "--tier", &fast, "--tier", &inner], &["`inner`", "lies within tier `fast`"]);
    place.refused(&["create", "media", "--tier", &inner, "--tier", &fast], &["`inner`", "lies within tier `fast`"]);
    place.refused(&["create", "media", "--tier", &slow, "--capacity", "fast=1GiB"], &["no tier `fast`"]);
    place.refused(&["create", "media", "--tier", &slow, "--metadata", "fast"], &["`fast`", "not one of the tiers"]);
    // A link leads to the same directory all the same.
    std::os::unix::fs::symlink(place.path("fast"), place.path("link")).unwrap();
    place.refused(&["create", "media", "--tier", &fast, "--tier", &place.tier("link")], &["same path"]);
}

#[test]
fn a_volatile_tier_is_refused() {
    let place = Place::new();
    let Some(_mount) = TestMount::new(&["-t", "tmpfs", "polymux-test"], &place.path("fast")) else { return };
    place.refused(&["create", "media", "--tier", &place.tier("fast")], &["`fast`", "tmpfs", "in memory"]);
}

#[test]
fn a_read_only_tier_is_refused() {
    let place = Place::new();
    let Some(_mount) = TestMount::new(&["-t", "tmpfs", "-o", "ro", "polymux-test"], &place.path("fast")) else {
        return;
    };
    place.refused(&["create", "media", "--tier", &place.tier("fast")], &["`fast`", "read-only"]);
}

#[test]
fn a_tier_without_sparse_files_is_refused() {
    let place = Place::new();
    let image = place.path("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.vfat").arg(&image).output();
    if !made.is_ok_and(|output| output.status.success()) {
        skip("mkfs.vfat is not there");
        return;
    }
    let image = image.display().to_string();
    let Some(_mount) = TestMount::new(&["-t", "vfat", "-o", "loop", &image], &place.path("fast")) else { return };
    place.refused(&["create", "media", "--tier", &place.tier("fast")], &["`fast`", "no sparse files"]);
}

#[test]
fn a_second_creation_is_refused() {
    let place = Place::new();
    place.create();
    fs::create_dir(place.path("third")).unwrap();
    let third = place.tier("third");
    place.refused(&["create", "media", "--tier", &third], &["`media` exists already", "media.toml"]);
    let (fast, slow) = (place.tier("fast"), place.tier("slow"));
    place.refused(&["create", "other", "--tier", &third, "--tier", &slow], &["`slow`", "belongs to volume `media`"]);
    place.refused(&["create", "other", "--tier", &fast], &["`fast`", "belongs to volume `media`"]);
}

#[test]
fn a_shared_file_system_is_warned_of_once() {
    let place = Place::new();
    let output = place.polymux(&["create", "media", "--tier", &place.tier("fast"), "--tier", &place.tier("slow")]);
    assert!(output.status.success());
    let error = error_of(&output);
    assert_eq!(error.lines().filter(|line| line.contains("share one file system")).count(), 1, "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn mistakes_in_the_configuration_are_refused_with_their_line() {
    let place = Place::new();
    place.create();
    let path = place.path("config/media.toml");
    let good = fs::read_to_string(&path).unwrap();
    let volume_line = good.lines().find(|line| line.starts_with("volume")).expect("there is an identity").to_owned();
    // The last one: of two tiers of one name the second is the mistake.
    let line_of = |text: &str, needle: &str| {
        text.lines().count() - text.lines().rev().position(|line| line.contains(needle)).unwrap()
    };
    for (from, to, needle) in [
        ("metadata = ", "metadat = ", "metadat = "),
        ("name = \"slow\"", "name = \"slow\"\nspeed = 3", "speed = 3"),
        ("name = \"slow\"", "name = \"slow\"\ncapacity = \"5 parsecs\"", "5 parsecs"),
        ("name = \"slow\"", "name = \"slow\"\nreserve = \"101 %\"", "101 %"),
        ("name = \"slow\"", "name = \"fast\"", "name = \"fast\""),
        (volume_line.as_str(), "volume = \"x\"", "volume = "),
        ("metadata = ", "metadata == ", "metadata == "),
    ] {
        let bad = good.replacen(from, to, 1);
        fs::write(&path, &bad).unwrap();
        let place_of_mistake = format!("media.toml:{}: ", line_of(&bad, needle));
        place.refused(&["mount", "media", &place.mount_point()], &[&place_of_mistake]);
    }
    fs::remove_file(&path).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["media.toml", "cannot read"]);
}

#[test]
fn bad_mount_points_are_refused() {
    let place = Place::new();
    place.create();
    fs::write(place.path("file"), "x").unwrap();
    let named = |name: &str| place.path(name).display().to_string();
    fs::create_dir(place.path("fast/below")).unwrap();
    place.refused(&["mount", "media", &named("nowhere")], &["nowhere"]);
    place.refused(&["mount", "media", &named("file")], &["file", "not a directory"]);
    place.refused(&["mount", "media", &named("fast/below")], &["lies within tier `fast`"]);
    place.refused(&["mount", "media", &place.directory.path().display().to_string()], &["lies within the mount point"]);
    place.refused(&["mount", "media", "/proc"], &["/proc", "in use"]);
    place.refused(&["mount", "media", &place.mount_point(), "-o", "rw,frobnicate"], &["`frobnicate`"]);
    place.refused(&["umount", "media"], &["`media`", "not mounted"]);
    place.refused(&["umount", &place.mount_point()], &["mnt", "no Polymux volume"]);
    place.refused(&["status", "media"], &["`media`", "not mounted"]);
    place.refused(&["where", &named("file")], &["file", "not lie on a Polymux volume"]);
    place.refused(&["inspect", "label", &place.mount_point()], &["mnt", "no label"]);
}

#[test]
fn a_tier_that_is_gone_or_unlabelled_or_damaged_is_refused() {
    let place = Place::new();
    place.create();
    let own = place.path("slow/.polymux");
    let aside = place.path("aside");
    fs::rename(&own, &aside).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["`slow`", "no label"]);
    fs::rename(&aside, &own).unwrap();
    fs::rename(place.path("slow"), &aside).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["`slow`"]);
    fs::rename(&aside, place.path("slow")).unwrap();
    fs::rename(place.path("fast"), &aside).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["`fast`", "metadata"]);
}

#[test]
fn tiers_of_another_volume_and_swapped_tiers_are_refused() {
    let place = Place::new();
    place.create();
    let config = place.path("config/media.toml");
    let good = fs::read_to_string(&config).unwrap();
    fs::create_dir(place.path("third")).unwrap();
    let made = place.polymux(&["create", "other", "--tier", &place.tier("third")]);
    assert!(made.status.success(), "{}", error_of(&made));
    fs::write(&config, good.replace("/slow\"", "/third\"")).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["`slow`", "`other`"]);
    let swapped = good.replace("/slow\"", "/x\"").replace("/fast\"", "/slow\"").replace("/x\"", "/fast\"");
    // The metadata follows the path, so that the tiers are wrong, not the store.
    fs::write(&config, swapped.replace("metadata = \"fast\"", "metadata = \"slow\"")).unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["swapped"]);
}

#[test]
fn a_label_of_a_newer_format_is_refused() {
    let place = Place::new();
    place.create();
    for name in ["label", "label.copy"] {
        let path = place.path("slow/.polymux").join(name);
        let mut bytes = fs::read(&path).unwrap();
        // The frame is for ever: the version follows the magic number of 8 bytes, a checksum of all before it ends it.
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&path, bytes).unwrap();
    }
    place.refused(&["mount", "media", &place.mount_point()], &["`slow`", "format version", "newer Polymux"]);
}

#[test]
fn a_tier_in_use_by_another_process_is_refused() {
    let place = Place::new();
    place.create();
    let lock = fs::OpenOptions::new().read(true).write(true).open(place.path("slow/.polymux/lock")).unwrap();
    lock.lock().unwrap();
    place.refused(&["mount", "media", &place.mount_point()], &["`slow`", "in use"]);
}

#[test]
fn wrong_usage_is_told_apart_by_its_exit_code() {
    let place = Place::new();
    let before = place.listing();
    for arguments in [&["create", "media"][..], &["create", "media", "--tier", "fast"], &["mount"], &["frobnicate"]] {
        assert_eq!(place.polymux(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(place.listing(), before);
}
