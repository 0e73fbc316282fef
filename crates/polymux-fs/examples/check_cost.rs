//! Time and memory that a check of many files takes.
//!
//! `check_cost DIRECTORY FILES` makes a volume of two tiers below an empty directory, with a log store and so many files (one
//! in ten has an object, one in fifty a second name), and checks it in a process of its own, so that the reported memory is
//! that of the check.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use polymux_fs::{
    Caller, CheckMode, FileSystem, MountOptions, NewVolume, OpenOptions, Parts, TierMember, TierPresence, WriteOrigin,
};
use polymux_meta::{LogPlacement, LogStore, LogStoreOptions, MetadataStore, OpenMode, StoreView};
use polymux_tier::{PosixTier, PosixTierOptions};
use polymux_types::{Ino, SystemClock, VolumeId};

const FILES_PER_DIRECTORY: u64 = 1000;
const CHECK: &str = "--check-only";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (Some(directory), Some(files)) = (arguments.get(1), arguments.get(2)) else {
        eprintln!("usage: check_cost DIRECTORY FILES");
        std::process::exit(2);
    };
    let directory = Path::new(directory);
    if arguments.get(3).is_some_and(|what| what == CHECK) {
        check(directory);
        return;
    }
    let files: u64 = files.parse().expect("a number of files");
    let start = Instant::now();
    fill(directory, files);
    println!("{files} files made in {:.1} s", start.elapsed().as_secs_f64());
    let program = std::env::current_exe().expect("the program has a path");
    let status = Command::new(program).args([&arguments[1], &arguments[2], CHECK]).status().expect("it can be started");
    assert!(status.success());
}

fn store_options(mode: OpenMode) -> LogStoreOptions {
    LogStoreOptions { boundaries: polymux_fs::store_boundaries(), seeds: [1, 2], ..LogStoreOptions::new(mode) }
}

fn parts(directory: &Path, mode: OpenMode, store: Arc<dyn MetadataStore>) -> Parts {
    let member = |name: &str| {
        let path = directory.join(name);
        let options = PosixTierOptions::new(name);
        let tier = match mode {
            OpenMode::CreateNew => {
                std::fs::create_dir(&path).expect("a directory is made");
                PosixTier::prepare(&path, options)
            }
            OpenMode::Existing => PosixTier::open(&path, options),
        };
        TierMember::new(name, TierPresence::Present(Arc::new(tier.expect("the tier opens"))))
    };
    Parts {
        name: "check-cost".to_owned(),
        tiers: ["fast", "slow"].map(member).into(),
        store,
        metadata_tier: None,
        clock: Arc::new(SystemClock::new()),
        seed: 1,
    }
}

fn open_store(directory: &Path, mode: OpenMode) -> Arc<LogStore> {
    Arc::new(LogStore::open(&directory.join("store"), &store_options(mode)).expect("the store opens"))
}

fn fill(directory: &Path, files: u64) {
    let volume = NewVolume { id: VolumeId::from_random([5; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    let made = parts(directory, OpenMode::CreateNew, open_store(directory, OpenMode::CreateNew));
    FileSystem::format(&made, &volume).expect("a volume is made");
    drop(made);
    let mounted = parts(directory, OpenMode::Existing, open_store(directory, OpenMode::Existing));
    let fs = FileSystem::mount(mounted, MountOptions::default()).expect("it mounts");
    let root = Caller::root();
    let open = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let mut parent = Ino::ROOT;
    for number in 0..files {
        if number % FILES_PER_DIRECTORY == 0 {
            let name = format!("directory-{number}");
            parent = fs.make_directory(&root, Ino::ROOT, name.as_bytes(), 0o755).expect("a directory is made").ino;
        }
        let name = format!("file-{number:09}.data");
        let (made, handle) = fs.create(&root, parent, name.as_bytes(), 0o644, open).expect("a file is made");
        let content = vec![b'x'; if number % 10 == 0 { 5000 } else { 100 }];
        fs.write(&root, handle, 0, &content, WriteOrigin::Call).expect("it is written");
        fs.flush(&root, handle).expect("it is closed");
        fs.release(handle).expect("it is closed");
        if number % 50 == 0 {
            fs.link(&root, made.ino, parent, format!("link-{number}").as_bytes()).expect("a link is made");
        }
        if number % 256 == 0 {
            fs.step();
        }
    }
    fs.unmount().expect("it unmounts");
}

fn check(directory: &Path) {
    let start = Instant::now();
    let store = StoreView::open(&directory.join("store"), &LogPlacement::Block, &polymux_fs::store_boundaries());
    let parts = parts(directory, OpenMode::Existing, Arc::new(store.expect("the store opens")));
    let mut pass = (0, Instant::now());
    let mut go_on = |progress: &polymux_fs::CheckProgress| {
        if progress.pass != pass.0 {
            println!("  {:7.3} s: pass {} ({})", start.elapsed().as_secs_f64(), progress.pass, progress.name);
            pass = (progress.pass, Instant::now());
        }
        ControlFlow::Continue(())
    };
    let report = FileSystem::check(parts, MountOptions::default(), CheckMode::Report, &mut go_on).expect("it ends");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned();
    println!(
        "{} inodes, {} records, {} objects checked in {:.2} s; {} findings; {}",
        report.inodes,
        report.records,
        report.objects,
        start.elapsed().as_secs_f64(),
        report.counts.values().sum::<u64>(),
        peak.split_whitespace().collect::<Vec<_>>().join(" ")
    );
}
