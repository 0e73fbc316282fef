//! The kernel's information on the threads whose requests are served: their credentials, and the call that they are in.
//!
//! Facts that this module relies on:
//! * `/proc` shows the credentials that a thread has for itself. A request may be made with others (of NFS exports, overlayfs, io_uring with
//!   a personality): where the user or the group of the request is not that of the thread, nothing is known of its further groups
//!   and capabilities.
//! * Capabilities count only in the user namespace of the daemon: in one of their own all users have all of them.

use std::time::Duration;

use polymux_transport::wire::Header;

/// Looks at a thread that was just about to wait for the answer to its request.
const LOOKS: usize = 20;
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// Privileges of a thread, beside those of its user and its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) groups: Vec<u32>,
    /// `None`: not known.
    capabilities: Option<u64>,
}

/// `CAP_FSETID`: keeps the set-group-id bit of files of other groups.
pub(crate) const CAP_FSETID: u32 = 4;
/// `CAP_SYS_ADMIN`: sees attributes of the class `trusted.`.
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

impl Credentials {
    /// Whether a thread has a capability in the user namespace of the daemon; `None` where that is not known.
    pub(crate) fn has(&self, capability: u32) -> Option<bool> {
        Some(self.capabilities? & (1 << capability) != 0)
    }
}

/// The credentials by which a request is made; `None` where they are not known: the thread cannot be read (another process namespace, or
/// gone), or makes the request with credentials that are not its own.
pub(crate) fn credentials_of(header: &Header) -> Option<Credentials> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", header.pid)).ok()?;
    let mut found = parse(&status).filter(|_| is_of(&status, header))?;
    let namespace = |thread: &str| std::fs::read_link(format!("/proc/{thread}/ns/user")).ok();
    found.capabilities = match (namespace("self"), namespace(&header.pid.to_string())) {
        (Some(own), Some(other)) if own == other => found.capabilities,
        (Some(_), Some(_)) => Some(0),
        _ => None,
    };
    Some(found)
}

fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn parse(status: &str) -> Option<Credentials> {
    let groups: Option<_> = line(status, "Groups:")?.split_whitespace().map(|group| group.parse().ok()).collect();
    let capabilities = u64::from_str_radix(line(status, "CapEff:")?.trim(), 16).ok()?;
    Some(Credentials { groups: groups?, capabilities: Some(capabilities) })
}

/// Whether a thread uses files as the user and the group of the request: the last of four numbers each.
fn is_of(status: &str, header: &Header) -> bool {
    let last = |name| line(status, name)?.split_whitespace().nth(3)?.parse().ok();
    last("Uid:") == Some(header.uid) && last("Gid:") == Some(header.gid)
}

/// The current activity of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It runs, or would if there were a processor for it; or that cannot be seen.
    Unknown,
    /// It waits in a call: its number, arguments and place in the program.
    Waits(String),
    /// There is no such thread.
    Gone,
}

/// The activity of a thread right now.
pub(crate) fn doing(thread: u32) -> Doing {
    match std::fs::read_to_string(format!("/proc/{thread}/syscall")) {
        Ok(call) if call.starts_with("running") => Doing::Unknown,
        Ok(call) => Doing::Waits(call),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Doing::Gone,
        Err(_) => Doing::Unknown,
    }
}

/// As [`doing`], for a thread whose request is being served, and which therefore waits, now or in a moment.
pub(crate) fn doing_of_asking(thread: u32) -> Doing {
    for _ in 0..LOOKS {
        match doing(thread) {
            Doing::Unknown => std::thread::sleep(LOOK_INTERVAL),
            found => return found,
        }
    }
    Doing::Unknown
}

/// Whether the thread of a request is in `chown(2)` or one of its kin; a program of another word length may be without being noticed.
pub(crate) fn is_in_chown(header: &Header) -> bool {
    is_in_one_of(header, &CHOWN)
}

/// Whether the thread of a request is in a call that reads or moves the place in a file; `false` where that cannot be seen.
pub(crate) fn is_reading(header: &Header) -> bool {
    is_in_one_of(header, &READING)
}

fn is_in_one_of(header: &Header, calls: &[libc::c_long]) -> bool {
    let Doing::Waits(call) = doing_of_asking(header.pid) else { return false };
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number| calls.contains(&number))
}

/// `read(2)`, its kin and `lseek(2)`.
const READING: [libc::c_long; 6] =
    [libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_lseek];

#[cfg(target_arch = "x86_64")]
const CHOWN: [libc::c_long; 4] = [libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown, libc::SYS_fchownat];
#[cfg(not(target_arch = "x86_64"))]
const CHOWN: [libc::c_long; 2] = [libc::SYS_fchown, libc::SYS_fchownat];

#[cfg(test)]
mod tests {
    use super::*;

    fn header(uid: u32, gid: u32) -> Header {
        Header { length: 128, opcode: 4, unique: 2, node: 7, uid, gid, pid: std::process::id() }
    }

    #[test]
    fn groups_and_capabilities_are_read_from_the_status_of_a_thread() {
        let status = "Name:\tsh\nGroups:\t4 24 1000 \nNStgid:\t5\nCapEff:\t0000000000200010\n";
        let found = parse(status).unwrap();
        assert_eq!(found.groups, [4, 24, 1000]);
        assert_eq!(
            [CAP_FSETID, CAP_SYS_ADMIN, 0].map(|number| found.has(number)),
            [Some(true), Some(true), Some(false)]
        );
        assert_eq!(parse("Groups:\t \nCapEff:\t0\n").map(|found| found.groups), Some(Vec::new()));
        assert_eq!(parse("Name:\tsh\nCapEff:\t0\n"), None);
    }

    #[test]
    fn nothing_is_known_of_a_thread_that_asks_with_the_credentials_of_somebody_else() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let own = credentials_of(&header(uid, gid)).expect("the own process can be read");
        assert_eq!(own.has(CAP_FSETID), Some(rustix::process::geteuid().is_root()));
        assert_eq!(credentials_of(&header(uid + 1, gid)), None);
        assert_eq!(credentials_of(&header(uid, gid + 1)), None);
    }

    #[test]
    fn a_thread_waits_in_a_call_runs_or_is_gone() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            ended.recv()
        });
        let thread = receive.recv().unwrap();
        let Doing::Waits(call) = doing_of_asking(thread) else { panic!("it waits in a call") };
        assert_eq!(doing(thread), Doing::Waits(call));
        end.send(()).unwrap();
        waits.join().unwrap().unwrap();
        assert_eq!(doing_of_asking(thread), Doing::Gone);
    }
}
