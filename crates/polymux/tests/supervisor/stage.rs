//! A volume whose mount has a supervisor.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::mounted::command::Finished;
use crate::mounted::volume::children_of;
use crate::mounted::{Plan, Random, TestVolume, skip};

/// How long anything may take that is waited for.
const DEADLINE: Duration = Duration::from_secs(120);
/// Longest time between two deaths of daemons.
const LIFE_MS_MAX: u64 = 400;

/// Moment of a request at which daemons can be made to die.
#[derive(Clone, Copy)]
pub enum Moment {
    /// The request was read, and nothing was done.
    Start,
    /// The request was carried out, and is not answered.
    Answer,
}

/// A mounted volume with its supervisor.
pub struct Stage {
    volume: TestVolume,
    random: Random,
}

impl Stage {
    /// Makes and mounts a volume. `None`, after saying why, where mounts do not outlive their daemons.
    pub fn start(plan: &Plan) -> Option<Self> {
        // No move holds a file while it is looked at.
        let mut volume = TestVolume::create_with_options(plan, "movers = 1")?;
        volume.environment.push(("POLYMUX_TEST_DEATH", volume.outside().join("death")));
        let seed = std::env::var("POLYMUX_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("POLYMUX_SEED={seed}");
        let mut stage = Self { volume, random: Random::new(seed) };
        stage.mount(&[]);
        let said = stage.status_text();
        if !said.contains("outlives its daemon") {
            let reason =
                said.lines().find(|line| line.contains("ends with its daemon")).unwrap_or("it does not say why");
            skip(reason.trim());
            return None;
        }
        Some(stage)
    }

    pub fn mount(&mut self, options: &[&str]) {
        let path = self.volume.path().to_str().unwrap().to_owned();
        let mounted = self.volume.polymux(["mount", "tested", &path].into_iter().chain(options.iter().copied()));
        assert!(mounted.is_success(), "{}\n{}", mounted.text(), self.log());
    }

    /// Tries to mount it a second time.
    pub fn mount_on(&self, path: &Path) -> Finished {
        self.volume.polymux(["mount", "tested", path.to_str().unwrap()])
    }

    pub fn unmount(&mut self) {
        let daemon = self.daemon();
        let finished = self.volume.polymux(["umount", self.volume.path().to_str().unwrap()]);
        assert!(finished.is_success(), "{}\n{}", finished.text(), self.log());
        self.wait_for("the daemon has ended", |_| !is_alive(daemon));
    }

    pub fn remount(&mut self) {
        self.unmount();
        self.mount(&[]);
    }

    pub fn path(&self) -> &Path {
        self.volume.path()
    }

    pub fn outside(&self) -> &Path {
        self.volume.outside()
    }

    pub fn status_text(&self) -> String {
        self.volume.polymux(["status", "tested"]).text()
    }

    /// Log of the daemons and their supervisor.
    fn log(&self) -> String {
        let said = std::fs::read_to_string(self.volume.outside().join("runtime/tested.log")).unwrap_or_default();
        let skipped = said.len().saturating_sub(20_000);
        said.get(skipped..).unwrap_or(&said).to_owned()
    }

    /// The process that serves the volume.
    fn daemon(&self) -> Pid {
        self.find_daemon()
            .unwrap_or_else(|| panic!("no daemon serves the volume: {}\n{}", self.status_text(), self.log()))
    }

    fn find_daemon(&self) -> Option<Pid> {
        let status = self.volume.try_status().ok()?;
        Pid::from_raw(i32::try_from(status["pid"].as_i64()?).ok()?)
    }

    /// Kills the daemon; returns once another one serves the volume.
    pub fn kill_daemon(&mut self) {
        self.kill_daemon_only();
        self.wait_for_next_daemon();
    }

    /// Kills the daemon and does not wait for the next one.
    pub fn kill_daemon_only(&self) {
        kill_process(self.daemon(), Signal::KILL).expect("the daemon can be killed");
    }

    pub fn wait_for_next_daemon(&self) {
        self.wait_for("another daemon serves the volume", |stage| stage.find_daemon().is_some_and(is_alive));
    }

    /// Kills daemons, each after some time: such that serve, and now and then the next one, whatever it is doing just then.
    pub fn kill_at_any_moment(&mut self, count: u32) {
        let supervisor = self.supervisor();
        for _ in 0..count {
            std::thread::sleep(Duration::from_millis(self.random.below(LIFE_MS_MAX)));
            self.kill_daemon_only();
            if self.random.below(2) == 0 {
                std::thread::sleep(Duration::from_millis(self.random.below(LIFE_MS_MAX)));
                if let Some(&child) = children_of(supervisor).first() {
                    // It may just have ended.
                    let _ = kill_process(child, Signal::KILL);
                }
            }
            self.wait_for_next_daemon();
        }
    }

    /// As of now, so many daemons die in a row of a request of this kind, at this moment of it.
    pub fn plant_deaths(&self, kind: &str, moment: Moment, count: u32) {
        let (death, new) = (self.volume.outside().join("death"), self.volume.outside().join("death.new"));
        let moment = match moment {
            Moment::Start => "start",
            Moment::Answer => "answer",
        };
        std::fs::write(&new, format!("{kind} {moment} {count}")).unwrap();
        std::fs::rename(new, death).unwrap();
    }

    /// Removes planted deaths; returns whether any were left.
    pub fn take_planted_deaths(&self) -> bool {
        std::fs::remove_file(self.volume.outside().join("death")).is_ok()
    }

    /// The parent of the daemon.
    fn supervisor(&self) -> Pid {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon().as_raw_pid())).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap();
        let parent = Pid::from_raw(parent).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", parent.as_raw_pid())).unwrap();
        assert_eq!(name.trim(), "polymux", "the daemon's parent is its supervisor");
        parent
    }

    pub fn kill_supervisor(&self) {
        let supervisor = self.supervisor();
        kill_process(supervisor, Signal::KILL).expect("the supervisor can be killed");
        self.wait_for("the supervisor is gone", |_| !is_alive(supervisor));
    }

    /// Asks the supervisor to end the mount, at a moment at which no daemon serves it.
    pub fn ask_to_end_between_daemons(&self) {
        let supervisor = self.supervisor();
        self.kill_daemon_only();
        kill_process(supervisor, Signal::TERM).expect("the supervisor can be asked");
        self.wait_for("the supervisor has ended", |_| !is_alive(supervisor));
    }

    /// Number of objects on all tiers.
    pub fn objects(&self) -> usize {
        let of_tier = |name| {
            let buckets = std::fs::read_dir(self.volume.tier(name).join(".polymux/objects")).unwrap();
            buckets.map(|bucket| std::fs::read_dir(bucket.unwrap().path()).map_or(0, Iterator::count)).sum::<usize>()
        };
        of_tier("fast") + of_tier("slow")
    }

    pub fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks an unmounted volume.
    pub fn assert_is_sound(&self) {
        let checked = self.volume.polymux(["fsck", "tested"]);
        assert!(checked.is_success(), "{}", checked.text());
    }
}

/// Whether a process runs: one that waits for its parent does not.
fn is_alive(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log:\n{}", self.log());
        }
        // A mount that is left goes with its daemon; the volume takes down the rest.
        self.volume.polymux_within(["umount", "--lazy", self.volume.path().to_str().unwrap()], DEADLINE);
        let began = Instant::now();
        while self.find_daemon().is_some_and(is_alive) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
