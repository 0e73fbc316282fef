//! Block devices of a known speed: loop devices over images in memory, throttled by the block I/O controller, or with service
//! times ([`crate::served`]).
//!
//! Properties:
//! * The images lie in memory, so that no disk of the machine leaks into a figure: the limits are measured.
//! * Everything that is made is in one [`Devices`], and goes with it: limits, mounts, loop devices, images. So it is after
//!   an error, a panic, SIGINT and SIGTERM. Only SIGKILL leaves something behind, which the next run names.
//! * The kernel's controller ([`controller`]) limits each device, also for writing back. It works in slices of about
//!   100 ms, so that nothing shorter than some seconds is worth measuring.
//! * File systems on the devices ([`OnTop`]) are removed before them.
//! * The work of a device, and changing the limit of one of them, are in [`traffic`].

pub mod controller;
pub mod traffic;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Result, bail, ensure};
use polymux_tier::Rotation;

use self::controller::Controller;
use crate::served::ServedDisks;

/// Where images lie.
const MEMORY: &str = "/dev/shm";

/// Begin of the names of all that is made.
const PREFIX: &str = "polymux-throttled-";

/// Which file system a device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// ext4 with its ordinary options.
    Ext4,
    /// XFS with its ordinary options.
    Xfs,
}

/// Limits of a device; `None`: as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second that are read.
    pub read_bytes: Option<u64>,
    /// Bytes per second that are written.
    pub written_bytes: Option<u64>,
    /// Reads per second.
    pub reads: Option<u64>,
    /// Writes per second.
    pub writes: Option<u64>,
}

/// How devices are made slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Slowness {
    /// By the kernel's throttle: bandwidth is right, latencies come in slices of 100 ms.
    #[default]
    Throttle,
    /// By a server that answers one request after the other.
    Service,
}

/// A device to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the device, and of the tier on it.
    pub name: &'static str,
    /// Its file system.
    pub format: Format,
    /// Its limits.
    pub limits: Limits,
}

const fn megabytes(number: u64) -> Option<u64> {
    Some(number * 1_000_000)
}

/// Persistent memory at a tenth of its speed.
pub const MEMORY_LIKE: Profile = Profile {
    name: "pm",
    format: Format::Ext4,
    limits: Limits { read_bytes: megabytes(1320), written_bytes: megabytes(460), reads: None, writes: None },
};

/// An NVMe drive at a tenth of its speed.
pub const NVME_LIKE: Profile = Profile {
    name: "nvme",
    format: Format::Xfs,
    limits: Limits { read_bytes: megabytes(120), written_bytes: megabytes(120), reads: None, writes: None },
};

/// A disk at a tenth of its speed.
pub const DISK_LIKE: Profile = Profile {
    name: "hdd",
    format: Format::Ext4,
    limits: Limits { read_bytes: megabytes(27), written_bytes: megabytes(27), reads: Some(200), writes: Some(200) },
};

/// Why nothing can be measured here; `None`: it can.
#[must_use]
pub fn reason_to_skip() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices and limits need root".to_owned());
    }
    if controller::version().is_none() {
        return Some("the kernel's block I/O controller is not there: devices cannot be limited".to_owned());
    }
    if !Path::new(MEMORY).is_dir() {
        return Some(format!("{MEMORY} is not there, and images on a disk would measure the disk"));
    }
    let missing = ["losetup", "mkfs.ext4", "mkfs.xfs", "mount", "umount"].into_iter().find(|program| {
        let found = Command::new("sh").arg("-c").arg(format!("command -v {program}")).output();
        !found.is_ok_and(|output| output.status.success())
    });
    missing.map(|program| format!("the program {program} is not installed"))
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths that are made here are ASCII")
}

/// One device that is there.
#[derive(Clone, Debug)]
pub struct Device {
    /// The profile it was made with.
    pub profile: Profile,
    /// Where its file system is mounted.
    pub mount_point: PathBuf,
    /// The loop device.
    node: PathBuf,
    is_mounted: bool,
    slowness: Slowness,
}

impl Device {
    fn numbers(&self) -> Result<String> {
        let device = fs::metadata(&self.node)?.rdev();
        Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
    }

    fn mount(&mut self) -> Result<()> {
        run("mount", &["-o", "noatime", text(&self.node), text(&self.mount_point)])?;
        self.is_mounted = true;
        Ok(())
    }

    fn format(&self) -> Result<()> {
        let node = text(&self.node);
        match self.profile.format {
            // Lazy initialisation would happen inside the clock.
            Format::Ext4 => run("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", node])?,
            Format::Xfs => run("mkfs.xfs", &["-q", "-f", node])?,
        };
        Ok(())
    }
}

/// A mounted file system whose files are stored on the file systems of the devices.
pub trait OnTop: Send {
    /// Takes it away, whatever it is doing.
    ///
    /// # Errors
    /// Where something stays behind.
    fn remove(&mut self) -> Result<()>;
}

struct State {
    directory: PathBuf,
    controller: Controller,
    is_gone: bool,
    on_top: Vec<Weak<Mutex<dyn OnTop>>>,
    devices: Vec<Device>,
    served: Option<ServedDisks>,
}

impl State {
    fn limit(&self, device: &Device, limits: &Limits) -> Result<()> {
        match (&self.served, device.slowness) {
            (Some(served), Slowness::Service) => {
                served.limit(device.profile.name, limits);
                Ok(())
            }
            _ => self.controller.set(&device.numbers()?, limits),
        }
    }

    /// Removes everything; goes on after failures and warns of each.
    fn remove(&mut self) {
        let warn = |result: Result<()>| {
            if let Err(error) = result {
                eprintln!("warning: {error:#}");
            }
        };
        for server in std::mem::take(&mut self.on_top).iter().rev().filter_map(Weak::upgrade) {
            warn(server.lock().unwrap_or_else(PoisonError::into_inner).remove());
        }
        for device in std::mem::take(&mut self.devices) {
            // Without its limits the rest is written back at once.
            warn(self.limit(&device, &Limits::default()));
            if device.is_mounted && run("umount", &[text(&device.mount_point)]).is_err() {
                // Files are open; the file system goes with the last of them.
                warn(run("umount", &["--lazy", text(&device.mount_point)]).map(|_| ()));
            }
            warn(run("losetup", &["--detach", text(&device.node)]).map(|_| ()));
        }
        if let Some(mut served) = self.served.take() {
            warn(served.unmount());
        }
        if !std::mem::replace(&mut self.is_gone, true) {
            warn(self.controller.leave());
        }
        if self.directory.exists() {
            warn(fs::remove_dir_all(&self.directory).context(format!("{} stays behind", self.directory.display())));
        }
    }
}

/// Devices that were made, in the order of their profiles.
pub struct Devices {
    state: Arc<Mutex<State>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Directories of runs that were killed, each with the program's number in its name.
fn left_behind() -> Vec<PathBuf> {
    let entries = fs::read_dir(MEMORY).into_iter().flatten().flatten();
    let is_stale = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.strip_prefix(PREFIX).is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    entries.map(|entry| entry.path()).filter(is_stale).collect()
}

impl Devices {
    /// Makes a device of `bytes` for each profile, with its file system mounted and no limits yet.
    ///
    /// # Errors
    /// Where one cannot be made; then none is left.
    pub fn make(profiles: &[Profile], bytes: u64) -> Result<Self> {
        Self::make_with(&profiles.iter().map(|profile| (*profile, Slowness::Throttle)).collect::<Vec<_>>(), bytes)
    }

    /// As [`Devices::make`], each made slow in its own way.
    ///
    /// # Errors
    /// As [`Devices::make`].
    pub fn make_with(profiles: &[(Profile, Slowness)], bytes: u64) -> Result<Self> {
        Self::make_each(&profiles.iter().map(|(profile, slowness)| (*profile, *slowness, bytes)).collect::<Vec<_>>())
    }

    /// As [`Devices::make`], each of a size of its own.
    ///
    /// # Errors
    /// As [`Devices::make`].
    pub fn make_sized(profiles: &[(Profile, u64)]) -> Result<Self> {
        Self::make_each(
            &profiles.iter().map(|(profile, bytes)| (*profile, Slowness::Throttle, *bytes)).collect::<Vec<_>>(),
        )
    }

    fn make_each(profiles: &[(Profile, Slowness, u64)]) -> Result<Self> {
        for path in left_behind() {
            eprintln!(
                "warning: {} is left of a run that was killed: unmount what is mounted below it, detach its loop devices \
                 (losetup --list), remove it",
                path.display()
            );
        }
        let directory = Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("{}", directory.display()))?;
        let controller = Controller::enter().inspect_err(|_| {
            let _ = fs::remove_dir(&directory);
        })?;
        let state = State {
            directory: directory.clone(),
            controller,
            is_gone: false,
            on_top: Vec::new(),
            devices: Vec::new(),
            served: None,
        };
        let state = Arc::new(Mutex::new(state));
        remove_on_signals(&state)?;
        let devices = Self { state };
        let served: Vec<_> = profiles.iter().filter(|(_, slowness, _)| *slowness == Slowness::Service).collect();
        if let Some(bytes) = served.iter().map(|(_, _, bytes)| *bytes).max() {
            let path = directory.join("served");
            fs::create_dir(&path)?;
            let names: Vec<_> = served.iter().map(|(profile, _, _)| profile.name).collect();
            locked(&devices.state).served = Some(ServedDisks::mount(&path, &directory, &names, bytes)?);
        }
        for (profile, slowness, bytes) in profiles {
            devices.add(&directory, profile, *slowness, *bytes)?;
        }
        Ok(devices)
    }

    fn add(&self, directory: &Path, profile: &Profile, slowness: Slowness, bytes: u64) -> Result<()> {
        let mount_point = directory.join(profile.name);
        fs::create_dir(&mount_point)?;
        let mut state = locked(&self.state);
        let node = match &state.served {
            Some(served) if slowness == Slowness::Service => {
                run("losetup", &["--find", "--show", "--direct-io=on", text(&served.file(profile.name))])?
            }
            _ => {
                let image = directory.join(format!("{}.image", profile.name));
                fs::File::create_new(&image)?.set_len(bytes)?;
                run("losetup", &["--find", "--show", text(&image)])?
            }
        };
        let node = PathBuf::from(node);
        state.devices.push(Device { profile: *profile, mount_point, node, is_mounted: false, slowness });
        let device = state.devices.last_mut().expect("it was just put in");
        device.format()?;
        device.mount()
    }

    /// Makes a device one that rotates, or one that does not, in the words of the kernel.
    ///
    /// # Errors
    /// Where there is no such device, or the kernel refuses.
    pub fn set_rotation(&self, name: &str, rotation: Rotation) -> Result<()> {
        let device = self.all().into_iter().find(|device| device.profile.name == name).context("no such device")?;
        let text = if rotation == Rotation::Rotational { "1" } else { "0" };
        let path = format!("/sys/dev/block/{}/queue/rotational", device.numbers()?);
        fs::write(&path, text).context(path)
    }

    /// Tells of something that stands on the devices and must go before them. Forgotten when it is dropped.
    pub fn put_on_top(&self, server: &Arc<Mutex<dyn OnTop>>) {
        let mut state = locked(&self.state);
        state.on_top.retain(|server| server.strong_count() > 0);
        state.on_top.push(Arc::downgrade(server));
    }

    /// A directory in memory that goes with the devices.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        locked(&self.state).directory.clone()
    }

    /// The devices.
    #[must_use]
    pub fn all(&self) -> Vec<Device> {
        locked(&self.state).devices.clone()
    }

    /// Where the file system of a profile is mounted.
    ///
    /// # Errors
    /// Where there is no such device.
    pub fn mount_point(&self, name: &str) -> Result<PathBuf> {
        match self.all().into_iter().find(|device| device.profile.name == name) {
            Some(device) => Ok(device.mount_point),
            None => bail!("there is no device `{name}`"),
        }
    }

    /// Lets every device be as slow as its profile says.
    ///
    /// # Errors
    /// Where a limit cannot be set.
    pub fn throttle(&self) -> Result<()> {
        let state = locked(&self.state);
        state.devices.iter().try_for_each(|device| state.limit(device, &device.profile.limits))
    }

    /// Lets every device be as fast as it can, to prepare something.
    ///
    /// # Errors
    /// Where a limit cannot be taken away.
    pub fn unthrottle(&self) -> Result<()> {
        let state = locked(&self.state);
        state.devices.iter().try_for_each(|device| state.limit(device, &Limits::default()))
    }

    /// Unmounts and mounts every file system, so that nothing of it is in memory; no process may use them. Best without limits.
    ///
    /// # Errors
    /// Where one is in use.
    pub fn forget_caches(&self) -> Result<()> {
        for device in &mut locked(&self.state).devices {
            run("umount", &[text(&device.mount_point)])?;
            device.is_mounted = false;
            device.mount()?;
        }
        Ok(())
    }

    /// Makes every file system anew, empty; no process may use them.
    ///
    /// # Errors
    /// Where one is in use.
    pub fn format_again(&self) -> Result<()> {
        self.unthrottle()?;
        for device in &mut locked(&self.state).devices {
            run("umount", &[text(&device.mount_point)])?;
            device.is_mounted = false;
            if device.profile.format == Format::Ext4 {
                run("wipefs", &["--all", "--quiet", text(&device.node)])?;
            }
            device.format()?;
            device.mount()?;
        }
        Ok(())
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        locked(&self.state).remove();
    }
}

/// All devices of this process. One thread removes them on a signal, because the program ends when it has.
static OF_THIS_PROCESS: Mutex<Vec<Weak<Mutex<State>>>> = Mutex::new(Vec::new());

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns only where the program was not asked to end. Otherwise everything is being taken down, and a thread that goes on would
/// make things in places that are about to go.
pub fn stop_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Ends the program on SIGINT and SIGTERM, with nothing left behind.
fn remove_on_signals(state: &Arc<Mutex<State>>) -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    OF_THIS_PROCESS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(state));
    let mut is_started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_started {
        return Ok(());
    }
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            eprintln!("interrupted: taking everything down");
            INTERRUPTED.store(true, Ordering::SeqCst);
            let all = OF_THIS_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that was at work when the removal began may have left something in the meantime.
            for state in all.iter().chain(all.iter()).filter_map(Weak::upgrade) {
                locked(&state).remove();
            }
            std::process::exit(130);
        }
    })?;
    *is_started = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_as_slow_as_asked_and_nothing_stays_behind() {
        if let Some(reason) = reason_to_skip() {
            eprintln!("skipped: {reason}");
            return;
        }
        let devices = Devices::make(&[DISK_LIKE, NVME_LIKE], 400 << 20).unwrap();
        let directory = locked(&devices.state).directory.clone();
        devices.throttle().unwrap();
        let begun = std::time::Instant::now();
        let path = devices.mount_point("hdd").unwrap().join("file");
        fs::write(&path, vec![7; 54_000_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let elapsed = begun.elapsed().as_secs_f64();
        assert!(elapsed > 1.5, "54 MB at 27 MB/s took {elapsed} s");
        devices.format_again().unwrap();
        assert!(!path.exists());
        let nodes: Vec<String> = devices.all().iter().map(|device| device.numbers().unwrap()).collect();
        drop(devices);
        assert!(!directory.exists());
        let limits = fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").unwrap_or_default();
        assert!(nodes.iter().all(|numbers| !limits.lines().any(|line| line.starts_with(&format!("{numbers} ")))));
    }
}
