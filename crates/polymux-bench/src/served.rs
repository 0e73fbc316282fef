//! Block devices with service times: each is a loop device over a file of a small FUSE file system, which serves one request
//! after the other, each in the time that its bytes take.
//!
//! Design:
//! * The kernel's throttle lets requests pass at once until the share of a slice of 100 ms is used up; bandwidth is right then,
//!   and latencies mean nothing. Here a request waits for those before it, as at a device with one head.
//! * Bytes lie in a file in memory. A request is answered when its time is over; order is that of arrival; a flush waits for
//!   all earlier requests.
//! * Each device has a thread that serves it; the thread that takes requests from the kernel never sleeps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polymux_transport::wire::written;
use polymux_transport::{FlatDirectory, FlatFiles, Reply, Served, Wishes};
use polymux_types::Errno;

use crate::throttled::Limits;

/// Longest request.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Requests that the kernel may have under way.
const REQUESTS_MAX: u16 = 256;

/// A request to a device, with its reply.
enum Asked {
    Read { offset: u64, length: usize, reply: Reply },
    Write { offset: u64, data: Vec<u8>, reply: Reply },
    Zero { offset: u64, length: u64, reply: Reply },
    Flush { reply: Reply },
}

struct Disk {
    length: u64,
    requests: Sender<Asked>,
}

/// A mounted file system with a file for each device; unmounted when dropped.
pub struct ServedDisks {
    path: PathBuf,
    limits: Vec<(&'static str, Arc<Mutex<Limits>>)>,
    session: Option<Served>,
}

impl ServedDisks {
    /// Mounts at `path`, which must be there, a file for each name. Bytes are kept in files in `memory`.
    ///
    /// # Errors
    /// Where it cannot be mounted.
    pub fn mount(path: &Path, memory: &Path, names: &[&'static str], length: u64) -> Result<Self> {
        let (mut disks, mut shared_limits) = (Vec::new(), Vec::new());
        for name in names {
            let bytes = File::create_new(memory.join(format!("{name}.bytes")))?;
            bytes.set_len(length)?;
            let bytes = File::options().read(true).write(true).open(memory.join(format!("{name}.bytes")))?;
            let limits = Arc::new(Mutex::new(Limits::default()));
            let (requests, asked) = channel();
            let device = Device { bytes, limits: Arc::clone(&limits), free_at: Instant::now() };
            thread::Builder::new()
                .name(format!("device-{name}"))
                .spawn(move || without_writeback(|| device.serve(&asked)))?;
            disks.push(Disk { length, requests });
            shared_limits.push((*name, limits));
        }
        let server = FlatDirectory(Server { names: names.to_vec(), disks });
        let place = path.to_owned();
        let wishes = Wishes {
            write_max: REQUEST_BYTES_MAX,
            background_max: REQUESTS_MAX,
            congestion_threshold: REQUESTS_MAX,
            ..Wishes::default()
        };
        let spawned =
            thread::spawn(move || without_writeback(|| Served::mount(server, &place, "polymux-served", wishes, 1)));
        let session =
            spawned.join().expect("mounting does not panic").context("cannot mount devices with service times")?;
        Ok(Self { path: path.to_owned(), limits: shared_limits, session: Some(session) })
    }

    /// The file of a device.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Lets a device be as fast as `limits` say from the next request on.
    pub fn limit(&self, name: &str, limits: &Limits) {
        let found = self.limits.iter().find(|(known, _)| *known == name);
        let (_, place) = found.expect("the device was made here");
        *place.lock().unwrap_or_else(PoisonError::into_inner) = *limits;
    }

    /// Unmounts; nothing may use the files any more.
    ///
    /// # Errors
    /// Where it is in use.
    pub fn unmount(&mut self) -> Result<()> {
        match self.session.take() {
            Some(session) => Ok(session.unmount()?),
            None => Ok(()),
        }
    }
}

/// Runs `work` on a thread whose children and own memory are never got by writing to the file systems that wait for it.
fn without_writeback<R>(work: impl FnOnce() -> R) -> R {
    // Without the right to say so there is no root, and then there are no loop devices either.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    work()
}

/// The end of a device that takes time.
struct Device {
    bytes: File,
    limits: Arc<Mutex<Limits>>,
    free_at: Instant,
}

impl Device {
    fn serve(mut self, asked: &Receiver<Asked>) {
        for request in asked {
            let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
            self.wait(service_time(&limits, &request));
            self.answer(request);
        }
    }

    /// A device that was idle begins now; one that was not goes on where it was, however late this thread woke.
    fn wait(&mut self, own: Duration) {
        let now = Instant::now();
        self.free_at = self.free_at.max(now) + own;
        thread::sleep(self.free_at.saturating_duration_since(now));
    }

    fn answer(&self, request: Asked) {
        match request {
            Asked::Read { offset, length, reply } => {
                let mut buffer = vec![0; length];
                match self.bytes.read_exact_at(&mut buffer, offset) {
                    Ok(()) => reply.body(&buffer),
                    Err(_) => reply.error(Errno::EIO),
                }
            }
            Asked::Write { offset, data, reply } => match self.bytes.write_all_at(&data, offset) {
                Ok(()) => reply.body(&written(u32::try_from(data.len()).expect("a request is short"))),
                Err(_) => reply.error(Errno::ENOSPC),
            },
            Asked::Zero { offset, length, reply } => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                match rustix::fs::fallocate(&self.bytes, flags, offset, length) {
                    Ok(()) => reply.ok(),
                    Err(_) => reply.error(Errno::EIO),
                }
            }
            Asked::Flush { reply } => reply.ok(),
        }
    }
}

/// Service time of a request, without the wait for earlier ones.
fn service_time(limits: &Limits, request: &Asked) -> Duration {
    let (length, bytes_per_second, per_second) = match request {
        Asked::Read { length, .. } => (*length, limits.read_bytes, limits.reads),
        Asked::Write { data, .. } => (data.len(), limits.written_bytes, limits.writes),
        Asked::Zero { .. } | Asked::Flush { .. } => return Duration::ZERO,
    };
    let by_bytes = bytes_per_second.map_or(0.0, |rate| length as f64 / rate as f64);
    let by_number = per_second.map_or(0.0, |rate| 1.0 / rate as f64);
    Duration::from_secs_f64(by_bytes.max(by_number))
}

/// The files of the devices.
struct Server {
    names: Vec<&'static str>,
    disks: Vec<Disk>,
}

impl Server {
    fn ask(&self, file: usize, asked: Asked) {
        self.disks[file].requests.send(asked).expect("a device serves as long as its file system is mounted");
    }
}

impl FlatFiles for Server {
    fn names(&self) -> &[&'static str] {
        &self.names
    }

    fn length(&self, file: usize) -> u64 {
        self.disks[file].length
    }

    fn read(&self, file: usize, offset: u64, length: usize, reply: Reply) {
        self.ask(file, Asked::Read { offset, length, reply });
    }

    fn write(&self, file: usize, offset: u64, data: &[u8], reply: Reply) {
        self.ask(file, Asked::Write { offset, data: data.to_vec(), reply });
    }

    fn zero(&self, file: usize, offset: u64, length: u64, reply: Reply) {
        self.ask(file, Asked::Zero { offset, length, reply });
    }

    fn sync(&self, file: usize, reply: Reply) {
        self.ask(file, Asked::Flush { reply });
    }
}
