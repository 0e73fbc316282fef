//! A volume of two tiers that is mounted for one test. The only place that knows Polymux's command line.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::command::{Finished, run, run_within, succeed, wait_within};
use super::environment::{
    are_supervised, have_fuse, have_loop_devices, have_program, is_root, skip, wanted_io, wanted_policy,
};
use super::native::{FileSystemKind, NativeMount, is_mounted, kind_of_mount, text};
use super::rings;

/// The program under test: that of the package that takes this file in.
const PROGRAM: &str = match (option_env!("CARGO_BIN_EXE_polymux"), option_env!("CARGO_BIN_EXE_polymux-lab")) {
    (Some(program), _) | (None, Some(program)) => program,
    (None, None) => panic!("cargo tells where the program is"),
};

/// The file systems below the tiers of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Two directories of the file system that holds temporary files; works without root.
    Directories,
    /// ext4 (fast) and XFS (slow) on loop devices, with their sizes in MiB.
    LoopDevices { fast: u64, slow: u64 },
    /// As `LoopDevices`, and the ext4 keeps blocks for root, as `mkfs.ext4` has it: without them no file on the tier of the metadata is passed
    /// through for changes.
    LoopDevicesWithReserve { fast: u64, slow: u64 },
}

/// Parameters of a test volume.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ground: Ground,
    /// Limit of the fast tier as the configuration writes it; further data goes to the slow tier.
    pub fast_capacity: Option<&'static str>,
}

impl Plan {
    /// Loop devices as root, directories otherwise.
    pub fn anywhere() -> Self {
        let ground = if have_loop_devices() && have_program("mkfs.xfs") && have_program("mkfs.ext4") {
            Ground::LoopDevices { fast: 512, slow: 1024 }
        } else {
            Ground::Directories
        };
        Self { ground, fast_capacity: None }
    }

    /// As this plan, with blocks that the fast tier keeps for root.
    pub fn with_reserve(self) -> Self {
        let ground = match self.ground {
            Ground::LoopDevices { fast, slow } => Ground::LoopDevicesWithReserve { fast, slow },
            other => other,
        };
        Self { ground, ..self }
    }

    pub fn with_fast_capacity(self, capacity: &'static str) -> Self {
        Self { fast_capacity: Some(capacity), ..self }
    }

    /// Why it cannot be carried out here.
    pub fn obstacle(&self) -> Option<&'static str> {
        let needs_loop = !matches!(self.ground, Ground::Directories);
        if !have_fuse() {
            Some("/dev/fuse cannot be opened")
        } else if !is_root() && !have_program("fusermount3") {
            Some("fusermount3 is not installed")
        } else if needs_loop && !have_loop_devices() {
            Some("loop devices need root")
        } else if needs_loop && !(have_program("mkfs.xfs") && have_program("mkfs.ext4")) {
            Some("mkfs.ext4 and mkfs.xfs are not installed")
        } else {
            None
        }
    }
}

/// A volume and everything it stands on, taken down when dropped.
pub struct TestVolume {
    pub name: String,
    /// Whether the kernel is made to offer `io_uring` while it is mounted.
    pub wants_rings: bool,
    /// Further variables of the environment of all programs, with paths.
    pub environment: Vec<(&'static str, PathBuf)>,
    /// User of the daemon and owner of the volume, where it is not the user who runs the test.
    user: Option<u32>,
    daemon: Option<Child>,
    mountpoint: PathBuf,
    /// Paths of the tiers, in speed order.
    tiers: Vec<(String, PathBuf)>,
    // Dropped after the daemon, and in this order.
    grounds: Vec<NativeMount>,
    base: tempfile::TempDir,
    /// Where memory that outlives the daemon is kept; `None`: nothing does.
    memory: Option<tempfile::TempDir>,
}

const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(120);

impl TestVolume {
    /// Makes and mounts a volume. `None`, after saying why, when that cannot be done here.
    pub fn start(plan: &Plan) -> Option<Self> {
        let mut volume = Self::create(plan)?;
        volume.mount();
        Some(volume)
    }

    /// Makes a volume without mounting it.
    pub fn create(plan: &Plan) -> Option<Self> {
        if let Some(why) = plan.obstacle() {
            skip(why);
            return None;
        }
        let mut volume = Self::bare();
        volume.lay_ground(plan.ground);
        volume.format(plan.fast_capacity);
        Some(volume)
    }

    /// A volume of tiers (names and directories in speed order) that the caller has brought up and takes down after it. It
    /// is not made yet: `format` makes it, or a configuration of one that is there already is written.
    pub fn on_tiers(tiers: Vec<(String, PathBuf)>) -> Self {
        let mut volume = Self::bare();
        volume.tiers = tiers;
        volume
    }

    fn bare() -> Self {
        let base = tempfile::Builder::new().prefix("polymux-mounted-").tempdir().expect("a directory can be made");
        // Other users take part in some tests.
        std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).expect("its mode can be set");
        for directory in ["mount", "config", "runtime"] {
            std::fs::create_dir(base.path().join(directory)).expect("a directory can be made");
        }
        Self {
            name: "tested".to_owned(),
            wants_rings: rings::are_wanted_everywhere(),
            environment: Vec::new(),
            user: None,
            daemon: None,
            mountpoint: base.path().join("mount"),
            tiers: Vec::new(),
            grounds: Vec::new(),
            base,
            memory: tempfile::Builder::new().prefix("polymux-mounted-").tempdir_in("/dev/shm").ok(),
        }
    }

    /// As of the next mount, the state in the daemon's memory is lost with it.
    pub fn keep_no_memory(&mut self) {
        self.memory = None;
    }

    /// Drops the memory that a daemon left, as after another boot.
    pub fn forget_memory(&self) {
        let Some(memory) = &self.memory else { return };
        for left in std::fs::read_dir(memory.path()).unwrap() {
            std::fs::remove_file(left.unwrap().path()).unwrap();
        }
    }

    /// Names of the files in the memory that outlives the daemon.
    pub fn memory_left(&self) -> Vec<String> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let entries = std::fs::read_dir(memory.path()).expect("the directory is there");
        entries.map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned()).collect()
    }

    /// Whether there is memory that outlives the daemon, as `status` says.
    pub fn has_surviving_memory(&self) -> bool {
        self.polymux(["status", &self.name]).stdout.contains("not flushed yet: outlives the daemon")
    }

    fn lay_ground(&mut self, ground: Ground) {
        let base = self.base.path().to_path_buf();
        let devices = match ground {
            Ground::Directories => None,
            Ground::LoopDevices { fast, slow } => Some((FileSystemKind::Ext4, fast, slow)),
            Ground::LoopDevicesWithReserve { fast, slow } => Some((FileSystemKind::Ext4WithReserve, fast, slow)),
        };
        if let Some((kind, fast, slow)) = devices {
            self.grounds.push(NativeMount::new(&base, "fast-device", kind, fast));
            self.grounds.push(NativeMount::new(&base, "slow-device", FileSystemKind::Xfs, slow));
        }
        for (index, name) in ["fast", "slow"].into_iter().enumerate() {
            let path = self.grounds.get(index).map_or(base.as_path(), NativeMount::path).join(name);
            std::fs::create_dir(&path).expect("a directory can be made");
            self.tiers.push((name.to_owned(), path));
        }
    }

    /// Gives everything that the volume stands on to a user, who runs its daemon and all commands from then on.
    pub fn give_to(&mut self, user: u32) {
        let owner = format!("{user}:{user}");
        succeed("chown", ["-R", &owner, text(self.base.path())]);
        self.user = Some(user);
    }

    /// Runs a script within the volume as its owner.
    pub fn as_owner(&self, script: &str) -> Finished {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("cd {} && {{ {script}; }}", text(&self.mountpoint)));
        let memory = self.memory.as_ref().map_or_else(|| self.base.path().join("none"), |it| it.path().to_owned());
        command.env("POLYMUX_MEMORY_DIR", memory);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        run_within(&mut command, Duration::from_secs(60))
    }

    /// Runs `polymux create`.
    pub fn format(&self, fast_capacity: Option<&str>) {
        let tiers = self.tiers.iter().map(|(name, path)| format!("--tier={name}={}", path.display()));
        let capacity = fast_capacity.map(|capacity| format!("--capacity=fast={capacity}"));
        let arguments: Vec<String> =
            ["create".to_owned(), self.name.clone()].into_iter().chain(tiers).chain(capacity).collect();
        let created = self.polymux(arguments.iter().map(String::as_str));
        assert!(created.is_success(), "create failed: {}", created.text());
        if let Some(policy) = wanted_policy() {
            self.set_policy(&policy);
        }
    }

    /// Gives it a policy of its own, from its next mount on.
    pub fn set_policy(&self, policy: &str) {
        let config = std::fs::read_to_string(self.config_path()).expect("the configuration can be read");
        let others: Vec<&str> = config.lines().filter(|line| !line.starts_with("policy = ")).collect();
        let config = format!("policy = \"{policy}\"\n{}\n", others.join("\n"));
        std::fs::write(self.config_path(), config).expect("the configuration can be written");
    }

    /// As [`Self::start`], without movers: no block leaves the tier that it was written to.
    pub fn start_without_movers(plan: &Plan) -> Option<Self> {
        Self::start_with_options(plan, "movers = 0")
    }

    /// As [`Self::start`], with lines of the table `[options]`.
    pub fn start_with_options(plan: &Plan, options: &str) -> Option<Self> {
        let mut volume = Self::create_with_options(plan, options)?;
        volume.mount();
        Some(volume)
    }

    /// As [`Self::start_with_options`], without mounting the volume.
    pub fn create_with_options(plan: &Plan, options: &str) -> Option<Self> {
        let volume = Self::create(plan)?;
        let config = std::fs::read_to_string(volume.config_path()).expect("the configuration can be read");
        std::fs::write(volume.config_path(), format!("{config}\n[options]\n{options}\n")).expect("it can be written");
        Some(volume)
    }

    /// Replaces a text in the configuration, in which it must stand.
    pub fn edit_config(&self, from: &str, to: &str) {
        let config = std::fs::read_to_string(self.config_path()).expect("the configuration can be read");
        assert!(config.contains(from), "{from:?} does not stand in the configuration:\n{config}");
        std::fs::write(self.config_path(), config.replace(from, to)).expect("the configuration can be written");
    }

    /// Runs the program under test as [`TestVolume::polymux`] does, with another deadline.
    pub fn polymux_within<'a>(&self, arguments: impl IntoIterator<Item = &'a str>, deadline: Duration) -> Finished {
        run_within(&mut self.command(arguments), deadline)
    }

    /// Runs the program under test with a registry of its own.
    pub fn polymux<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Finished {
        run_within(&mut self.command(arguments), Duration::from_secs(120))
    }

    /// Starts the program under test without waiting for it.
    pub fn begin(&self, arguments: &[String]) -> Child {
        let mut command = self.command(arguments.iter().map(String::as_str));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("polymux can be started")
    }

    fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        self.give_registry(&mut command);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// The program under test, or one that starts it, finds this volume.
    pub fn give_registry(&self, command: &mut Command) {
        command.env("POLYMUX_CONFIG_DIR", self.base.path().join("config"));
        command.env("POLYMUX_RUNTIME_DIR", self.base.path().join("runtime"));
        let memory = self.memory.as_ref().map_or_else(|| self.base.path().join("none"), |it| it.path().to_owned());
        command.env("POLYMUX_MEMORY_DIR", memory);
        command.envs(self.environment.iter().map(|(name, path)| (name, path)));
    }

    /// Mounts, with the daemon as a child of this process.
    pub fn mount(&mut self) {
        self.mount_with(&[]);
    }

    /// Mounts with further options.
    pub fn mount_with(&mut self, options: &[&str]) {
        if let Err(said) = self.try_mount(options) {
            panic!("the volume does not mount: {said}");
        }
    }

    /// Mounts, or returns the output of the daemon when it ended instead.
    pub fn try_mount(&mut self, options: &[&str]) -> Result<(), String> {
        assert!(self.daemon.is_none(), "it is mounted already");
        let log_path = self.base.path().join("daemon.log");
        let log = File::options().create(true).append(true).open(&log_path).expect("a log can be opened");
        let log_start = log.metadata().map(|metadata| metadata.len()).unwrap_or(0);
        let mut arguments = vec!["mount", "--foreground", &self.name, text(&self.mountpoint)];
        // The process that is started here is the daemon, which tests kill; a supervisor has tests of its own.
        if !are_supervised() {
            arguments.extend(["-o", "supervisor=off"]);
        }
        arguments.extend(options);
        arguments.extend(wanted_io());
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor can be copied")).stderr(log);
        let _offered =
            self.wants_rings.then(|| rings::Offered::try_new().expect("rings are there where they are wanted"));
        let mut daemon = command.spawn().expect("the daemon starts");
        let start = Instant::now();
        while !self.answers() {
            if daemon.try_wait().expect("an own child can be waited for").is_some() {
                return Err(self.log_from(log_start));
            }
            if start.elapsed() > START_DEADLINE {
                let _ = daemon.kill();
                let _ = daemon.wait();
                panic!("the daemon does not mount within {START_DEADLINE:?}: {}", self.log_from(log_start));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    fn log_from(&self, start: u64) -> String {
        let log = std::fs::read(self.base.path().join("daemon.log")).unwrap_or_default();
        let start = usize::try_from(start).expect("a log is small").min(log.len());
        String::from_utf8_lossy(&log[start..]).into_owned()
    }

    /// Everything that daemons of this volume have said.
    pub fn log(&self) -> String {
        self.log_from(0)
    }

    /// Whether the volume is mounted and served: the mount of a killed daemon is still there, but does not answer.
    fn answers(&self) -> bool {
        // The type comes from the same answer, because the remains of a killed daemon may be taken away at any moment.
        let mut ask = Command::new("stat");
        ask.args(["-f", "-c", "%T"]).arg(&self.mountpoint);
        kind_of_mount(&self.mountpoint).is_some_and(|kind| kind == "fuse.polymux")
            && run_within(&mut ask, START_DEADLINE).stdout.contains("fuse")
    }

    /// Unmounts and waits until the daemon has ended cleanly.
    pub fn unmount(&mut self) {
        let finished = self.polymux(["umount", text(&self.mountpoint)]);
        assert!(finished.is_success(), "umount failed: {}\n{}", finished.text(), self.log());
        self.wait_for_end();
    }

    /// Waits for the clean end of the daemon of a volume that was unmounted.
    pub fn wait_for_end(&mut self) {
        let mut daemon = self.daemon.take().expect("it was mounted");
        let status = wait_within(&mut daemon, STOP_DEADLINE);
        let Some(status) = status else {
            let _ = daemon.kill();
            let _ = daemon.wait();
            panic!("the daemon does not end within {STOP_DEADLINE:?}: {}", self.log());
        };
        assert!(status.success(), "the daemon ended with {status}: {}", self.log());
    }

    /// Unmounts where the end is expected not to be a clean one; returns the output of the command.
    pub fn unmount_uncleanly(&mut self) -> Finished {
        self.polymux(["umount", text(&self.mountpoint)])
    }

    /// Waits until a daemon that ended uncleanly is gone.
    pub fn wait_for_unclean_end(&mut self) {
        let mut daemon = self.daemon.take().expect("it was mounted");
        let status = wait_within(&mut daemon, STOP_DEADLINE).expect("the daemon ends");
        assert!(!status.success(), "the daemon ended with {status}: {}", self.log());
    }

    /// The process that serves the volume, while it is mounted.
    pub fn daemon_id(&self) -> Option<Pid> {
        let started = self.daemon.as_ref().map(Pid::from_child)?;
        // The child of a supervisor.
        Some(children_of(started).first().copied().unwrap_or(started))
    }

    /// Kills the daemon as `kill -9` does. The mount answers with errors from then on.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("it was mounted");
        let supervised = children_of(Pid::from_child(&daemon));
        daemon.kill().expect("an own child can be killed");
        daemon.wait().expect("an own child can be waited for");
        for process in supervised {
            // It may end by itself just now.
            let _ = kill_process(process, Signal::KILL);
            while Path::new(&format!("/proc/{}", process.as_raw_pid())).exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// How many requests of each kind the daemon was sent so far.
    pub fn messages(&self) -> BTreeMap<String, u64> {
        serde_json::from_value(self.status()["messages"].clone()).expect("messages are numbers by name")
    }

    /// The output of `polymux status --json` for the volume.
    pub fn status(&self) -> serde_json::Value {
        self.try_status().unwrap_or_else(|said| panic!("{said}"))
    }

    /// The output of `polymux status --json` for the volume, or its error where no daemon answers.
    pub fn try_status(&self) -> Result<serde_json::Value, String> {
        let finished = self.polymux(["status", "--json", &self.name]);
        let told = finished.is_success().then(|| serde_json::from_str::<serde_json::Value>(&finished.stdout).ok());
        let told = told.flatten().ok_or_else(|| finished.text())?;
        Ok(if told.is_array() { told[0].clone() } else { told })
    }

    /// Root of the mounted volume.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// A place for files outside the volume.
    pub fn outside(&self) -> &Path {
        self.base.path()
    }

    pub fn tier(&self, name: &str) -> &Path {
        let tier = self.tiers.iter().find(|(tier, _)| tier == name);
        &tier.expect("the volume has that tier").1
    }

    /// Where the configuration of the volume is kept.
    pub fn config_path(&self) -> PathBuf {
        self.base.path().join("config").join(format!("{}.toml", self.name))
    }

    /// Bytes of a file that are allocated on each tier, as `where` reports.
    pub fn bytes_per_tier(&self, file: &Path) -> BTreeMap<String, u64> {
        let finished = self.polymux(["where", "--json", text(file)]);
        assert!(finished.is_success(), "where failed: {}", finished.text());
        let told: serde_json::Value = serde_json::from_str(&finished.stdout).expect("where --json prints JSON");
        let tiers = told["tiers"].as_array().expect("where lists tiers");
        let share = |tier: &serde_json::Value| {
            let name = tier["tier"].as_str().expect("a tier has a name").to_owned();
            (name, tier["bytes_allocated"].as_u64().expect("its bytes are known"))
        };
        tiers.iter().map(share).collect()
    }

    /// Whether a file has bytes on several tiers.
    pub fn is_split(&self, file: &Path) -> bool {
        self.bytes_per_tier(file).values().filter(|bytes| **bytes > 0).count() >= 2
    }

    /// Asserts that bytes of a file lie on both tiers.
    pub fn assert_is_split(&self, file: &Path) {
        let bytes = || self.bytes_per_tier(file);
        assert!(self.is_split(file), "{} is not split over both tiers: {:?}", file.display(), bytes());
    }
}

/// Processes that a process started and that live. Only a supervisor has any.
pub fn children_of(process: Pid) -> Vec<Pid> {
    let id = process.as_raw_pid();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon said: {}", self.log());
        }
        if is_mounted(&self.mountpoint) && !run(Command::new("umount").arg(&self.mountpoint)).is_success() {
            let detach = if is_root() { ["umount", "-l"] } else { ["fusermount3", "-uz"] };
            run(Command::new(detach[0]).arg(detach[1]).arg(&self.mountpoint));
        }
        if let Some(mut daemon) = self.daemon.take()
            && wait_within(&mut daemon, Duration::from_secs(20)).is_none()
        {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
