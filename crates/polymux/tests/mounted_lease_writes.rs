//! Programs that overwrite files past the mount (docs/design/0048), as `polymux-client` does it, beside programs that use the same file through the mount, by calls and by mappings, and
//! beside movers.

#[path = "leases/asking.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod asking;
#[path = "leases/mapper.rs"]
mod mapper;
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use asking::{Over, granted, has_leases_for_changing_files, migrate, ticket_of, wait_until};
use mapper::Mapper;
use mounted::native::text;
use mounted::{Plan, Random, TestVolume};
use polymux_client::{File as Leased, Way};
use rustix::fs::{FallocateFlags, OFlags};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const LENGTH: usize = 8 * MIB;
const DEADLINE: Duration = Duration::from_secs(60);

/// A random number below another one.
fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).expect("below a length")
}

fn start(options: &str) -> Option<TestVolume> {
    if !has_leases_for_changing_files() {
        return None;
    }
    let options = format!("leases = \"on\"\nio = \"passthrough\"\nmovers = 1\npromotion = \"polite\"\n{options}");
    TestVolume::start_with_options(&Plan::anywhere(), &options)
}

/// A file of 8 MiB on both tiers, with its bytes.
fn split(volume: &TestVolume, name: &str) -> (PathBuf, Vec<u8>) {
    let (path, content) = (volume.path().join(name), Random::new(7).bytes(LENGTH));
    let mut file = File::create(&path).expect("made");
    file.write_all(&content).and_then(|()| file.sync_all()).expect("written");
    drop(file);
    migrate(volume, &path, "slow", "2MiB-4MiB");
    volume.assert_is_split(&path);
    // Not before the bytes that it gave up are freed.
    drop(granted(&File::open(&path).expect("opened")));
    (path, content)
}

/// A program with the file open for changes.
struct Writer {
    file: Leased,
    random: Random,
}

impl Writer {
    fn open(path: &PathBuf, seed: u64) -> Self {
        Self { file: Leased::open_to_change(path).expect("opened"), random: Random::new(seed) }
    }

    /// Writes random bytes within one block or over several ones, to the file and to the bytes that it should have.
    fn write(&mut self, content: &mut [u8]) {
        let length = 1 + below(&mut self.random, 3 * BLOCK);
        let offset = below(&mut self.random, content.len() - length);
        content[offset..offset + length].copy_from_slice(&self.random.bytes(length));
        self.write_at(&content[offset..offset + length], offset);
    }

    fn write_at(&self, data: &[u8], offset: usize) {
        assert_eq!(self.file.write_at(data, offset as u64).expect("written"), data.len());
    }

    /// Writes until that goes past the mount.
    fn lease(&mut self, content: &mut [u8]) {
        let (began, before) = (Instant::now(), self.direct());
        while self.direct() == before {
            self.write(content);
            assert!(began.elapsed() < DEADLINE, "no lease: {}", self.file.report());
        }
    }

    fn direct(&self) -> u64 {
        self.file.report().writes(Way::Directly)
    }

    fn assert_reads(&mut self, content: &[u8]) {
        let offset = below(&mut self.random, content.len() - BLOCK);
        let mut block = [0; BLOCK];
        assert_eq!(self.file.read_at(&mut block, offset as u64).expect("read"), BLOCK);
        assert!(block == content[offset..offset + BLOCK], "at {offset}: {}", self.file.report());
    }
}

fn clients(volume: &TestVolume) -> Vec<serde_json::Value> {
    let finished = volume.polymux(["status", "--clients", "--json", &volume.name]);
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("it prints JSON")
}

#[test]
fn blocks_of_a_file_on_two_tiers_are_overwritten_past_the_mount_and_the_next_mount_has_them() {
    let Some(mut volume) = start("") else { return };
    let (path, mut content) = split(&volume, "database");
    let mut writer = Writer::open(&path, 1);
    writer.lease(&mut content);
    let (before, direct) = (volume.messages(), writer.direct());
    for _ in 0..500 {
        writer.write(&mut content);
        writer.assert_reads(&content);
    }
    let report = writer.file.report();
    // Only a write over two objects goes through the kernel, and ends the lease.
    assert!(writer.direct() >= direct + 400, "{report}");
    let messages = volume.messages().get("write").copied().unwrap_or(0) - before.get("write").copied().unwrap_or(0);
    assert!(messages <= 100, "{messages} messages: {report}");
    writer.file.as_file().sync_all().expect("synced");
    wait_until("its writes are counted", || {
        clients(&volume).iter().any(|client| client["writes"].as_u64().is_some_and(|writes| writes > 0))
    });
    assert!(fs::read(&path).expect("read") == content, "through the mount: {report}");
    drop(writer);
    wait_until("the lease is given back", || clients(&volume).is_empty());
    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).expect("read") == content, "after another mount");
    volume.unmount();
    volume.polymux(["fsck", &volume.name.clone()]).assert_success();
}

#[test]
fn whoever_uses_the_file_through_the_mount_sees_each_write_past_it_and_the_reverse() {
    let Some(volume) = start("flush_interval = 1") else { return };
    let (path, mut content) = split(&volume, "database");
    let mut mapper = Mapper::start(&path);
    let other = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    // As the other process, so that its uses of the file do not begin a pause.
    assert!(ticket_of(&other).is_some());
    let mut writers = [Writer::open(&path, 1), Writer::open(&path, 2)];
    let reader = Leased::open(&path).expect("opened");
    let mut random = Random::new(3);
    for round in 0..40 {
        writers.iter_mut().for_each(|writer| writer.lease(&mut content));
        let direct = writers.each_ref().map(Writer::direct);
        for _ in 0..60 {
            let place = below(&mut random, 2);
            writers[place].write(&mut content);
            writers[1 - place].assert_reads(&content);
            let mut block = [0; BLOCK];
            let offset = below(&mut random, content.len() - BLOCK);
            reader.read_at(&mut block, offset as u64).expect("read");
            assert!(block == content[offset..offset + BLOCK], "{}", reader.report());
        }
        assert!(writers[0].direct() > direct[0] && writers[1].direct() > direct[1], "round {round}");
        let offset = below(&mut random, content.len() - 2 * BLOCK);
        let bytes = random.bytes(BLOCK);
        match round % 5 {
            0 => {
                let mut block = [0; BLOCK];
                other.read_exact_at(&mut block, offset as u64).expect("read");
                assert!(block == content[offset..offset + BLOCK], "round {round}");
            }
            1 => {
                content[offset..offset + BLOCK].copy_from_slice(&bytes);
                other.write_all_at(&bytes, offset as u64).expect("written");
            }
            2 => assert!(mapper.load(offset, BLOCK) == content[offset..offset + BLOCK], "round {round}"),
            3 => {
                content[offset..offset + BLOCK].copy_from_slice(&bytes);
                mapper.store(offset, &bytes);
            }
            _ => {
                content[offset..offset + 100].fill(0);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&other, flags, offset as u64, 100).expect("punched");
            }
        }
        assert!(mapper.load(offset, BLOCK) == content[offset..offset + BLOCK], "round {round}, by a mapping");
    }
    assert!(reader.report().reads(Way::Directly) > 0, "{}", reader.report());
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn pages_behind_one_lease_are_forgotten_for_a_longer_one() {
    let Some(volume) = start("") else { return };
    let (path, mut content) = split(&volume, "database");
    let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    // All before there are pages: an open may take them away.
    let (other, for_longer, mut shorter) = (open(), open(), Writer::open(&path, 1));
    assert!(ticket_of(&other).is_some(), "its uses begin no pause");
    shorter.lease(&mut content);
    let more = Random::new(4).bytes(4 * BLOCK);
    other.write_all_at(&more, LENGTH as u64).expect("appended");
    content.extend(&more);
    let mut block = [0; BLOCK];
    other.read_exact_at(&mut block, LENGTH as u64).expect("read");
    let (_connection, leased, map) = granted(&for_longer);
    let runs = map.runs(leased.objects.len()).expect("a map");
    let run = runs.iter().find(|run| run.end > LENGTH as u64).expect("it covers the appended bytes");
    let object = &leased.objects[run.object.expect("they have an object")];
    assert_eq!(rustix::io::pwrite(object, &[8; BLOCK], LENGTH as u64).expect("written"), BLOCK);
    content[LENGTH..LENGTH + BLOCK].fill(8);
    assert!(map.is_current(), "the write is one of the file");
    other.read_exact_at(&mut block, LENGTH as u64).expect("read");
    assert!(block == [8; BLOCK]);
    assert!(!map.is_current(), "a page of the bytes ends it");
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn pages_of_a_mapping_that_were_changed_before_a_lease_are_in_it() {
    let Some(volume) = start("") else { return };
    let (path, mut content) = split(&volume, "database");
    let mut mapper = Mapper::start(&path);
    let bytes = Random::new(9).bytes(LENGTH);
    mapper.store(0, &bytes);
    content.copy_from_slice(&bytes);
    let mut writer = Writer::open(&path, 1);
    writer.lease(&mut content);
    let mut all = vec![0; LENGTH];
    for (place, part) in all.chunks_mut(MIB).enumerate() {
        assert_eq!(writer.file.read_at(part, (place * MIB) as u64).expect("read"), MIB);
    }
    assert!(all == content);
    assert!(writer.file.report().reads(Way::Directly) > 0, "{}", writer.file.report());
    assert!(mapper.load(0, LENGTH) == content);
}

#[test]
fn no_write_is_lost_while_ranges_move() {
    let Some(volume) = start("flush_interval = 1") else { return };
    let (path, content) = split(&volume, "database");
    let is_over = AtomicBool::new(false);
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let over = Over(&is_over);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (path, is_over) = (&path, &is_over);
                let mut part = content[thread * LENGTH / 4..(thread + 1) * LENGTH / 4].to_vec();
                scope.spawn(move || {
                    let mut writer = Writer::open(path, 50 + thread as u64);
                    while !is_over.load(Ordering::Relaxed) {
                        let offset = below(&mut writer.random, part.len() / BLOCK) * BLOCK;
                        let bytes = writer.random.bytes(BLOCK);
                        part[offset..offset + BLOCK].copy_from_slice(&bytes);
                        writer.write_at(&bytes, thread * LENGTH / 4 + offset);
                        let offset = below(&mut writer.random, part.len() / BLOCK) * BLOCK;
                        let mut block = [0; BLOCK];
                        writer.file.read_at(&mut block, (thread * LENGTH / 4 + offset) as u64).expect("read");
                        assert!(block == part[offset..offset + BLOCK], "{}", writer.file.report());
                    }
                    eprintln!("part {thread}: {} leases; {}", writer.file.report().leases, writer.file.report());
                    assert!(writer.direct() > 0);
                    part
                })
            })
            .collect();
        for round in 0..8 {
            let tier = if round % 2 == 0 { "fast" } else { "slow" };
            wait_until("all have leases", || volume.status()["leases"]["live"] == 4);
            migrate(&volume, &path, tier, ["0-2MiB", "2MiB-4MiB", "4MiB-8MiB"][round % 3]);
        }
        drop(over);
        threads.into_iter().map(|thread| thread.join().expect("no thread failed")).collect()
    });
    assert!(fs::read(&path).expect("read") == parts.concat());
}

#[test]
fn a_file_grows_beside_its_lease_which_is_exchanged_for_a_longer_one() {
    let Some(volume) = start("") else { return };
    let (path, mut content) = split(&volume, "database");
    let mut writer = Writer::open(&path, 1);
    writer.lease(&mut content);
    let leases = writer.file.report().leases;
    for round in 0..20_u8 {
        let more = vec![round; 1000];
        writer.write_at(&more, content.len());
        content.extend(more);
        writer.write(&mut content[..LENGTH]);
        writer.assert_reads(&content);
    }
    assert_eq!(writer.file.report().leases, leases, "{}", writer.file.report());
    assert_eq!(fs::metadata(&path).expect("it is there").len(), content.len() as u64);
    let (began, end) = (Instant::now(), content.len() - BLOCK);
    while writer.file.report().leases == leases {
        let offset = LENGTH + below(&mut writer.random, end - LENGTH);
        writer.write_at(&[7; 100], offset);
        content[offset..offset + 100].fill(7);
        assert!(began.elapsed() < DEADLINE, "no longer lease: {}", writer.file.report());
    }
    let direct = writer.direct();
    writer.write_at(&[9; 100], LENGTH);
    content[LENGTH..LENGTH + 100].fill(9);
    assert_eq!(writer.direct(), direct + 1, "{}", writer.file.report());
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn times_of_writes_past_the_mount_are_those_of_the_file_and_times_that_are_set_stay() {
    let Some(volume) = start("flush_interval = 1") else { return };
    let (path, mut content) = split(&volume, "database");
    let mut writer = Writer::open(&path, 1);
    writer.lease(&mut content);
    let modified = || fs::metadata(&path).expect("it is there").modified().expect("a time");
    for _ in 0..5 {
        let before = modified();
        std::thread::sleep(Duration::from_millis(30));
        let direct = writer.direct();
        writer.write_at(&content[100..200], 100);
        assert_eq!(writer.direct(), direct + 1, "{}", writer.file.report());
        assert!(modified() > before, "the time of a write is seen at once");
    }
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    writer.file.as_file().set_modified(long_ago).expect("set");
    assert_eq!(modified(), long_ago);
    migrate(&volume, &path, "fast", "2MiB-4MiB");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(modified(), long_ago, "neither a move nor a lease changes it");
    writer.lease(&mut content);
    let late = modified();
    assert!(late > long_ago);
    migrate(&volume, &path, "slow", "0-4MiB");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(modified(), late, "a move is no change");
    drop(writer);
    let mut volume = volume;
    volume.unmount();
    volume.mount();
    assert_eq!(modified(), late);
}

#[test]
fn descriptions_that_may_not_overwrite_get_no_lease_for_that() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "database");
    let keep_open = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    // One that only reads gets objects that can be read, beside the lease of a writer.
    let writers = granted(&keep_open);
    let (_connection, leased, _map) = granted(&File::open(&path).expect("opened"));
    for object in &leased.objects {
        let flags = rustix::fs::fcntl_getfl(object).expect("open");
        assert!(!flags.intersects(OFlags::WRONLY | OFlags::RDWR), "{flags:?}");
        assert!(rustix::io::pwrite(object, b"x", 0).is_err());
    }
    drop((leased, writers));
    let refused = |options: &mut OpenOptions, reason: &str| {
        let file = Leased::from(options.open(&path).expect("opened"));
        for _ in 0..40 {
            // `pwrite` of one that appends appends.
            if file.read_at(&mut [0; BLOCK], 0).is_err() {
                assert_eq!(file.write_at(&content[..1], 0).expect("written"), 1);
            }
        }
        assert!(file.report().to_string().contains(reason), "{reason}: {}", file.report());
        assert_eq!(file.report().leases, 0);
    };
    refused(OpenOptions::new().write(true), "not open for data");
    refused(OpenOptions::new().read(true).append(true), "appends");
    let synchronous = OFlags::SYNC.bits().cast_signed();
    refused(
        std::os::unix::fs::OpenOptionsExt::custom_flags(OpenOptions::new().read(true).write(true), synchronous),
        "synchronous",
    );
    wait_until("no object is open", || fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).is_ok());
    refused(OpenOptions::new().read(true).write(true), "set-id");
    drop(keep_open);
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn a_file_gets_no_privileges_while_a_program_may_write_to_its_objects_whatever_became_of_its_lease() {
    let Some(volume) = start("") else { return };
    if !rustix::process::geteuid().is_root() {
        mounted::skip("capabilities need root");
        return;
    }
    let (path, mut content) = split(&volume, "database");
    let mut writer = Writer::open(&path, 1);
    writer.lease(&mut content);
    let (connection, kept, _map) = granted(writer.file.as_file());
    // It pretends to be gone.
    drop((connection, writer));
    let run = |program: &str, arguments: &[&str]| {
        let status =
            std::process::Command::new(program).args(arguments).arg(&path).stderr(std::process::Stdio::null()).status();
        status.expect("it starts").success()
    };
    let tries: [(&str, &[&str]); 4] = [
        ("chmod", &["4755"]),
        ("chmod", &["2755"]),
        ("chattr", &["+i"]),
        ("setfattr", &["-n", "security.capability", "-v", "0x0100000200040000000000000000000000000000"]),
    ];
    for (program, arguments) in tries {
        assert!(!run(program, arguments), "{program} {arguments:?}");
    }
    assert!(run("chmod", &["0700"]), "other modes are no privileges");
    drop(kept);
    for (program, arguments) in tries {
        if program == "chattr" {
            continue;
        }
        wait_until("the objects are open nowhere else", || run(program, arguments));
    }
    assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o6000, 0o6000 & 0o2000);
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn a_mount_that_collects_writes_gives_no_lease_to_writers() {
    let options = "leases = \"on\"\nio = \"write-back\"\nmovers = 1\npromotion = \"polite\"";
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), options) else { return };
    let (path, mut content) = split(&volume, "database");
    let mut writer = Writer::open(&path, 1);
    for _ in 0..40 {
        writer.write(&mut content);
        writer.assert_reads(&content);
    }
    assert_eq!(writer.file.report().leases, 0);
    assert!(writer.file.report().to_string().contains("collects writes"), "{}", writer.file.report());
}

#[test]
fn space_that_a_write_would_take_is_not_taken_past_the_mount() {
    let Some(volume) = start("") else { return };
    let path = volume.path().join("sparse");
    let file = File::create(&path).expect("made");
    let mut content = Random::new(5).bytes(LENGTH);
    content[3 * MIB..5 * MIB].fill(0);
    file.write_all_at(&content[..3 * MIB], 0).expect("written");
    file.write_all_at(&content[5 * MIB..], 5 << 20).and_then(|()| file.sync_all()).expect("written");
    drop(file);
    migrate(&volume, &path, "slow", "6MiB-8MiB");
    volume.assert_is_split(&path);
    let writer = Writer::open(&path, 1);
    let (began, before) = (Instant::now(), writer.direct());
    while writer.direct() == before {
        writer.write_at(&content[7 * MIB..7 * MIB + BLOCK], 7 * MIB);
        assert!(began.elapsed() < DEADLINE, "no lease: {}", writer.file.report());
    }
    let beyond = writer.file.report().writes(Way::Beyond);
    writer.write_at(&[3; BLOCK], 4 * MIB);
    content[4 * MIB..4 * MIB + BLOCK].fill(3);
    assert_eq!(writer.file.report().writes(Way::Beyond), beyond + 1, "{}", writer.file.report());
    assert!(fs::read(&path).expect("read") == content);
    assert!(text(&path).ends_with("sparse"));
}
