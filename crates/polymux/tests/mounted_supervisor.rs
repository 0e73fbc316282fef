//! A mount that outlives its daemon: open files of programs go on when the daemon is killed (docs/design/0037).

mod mounted;
#[path = "supervisor/programs.rs"]
mod programs;
#[path = "supervisor/requests.rs"]
mod requests;
#[path = "supervisor/stage.rs"]
mod stage;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use mounted::{Plan, one_at_a_time};
use polymux_client::Way;
use stage::{Moment, Stage};

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| index.to_le_bytes()[0].wrapping_mul(13) ^ index.to_le_bytes()[1] ^ seed).collect()
}

#[test]
fn what_is_open_goes_on_when_the_daemon_is_killed() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let path = stage.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut appender = OpenOptions::new().append(true).create_new(true).open(stage.path().join("log")).unwrap();
    fs::create_dir(stage.path().join("names")).unwrap();
    (0..3000).for_each(|number| drop(File::create(stage.path().join(format!("names/{number}"))).unwrap()));
    let mut listing = fs::read_dir(stage.path().join("names")).unwrap();
    let first: Vec<_> = listing.by_ref().take(10).map(|entry| entry.unwrap().file_name()).collect();
    let kept = stage.path().join("kept");
    fs::create_dir(&kept).unwrap();
    for round in 0..3_u8 {
        // Neither was sent when the daemon dies: the kernel has it.
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&pattern(round, 100_001)).unwrap();
        appender.write_all(format!("line {round}\n").as_bytes()).unwrap();
        stage.kill_daemon();
        assert_eq!(file.metadata().unwrap().len(), 100_001 * (u64::from(round) + 1));
        let in_kept = || fs::read_dir(&kept).unwrap().count();
        assert_eq!(in_kept(), usize::from(round), "names that the kernel keeps are right");
        File::create(kept.join(format!("{round}"))).unwrap();
        assert_eq!(in_kept(), usize::from(round) + 1);
    }
    let rest: Vec<_> = listing.map(|entry| entry.unwrap().file_name()).collect();
    let mut all: Vec<_> = first.into_iter().chain(rest).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3000, "a listing that was begun before goes on");
    file.sync_all().unwrap();
    let mut read = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut read).unwrap();
    assert!(read == (0..3).flat_map(|round| pattern(round, 100_001)).collect::<Vec<_>>());
    drop((file, appender));
    stage.remount();
    assert!(fs::read(stage.path().join("file")).unwrap() == read, "after the next mount");
    assert_eq!(fs::read_to_string(stage.path().join("log")).unwrap(), "line 0\nline 1\nline 2\n");
}

#[test]
fn a_lease_ends_with_its_daemon_and_the_next_daemon_gives_another() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    stage.unmount();
    stage.mount(&["-o", "leases=on"]);
    let (path, mut content) = (stage.path().join("file"), pattern(1, 3_000_000));
    fs::write(&path, &content).unwrap();
    let file = polymux_client::File::open(&path).unwrap();
    let read = |content: &[u8], offset: usize| {
        let mut block = [0; 4096];
        assert_eq!(file.read_at(&mut block, offset as u64).unwrap(), block.len());
        assert!(block == content[offset..offset + 4096], "at {offset}: {}", file.report());
    };
    for round in 0..3_u8 {
        let (began, before) = (Instant::now(), file.report().leases);
        for offset in (0..).map(|number| number * 70_001 % 2_990_000) {
            read(&content, offset);
            if file.report().leases > before && file.report().reads(Way::Directly) > u64::from(round) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{}", file.report());
        }
        stage.kill_daemon();
        // The kernel collects this, and the objects do not have it.
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        content[500_000..510_000].fill(round);
        writer.write_all_at(&content[500_000..510_000], 500_000).unwrap();
        read(&content, 503_000);
        drop(writer);
        read(&content, 503_000);
    }
}

#[test]
fn a_file_without_a_name_stays_while_it_is_used_and_goes_afterwards() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let path = stage.path().join("file");
    fs::write(&path, pattern(1, 5_000_000)).unwrap();
    fs::write(stage.path().join("unopened"), pattern(2, 100_000)).unwrap();
    let before = stage.objects();
    let open = File::open(&path).unwrap();
    // Of the second one the kernel has the inode alone.
    let referred =
        rustix::fs::open(stage.path().join("unopened"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(stage.path().join("unopened")).unwrap();
    stage.kill_daemon();
    let mut read = vec![0; 5_000_000];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == pattern(1, 5_000_000));
    assert_eq!(rustix::fs::fstat(&referred).unwrap().st_size, 100_000);
    // One that loses its name after the daemon that opened it is gone.
    let later = stage.path().join("later");
    fs::write(&later, pattern(3, 70_000)).unwrap();
    let kept = File::open(&later).unwrap();
    stage.kill_daemon();
    fs::remove_file(&later).unwrap();
    let mut read = vec![0; 70_000];
    kept.read_exact_at(&mut read, 0).unwrap();
    assert!(read == pattern(3, 70_000) && kept.metadata().unwrap().nlink() == 0);
    drop((open, referred, kept));
    stage.wait_for("files without a name are gone", |stage| stage.objects() == before - 2);
    stage.unmount();
}

#[test]
fn a_mapping_and_a_file_that_is_replaced_lose_nothing() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let path = stage.path().join("mapped");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let mut mapping = programs::Mapping::of(&path);
    mapping.fill(7);
    stage.kill_daemon();
    mapping.sync();
    drop(mapping);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
    // The new one is open, and the kernel has its bytes, when it takes the place of the old one.
    let mut new = File::create(stage.path().join("new")).unwrap();
    new.write_all(&pattern(9, 200_000)).unwrap();
    stage.kill_daemon();
    fs::rename(stage.path().join("new"), &path).unwrap();
    assert!(fs::read(&path).unwrap() == pattern(9, 200_000));
    drop(new);
    stage.unmount();
}

#[test]
fn holes_are_not_read_where_bytes_have_not_come_yet() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let path = stage.path().join("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(10 << 20).unwrap();
    file.write_all_at(&pattern(1, 4096), 5 << 20).unwrap();
    stage.kill_daemon();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0));
    assert_eq!(hole, Err(rustix::io::Errno::INVAL), "what is there is not known while it may be collected");
    let copy = stage.path().join("copy");
    mounted::succeed("cp", ["--sparse=always", path.to_str().unwrap(), copy.to_str().unwrap()]);
    assert!(fs::read(copy).unwrap() == fs::read(&path).unwrap());
    drop(file);
    stage.unmount();
}

#[test]
fn no_program_sees_an_error_when_the_daemon_is_killed_at_any_moment() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let root = stage.path().to_owned();
    programs::run_beside(&root, || stage.kill_at_any_moment(kills()));
    stage.unmount();
    stage.assert_is_sound();
}

#[test]
fn a_full_volume_keeps_what_it_accepted_when_the_daemon_is_killed_at_any_moment() {
    let _turn = one_at_a_time();
    if !mounted::is_root() {
        return mounted::skip("loop devices need root");
    }
    let plan = Plan { ground: mounted::volume::Ground::LoopDevices { fast: 320, slow: 400 }, fast_capacity: None };
    let Some(mut stage) = Stage::start(&plan) else { return };
    for round in 0..kills().div_ceil(5) {
        let root = stage.path().to_owned();
        programs::fill_beside(&root, round, || stage.kill_at_any_moment(5));
    }
    stage.unmount();
    stage.assert_is_sound();
}

/// Three daemons die of each request, one after the other. If each carried out an exchange of names, and so did the one that answers, the names would
/// stand as before.
#[test]
fn each_request_is_carried_out_once_when_daemons_die_before_they_answer_it() {
    die_at_each_request(Moment::Answer, 3);
}

#[test]
fn each_request_is_carried_out_when_the_daemon_that_read_it_dies() {
    die_at_each_request(Moment::Start, 1);
}

fn die_at_each_request(moment: Moment, deaths: u32) {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let mut believed = Vec::new();
    for (number, (kind, check)) in requests::CHECKS.iter().enumerate() {
        eprintln!("{deaths} deaths of {kind} ({number})");
        let directory = stage.path().join(format!("{number}"));
        fs::create_dir(&directory).unwrap();
        let names = check(&directory, &|| stage.plant_deaths(kind, moment, deaths));
        assert!(!stage.take_planted_deaths(), "check {number} made no such request: {kind}");
        let state = requests::state(&directory, names);
        believed.push((directory, names, state));
    }
    // The kernel cached the answers; now it asks anew.
    stage.remount();
    for (directory, names, state) in believed {
        assert_eq!(requests::state(&directory, names), state, "{}", directory.display());
    }
    stage.unmount();
    stage.assert_is_sound();
}

#[test]
fn a_mount_goes_on_without_its_supervisor_and_ends_in_order() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let mut file = File::create(stage.path().join("file")).unwrap();
    file.write_all(b"before").unwrap();
    stage.kill_supervisor();
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    // A rename over a file asks the supervisor, where there is one.
    fs::write(stage.path().join("old"), b"old").unwrap();
    fs::rename(stage.path().join("file"), stage.path().join("old")).unwrap();
    drop(file);
    assert_eq!(fs::read(stage.path().join("old")).unwrap(), b"before and after");
    stage.unmount();
    stage.assert_is_sound();
}

#[test]
fn a_mount_that_is_asked_to_end_while_no_daemon_serves_it_ends_in_order() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    fs::write(stage.path().join("file"), pattern(1, 300_000)).unwrap();
    stage.ask_to_end_between_daemons();
    assert!(!stage.path().join("file").exists(), "it is unmounted");
    stage.assert_is_sound();
    stage.mount(&[]);
    assert!(fs::read(stage.path().join("file")).unwrap() == pattern(1, 300_000));
    stage.unmount();
}

#[test]
fn no_second_mount_comes_between_two_daemons() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let elsewhere = stage.outside().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        stage.kill_daemon_only();
        let second = stage.mount_on(&elsewhere);
        assert!(!second.is_success() && second.text().contains("mounted already"), "{}", second.text());
        stage.wait_for_next_daemon();
    }
    assert!(Path::new(stage.path()).read_dir().is_ok());
    stage.unmount();
}

#[test]
fn a_mount_collects_writes_where_it_outlives_its_daemon_and_nothing_else_is_asked_for() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    let collects = |stage: &Stage| stage.status_text().contains("the kernel collects writes");
    assert!(collects(&stage), "{}", stage.status_text());
    for asked in ["supervisor=off", "io=passthrough", "passthrough=read", "page_cache=off", "ro"] {
        stage.unmount();
        stage.mount(&["-o", asked]);
        let said = stage.status_text();
        assert!(!collects(&stage) && said.contains("ends with its daemon"), "{asked}: {said}");
    }
    stage.unmount();
}

#[test]
fn without_a_supervisor_status_says_that_the_mount_ends_with_its_daemon() {
    let _turn = one_at_a_time();
    let Some(mut stage) = Stage::start(&Plan::anywhere()) else { return };
    assert!(stage.status_text().contains("outlives its daemon"), "{}", stage.status_text());
    stage.unmount();
    stage.mount(&["-o", "io=write-back,supervisor=off"]);
    assert!(stage.status_text().contains("ends with its daemon"), "{}", stage.status_text());
    stage.unmount();
}

/// How often a daemon is killed: `POLYMUX_SUPERVISOR_KILLS`.
fn kills() -> u32 {
    std::env::var("POLYMUX_SUPERVISOR_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(15)
}
