//! The cost of making a new file durable, and of making data and log durable together, on the file system of a directory.
//!
//! `cargo run --release -p polymux-tier --example sync_cost -- DIRECTORY [ROUNDS]` prints percentiles and the CPU time of
//! each variant. The variants take turns within one run, so that whatever else the machine does falls on all of them
//! alike. `docs/design/0005-new-objects-and-fsync.md` has the decision based on it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const NEW_FILE_LENGTH: usize = 64 * 1024;
const APPEND_LENGTH: usize = 4096;
const LOG_LENGTH: usize = 8 << 20;
const LOG_RECORD_LENGTH: usize = 512;

type Round<'a> = Box<dyn FnMut(u64) -> io::Result<()> + 'a>;

/// One variant: the work before the clock starts, and the measured work.
struct Variant<'a> {
    name: &'static str,
    prepare: Round<'a>,
    measured: Round<'a>,
    elapsed: Vec<Duration>,
    cpu: Duration,
}

impl<'a> Variant<'a> {
    fn new(
        name: &'static str,
        prepare: impl FnMut(u64) -> io::Result<()> + 'a,
        measured: impl FnMut(u64) -> io::Result<()> + 'a,
    ) -> Self {
        Self {
            name,
            prepare: Box::new(prepare),
            measured: Box::new(measured),
            elapsed: Vec::new(),
            cpu: Duration::ZERO,
        }
    }
}

/// CPU time of the process so far, all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn run(title: &str, rounds: u64, mut variants: Vec<Variant<'_>>) -> io::Result<()> {
    for round in 0..rounds {
        for variant in &mut variants {
            (variant.prepare)(round)?;
            let (begin, cpu) = (Instant::now(), cpu_time());
            (variant.measured)(round)?;
            variant.elapsed.push(begin.elapsed());
            variant.cpu += cpu_time() - cpu;
        }
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{title} ({rounds} rounds)")?;
    writeln!(out, "  {:<52} {:>10} {:>10} {:>10} {:>10}", "", "p10 us", "median us", "p90 us", "CPU us")?;
    for variant in &mut variants {
        variant.elapsed.sort_unstable();
        let at = |part: usize| variant.elapsed[variant.elapsed.len() * part / 100].as_secs_f64() * 1e6;
        let cpu = variant.cpu.as_secs_f64() * 1e6 / variant.elapsed.len() as f64;
        writeln!(out, "  {:<52} {:>10.0} {:>10.0} {:>10.0} {:>10.1}", variant.name, at(10), at(50), at(90), cpu)?;
    }
    Ok(())
}

fn nothing(_round: u64) -> io::Result<()> {
    Ok(())
}

fn make(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

fn new_files(base: &Path, rounds: u64) -> io::Result<()> {
    let data = vec![7_u8; NEW_FILE_LENGTH];
    let directory = |name: &str| -> io::Result<(PathBuf, File)> {
        let path = base.join(name);
        std::fs::create_dir(&path)?;
        let handle = File::open(&path)?;
        handle.sync_all()?;
        Ok((path, handle))
    };
    let fresh = |path: &Path, round: u64| -> io::Result<File> {
        let file = make(&path.join(format!("{round:016x}")))?;
        file.write_all_at(&data, 0)?;
        Ok(file)
    };
    let pooled = |path: &Path, handle: &File, round: u64, reserve: u64| -> io::Result<()> {
        let file = make(&path.join(format!("{round:016x}")))?;
        if reserve > 0 {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, reserve)?;
        }
        file.sync_all()?;
        handle.sync_all()
    };
    let reused = |path: &Path, round: u64| -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path.join(format!("{round:016x}")))?;
        file.write_all_at(&data, 0)?;
        file.sync_data()
    };
    let [a, b, c, d, e, f, g] = ["a", "b", "c", "d", "e", "f", "g"]
        .map(directory)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?
        .try_into()
        .map_err(|_| io::Error::other("seven directories"))?;
    let variants = vec![
        Variant::new("new: fdatasync of the file", nothing, |round| fresh(&a.0, round)?.sync_data()),
        Variant::new("new: fdatasync of the file, fsync of the directory", nothing, |round| {
            fresh(&b.0, round)?.sync_data()?;
            b.1.sync_all()
        }),
        Variant::new("new: fsync of the directory, fdatasync of the file", nothing, |round| {
            let file = fresh(&c.0, round)?;
            c.1.sync_all()?;
            file.sync_data()
        }),
        Variant::new("new: syncfs", nothing, |round| {
            fresh(&d.0, round)?;
            Ok(rustix::fs::syncfs(&d.1)?)
        }),
        Variant::new(
            "ready: made and synced before, fdatasync",
            |round| pooled(&e.0, &e.1, round, 0),
            |round| reused(&e.0, round),
        ),
        Variant::new(
            "ready, with room reserved before, fdatasync",
            |round| pooled(&f.0, &f.1, round, NEW_FILE_LENGTH as u64),
            |round| reused(&f.0, round),
        ),
        Variant::new(
            "old file of that length overwritten, fdatasync",
            |round| fresh(&g.0, round)?.sync_all(),
            |round| reused(&g.0, round),
        ),
    ];
    run("A new file of 64 KiB", rounds, variants)
}

/// A log whose space was written once, so that a flush changes no metadata.
fn log_file(base: &Path, name: &str) -> io::Result<File> {
    let file = make(&base.join(name))?;
    file.write_all_at(&vec![0; LOG_LENGTH], 0)?;
    file.sync_all()?;
    Ok(file)
}

fn flush_log(log: &File, round: u64) -> io::Result<()> {
    let places = (LOG_LENGTH / LOG_RECORD_LENGTH) as u64;
    log.write_all_at(&[1; LOG_RECORD_LENGTH], round % places * LOG_RECORD_LENGTH as u64)?;
    log.sync_data()
}

/// Starts write-out of a file without waiting for it.
fn start_write_out(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call, which touches no memory of this process.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn append(file: &File, round: u64) -> io::Result<()> {
    file.write_all_at(&[7; APPEND_LENGTH], round * APPEND_LENGTH as u64)
}

/// One file for each variant, written to its full length before where it is to be overwritten.
fn data_files(base: &Path, rounds: u64, overwrite: bool) -> io::Result<[File; 6]> {
    let data_file = |name: &str| -> io::Result<File> {
        let file = make(&base.join(format!("{name}{}", u8::from(overwrite))))?;
        if overwrite {
            file.write_all_at(&vec![0; APPEND_LENGTH * usize::try_from(rounds).unwrap_or(1)], 0)?;
        }
        file.sync_all()?;
        Ok(file)
    };
    let files = ["only", "one", "two", "three", "four", "five"].map(data_file);
    let files: Vec<File> = files.into_iter().collect::<io::Result<_>>()?;
    files.try_into().map_err(|_| io::Error::other("six files"))
}

/// The loop of the parked thread: a sync for each message, until there are no more.
fn serve(parked: &File, work: &mpsc::Receiver<()>, answers: &mpsc::Sender<io::Result<()>>) {
    while work.recv().is_ok() && answers.send(parked.sync_data()).is_ok() {}
}

fn data_and_log(base: &Path, rounds: u64, overwrite: bool) -> io::Result<()> {
    let log = log_file(base, if overwrite { "log" } else { "log.appends" })?;
    let [only, one, two, three, four, five] = data_files(base, rounds, overwrite)?;
    let (jobs, work) = mpsc::channel::<()>();
    let (answers, outcomes) = mpsc::channel::<io::Result<()>>();
    std::thread::scope(|scope| {
        let parked = &five;
        scope.spawn(move || serve(parked, &work, &answers));
        let title = if overwrite { "4 KiB overwritten, and a log record" } else { "4 KiB appended, and a log record" };
        let variants = vec![
            Variant::new("the data alone", |round| append(&only, round), |_| only.sync_data()),
            Variant::new("the log alone", nothing, |round| flush_log(&log, round)),
            Variant::new(
                "data, then log",
                |round| append(&one, round),
                |round| {
                    one.sync_data()?;
                    flush_log(&log, round)
                },
            ),
            Variant::new(
                "log, then data",
                |round| append(&two, round),
                |round| {
                    flush_log(&log, round)?;
                    two.sync_data()
                },
            ),
            Variant::new(
                "start write-out, log, then data",
                |round| append(&three, round),
                |round| {
                    start_write_out(&three)?;
                    flush_log(&log, round)?;
                    three.sync_data()
                },
            ),
            Variant::new(
                "data on a thread made for it, log here",
                |round| append(&four, round),
                |round| {
                    std::thread::scope(|scope| {
                        let data = scope.spawn(|| four.sync_data());
                        flush_log(&log, round)?;
                        data.join().map_err(|_| io::Error::other("the thread ended abnormally"))?
                    })
                },
            ),
            Variant::new(
                "data on a parked thread, log here",
                |round| append(&five, round),
                |round| {
                    jobs.send(()).map_err(io::Error::other)?;
                    flush_log(&log, round)?;
                    outcomes.recv().map_err(io::Error::other)?
                },
            ),
        ];
        let outcome = run(title, rounds, variants);
        // The parked thread ends with its channel.
        drop(jobs);
        outcome
    })
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || io::Error::other("usage: sync_cost DIRECTORY [ROUNDS]");
    let parent = PathBuf::from(arguments.next().ok_or_else(usage)?);
    let rounds = arguments.next().map_or(Ok(300), |text| text.parse().map_err(|_| usage()))?;
    let base = parent.join(format!("sync_cost.{}", std::process::id()));
    std::fs::create_dir(&base)?;
    let outcome = new_files(&base, rounds)
        .and_then(|()| data_and_log(&base, rounds, false))
        .and_then(|()| data_and_log(&base, rounds, true));
    std::fs::remove_dir_all(&base)?;
    outcome
}
