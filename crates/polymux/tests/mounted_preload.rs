//! Programs that know nothing of leases and read past the mount all the same (docs/design/0047): each does and says the same as on a native file system.

#[path = "leases/asking.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod asking;
#[path = "preload/libraries.rs"]
mod libraries;
mod mounted;
#[path = "preload/scripts.rs"]
mod scripts;
#[path = "preload/stage.rs"]
mod stage;

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mounted::native::text;
use mounted::tool::fsx;
use mounted::{is_heavy, run_within};
use scripts::{PYTHON, PYTHON_PRELUDE, SHELL};
use stage::{Stage, has_direct_reads, has_direct_writes, in_path};

const CASES: [&str; 6] =
    ["cases.c", "cases_descriptors.c", "cases_processes.c", "cases_contents.c", "cases_threads.c", "cases_writes.c"];
const DEADLINE: Duration = Duration::from_secs(60);

fn has_direct_calls(list: &str, report: &str) -> bool {
    if list == "writes" { has_direct_writes(report) } else { has_direct_reads(report) }
}

/// Runs the cases of one list, whose names `cases` prints with the name of the list.
fn run_cases(stage: &Stage, list: &str, cases_min: usize) {
    let program = stage.compile(&CASES);
    let listed = run_within(&mut Command::new(&program), DEADLINE);
    listed.assert_success();
    let (mut run, mut failures) = (0, Vec::new());
    for line in listed.stdout.lines() {
        let [of, kind, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        if of != list {
            continue;
        }
        let outcome = stage.compare(name, &program, &[name, "."]).and_then(|report| match kind != "direct" {
            false if !has_direct_calls(list, &report) => Err(format!("{name}: nothing went past the mount: {report}")),
            _ => Ok(()),
        });
        failures.extend(outcome.err());
        run += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(run >= cases_min, "only {run} cases");
}

/// On one of the two stages, and with `POLYMUX_HEAVY=1` on the other one, too.
fn run_on(start: fn() -> Option<Stage>, list: &str, cases_min: usize) {
    let starts = [Stage::start, Stage::start_for_changes];
    let others = starts.into_iter().filter(|other| is_heavy() && !std::ptr::fn_addr_eq(*other, start));
    let mut stages = std::iter::once(start).chain(others).filter_map(|start| start()).peekable();
    // Before Linux 6.16 there is the first one alone.
    let fallback = if stages.peek().is_none() { Stage::start() } else { None };
    stages.chain(fallback).for_each(|stage| run_cases(&stage, list, cases_min));
}

#[test]
fn numbers_of_descriptors_mean_under_the_library_what_they_mean_natively() {
    run_on(Stage::start, "descriptors", 40);
}

#[test]
fn forks_and_children_do_under_the_library_what_they_do_natively() {
    run_on(Stage::start, "processes", 35);
}

#[test]
fn contents_and_errors_are_under_the_library_what_they_are_natively() {
    run_on(Stage::start_for_changes, "contents", 30);
}

#[test]
fn threads_signals_and_cancellations_are_under_the_library_what_they_are_natively() {
    run_on(Stage::start_for_changes, "threads", 25);
}

#[test]
fn writes_do_under_the_library_what_they_do_natively() {
    if let Some(stage) = Stage::start_for_changes() {
        run_cases(&stage, "writes", 40);
    }
}

#[test]
fn scripts_do_under_the_library_what_they_do_natively() {
    let Some(stage) = Stage::start() else { return };
    let (python, shell) = (in_path("python3"), in_path("sh"));
    let in_python = PYTHON
        .iter()
        .map(|(name, is_direct, text)| (*name, *is_direct, python.clone(), format!("{PYTHON_PRELUDE}{text}")));
    let in_shell = SHELL.iter().map(|(name, text)| (*name, false, shell.clone(), (*text).to_owned()));
    for (name, is_direct, program, text) in in_python.chain(in_shell) {
        let report = stage.compare(name, &program, &["-c", &text]).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(!is_direct || has_direct_reads(&report), "{name}: nothing was read past the mount: {report}");
    }
}

#[test]
fn readers_see_every_byte_while_ranges_move_and_the_daemon_ends() {
    let Some(mut stage) = Stage::start() else { return };
    let program = stage.compile(&["reads_for_long.c"]);
    let path = stage.mounted().join("table");
    let run = |seconds: &str| {
        let report = stage.volume.outside().join("long-report");
        let mut command = Command::new(&program);
        command.arg(&path).arg(seconds).env("LD_PRELOAD", stage.preloaded()).env("POLYMUX_REPORT", &report);
        (command, report)
    };
    let (mut command, report) = run("3");
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            for round in 0..6 {
                let tier = if round % 2 == 0 { "fast" } else { "slow" };
                asking::migrate(&stage.volume, &path, tier, "2MiB-6MiB");
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        run_within(&mut command, DEADLINE).assert_success();
        moves.join().expect("moved");
    });
    let text = std::fs::read_to_string(&report).expect("a report");
    assert!(has_direct_reads(&text) && text.contains("the lease was recalled"), "{text}");
    let (mut command, _) = run("30");
    let mut reader = command.spawn().expect("started");
    std::thread::sleep(Duration::from_millis(500));
    stage.volume.kill_daemon();
    let status = mounted::command::wait_within(&mut reader, DEADLINE).expect("it ends with the mount");
    // Reads end with an error of the dead mount, and none with wrong bytes.
    assert_eq!(status.code(), Some(3), "{status}");
}

#[test]
fn polymux_run_sets_it_up_and_reports() {
    let Some(stage) = Stage::start() else { return };
    let program = stage.compile(&CASES);
    let mut command = Command::new(stage.polymux());
    command.args(["run", "--report", "--"]).arg(&program).args(["reads_all_over", text(&stage.mounted())]);
    let finished = run_within(&mut command, DEADLINE);
    finished.assert_success();
    let [line] = finished.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", finished.text()) };
    assert!(line.starts_with("polymux: ") && line.contains("/table: reads: ") && has_direct_reads(line), "{line}");
    let mut command = Command::new(stage.polymux());
    let finished = run_within(command.args(["run", "--", "/nonexistent"]), DEADLINE);
    assert!(!finished.is_success() && finished.stderr.contains("cannot run /nonexistent"), "{}", finished.text());
}

#[test]
fn a_process_that_reads_nothing_of_a_volume_has_nothing_of_it() {
    let Some(stage) = Stage::start() else { return };
    let script = "import os; n = os.open('/proc/self/exe', os.O_RDONLY); [os.pread(n, 100, 0) for _ in range(100)]; \
                  print('libpolymux_direct' in open('/proc/self/maps').read(), len(os.listdir('/proc/self/fd')))";
    let without = run_within(Command::new(in_path("python3")).args(["-c", script]), DEADLINE);
    let mut command = Command::new(in_path("python3"));
    let with = run_within(command.args(["-c", script]).env("LD_PRELOAD", stage.preloaded()), DEADLINE);
    assert_eq!((with.stdout.as_str(), with.stderr.as_str()), (without.stdout.as_str(), ""));
    assert!(with.stdout.starts_with("False"), "{}", with.stdout);
}

/// Operations of fsx without those that use pages of the kernel, which end leases.
const WITHOUT_PAGES: &str = "
flen = 4194304
[opsize]
max = 131072
[weights]
close_open = 1
read = 600
write = 600
truncate = 1
fsync = 10
fdatasync = 10
punch_hole = 1
";
/// All that it knows.
const WITH_PAGES: &str = "
flen = 4194304
[opsize]
max = 131072
[weights]
close_open = 1
read = 20
write = 20
mapread = 1
mapwrite = 1
invalidate = 1
truncate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
";

/// fsx on a file half of which is moved back and forth meanwhile.
#[test]
fn fsx_finds_no_difference_under_the_library() {
    let Some(stage) = Stage::start_for_changes() else { return };
    let fsx = fsx();
    // Within the time that a program of the stage has.
    let operations = if is_heavy() { "60000" } else { "10000" };
    for (name, config) in [("without", WITHOUT_PAGES), ("with", WITH_PAGES)] {
        let (path, config_path) = (stage.mounted().join(name), stage.volume.outside().join(format!("{name}.toml")));
        fs::write(&config_path, config).expect("written");
        let is_over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                for tier in ["slow", "fast"].into_iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    // A cut that comes meanwhile stops a move.
                    stage.volume.polymux(["migrate", text(&path), "--to", tier, "--range", "0-2MiB", "--wait"]);
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            let _over = asking::Over(&is_over);
            let arguments = [
                "-q",
                "-N",
                operations,
                "-S",
                "1",
                "-f",
                text(&config_path),
                "-P",
                text(stage.volume.outside()),
                text(&path),
            ];
            let (finished, report) = stage.run_past_the_mount(&fsx, &arguments);
            assert!(finished.is_success(), "{name}: {}", finished.text());
            report
        });
        // Pages end leases, sooner or later.
        assert!(name == "with" || has_direct_writes(&report), "{report}");
    }
}
