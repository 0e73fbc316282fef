//! `kill -9` of the daemon under mixed load while blocks move between the tiers: writers with and without the page cache,
//! names, mapped memory in another process, moves on request, a policy at work, now and then a drain.

mod mounted;
mod promises;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mounted::command::wait_within;
use mounted::{Plan, Random, TestVolume, have_program, one_at_a_time, skip};
use promises::history::{Ledger, Position};
use promises::judge::{Checked, judge, take_up};
use promises::workload::{Syncing, WRITERS, Writer, move_about};

/// Fills pages of a mapped file with growing numbers; reports on standard output each coming write (`w page number`)
/// and each page made durable by msync (`s page number`), until the mapping fails.
const MAPPED_WRITER: &str = r"
import mmap, os, random, sys
path, seed, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
with open(path, 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:
    number = first
    while True:
        pages = [chance.randrange(len(memory) // 4096) for _ in range(chance.randrange(1, 6))]
        for page in pages:
            number += 1
            sys.stdout.write(f'w {page} {number}\n')
            sys.stdout.flush()
            memory[page * 4096:(page + 1) * 4096] = number.to_bytes(8, 'little') * 512
        written = {}
        for page in pages:
            written[page] = int.from_bytes(memory[page * 4096:page * 4096 + 8], 'little')
        memory.flush()
        for page, value in written.items():
            sys.stdout.write(f's {page} {value}\n')
        sys.stdout.flush()
";
const MAPPED_PAGES: u64 = 900;

/// State of the process with the mapped file: for each page the number synced last, and the last number that was written.
struct Mapped {
    synced: Vec<u64>,
    last: u64,
}

impl Mapped {
    fn prepare(volume: &TestVolume) -> Self {
        let file = File::create(volume.path().join("mapped")).expect("a file can be made");
        file.set_len(MAPPED_PAGES * 4096).and_then(|()| file.sync_all()).expect("it can be made longer");
        Self { synced: vec![0; usize::try_from(MAPPED_PAGES).expect("few pages")], last: 0 }
    }

    fn start(&self, volume: &TestVolume, seed: u64) -> Child {
        let said = File::create(volume.outside().join("mapped.log")).expect("a file can be made");
        let mut command = Command::new("python3");
        command.args(["-c", MAPPED_WRITER]).arg(volume.path().join("mapped"));
        command.args([seed.to_string(), self.last.to_string()]);
        command.stdin(Stdio::null()).stdout(said).stderr(Stdio::null());
        command.spawn().expect("python3 starts")
    }

    /// Judges the file after the process and the daemon have died, and takes it as it is.
    fn judge(&mut self, volume: &TestVolume) -> u64 {
        let said = fs::read_to_string(volume.outside().join("mapped.log")).expect("the log can be read");
        let mut written: Vec<Vec<u64>> = vec![Vec::new(); self.synced.len()];
        for line in said.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, page, number] = words[..] else { continue };
            let (Ok(page), Ok(number)) = (page.parse::<usize>(), number.parse::<u64>()) else { continue };
            self.last = self.last.max(number);
            match kind {
                "w" => written[page].push(number),
                _ => self.synced[page] = number,
            }
        }
        let file = File::options().read(true).write(true).open(volume.path().join("mapped")).expect("it is there");
        for (page, later) in (0_u64..).zip(&written) {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, page * 4096).expect("it has its length and can be read");
            let synced = &mut self.synced[usize::try_from(page).expect("few pages")];
            let numbers: Vec<u64> =
                bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
            // A page that is being filled is written back as it is at that moment.
            let is_right = |number: &u64| number == synced || (*number > *synced && later.contains(number));
            let wrong = numbers.iter().find(|number| !is_right(number));
            assert_eq!(wrong, None, "mapped page {page}: {synced} was synced, then {later:?} written");
            // Whatever it is, all of it is one number before the next round.
            *synced = *numbers.last().expect("a page has words");
            if numbers.iter().any(|number| number != synced) {
                file.write_all_at(&synced.to_le_bytes().repeat(512), page * 4096).expect("it can be written");
            }
        }
        file.sync_all().expect("it can be synced");
        self.synced.len() as u64
    }
}

/// The tier that everything fits on.
const LARGE_TIER: &str = "slow";

/// Empties one tier or the other for a while. The fast one alone may have too little free space for the writes meanwhile.
fn drain_now_and_then(volume: &TestVolume, stop: &AtomicBool, is_room_short: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed);
    if random.below(3) > 0 {
        return;
    }
    let tier = random.pick(&["fast", LARGE_TIER]);
    is_room_short.store(tier == LARGE_TIER, Ordering::SeqCst);
    volume.polymux(["tier", "drain", &volume.name, tier]);
    let end = Instant::now() + Duration::from_millis(random.below(500));
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    volume.polymux(["tier", "drain", &volume.name, tier, "--cancel"]);
}

/// Load until the daemon is killed at a random moment.
fn work_and_kill(volume: &mut TestVolume, ledgers: Vec<Ledger>, mapped: &Mapped, seed: u64) -> Vec<Ledger> {
    let (is_killed, stop, is_room_short) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let clock = || Position(1);
    let root = volume.path().to_owned();
    let mut process = mapped.start(volume, seed);
    let mut pid = None;
    let ledgers = std::thread::scope(|scope| {
        let spawn = |(number, ledger): (u64, Ledger)| {
            let writer = Writer::new(&root, &clock, ledger, Syncing::Real, seed * 10 + number);
            let (stop, is_killed, is_room_short) = (&stop, &is_killed, &is_room_short);
            scope.spawn(move || {
                let (ledger, outcome) = writer.run(stop);
                let is_full = outcome.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::StorageFull);
                let is_expected = outcome.is_ok()
                    || is_killed.load(Ordering::SeqCst)
                    || is_full && is_room_short.load(Ordering::SeqCst);
                assert!(is_expected, "an operation fails while the daemon lives: {outcome:?}");
                ledger
            })
        };
        let writers: Vec<_> = (1..).zip(ledgers).map(spawn).collect();
        let shared = &*volume;
        let mover = scope.spawn(|| move_about(shared, &stop, seed));
        let drainer = scope.spawn(|| drain_now_and_then(shared, &stop, &is_room_short, seed));
        std::thread::sleep(Duration::from_millis(200 + Random::new(seed).below(1_300)));
        pid = shared.daemon_id();
        is_killed.store(true, Ordering::SeqCst);
        let _ = rustix::process::kill_process(pid.expect("it is mounted"), rustix::process::Signal::KILL);
        stop.store(true, Ordering::SeqCst);
        mover.join().and(drainer.join()).expect("moving does not panic");
        writers.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect()
    });
    volume.kill_daemon();
    if wait_within(&mut process, Duration::from_secs(5)).is_none() {
        let _ = process.kill();
        let _ = process.wait();
    }
    ledgers
}

/// Exit code 0, and nothing is said to be wrong.
#[track_caller]
fn assert_sound(volume: &TestVolume, how: &str) {
    let finished = volume.polymux(["fsck", how, &volume.name]);
    assert_eq!(finished.status.code(), Some(0), "fsck {how}: {}", finished.text());
}

#[test]
fn what_was_promised_survives_kill_9_under_mixed_load_with_moves_under_way() {
    if !have_program("python3") {
        return skip("python3 is not installed");
    }
    let rounds = std::env::var("POLYMUX_KILL_ROUNDS").ok().filter(|text| !text.is_empty());
    let rounds: Option<u64> = rounds.map(|text| text.parse().expect("POLYMUX_KILL_ROUNDS is a number"));
    let _turn = rounds.is_none().then(one_at_a_time);
    let Some(mut volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("20 MiB")) else { return };
    let prepare = |writer| Writer::prepare(volume.path(), writer, u64::from(writer)).expect("it can be written to");
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(prepare).collect();
    let mut mapped = Mapped::prepare(&volume);
    let (start, mut all) = (Instant::now(), Checked::default());
    for round in 0..rounds.unwrap_or(4) {
        ledgers = work_and_kill(&mut volume, ledgers, &mapped, 100 + round);
        if round % 4 == 3 {
            assert_sound(&volume, "-n");
        }
        volume.mount();
        let checked = judge(volume.path(), &ledgers, Position(usize::MAX));
        all.add(checked.unwrap_or_else(|wrong| panic!("round {round}:\n{wrong}")));
        all.sectors += 8 * mapped.judge(&volume);
        for ledger in &mut ledgers {
            take_up(volume.path(), ledger).expect("what is there can be synced");
        }
        assert_sound(&volume, "--online");
        // A drain goes on after the crash, and the next round might run out of space.
        volume.polymux(["tier", "drain", &volume.name, LARGE_TIER, "--cancel"]);
        if round % 8 == 7 {
            volume.unmount();
            assert_sound(&volume, "-n");
            volume.mount();
        }
        println!("round {round}: {all:?}, {} s", start.elapsed().as_secs());
    }
    volume.unmount();
    assert_sound(&volume, "-n");
}
