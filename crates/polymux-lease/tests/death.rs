//! A daemon that is killed, and whose memory is taken away before its threads have ended, as under lack of memory: programs see its death all the same.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use polymux_lease::{Life, LifeKeeper};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Set for the process that plays the daemon.
const DAEMON: &str = "POLYMUX_TEST_DAEMON";
const ROUNDS: usize = 20;

/// Runs only as a child of the test below.
#[test]
fn daemon_that_is_killed() {
    if std::env::var_os(DAEMON).is_none() {
        return;
    }
    let keeper = LifeKeeper::start().expect("started");
    println!("descriptor {}", keeper.descriptor().as_raw_fd());
    loop {
        // It is busy: a process that sleeps would end its threads at once.
        std::hint::spin_loop();
    }
}

/// Has the kernel take away the memory of a process that was killed. Returns whether it did: the process may be gone already.
fn release_memory(process: &OwnedFd) -> bool {
    // SAFETY: the call takes a descriptor and flags, and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_process_mrelease, process.as_raw_fd(), 0) == 0 }
}

/// Killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_death_of_a_daemon_leaves_its_word_as_it_was() {
    let mut released = 0;
    for _ in 0..ROUNDS {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "daemon_that_is_killed", "--nocapture"]).env(DAEMON, "1").stdout(Stdio::piped());
        let mut daemon = Daemon(command.spawn().expect("started"));
        let lines = BufReader::new(daemon.0.stdout.take().expect("a pipe")).lines();
        let mut said = lines.map(|line| line.expect("read"));
        // The test harness may have begun the line.
        let number = said.find_map(|line| Some(line.split_once("descriptor ")?.1.to_owned())).expect("a descriptor");
        let path = format!("/proc/{}/fd/{number}", daemon.0.id());
        let word = OpenOptions::new().read(true).open(path).expect("opened");
        let life = Life::map(&word).expect("mapped");
        assert!(life.goes_on());
        let process = pidfd_open(Pid::from_child(&daemon.0), PidfdFlags::empty()).expect("opened");
        pidfd_send_signal(&process, Signal::KILL).expect("killed");
        released += usize::from(release_memory(&process));
        daemon.0.wait().expect("waited for");
        assert!(!life.goes_on(), "a daemon that is gone seems to live");
    }
    eprintln!("the memory of {released} of {ROUNDS} was taken away before their threads had ended");
}
