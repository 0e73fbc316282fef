//! Volumes of every released format version can always be opened, with all of their content unchanged.

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use polymux_fs::{check_records, store_boundaries};
use polymux_meta::{Batch, LogEnd, LogPlacement, MetadataStore, OpenMode, StoreError, StoreView};
use polymux_types::ManualClock;
use tempfile::TempDir;

/// Beside the build, because the usual place for temporary files may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory can be made")
}

fn built() -> TempDir {
    let directory = directory();
    fixture::build(directory.path());
    directory
}

fn manifest_of(directory: &Path) -> String {
    let fs = fixture::mount(directory, Arc::new(ManualClock::new(Duration::from_secs(4_100_000_000))));
    let manifest = fixture::manifest(&fs);
    fs.unmount().expect("the volume unmounts");
    manifest
}

fn view(directory: &Path) -> StoreView {
    StoreView::open(&fixture::store_directory(directory), &LogPlacement::Block, &store_boundaries())
        .expect("the store can be read")
}

fn count(directory: &Path, letter: char) -> u64 {
    check_records(&view(directory)).expect("the store can be read").records.get(&letter).copied().unwrap_or(0)
}

/// Compares manifests line by line, so that a difference can be read.
#[track_caller]
fn assert_same(found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[track_caller]
fn assert_sound(directory: &Path) {
    let report = check_records(&view(directory)).expect("the store can be read");
    assert_eq!(report.violations, [], "{:?}", report.records);
}

/// Mode, length, times and content of everything below a directory.
fn listing(directory: &Path) -> BTreeMap<PathBuf, (u32, u64, i64, i64, i64, u32)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(&at).expect("a directory can be read") {
            let path = entry.expect("an entry can be read").path();
            let metadata = fs::symlink_metadata(&path).expect("a file has metadata");
            // Of a sparse file of a gigabyte the times and the length are enough.
            let read = metadata.is_file() && metadata.len() <= 4 << 20;
            let sum = if read { crc32c::crc32c(&fs::read(&path).expect("a file can be read")) } else { 0 };
            let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec());
            let mode = metadata.permissions().mode();
            found.insert(path.clone(), (mode, metadata.len(), times.0, times.1, times.2, sum));
            if metadata.is_dir() {
                directories.push(path);
            }
        }
    }
    found
}

fn inspect(directory: &Path, arguments: &[&str]) -> Output {
    let (part, options) = arguments.split_first().expect("a part of the store is named");
    Command::new(env!("CARGO_BIN_EXE_polymux"))
        .args(["inspect", "store", part])
        .arg(directory.join(fixture::TIERS[0]))
        .args(options)
        .env("POLYMUX_CONFIG_DIR", directory.join("config"))
        .env("POLYMUX_RUNTIME_DIR", directory.join("run"))
        .output()
        .expect("polymux can be started")
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("reports are text")
}

#[test]
fn a_volume_of_each_released_version_opens_and_everything_in_it_is_what_it_was() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut versions = 0;
    for entry in fs::read_dir(&fixtures).expect("there are fixtures") {
        let archive = entry.expect("an entry can be read").path();
        let name = archive.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let Some(version) = name.strip_suffix(".tar.gz") else { continue };
        let expected = fs::read_to_string(fixtures.join(format!("{version}.manifest")));
        let expected = expected.expect("each archive has a manifest");
        let directory = directory();
        fixture::unpack(&archive, directory.path()).expect("the archive can be unpacked");
        assert_sound(directory.path());
        assert_eq!(count(directory.path(), 'o'), 1, "a file without a name waits for recovery");
        // Once from the log, and once from the tables written back.
        for _ in 0..2 {
            assert_same(&manifest_of(directory.path()), &expected);
            assert_sound(directory.path());
            assert_eq!(count(directory.path(), 'o'), 0, "it is gone");
        }
        versions += 1;
    }
    assert!(versions > 0, "the fixture of the first version is there");
}

#[test]
fn a_new_fixture_survives_packing_and_holds_what_the_present_one_holds() {
    let first = built();
    let archive = first.path().join("volume.tar.gz");
    fixture::pack(first.path(), &archive).expect("tar packs");
    let second = directory();
    fixture::unpack(&archive, second.path()).expect("tar unpacks");
    let manifest = manifest_of(first.path());
    for needle in
        ["inline=4096", "inline=0", "@fast", "@slow", "xattr:user.large=3000", "xattr:system.posix_acl_default"]
    {
        assert!(manifest.contains(needle), "{needle} is in it:\n{manifest}");
    }
    assert!(manifest.lines().any(|line| line.starts_with("/on-both") && line.contains("@fast,")), "{manifest}");
    assert_same(&manifest_of(second.path()), &manifest);
}

#[test]
fn a_view_shows_what_an_opening_would_find_and_changes_nothing() {
    let directory = built();
    // A file that an opening for writing removes: a table that no version names.
    let leftover = fixture::store_directory(directory.path()).join("part0/tables/999999");
    fs::write(&leftover, b"left behind").expect("a file can be written");
    let before = listing(directory.path());
    let view = view(directory.path());
    let (end, reason) = view.log().visit(|_| Ok(())).expect("the log can be read");
    assert!(end > view.log().summary().checkpoint, "the end of the log is in no table");
    assert_eq!(reason, LogEnd::Unwritten);
    assert!(view.partitions().iter().any(|partition| partition.total().tables > 0), "something is in tables");
    let mut seen = Vec::new();
    polymux_fs::for_each_record(&view, |key, value| {
        seen.push((key.to_vec(), value.to_vec()));
        Ok(())
    })
    .expect("the records can be read");
    for (key, value) in &seen {
        assert_eq!(view.get(key).expect("a record can be read").as_ref(), Some(value));
    }
    let mut batch = Batch::new();
    batch.put(b"key", b"value");
    assert!(view.commit(batch).is_err(), "nothing can be written through a view");
    drop(view);
    assert_eq!(listing(directory.path()), before, "nothing below the tiers changed");

    let store = fixture::open_store(directory.path(), OpenMode::Existing);
    assert_eq!(store.range(b"", &[0xff; 4], usize::MAX).expect("the store can be read"), seen);
    assert!(!leftover.exists(), "an opening for writing tidies up");
}

#[test]
fn a_volume_can_be_read_through_a_view_without_any_change() {
    let directory = built();
    let before = listing(directory.path());
    let clock = || Arc::new(ManualClock::new(Duration::from_secs(4_100_000_000)));
    let fs = fixture::mount_view(directory.path(), view(directory.path()), clock());
    let read = fixture::manifest(&fs);
    fs.unmount().expect("the volume unmounts");
    drop(fs);
    assert_eq!(listing(directory.path()), before, "nothing below the tiers changed");
    assert_same(&read, &manifest_of(directory.path()));
}

#[test]
fn a_view_and_an_opening_for_writing_keep_each_other_out() {
    let directory = built();
    let path = fixture::store_directory(directory.path());
    let open = || StoreView::open(&path, &LogPlacement::Block, &store_boundaries());
    let view = open().expect("the store can be read");
    let second = open().expect("several may look at once");
    drop((view, second));
    let store = fixture::open_store(directory.path(), OpenMode::Existing);
    let error = open().err().expect("a store in use is refused");
    assert!(matches!(&error, StoreError::Open(reason) if reason.contains("in use")), "{error}");
    let output = inspect(directory.path(), &["records"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"));
    let output = inspect(directory.path(), &["log"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"), "it says so");
    assert!(text_of(&output).contains("the log ends"));
    drop(store);
}

#[test]
fn inspect_prints_log_records_tables_and_invariants_and_changes_nothing() {
    let directory = built();
    let before = listing(directory.path());
    let log = text_of(&inspect(directory.path(), &["log"]));
    for needle in ["ring of 1 MiB", "put directory entry ino=1 name=attributes", "delete ", "nothing was written there"]
    {
        assert!(log.contains(needle), "{needle} is in:\n{log}");
    }
    let records = text_of(&inspect(directory.path(), &["records", "--kind", "d", "--inode", "1"]));
    assert!(records.lines().all(|line| line.starts_with("d directory entry ino=1 ")), "{records}");
    assert!(records.contains("name=on-both: ino="), "{records}");
    let json = text_of(&inspect(directory.path(), &["records", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
    let all = json.as_array().expect("an array");
    assert!(all.len() > 500 && all.iter().all(|record| record["problem"].is_null()), "{} records", all.len());
    let tables = text_of(&inspect(directory.path(), &["tables"]));
    assert!(tables.contains("part0") && tables.contains("part7"), "{tables}");
    let check = text_of(&inspect(directory.path(), &["check"]));
    assert!(check.contains(" 0 violations"), "{check}");
    for part in ["log", "tables", "check"] {
        let json = text_of(&inspect(directory.path(), &[part, "--json"]));
        serde_json::from_str::<serde_json::Value>(&json).expect("valid JSON");
    }
    assert_eq!(listing(directory.path()), before);
}

#[test]
fn check_names_the_rules_that_broken_records_break() {
    let directory = built();
    let store = fixture::open_store(directory.path(), OpenMode::Existing);
    let inline = [&b"\0\0\0\0b"[..], &20_u64.to_be_bytes()].concat();
    let name = [&b"\0\0\0\0d"[..], &1_u64.to_be_bytes(), b"on-slow"].concat();
    assert!(store.get(&name).expect("the store can be read").is_some());
    let mut batch = Batch::new();
    batch.delete(&name);
    batch.put(&inline, b"garbage");
    batch.put(b"\0\0\0\0?", b"");
    let sequence = store.commit(batch).expect("the store takes anything");
    store.sync(sequence).expect("it becomes durable");
    drop(store);
    let output = inspect(directory.path(), &["check"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for needle in ["name-position: ", "name-parent: inode", "entry-count: directory 1 ", "readable: inline data"] {
        assert!(text.contains(needle), "{needle} is in:\n{text}");
    }
}
