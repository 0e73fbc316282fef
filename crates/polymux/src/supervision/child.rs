//! One daemon as a child of its supervisor.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use polymux_types::sync::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::DaemonCommand;

/// Signals to the supervisor, which are for the daemon.
#[derive(Debug, Default)]
pub struct Addressee {
    /// The daemon that lives, by a descriptor: a later process with its number is not taken for it.
    daemon: Option<OwnedFd>,
    /// The last signal. A request to end is for the mount: each later daemon gets it too, once it serves (before, it would only die of it).
    asked: Option<Signal>,
}

impl Addressee {
    /// Whether a signal asked for the end of the mount.
    pub fn is_asked_to_end(&self) -> bool {
        self.asked.is_some()
    }
}

/// Passes signals on to the daemon that lives, or to the next one.
pub fn watch_signals() -> Result<Arc<Mutex<Addressee>>> {
    let addressee = Arc::new(Mutex::new(Addressee::default()));
    let passed_on = Arc::clone(&addressee);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch signals")?;
    let watch = move || {
        for _ in signals.forever() {
            let mut addressee = passed_on.lock();
            // All of them mean the same to a daemon.
            addressee.asked = Some(Signal::TERM);
            if let Some(daemon) = &addressee.daemon {
                pass_on(daemon, Signal::TERM);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(addressee)
}

fn pass_on(daemon: &OwnedFd, signal: Signal) {
    if let Err(error) = pidfd_send_signal(daemon, signal) {
        log::error!("the signal does not reach the daemon: {error}");
    }
}

/// A daemon.
pub struct Child {
    process: std::process::Child,
    addressee: Arc<Mutex<Addressee>>,
}

impl Child {
    /// Starts one, with the socket as its standard input.
    pub fn start(command: &DaemonCommand, socket: OwnedFd, addressee: &Arc<Mutex<Addressee>>) -> Result<Self> {
        let process = Command::new(&command.program)
            .arg0("polymux")
            .args(&command.arguments)
            // This process notifies the service manager in its place.
            .env_remove("NOTIFY_SOCKET")
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(socket))
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the daemon ({})", command.program.display()))?;
        let descriptor =
            pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).context("the daemon just started")?;
        addressee.lock().daemon = Some(descriptor);
        Ok(Self { process, addressee: Arc::clone(addressee) })
    }

    /// The line that it says once it serves, or once it knows that it cannot; `None` where it ends without one.
    pub fn first_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let output = self.process.stdout.take()?;
        BufReader::new(output).read_line(&mut line).ok().filter(|length| *length > 0)?;
        let addressee = self.addressee.lock();
        if let (Some(daemon), Some(signal)) = (&addressee.daemon, addressee.asked) {
            pass_on(daemon, signal);
        }
        drop(addressee);
        Some(line)
    }

    /// Waits until it is gone with all of its threads.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let ended = self.process.wait().context("the end of the daemon cannot be waited for");
        self.addressee.lock().daemon = None;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_came_while_no_daemon_lived_reaches_the_next_one_when_it_serves() {
        let addressee = Arc::new(Mutex::new(Addressee { asked: Some(Signal::TERM), ..Addressee::default() }));
        let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
        let command = super::super::tests::shell(script);
        let (_ours, theirs) = super::super::messages::pair().unwrap();
        let mut daemon = Child::start(&command, theirs, &addressee).unwrap();
        assert_eq!(daemon.first_line().as_deref(), Some("ready\n"));
        assert_eq!(daemon.wait().unwrap().code(), Some(7));
    }
}
