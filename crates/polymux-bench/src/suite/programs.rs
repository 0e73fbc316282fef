//! External programs that do a part of a workload: `tar`, `git`, `python3`.
//!
//! Invariant: a program that runs is known to the devices it works on, so that it is ended before they go.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::throttled::{self, Devices, OnTop};

/// Characters of the output of a program that failed in a message.
const OUTPUT_CHARACTERS_MAX: usize = 1000;

struct Running(Option<Pid>);

impl OnTop for Running {
    fn remove(&mut self) -> Result<()> {
        if let Some(process) = self.0.take() {
            kill_process(process, Signal::KILL)?;
        }
        Ok(())
    }
}

/// The file of a program in the search path.
#[must_use]
pub fn path_of(program: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into);
    let mut files = std::env::split_paths(&directories).chain(system).map(|directory| directory.join(program));
    files.find(|file| file.is_file())
}

/// Whether a program is in the search path.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    path_of(program).is_some()
}

/// Which of some programs is not in the search path, as the reason why something cannot run.
#[must_use]
pub fn missing<'a>(needed: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let missing = needed.into_iter().find(|program| !is_installed(program));
    missing.map(|program| format!("{program} is not installed"))
}

/// First line that a program prints about its version; `None` where it is not installed.
#[must_use]
pub fn version(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    // Some write it to standard error.
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map(|line| line.trim().to_owned())
}

/// Starts a program that gets no input. The devices know of it as long as the second value lives.
fn spawn(devices: &Devices, command: &mut Command) -> Result<(Child, Arc<Mutex<dyn OnTop>>)> {
    throttled::stop_if_interrupted();
    let child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let running: Arc<Mutex<dyn OnTop>> = Arc::new(Mutex::new(Running(Some(Pid::from_child(&child)))));
    devices.put_on_top(&running);
    Ok((child, running))
}

/// A program that goes on running. It is killed when this is dropped.
pub struct Started {
    child: Child,
    /// Known to the devices as long as this lives.
    _running: Arc<Mutex<dyn OnTop>>,
}

impl Started {
    /// Starts it; its output is discarded.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn new(devices: &Devices, command: &mut Command) -> Result<Self> {
        let (child, running) = spawn(devices, command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        Ok(Self { child, _running: running })
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// Where it cannot be waited for.
    pub fn wait(mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It has ended already after `wait`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// Where it cannot be started or fails, with its error output.
pub fn run(devices: &Devices, command: &mut Command) -> Result<String> {
    let (child, running) = spawn(devices, command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let output = child.wait_with_output();
    drop(running);
    let output = output?;
    let name = command.get_program().to_string_lossy();
    // Some programs say on standard output why they failed.
    let told = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    ensure!(output.status.success(), "{name}: {}", end_of(String::from_utf8_lossy(told).trim()));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The end of the output of a program, in which it says why it failed.
fn end_of(text: &str) -> &str {
    let start = text.char_indices().rev().nth(OUTPUT_CHARACTERS_MAX - 1).map_or(0, |(start, _)| start);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_output_the_end_is_told() {
        assert_eq!(end_of("short"), "short");
        let long = "é".repeat(OUTPUT_CHARACTERS_MAX) + "!";
        assert_eq!(end_of(&long), "é".repeat(OUTPUT_CHARACTERS_MAX - 1) + "!");
    }
}
