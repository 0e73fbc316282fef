//! Programs that read files past the mount (docs/design/0046), as `polymux-client` does it, against everything that may happen to the file meanwhile.

#[path = "leases/asking.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod asking;
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use asking::{Over, granted, migrate, ticket_of, wait_until};
use mounted::native::text;
use mounted::{Plan, Random, TestVolume};
use polymux_client::{File as Leased, Way};
use polymux_lease::message;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Reads through the kernel before a lease is asked for, and some more.
const READS: usize = 40;
const DEADLINE: Duration = Duration::from_secs(60);

/// A random number below another one.
fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).expect("below a length")
}

fn start(options: &str) -> Option<TestVolume> {
    TestVolume::start_with_options(
        &Plan::anywhere(),
        &format!("leases = \"on\"\nmovers = 1\npromotion = \"polite\"\n{options}"),
    )
}

/// A closed file of these bytes.
fn closed(volume: &TestVolume, name: &str, content: &[u8]) -> PathBuf {
    let path = volume.path().join(name);
    let mut file = File::create(&path).expect("made");
    file.write_all(content).and_then(|()| file.sync_all()).expect("written");
    path
}

/// A closed file of 8 MiB on both tiers, with its bytes.
fn split(volume: &TestVolume, name: &str) -> (PathBuf, Vec<u8>) {
    let content = Random::new(7).bytes(8 * MIB);
    let path = closed(volume, name, &content);
    migrate(volume, &path, "slow", "2MiB-4MiB");
    volume.assert_is_split(&path);
    // Not before the bytes that it gave up are freed.
    drop(granted(&File::open(&path).expect("opened")));
    (path, content)
}

fn block_at(file: &Leased, offset: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let count = file.read_at(&mut block, offset as u64).expect("read");
    block.truncate(count);
    block
}

/// Reads until the file is read past the mount, comparing all bytes.
fn lease(file: &Leased, content: &[u8]) {
    let (mut random, began, before) = (Random::new(1), Instant::now(), file.report().reads(Way::Directly));
    while file.report().reads(Way::Directly) == before {
        let offset = below(&mut random, content.len() - BLOCK);
        assert!(block_at(file, offset) == content[offset..offset + BLOCK], "at {offset}");
        assert!(began.elapsed() < DEADLINE, "no lease: {}", file.report());
    }
}

fn clients(volume: &TestVolume) -> Vec<serde_json::Value> {
    let finished = volume.polymux(["status", "--clients", "--json", &volume.name]);
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("it prints JSON")
}

#[test]
fn a_file_on_two_tiers_is_read_past_the_mount_and_status_names_the_program() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let file = Leased::open(&path).expect("opened");
    lease(&file, &content);
    let before = volume.messages();
    let mut random = Random::new(2);
    for length in [1, 100, BLOCK, 3 * MIB] {
        for _ in 0..READS {
            let offset = below(&mut random, content.len() - length);
            let mut buffer = vec![0; length];
            assert_eq!(file.read_at(&mut buffer, offset as u64).expect("read"), length);
            assert!(buffer == content[offset..offset + length], "{length} bytes at {offset}");
        }
    }
    assert_eq!(volume.messages().get("read"), before.get("read"), "no read reaches the daemon: {}", file.report());
    // At its end the kernel answers.
    let mut end = [0; 200];
    assert_eq!(file.read_at(&mut end, content.len() as u64 - 100).expect("read"), 100);
    assert_eq!(file.read_at(&mut end, content.len() as u64).expect("read"), 0);
    assert_eq!(file.report().reads(Way::Beyond), 2);
    let [client] = &clients(&volume)[..] else { panic!("there is one client: {:?}", clients(&volume)) };
    assert_eq!(client["pid"], std::process::id());
    assert_eq!((client["path"].as_str(), client["recalled"].as_bool()), (Some("table"), Some(false)));
    assert_eq!(client["covered_bytes"], content.len());
    drop(file);
    wait_until("the lease is given back", || clients(&volume).is_empty());
}

#[test]
fn an_open_for_changes_ends_leases_before_its_first_write_and_its_close_admits_new_ones() {
    for io in ["io = \"passthrough\"\npassthrough = \"off\"", "io = \"write-back\""] {
        let Some(volume) = start(io) else { return };
        let (path, mut content) = split(&volume, "table");
        let file = Leased::open(&path).expect("opened");
        for round in 0..5_u8 {
            lease(&file, &content);
            let writer = OpenOptions::new().write(true).open(&path).expect("opened");
            assert_eq!(clients(&volume)[0]["recalled"], true, "before the open is answered");
            let at = MIB * usize::from(round) + 123;
            content[at..at + 9000].fill(round + 1);
            writer.write_all_at(&content[at..at + 9000], at as u64).expect("written");
            assert!(block_at(&file, at) == content[at..at + BLOCK], "round {round}: {}", file.report());
            wait_until("its descriptors are given back at the next call", || clients(&volume).is_empty());
            for _ in 0..READS {
                assert!(block_at(&file, at) == content[at..at + BLOCK]);
            }
            drop(writer);
        }
        assert!(file.report().leases >= 5, "{}", file.report());
    }
}

#[test]
fn readers_past_the_mount_see_every_byte_while_ranges_move() {
    let Some(volume) = start("flush_interval = 1") else { return };
    let (path, content) = split(&volume, "table");
    let (is_over, file) = (AtomicBool::new(false), Leased::open(&path).expect("opened"));
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for reader in 0..2 {
            let (file, content, is_over) = (&file, &content, &is_over);
            scope.spawn(move || {
                let mut random = Random::new(100 + reader);
                while !is_over.load(Ordering::Relaxed) {
                    let offset = below(&mut random, content.len() - BLOCK);
                    assert!(block_at(file, offset) == content[offset..offset + BLOCK], "at {offset}");
                }
            });
        }
        for round in 0..6 {
            let tier = if round % 2 == 0 { "fast" } else { "slow" };
            let before = file.report();
            wait_until("the file is lent again", || {
                file.report().reads(Way::Directly) > before.reads(Way::Directly) + 100
            });
            migrate(&volume, &path, tier, ["0-2MiB", "2MiB-4MiB", "4MiB-8MiB"][round % 3]);
        }
    });
    let report = file.report();
    assert!(report.leases >= 3 && report.reads(Way::Recalled) > 0, "{report}, {} leases", report.leases);
}

#[test]
fn a_cut_without_an_open_ends_leases() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let file = Leased::open(&path).expect("opened");
    lease(&file, &content);
    let length = 3 * MIB + 77;
    // truncate(2) opens nothing, and neither the standard library nor the program of that name calls it.
    let cut = format!("import os; os.truncate({:?}, {length})", text(&path));
    let status = std::process::Command::new("python3").args(["-c", &cut]).status();
    assert!(status.expect("python3 starts").success());
    let mut buffer = vec![1; BLOCK];
    assert_eq!(file.read_at(&mut buffer, length as u64 - 100).expect("read"), 100, "{}", file.report());
    assert!(buffer[..100] == content[length - 100..length]);
    assert_eq!(file.read_at(&mut buffer, length as u64).expect("read"), 0);
}

#[test]
fn small_files_and_files_that_the_program_may_change_are_read_through_the_kernel() {
    // Where the kernel does not collect writes there are leases for those who change files, too.
    let Some(volume) = start("io = \"write-back\"") else { return };
    let small = closed(&volume, "small", b"a few bytes");
    let file = Leased::open(&small).expect("opened");
    for _ in 0..READS {
        assert_eq!(block_at(&file, 0), b"a few bytes");
    }
    assert_eq!((file.report().leases, file.report().reads(Way::Directly)), (0, 0));
    assert!(file.report().to_string().contains("no object"), "{}", file.report());
    let (path, content) = split(&volume, "table");
    let open = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let file = Leased::from(open);
    for _ in 0..READS {
        assert!(block_at(&file, 5 * MIB) == content[5 * MIB..5 * MIB + BLOCK]);
    }
    assert_eq!(file.report().leases, 0, "{}", file.report());
    let native = closed(&volume, "../outside", &content);
    let file = Leased::open(native).expect("opened");
    for _ in 0..READS {
        assert!(block_at(&file, MIB) == content[MIB..MIB + BLOCK]);
    }
    assert!(file.report().reads(Way::NoVolume) > 0, "{}", file.report());
}

#[test]
fn holes_are_zeros_and_names_do_not_matter() {
    let Some(volume) = start("") else { return };
    let path = volume.path().join("sparse");
    let file = File::create(&path).expect("made");
    let content = Random::new(5).bytes(MIB);
    file.write_all_at(&content, 0).and_then(|()| file.write_all_at(&content, 7 << 20)).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    migrate(&volume, &path, "slow", "6MiB-8MiB");
    let whole = fs::read(&path).expect("read");
    let file = Leased::open(&path).expect("opened");
    lease(&file, &whole);
    fs::rename(&path, volume.path().join("renamed")).expect("renamed");
    fs::remove_file(volume.path().join("renamed")).expect("removed");
    for offset in (0..whole.len() - BLOCK).step_by(300_001) {
        assert!(block_at(&file, offset) == whole[offset..offset + BLOCK], "at {offset}");
    }
    assert_eq!(clients(&volume)[0]["path"], serde_json::Value::Null);
}

#[test]
fn no_lease_outlives_its_daemon() {
    let Some(mut volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let file = Leased::open(&path).expect("opened");
    lease(&file, &content);
    let direct = file.report().reads(Way::Directly);
    volume.kill_daemon();
    volume.mount();
    // The next daemon knows nothing of the lease, and changes the bytes in their objects.
    let writer = OpenOptions::new().write(true).open(&path).expect("opened");
    writer.write_all_at(&[0xaa; BLOCK], 5 << 20).and_then(|()| writer.sync_all()).expect("written");
    // The mount of that descriptor is gone: the kernel answers with an error, or from pages that it has kept.
    let _ = file.read_at(&mut [0; BLOCK], 5 << 20);
    assert_eq!(file.report().reads(Way::Directly), direct, "the lease is over");
    let again = Leased::open(&path).expect("opened");
    assert!(block_at(&again, 5 * MIB) == [0xaa; BLOCK]);
}

#[test]
fn leases_are_off_unless_they_were_asked_for() {
    let Some(volume) = TestVolume::start_without_movers(&Plan::anywhere()) else { return };
    let content = Random::new(3).bytes(4 * MIB);
    let file = Leased::open(closed(&volume, "table", &content)).expect("opened");
    for _ in 0..READS {
        assert!(block_at(&file, MIB) == content[MIB..MIB + BLOCK]);
    }
    assert!(file.report().to_string().contains("leases are off"), "{}", file.report());
    assert!(volume.status()["leases"].is_null());
    assert!(clients(&volume).is_empty());
}

#[test]
fn a_stranger_at_the_door_gets_nothing_and_stops_nothing() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let open = File::open(&path).expect("opened");
    let ticket = ticket_of(&open).expect("issued");
    let door = || {
        let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None);
        let socket = socket.expect("a socket");
        let address = message::address_of(&ticket.door).expect("a name");
        rustix::net::connect(&socket, &address).map(|()| UnixStream::from(socket))
    };
    // A guessed ticket, garbage, and nothing at all.
    let guessed = message::redeem(&polymux_types::LeaseTicket { ticket: [9; 16], ..ticket });
    assert!(guessed.is_err(), "a ticket that was not issued is not answered");
    for garbage in [&b"x"[..], &[0xff; 24], &[0; 4096]] {
        let mut caller = door().expect("connected");
        caller.write_all(garbage).expect("sent");
        assert_eq!(caller.read(&mut [0; 64]).unwrap_or(0), 0, "it is hung up on");
    }
    let silent: Vec<_> = (0..40).filter_map(|_| door().ok()).collect();
    // Once it was answered, a ticket is good no more.
    if matches!(message::redeem(&ticket), Ok(Ok(_))) {
        assert!(message::redeem(&ticket).is_err(), "a ticket is good once");
    }
    lease(&Leased::open(&path).expect("opened"), &content);
    drop(silent);
}

#[test]
fn objects_can_be_read_and_nothing_else_even_by_root() {
    let Some(volume) = start("") else { return };
    let (path, _content) = split(&volume, "table");
    let open = File::open(&path).expect("opened");
    let (_connection, granted, _map) = granted(&open);
    assert_eq!(granted.objects.len(), 2);
    for object in &granted.objects {
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(object));
        let flags = rustix::fs::fcntl_getfl(object).expect("open");
        assert!(!flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR), "{name}");
        assert!(OpenOptions::new().write(true).open(&name).is_err(), "opened anew");
        assert!(rustix::fs::fchmod(object, rustix::fs::Mode::from_raw_mode(0o777)).is_err(), "its mode");
        let attribute = rustix::fs::fsetxattr(object, "user.polymux", b"x", rustix::fs::XattrFlags::empty());
        assert!(attribute.is_err(), "its description");
        assert!(rustix::fs::ftruncate(object, 0).is_err(), "its length");
    }
}

#[test]
fn a_lease_ends_with_the_description_that_it_was_asked_for_and_space_does_not_wait_for_its_program() {
    let Some(volume) = start("") else { return };
    let (path, _content) = split(&volume, "table");
    let (open, other) = (File::open(&path).expect("opened"), File::open(&path).expect("opened"));
    let (_connection, leased, map) = granted(&open);
    let (_other_connection, _other_lease, map_of_other) = granted(&other);
    drop(open);
    wait_until("the lease is recalled", || !map.is_current());
    assert!(map_of_other.is_current(), "that of another description is none of its business");
    wait_until("it counts until its program gives back the descriptors", || volume.status()["leases"]["recalled"] == 1);
    drop(other);
    fs::remove_file(&path).expect("removed");
    let bytes = |object| rustix::fs::fstat(object).expect("it is open").st_blocks;
    wait_until("its objects are empty", || leased.objects.iter().all(|object| bytes(object) == 0));
}

#[test]
fn one_user_takes_no_more_than_the_share_of_one_user() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let open = File::open(&path).expect("opened");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 4096) {
        return mounted::skip("a process may have too few descriptors");
    }
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("up to the maximum");
    let (mut held, mut refused, began) = (Vec::new(), 0, Instant::now());
    while held.len() < 300 && refused < 50 && began.elapsed() < DEADLINE {
        match ticket_of(&open) {
            Some(ticket) => held.extend(message::redeem(&ticket).ok().and_then(Result::ok)),
            None => refused += 1,
        }
    }
    assert!((100..=256).contains(&held.len()), "{} leases, {refused} refused", held.len());
    drop(held);
    wait_until("all are given back", || clients(&volume).is_empty());
    lease(&Leased::open(&path).expect("opened"), &content);
}

#[test]
fn a_daemon_without_descriptors_rests_at_its_door() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let ticket = ticket_of(&File::open(&path).expect("opened")).expect("issued");
    let daemon = volume.daemon_id().expect("it is mounted");
    let stat = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.as_raw_pid())).expect("it lives");
        let fields = stat.rsplit_once(')').expect("its name").1.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
    };
    // Its hard limit is that of this process and stays: only the capability to raise limits could bring it back.
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let few = rustix::process::Rlimit { current: Some(3), maximum };
    let Ok(before) = rustix::process::prlimit(Some(daemon), rustix::process::Resource::Nofile, few) else {
        return mounted::skip("the limits of another process are not to be set");
    };
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None);
    let socket = socket.expect("a socket");
    rustix::net::connect(&socket, &message::address_of(&ticket.door).expect("a name")).expect("connected");
    let used = stat();
    std::thread::sleep(Duration::from_secs(2));
    let used = stat() - used;
    rustix::process::prlimit(Some(daemon), rustix::process::Resource::Nofile, before).expect("as before");
    assert!(used < 100, "{used} of 200 ticks");
    lease(&Leased::open(&path).expect("opened"), &content);
}

#[test]
fn reads_that_devices_serve_past_the_mount_are_use() {
    let Some(volume) = start("") else { return };
    let (path, content) = split(&volume, "table");
    let file = Leased::open(&path).expect("opened");
    lease(&file, &content);
    if !mounted::is_root() {
        return mounted::skip("dropping caches needs root");
    }
    mounted::environment::drop_caches();
    let mut random = Random::new(8);
    for _ in 0..READS {
        let offset = below(&mut random, content.len() - BLOCK);
        assert!(block_at(&file, offset) == content[offset..offset + BLOCK]);
    }
    wait_until("the reads are counted", || clients(&volume)[0]["device_reads"].as_u64() > Some(5));
}
