//! Requests over `io_uring` that are not answered for long, with the real kernel.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use polymux_transport::wire::{Attr, AttrReply, Capabilities, Operation, Request};
use polymux_transport::{Patience, Reply, Served, Service, Wishes};
use polymux_types::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// More than a queue begins with.
const HELD: usize = 100;

/// The attributes of the only directory.
fn root() -> Vec<u8> {
    let attr = Attr { ino: 1, mode: libc::S_IFDIR | 0o755, links: 2, ..Attr::default() };
    AttrReply { keep_attr: Duration::from_secs(60), attr }.encode().to_vec()
}

/// Hands lookups of names that begin with an `h` to the test while it receives them; there are no other names.
struct Holding(Mutex<Sender<Reply>>);

impl Service for Holding {
    fn serve(&self, request: &Request<'_>, reply: Reply, _: Patience) -> Option<Reply> {
        match request.operation {
            Operation::Lookup { name } if name.starts_with(b"h") => {
                let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(reply);
                if let Err(SendError(reply)) = sent {
                    // The test has seen enough.
                    reply.error(Errno::ENOENT);
                }
            }
            Operation::GetAttr { .. } => reply.body(&root()),
            _ => reply.error(Errno::ENOENT),
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}

/// Puts the switch back.
struct Offered(String);

impl Drop for Offered {
    fn drop(&mut self) {
        std::fs::write(SWITCH, self.0.trim()).expect("it could be written before");
    }
}

/// Mounts with `io_uring`; `None` where that cannot be.
fn mount(place: &Path) -> Option<(Served, Receiver<Reply>)> {
    // The tests on mounted volumes take turns in the same way.
    let turn = std::env::temp_dir().join(format!("polymux-rings-{}.lock", rustix::process::geteuid().as_raw()));
    let turn = std::fs::File::options().create(true).truncate(false).write(true).open(turn).expect("a lock file");
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).expect("waiting for a lock works");
    let before = std::fs::read_to_string(SWITCH).ok()?;
    std::fs::write(SWITCH, "Y").ok()?;
    let _offered = Offered(before);
    if let Some(why) = polymux_transport::uring::obstacle() {
        eprintln!("skipped: {why}");
        return None;
    }
    let capabilities = Capabilities::INIT_EXT | Capabilities::OVER_IO_URING | Capabilities::PARALLEL_DIROPS;
    let wishes = Wishes { capabilities, write_max: 8192, ..Wishes::default() };
    let (sender, held) = channel();
    let served = Served::mount(Holding(Mutex::new(sender)), place, "held", wishes, 2).expect("it is mounted");
    Some((served, held))
}

fn stay_on_the_first_processor() {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).expect("there is one");
}

#[test]
fn requests_that_are_held_do_not_hold_up_what_else_their_processor_asks() {
    let place = tempfile::tempdir().expect("a temporary directory is made");
    let Some((served, held)) = mount(place.path()) else {
        return eprintln!("skipped: FUSE over io_uring cannot be switched on here");
    };
    let ask = |name: String| {
        let path = place.path().join(name);
        thread::spawn(move || {
            stay_on_the_first_processor();
            std::fs::symlink_metadata(path).expect_err("there is no such name").kind()
        })
    };
    let mut asking = Vec::new();
    let mut replies = Vec::new();
    for number in 0..HELD {
        asking.push(ask(format!("h{number}")));
        match held.recv_timeout(Duration::from_secs(5)) {
            Ok(reply) => replies.push(reply),
            Err(_) => break,
        }
    }
    let (sender, answered) = channel();
    let other = ask("other".to_owned());
    asking.push(thread::spawn(move || {
        let outcome = other.join().expect("no panic");
        // The test may have given up.
        let _ = sender.send(outcome);
        outcome
    }));
    let answered = answered.recv_timeout(Duration::from_secs(5));
    // Everything is answered before anything is judged, so that nothing stays mounted.
    drop(held);
    let came = replies.len();
    replies.into_iter().for_each(|reply| reply.error(Errno::ENOENT));
    let outcomes: Vec<_> = asking.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    served.unmount().expect("it is unmounted");
    assert!(outcomes.iter().all(|outcome| *outcome == ErrorKind::NotFound), "{outcomes:?}");
    assert_eq!(came, HELD, "requests that came while others were held");
    assert_eq!(answered, Ok(ErrorKind::NotFound), "what else the processor asks");
}
