//! The daemon of one mounted volume: from the checks before the mount to the clean end.
//!
//! Invariants:
//! * One daemon per volume name holds `NAME.lock` of the runtime directory for as long as it lives, and an exclusive
//!   lock on every tier (inside the tiers). A dead daemon holds neither; but a supervisor, where there is one, goes on holding the lock
//!   of the volume for the next one (`supervised`).
//! * Whatever ends the mount (a signal, `umount`, a lost connection), `FileSystem::unmount` runs before the process
//!   ends, and the lock is released after it.
//! * The daemon opens nothing under its own mount: it leaves its working directory for `/` and looks at the mount point
//!   only before it mounts.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::config::VolumeConfig;
use polymux_config::config_format::LeasesEntry;
use polymux_config::lock::{UseOfVolume, VolumeLock};
use polymux_config::metadata_copy::{self, Metadata};
use polymux_config::opening;
use polymux_config::registry::Registry;
use polymux_config::steering_config;
use polymux_config::tiers::AskedBy;
use polymux_door::Door;
use polymux_fs::{BackgroundThreads, FileSystem, KernelConnection, LeasePort, MissingTiers};
use polymux_fuse::{Session, Unmounter};
use polymux_meta::LogStore;
use polymux_types::sync::RwLock;
use rustix::mount::UnmountFlags;
use rustix::process::Resource;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::client;
use crate::control::ControlServer;
use crate::daemonize::{self, Readiness};
use crate::logging;
use crate::mount_options::RequestedOptions;
use crate::mount_table::{MountTable, is_polymux};
use crate::report::DaemonView;
use crate::supervised::{self, Supervised};
use crate::supervision::link::Link;
use crate::tier_candidates;

/// How long files may stay open after a signal before the daemon ends all the same.
const OPEN_FILES_PATIENCE: Duration = Duration::from_secs(10);

/// How long the last of the work may hang in a tier that does not answer,
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// and how long it may take while a thread is held up by a program that holds an object.
const HELD_DRAIN_PATIENCE: Duration = Duration::from_secs(60);
const REASON_OF_HOLDING: &str = "programs hold objects of it, which could not be changed; it can be mounted again, and is recovered, once they let go";

/// Receiver of the report that the volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadinessReport {
    /// The process that started this one.
    Parent,
    /// The supervisor, which started this one and keeps the mount when it dies.
    Supervisor,
    /// systemd, where it runs this.
    ServiceManager,
}

/// Why the mount ends.
enum Event {
    /// The kernel has let go of it.
    SessionEnded(std::io::Result<()>),
    /// A signal asked this process to end.
    Signal(i32),
}

/// Mounts a volume and serves it until it is unmounted.
pub fn run(
    registry: &Registry,
    config_path: &Path,
    mount_point: &Path,
    options: RequestedOptions,
    report: ReadinessReport,
) -> Result<()> {
    logging::start();
    let mount_point = client::mount_point_path(mount_point)?;
    if report == ReadinessReport::Parent {
        daemonize::detach()?;
    }
    if report == ReadinessReport::Supervisor {
        // It was started by another name (`mount::supervise`), and is looked for by this one.
        let _ = rustix::thread::set_name(c"polymux");
    }
    let supervised = (report == ReadinessReport::Supervisor).then(Supervised::connect).transpose();
    let volume = VolumeToServe { registry, config_path, mount_point: &mount_point, options: &options };
    let mounted = supervised.and_then(|supervised| Mounted::start(volume, supervised));
    match (mounted, report) {
        (Ok(mounted), ReadinessReport::Parent | ReadinessReport::Supervisor) => {
            let told = daemonize::report(&Readiness::Ready { warnings: mounted.warnings.clone() });
            if report == ReadinessReport::Parent {
                told?;
            } else if let Err(error) = told {
                // It died meanwhile, and the mount goes on without it.
                log::warn!("the supervisor is not told that the volume is served: {error:#}");
            }
            mounted.serve()
        }
        (Ok(mounted), ReadinessReport::ServiceManager) => {
            mounted.warnings.iter().for_each(|warning| log::warn!("{warning}"));
            mounted.serve()
        }
        (Err(error), ReadinessReport::Parent | ReadinessReport::Supervisor) => {
            log::error!("{error:#}");
            daemonize::report(&Readiness::Failed(format!("{error:#}")))?;
            std::process::exit(1)
        }
        (Err(error), ReadinessReport::ServiceManager) => Err(error),
    }
}

/// A volume that is mounted. Fields are dropped in this order; the lock goes last.
struct Mounted {
    control: ControlServer,
    /// Where programs get leases.
    door: Option<Arc<Door>>,
    events: Receiver<Event>,
    unmounter: Unmounter,
    background: Arc<BackgroundThreads>,
    file_system: Arc<FileSystem>,
    /// The metadata store, where it is written.
    store: Option<Arc<LogStore>>,
    warnings: Vec<String>,
    name: String,
    mount_point: PathBuf,
    /// The supervisor, where there is one.
    link: Option<Arc<Link>>,
    lock: VolumeLock,
}

/// A volume, and how it is to be mounted.
#[derive(Clone, Copy)]
struct VolumeToServe<'a> {
    registry: &'a Registry,
    config_path: &'a Path,
    mount_point: &'a Path,
    options: &'a RequestedOptions,
}

/// A volume whose file system is open and not served yet.
struct Opened {
    config: VolumeConfig,
    file_system: Arc<FileSystem>,
    metadata: Metadata,
    warnings: Vec<String>,
    connection: KernelConnection,
}

impl Opened {
    /// Ends it. The kernel state of an earlier daemon's mount stays for the next daemon, as after the death of this one.
    fn end(&self) {
        if self.connection == KernelConnection::New {
            end(&self.file_system);
        }
    }
}

impl VolumeToServe<'_> {
    /// Opens the file system, of a volume that this process has the lock of.
    fn open(self, mut config: VolumeConfig, connection: KernelConnection) -> Result<Opened> {
        let Self { config_path, mount_point, .. } = self;
        let mut warnings = Vec::new();
        let mut options = self.options.volume.clone();
        match connection {
            KernelConnection::New => {
                warnings = detach_dead_mount(&config.name, mount_point)?;
                check_mount_point(&config, mount_point)?;
            }
            KernelConnection::TakenOver => {
                // The daemon before this one started from the copy, and the store has gone on since.
                options.metadata_source = None;
                // A volume that runs degraded while it is mounted is opened degraded, too.
                options.missing = Some(MissingTiers::Degraded);
            }
        }
        prepare_process();
        let from_copy = metadata_copy::take_over(&config, config_path, &options, AskedBy::Process)?;
        if let Some((note, changed)) = &from_copy {
            warnings.push(note.clone());
            config = changed.clone();
        }
        warnings.extend(config.steering.warnings());
        let opened = opening::open(&config, &options, connection, AskedBy::Process)?;
        warnings.extend(opened.warnings);
        if from_copy.is_some() {
            // The store is beside it now, and newer.
            let _ = std::fs::remove_dir_all(config.copy_directory(config.metadata));
        }
        let (file_system, metadata) = (Arc::new(opened.file_system), opened.metadata);
        let opened = Opened { config, file_system, metadata, warnings, connection };
        steering_config::apply(&opened.config, &opened.file_system).inspect_err(|_| opened.end())?;
        Ok(opened)
    }

    /// Takes the lock of the volume, or the one that an earlier daemon took, and has the supervisor keep it.
    fn lock(self, name: &str, mut supervised: Option<&mut Supervised>) -> Result<VolumeLock> {
        self.registry.make_runtime_directory()?;
        if let Some(inherited) = supervised.as_mut().and_then(|supervised| supervised.take_lock()) {
            return VolumeLock::held(inherited.into(), UseOfVolume::Mounted(self.mount_point));
        }
        let lock = VolumeLock::take(&self.registry.lock_path(name), name, UseOfVolume::Mounted(self.mount_point))?;
        if let Some(supervised) = supervised {
            supervised.link().keep_lock(lock.as_fd()).context("the supervisor of this mount")?;
        }
        Ok(lock)
    }
}

impl Mounted {
    fn start(volume: VolumeToServe<'_>, mut supervised: Option<Supervised>) -> Result<Self> {
        let config = VolumeConfig::read(volume.config_path)?;
        let lock = volume.lock(&config.name, supervised.as_mut())?;
        let connection = supervised.as_ref().map_or(KernelConnection::New, Supervised::connection);
        let link = supervised.as_ref().map(Supervised::link);
        let opened = volume.open(config, connection)?;
        let kernel_options = volume.options.for_kernel(&opened.config);
        let file_system = Arc::clone(&opened.file_system);
        let session = match supervised {
            Some(supervised) => supervised.serve(file_system, volume.mount_point, &kernel_options),
            None => polymux_fuse::mount(file_system, volume.mount_point, &kernel_options, None),
        };
        let session = session.map_err(|error| error_of_mounting(error, volume.mount_point));
        let session = session.inspect_err(|_| opened.end())?;
        let ends_with_daemon = supervised::keep(link.as_ref(), &session)?;
        Self::serve_parts(volume, opened, (session, kernel_options.threads), (link, ends_with_daemon), lock)
    }

    /// Starts the threads of a daemon, those that serve the kernel last.
    fn serve_parts(
        volume: VolumeToServe<'_>,
        opened: Opened,
        (session, threads): (Session, usize),
        (link, ends_with_daemon): (Option<Arc<Link>>, Option<String>),
        lock: VolumeLock,
    ) -> Result<Self> {
        let Opened { config, file_system, metadata, warnings, .. } = opened;
        let VolumeToServe { registry, config_path, mount_point, .. } = volume;
        let (sender, events) = mpsc::channel();
        let unmounter = session.unmounter();
        watch_signals(sender.clone())?;
        let store = metadata.writable().map(Arc::clone);
        let background =
            Arc::new(BackgroundThreads::start(&file_system, config.movers()).context("cannot start threads")?);
        let door = open_door(&file_system, volume.options.leases(&config));
        let view = DaemonView {
            door: door.clone(),
            file_system: Arc::clone(&file_system),
            background: Arc::clone(&background),
            config: RwLock::new(config.clone()),
            config_path: config_path.to_owned(),
            mount_point: mount_point.to_owned(),
            threads,
            connection: session.state(),
            ends_with_daemon,
            warnings: warnings.clone(),
            metadata,
        };
        let control = ControlServer::start(&registry.socket_path(&config.name), Arc::new(view))?;
        serve_kernel(session, sender)?;
        Ok(Self {
            control,
            door,
            events,
            unmounter,
            background,
            file_system,
            store,
            warnings,
            name: config.name,
            mount_point: mount_point.to_owned(),
            link,
            lock,
        })
    }

    /// Serves until the mount ends, then drains everything.
    fn serve(self) -> Result<()> {
        log::info!("volume `{}` is mounted on {}", self.name, self.mount_point.display());
        notify(&[sd_notify::NotifyState::Ready]);
        let ended = self.wait_for_end();
        if let Some(link) = &self.link {
            link.let_go();
        }
        notify(&[sd_notify::NotifyState::Stopping]);
        // Long before the lock of the volume is given up: no program believes a map of this daemon any more.
        if let Some(door) = &self.door {
            door.close();
        }
        // Before the end of the file system: the running batches of the movers are completed.
        if let Err(error) = self.background.stop() {
            log::error!("{error}");
        }
        let Some(drained) = self.drain_within(DRAIN_PATIENCE) else { self.leave_behind() };
        if let Some(store) = &self.store {
            store.finish_copy();
            if drained.is_ok() {
                store.discard_surviving();
            }
        }
        drop((self.control, self.door));
        log::info!("volume `{}` is unmounted", self.name);
        let threads = self.file_system.held_up_threads().len();
        if threads > 0 {
            log::warn!(
                "{threads} threads wait for programs that hold objects of the volume `{}`; it can be mounted again once these let go",
                self.name
            );
        }
        if let Err(error) = drained {
            let is_held = !self.file_system.held_up_threads().is_empty();
            let otherwise = if is_held { REASON_OF_HOLDING.to_owned() } else { error.to_string() };
            let reason = reason_of_unclean_end(&self.file_system, otherwise);
            note_unclean_end(&self.lock, &self.file_system, &reason);
            bail!("volume `{}` did not end cleanly: {reason}", self.name);
        }
        ended
    }

    /// Writes everything back. `None`: write-back is stuck for longer than `patience`, in a tier that does not answer or behind a program that holds
    /// an object.
    fn drain_within(&self, patience: Duration) -> Option<polymux_fs::Result<()>> {
        let (sender, receiver) = mpsc::channel();
        let file_system = Arc::clone(&self.file_system);
        let spawned = thread::Builder::new().name("unmount".to_owned()).spawn(move || {
            // The receiver is gone only when this was given up.
            let _ = sender.send(file_system.unmount());
        });
        if let Err(error) = spawned {
            log::warn!("no thread for the unmount: {error}");
            return Some(self.file_system.unmount());
        }
        let mut stuck_since: Option<Instant> = None;
        loop {
            match receiver.recv_timeout(Duration::from_millis(100)) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // The thread may be in a call that hangs, or wait for one that is.
            let patience = if !self.file_system.tiers_not_answering().is_empty() {
                patience
            } else if !self.file_system.held_up_threads().is_empty() {
                HELD_DRAIN_PATIENCE
            } else {
                stuck_since = None;
                continue;
            };
            if stuck_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                return None;
            }
        }
    }

    /// Ends the process although a thread of it is stuck in a tier. Synced data is durable, as after a crash. The lock of
    /// the volume is let go by hand, because the process is not quite gone before the tier lets that thread go.
    fn leave_behind(self) -> ! {
        let reason = reason_of_unclean_end(&self.file_system, REASON_OF_HOLDING.to_owned());
        log::error!("volume `{}` did not end cleanly: {reason}", self.name);
        drop(self.control);
        note_unclean_end(&self.lock, &self.file_system, &reason);
        std::process::exit(1)
    }

    fn wait_for_end(&self) -> Result<()> {
        let mut deadline: Option<Instant> = None;
        loop {
            let patience = deadline.map_or(Duration::MAX, |moment| moment.saturating_duration_since(Instant::now()));
            // A channel cannot wait for ever with a limit, and a day is as good.
            match self.events.recv_timeout(patience.min(Duration::from_secs(86_400))) {
                Ok(Event::SessionEnded(result)) => {
                    return result.with_context(|| format!("the connection to the kernel of volume `{}`", self.name));
                }
                Ok(Event::Signal(signal)) => {
                    log::info!("signal {signal}: unmounting {}", self.mount_point.display());
                    if deadline.is_none() && self.unmount_on_signal() {
                        deadline = Some(Instant::now() + OPEN_FILES_PATIENCE);
                    }
                }
                Err(RecvTimeoutError::Timeout) if deadline.is_some_and(|moment| moment <= Instant::now()) => {
                    log::warn!("files are still open; ending all the same");
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the threads of volume `{}` ended", self.name),
            }
        }
    }

    /// Unmounts; with open files, takes the volume out of the tree. Returns whether files may still be open.
    fn unmount_on_signal(&self) -> bool {
        let Err(error) = self.unmounter.unmount() else { return false };
        log::warn!("{} is busy ({error}): detaching it", self.mount_point.display());
        if let Err(error) = self.unmounter.detach() {
            log::error!("cannot detach {}: {error}", self.mount_point.display());
        }
        true
    }
}

/// Why a volume did not end cleanly: tiers that do not answer, or `otherwise`.
fn reason_of_unclean_end(file_system: &FileSystem, otherwise: String) -> String {
    let silent = file_system.tiers_not_answering();
    if silent.is_empty() {
        return otherwise;
    }
    format!(
        "tier {} does not answer; what was not synced there is lost, and the next mount recovers the rest",
        silent.iter().map(|tier| format!("`{tier}`")).collect::<Vec<_>>().join(", ")
    )
}

/// Leaves the reason in the lock, and lets go of that where tiers do not answer. A change of an object that a program holds must not meet another daemon
/// when it is made at last.
fn note_unclean_end(lock: &VolumeLock, file_system: &FileSystem, reason: &str) {
    lock.note_unclean(reason);
    if !file_system.tiers_not_answering().is_empty() {
        lock.release();
    }
}

/// Ends a file system that is not served.
fn end(file_system: &FileSystem) {
    if let Err(error) = file_system.unmount() {
        log::error!("{error}");
    }
}

fn error_of_mounting(error: std::io::Error, mount_point: &Path) -> anyhow::Error {
    let device = "/dev/fuse";
    let hint = match File::options().read(true).write(true).open(device) {
        Err(reason) => format!(" ({device} cannot be opened: {reason})"),
        Ok(_) => String::new(),
    };
    anyhow!(error).context(format!("cannot mount on {}{hint}", mount_point.display()))
}

fn notify(states: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        log::debug!("the service manager was not told: {error}");
    }
}

/// Passes on a message of a daemon of this process: to the service manager that the volume is mounted, to the caller why it is not.
pub fn relay_to_service_manager(line: &str) -> Result<Option<String>> {
    match serde_json::from_str(line)? {
        Readiness::Ready { warnings } => {
            warnings.iter().for_each(|warning| log::warn!("{warning}"));
            notify(&[sd_notify::NotifyState::Ready]);
            Ok(None)
        }
        Readiness::Failed(reason) => Ok(Some(reason)),
    }
}

/// Opens the door for programs that read files past the mount. Without one they go through the kernel, as they would otherwise.
fn open_door(file_system: &Arc<FileSystem>, leases: LeasesEntry) -> Option<Arc<Door>> {
    if leases == LeasesEntry::Off {
        return None;
    }
    match Door::open(file_system) {
        Ok(door) => {
            let door = Arc::new(door);
            let port: Arc<dyn LeasePort> = Arc::clone(&door) as _;
            file_system.set_lease_port(Arc::downgrade(&port));
            Some(door)
        }
        Err(error) => {
            log::warn!("no leases are given on this mount: {error}");
            None
        }
    }
}

fn serve_kernel(session: Session, sender: Sender<Event>) -> Result<()> {
    thread::Builder::new().name("session".to_owned()).spawn(move || {
        // The receiver is gone only when the daemon ends anyway.
        let _ = sender.send(Event::SessionEnded(session.wait()));
    })?;
    Ok(())
}

fn watch_signals(sender: Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Whether the file system at a mount point answers. Asked for its free space, which the kernel keeps no copy of, as it does of names and attributes.
fn is_answered(mount_point: &Path) -> bool {
    rustix::fs::statvfs(mount_point).is_ok()
}

/// Detaches the dead mount of a crashed daemon of this volume from the mount point. The caller holds the volume's lock, so
/// no daemon serves it.
fn detach_dead_mount(name: &str, mount_point: &Path) -> Result<Vec<String>> {
    let dead =
        |table: &MountTable| table.at(mount_point).is_some_and(|mount| is_polymux(mount) && mount.source == name);
    if !dead(&MountTable::read()?) || is_answered(mount_point) {
        return Ok(Vec::new());
    }
    if rustix::mount::unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
        let helper = std::process::Command::new("fusermount3").args(["-uz", "--"]).arg(mount_point).output();
        helper.context("cannot run fusermount3")?;
    }
    if dead(&MountTable::read()?) {
        bail!("cannot detach what a crashed daemon of volume `{name}` left on {}", mount_point.display());
    }
    Ok(vec![format!("a crashed daemon's mount on {} was detached", mount_point.display())])
}

fn check_mount_point(config: &VolumeConfig, mount_point: &Path) -> Result<()> {
    let place = mount_point.display();
    let metadata = mount_point.metadata().with_context(|| format!("mount point {place}"))?;
    if !metadata.is_dir() {
        bail!("mount point {place} is not a directory");
    }
    let canonical = mount_point.canonicalize()?;
    // An automount is there to be mounted over.
    if let Some(mount) = MountTable::read()?.at(&canonical).filter(|mount| mount.file_system != "autofs") {
        bail!("mount point {place} is in use: {} ({}) is mounted there", mount.source, mount.file_system);
    }
    tier_candidates::check_mount_point(&config.tiers, &canonical)
}

/// Kernel settings of the daemon process; each is an improvement, none is required.
pub fn prepare_process() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        log::debug!("the limit of open files stays: {error}");
    }
    // Memory reclaim must not wait for write-back through this very daemon.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        log::debug!("not marked as an I/O flusher: {error}");
    }
}
