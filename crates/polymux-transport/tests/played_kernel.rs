//! Connections whose kernel is played by the test, over a socket that keeps messages apart as `/dev/fuse` does.

#![expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use polymux_transport::wire::{Capabilities, HEADER_LENGTH, Opcode, Operation, Request};
use polymux_transport::{Connection, Device, Patience, ProcessorLatency, Reply, Service, Wishes, negotiate};
use polymux_types::Errno;

/// Answers `STATFS` with nothing, keeps `GETATTR` to itself, and forgets to answer the rest.
struct Forgetful;

impl Service for Forgetful {
    fn serve(&self, request: &Request<'_>, reply: Reply, _: Patience) -> Option<Reply> {
        match request.operation {
            Operation::StatFs => reply.ok(),
            Operation::GetAttr { .. } => {
                std::thread::spawn(move || reply.error(Errno::ESTALE));
            }
            _ => drop(reply),
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}

struct Kernel(UnixDatagram);

impl Kernel {
    fn new() -> (Self, Device) {
        let (kernel, program) = UnixDatagram::pair().unwrap();
        kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (Self(kernel), Device::from(OwnedFd::from(program)))
    }

    fn ask(&self, opcode: Opcode, unique: u64, body: &[u8]) {
        let length = u32::try_from(HEADER_LENGTH + body.len()).unwrap();
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&opcode.number().to_ne_bytes());
        bytes.extend_from_slice(&unique.to_ne_bytes());
        bytes.resize(HEADER_LENGTH, 0);
        bytes.extend_from_slice(body);
        self.0.send(&bytes).unwrap();
    }

    fn init(&self, version: (u32, u32), capabilities: Capabilities) {
        let low = u32::try_from(capabilities.0 & u64::from(u32::MAX)).unwrap();
        let high = u32::try_from(capabilities.0 >> 32).unwrap();
        let mut body: Vec<u8> =
            [version.0, version.1, 1 << 17, low, high].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.resize(64, 0);
        self.ask(Opcode::Init, 1, &body);
    }

    /// The answer: the number of its request, the error, the body.
    fn answer(&self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; 4096];
        let length = self.0.recv(&mut bytes).unwrap();
        bytes.truncate(length);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, length);
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        (u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), error, bytes[16..].to_vec())
    }
}

fn wishes(_: Capabilities) -> Wishes {
    Wishes { capabilities: Capabilities::BIG_WRITES | Capabilities::PASSTHROUGH, ..Wishes::default() }
}

#[test]
fn a_kernel_of_a_later_major_version_comes_back_with_ours() {
    let (kernel, device) = Kernel::new();
    kernel.init((8, 1), Capabilities::NONE);
    kernel.init((7, 38), Capabilities::BIG_WRITES);
    let agreement = negotiate(&device, wishes).unwrap();
    assert_eq!((agreement.kernel_version, agreement.capabilities), ((7, 38), Capabilities::BIG_WRITES));
    let (_, error, first) = kernel.answer();
    assert_eq!((error, u32::from_ne_bytes(first[..4].try_into().unwrap())), (0, 7));
    assert_eq!(kernel.answer().1, 0);
}

#[test]
fn a_kernel_that_is_too_old_or_begins_with_something_else_is_refused() {
    let (kernel, device) = Kernel::new();
    kernel.init((7, 30), Capabilities::BIG_WRITES);
    assert!(negotiate(&device, wishes).unwrap_err().to_string().contains("7.31"));
    assert_eq!(kernel.answer().1, -libc::EPROTO);
    kernel.ask(Opcode::StatFs, 5, &[]);
    assert!(negotiate(&device, wishes).is_err());
    assert_eq!(kernel.answer().0, 5);
}

#[test]
fn passthrough_is_asked_for_with_one_level_where_it_is_offered() {
    let (kernel, device) = Kernel::new();
    kernel.init((7, 45), Capabilities::PASSTHROUGH | Capabilities::INIT_EXT);
    let agreement = negotiate(&device, wishes).unwrap();
    assert!(agreement.capabilities.contains(Capabilities::PASSTHROUGH));
    let (_, _, body) = kernel.answer();
    assert_eq!(body.len(), 64);
    assert_eq!(u32::from_ne_bytes(body[36..40].try_into().unwrap()), 1, "the depth of the stack");
}

#[test]
fn every_request_is_answered_once_also_a_broken_and_a_forgotten_one() {
    let (kernel, device) = Kernel::new();
    kernel.init((7, 38), Capabilities::BIG_WRITES);
    let agreement = negotiate(&device, wishes).unwrap();
    kernel.answer();
    let connection = Arc::new(Connection::new(Arc::new(device), agreement, Forgetful));
    let state = connection.state.clone();
    drop(connection.start(1).unwrap());
    kernel.ask(Opcode::StatFs, 10, &[]);
    assert_eq!(kernel.answer(), (10, 0, Vec::new()));
    kernel.ask(Opcode::GetAttr, 12, &[0; 16]);
    assert_eq!(kernel.answer(), (12, -libc::ESTALE, Vec::new()));
    kernel.ask(Opcode::Unlink, 14, b"name\0");
    assert_eq!(kernel.answer(), (14, -libc::EIO, Vec::new()));
    kernel.ask(Opcode::Unlink, 16, b"name without an end");
    assert_eq!(kernel.answer(), (16, -libc::EIO, Vec::new()));
    // Neither has an answer; the next request has one.
    kernel.ask(Opcode::Forget, 18, &1_u64.to_ne_bytes());
    kernel.ask(Opcode::Interrupt, 20, &12_u64.to_ne_bytes());
    kernel.ask(Opcode::Destroy, 22, &[]);
    assert_eq!(kernel.answer(), (22, 0, Vec::new()));
    let counted = state.messages.totals();
    assert_eq!((counted["unlink"], counted["forget"], counted["interrupt"]), (1, 1, 1));
}

/// Answers `GETATTR`, and `UNLINK` without saying that it waits, only after a `STATFS` was answered.
#[derive(Default)]
struct Waiting {
    has_asked: Mutex<bool>,
    asked: Condvar,
}

impl Waiting {
    fn wait(&self) -> i32 {
        let has_asked = self.has_asked.lock().unwrap();
        let (_held, waited) =
            self.asked.wait_timeout_while(has_asked, Duration::from_secs(20), |has_asked| !*has_asked).unwrap();
        if waited.timed_out() { libc::ETIMEDOUT } else { libc::ESTALE }
    }
}

impl Service for Waiting {
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        match request.operation {
            Operation::GetAttr { .. } if patience == Patience::AtOnce => return Some(reply),
            Operation::GetAttr { .. } | Operation::Unlink { .. } => reply.error(Errno::from_raw(self.wait())),
            _ => {
                *self.has_asked.lock().unwrap() = true;
                self.asked.notify_all();
                reply.ok();
            }
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}

/// Asks for something that is answered only after a `STATFS`, and then for that, of so many threads.
fn asks_beside_one_that_waits(threads: usize, opcode: Opcode, body: &[u8]) {
    let (kernel, device) = Kernel::new();
    kernel.init((7, 38), Capabilities::BIG_WRITES);
    let agreement = negotiate(&device, wishes).unwrap();
    kernel.answer();
    let connection = Arc::new(Connection::new(Arc::new(device), agreement, Waiting::default()));
    drop(connection.start(threads).unwrap());
    kernel.ask(opcode, 10, body);
    std::thread::sleep(Duration::from_millis(20));
    kernel.ask(Opcode::StatFs, 12, &[]);
    let mut answers = [kernel.answer(), kernel.answer()];
    answers.sort_by_key(|(unique, _, _)| *unique);
    assert_eq!(answers, [(10, -libc::ESTALE, Vec::new()), (12, 0, Vec::new())]);
    assert_eq!(connection.take_grown().len(), usize::from(threads == 1), "one is added where all are busy");
}

#[test]
fn a_request_that_says_that_it_waits_holds_up_no_other_even_with_one_thread() {
    asks_beside_one_that_waits(1, Opcode::GetAttr, &[0; 16]);
}

#[test]
fn a_request_that_waits_without_saying_so_holds_up_no_other_for_long() {
    asks_beside_one_that_waits(2, Opcode::Unlink, b"name\0");
}

#[test]
fn a_connection_whose_queues_are_refused_goes_on_without_them() {
    let (kernel, device) = Kernel::new();
    let offered = Capabilities::BIG_WRITES | Capabilities::INIT_EXT | Capabilities::OVER_IO_URING;
    kernel.init((7, 45), offered);
    let agreement = negotiate(&device, |_| Wishes { capabilities: offered, ..Wishes::default() }).unwrap();
    assert!(agreement.capabilities.contains(Capabilities::OVER_IO_URING));
    kernel.answer();
    let connection = Connection::new(Arc::new(device), agreement, Forgetful);
    let connection = Arc::new(connection.with_processor_latency(ProcessorLatency::System));
    // A socket takes no registrations.
    match connection.start(2) {
        Ok(workers) => assert_eq!(workers.len(), 2),
        Err(error) => return eprintln!("skipped: io_uring is not allowed here: {error}"),
    }
    let transport = connection.state.transport();
    assert!(transport.starts_with("classic") && transport.contains("did not come up"), "{transport}");
    kernel.ask(Opcode::StatFs, 10, &[]);
    assert_eq!(kernel.answer(), (10, 0, Vec::new()));
}
