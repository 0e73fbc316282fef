//! Unmodified programs on files whose blocks move under them: fio, which verifies every block that it reads (cached, around
//! the page cache, and mapped), SQLite, and git. Nothing may ever notice.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mounted::command::wait_within;
use mounted::{Plan, TestVolume, have_program, is_heavy, skip};
use serde_json::Value;

/// Name of the test volumes.
const NAME: &str = "tested";

const DEADLINE: Duration = Duration::from_secs(240);

/// A volume of three tiers, the third in a directory beside the volume.
fn volume() -> Option<TestVolume> {
    let missing = ["fio", "sqlite3", "git"].into_iter().find(|program| !have_program(program));
    if let Some(program) = missing {
        skip(&format!("{program} is not installed"));
        return None;
    }
    let mut volume = TestVolume::create(&Plan::anywhere())?;
    // A tier that holds the second copy of the metadata would have to stay.
    let config = fs::read_to_string(volume.config_path()).expect("the configuration can be read");
    let config = format!("{config}\n[options]\nmetadata_copy = \"none\"\n");
    fs::write(volume.config_path(), config).expect("the configuration can be written");
    volume.mount();
    let third = volume.outside().join("third");
    fs::create_dir(&third).expect("a directory for a tier");
    let tier = format!("third={}", third.display());
    let added = volume.polymux(["tier", "add", NAME, &tier]);
    assert!(added.is_success(), "{}", added.text());
    Some(volume)
}

/// A program at work, ended when the test ends before it.
struct Load {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Load {
    fn start(volume: &TestVolume, name: &str, command: &mut Command) -> Self {
        let output = volume.outside().join(format!("{name}.out"));
        let file = fs::File::create(&output).expect("a file for what it says");
        let copy = file.try_clone().expect("a descriptor can be copied");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn().expect("it starts");
        Self { name: name.to_owned(), child, output }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("an own child can be asked").is_none()
    }

    /// Waits for its end, which must be a good one.
    fn finish(mut self) {
        let status = wait_within(&mut self.child, DEADLINE).unwrap_or_else(|| panic!("{} does not end", self.name));
        let said = fs::read_to_string(&self.output).unwrap_or_default();
        assert!(status.success(), "{} noticed something: {said}", self.name);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if self.is_running() {
            // It may end between the question and the signal.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// fio writes blocks at random into a file of its own and verifies them again and again.
fn fio(volume: &TestVolume, name: &str, seconds: u64, options: &[&str]) -> Load {
    let file = volume.path().join(name);
    let mut command = Command::new("fio");
    command
        .current_dir(volume.outside())
        .arg(format!("--name={name}"))
        .arg(format!("--filename={}", file.display()))
        .args(["--size=24m", "--bs=4k", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"])
        .args(["--verify_backlog=256", "--time_based", "--fallocate=none", "--thread"])
        .arg(format!("--runtime={seconds}"))
        .args(options);
    Load::start(volume, name, &mut command)
}

/// Makes a file of holes, and leaves it open.
fn new_file(path: &Path, length: u64) -> fs::File {
    let file = fs::File::create_new(path).expect("the volume takes a file");
    file.set_len(length).expect("it can be as long as the volume has room");
    file
}

fn script(volume: &TestVolume, name: &str, text: &str) -> Load {
    let mut command = Command::new("sh");
    command.arg("-euc").arg(text).current_dir(volume.path());
    Load::start(volume, name, &mut command)
}

fn counters(volume: &TestVolume) -> BTreeMap<String, u64> {
    let status = volume.polymux(["status", NAME, "--json"]);
    let report: Value = serde_json::from_str(&status.stdout).expect("status prints JSON");
    let report = report.get(0).cloned().unwrap_or(report);
    let counters = report["counters"].as_object().expect("counters are an object").clone();
    counters.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

/// Moves files from tier to tier until none of the loads runs any more; returns how often each went.
fn bounce(volume: &TestVolume, files: &[&Path], loads: &mut [Load]) -> u32 {
    let mut rounds = 0;
    let start = Instant::now();
    while loads.iter_mut().all(Load::is_running) {
        for tier in ["slow", "third", "fast"] {
            for file in files.iter().filter(|file| file.exists()) {
                let moved = volume.polymux(["migrate", &file.display().to_string(), "--to", tier, "--wait"]);
                assert!(moved.is_success(), "{}", moved.text());
            }
        }
        rounds += 1;
        assert!(start.elapsed() < DEADLINE, "the loads do not end");
    }
    rounds
}

#[test]
fn fio_finds_no_difference_in_files_that_go_from_tier_to_tier() {
    let Some(mut volume) = volume() else { return };
    let seconds = if is_heavy() { 180 } else { 15 };
    let names = ["cached", "direct", "mapped"];
    let options: [&[&str]; 3] =
        [&["--ioengine=psync", "--fsync=64"], &["--ioengine=psync", "--direct=1"], &["--ioengine=mmap", "--fsync=64"]];
    let files: Vec<PathBuf> = names.iter().map(|name| volume.path().join(name)).collect();
    // A file that the kernel uses by itself would wait until it is closed. These go through the daemon from the time when they
    // are made, and so does every open of such a file meanwhile.
    let kept_open: Vec<fs::File> = files.iter().map(|file| new_file(file, 24 << 20)).collect();
    let mut loads: Vec<Load> =
        names.iter().zip(options).map(|(name, options)| fio(&volume, name, seconds, options)).collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let rounds = bounce(&volume, &files, &mut loads);
    loads.into_iter().for_each(Load::finish);
    drop(kept_open);
    let counters = counters(&volume);
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    println!(
        "{rounds} rounds, {} parts moved, {} written to meanwhile, {} rounds again, {} stopped, {} kept writers out",
        of("moves_committed"),
        of("move_conflicts"),
        of("move_retries"),
        of("moves_stopped"),
        of("move_lock_fallbacks"),
    );
    assert!(rounds > 0 && of("moves_committed") > 0, "the files did not move");
    assert!(of("move_retries") > 0, "nothing was written while it was copied, so the test shows nothing");
    // The files of fio are verified once more, from the tiers.
    volume.unmount();
    volume.mount();
    for name in names {
        let mut command = Command::new("fio");
        let file = volume.path().join(name);
        command.current_dir(volume.outside()).arg(format!("--name={name}"));
        command.arg(format!("--filename={}", file.display()));
        command.args(["--size=24m", "--bs=4k", "--rw=read", "--ioengine=psync"]);
        Load::start(&volume, &format!("{name}-again"), &mut command).finish();
    }
}

const SQLITE: &str = r#"
sqlite3 base.db "PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB);" > /dev/null
end=$(($(date +%s) + SECONDS_TO_RUN))
while [ $(date +%s) -lt $end ]; do
    sqlite3 -cmd '.timeout 20000' base.db "INSERT INTO t(body) SELECT randomblob(3000) FROM generate_series(1, 20);"
    sqlite3 -cmd '.timeout 20000' base.db "UPDATE t SET body = randomblob(3000) WHERE id % 7 = 3;"
    test "$(sqlite3 base.db 'PRAGMA integrity_check;')" = ok
done
"#;

const GIT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME=$PWD
git -c init.defaultBranch=main init -q origin
cd origin
for file in $(seq 1 200); do seq $file $((file * 37)) > file-$file; done
git -c user.name=n -c user.email=e add . && git -c user.name=n -c user.email=e commit -q -m one
cd ..
end=$(($(date +%s) + SECONDS_TO_RUN))
while [ $(date +%s) -lt $end ]; do
    rm -rf clone
    git clone -q --no-local origin clone
    git -C clone fsck --full --strict > /dev/null
    test -z "$(git -C clone status --porcelain)"
done
"#;

#[test]
fn a_drain_under_fio_sqlite_and_git_ends_empty_and_none_of_them_notices() {
    let Some(volume) = volume() else { return };
    let seconds = if is_heavy() { 60 } else { 12 };
    // Half of the volume lies on the tier that is drained.
    for index in 0..40 {
        let file = volume.path().join(format!("half-{index}"));
        fs::write(&file, vec![u8::try_from(index).expect("small"); 1 << 20]).expect("the volume takes a file");
        if index % 2 == 0 {
            let moved = volume.polymux(["migrate", &file.display().to_string(), "--to", "slow", "--wait"]);
            assert!(moved.is_success(), "{}", moved.text());
        }
    }
    let with_time = |text: &str| text.replace("SECONDS_TO_RUN", &seconds.to_string());
    let loads = [
        fio(&volume, "fio", seconds, &["--ioengine=psync", "--fsync=32"]),
        script(&volume, "sqlite", &with_time(SQLITE)),
        script(&volume, "git", &with_time(GIT)),
    ];
    // They get their files onto the tier first.
    std::thread::sleep(Duration::from_secs(2));
    for name in ["fio", "base.db"] {
        let file = volume.path().join(name);
        let moved = volume.polymux(["migrate", &file.display().to_string(), "--to", "slow", "--wait"]);
        assert!(moved.is_success(), "{}", moved.text());
    }
    let drained = volume.polymux(["tier", "drain", NAME, "slow", "--wait"]);
    assert!(drained.is_success() && drained.text().contains("safe to remove"), "{}", drained.text());
    loads.into_iter().for_each(Load::finish);
    let removed = volume.polymux(["tier", "remove", NAME, "slow"]);
    assert!(removed.is_success(), "{}", removed.text());
    for index in 0..40 {
        let content = fs::read(volume.path().join(format!("half-{index}"))).expect("it can be read");
        assert!(content.len() == 1 << 20 && content.iter().all(|byte| usize::from(*byte) == index));
    }
}
