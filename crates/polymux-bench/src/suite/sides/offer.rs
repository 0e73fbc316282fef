//! FUSE over `io_uring` is offered to a new mount only while a switch of the machine is on.
//!
//! Invariant: the switch is on for the length of one mount at most, and then as it was before, also where the run is
//! interrupted; any other code that changes it (the tests do) has to wait for the same lock.

use std::fs::{self, File};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::throttled::{Devices, OnTop};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch, to be put back.
struct Switch {
    before: Option<String>,
    _turn: File,
}

impl OnTop for Switch {
    fn remove(&mut self) -> Result<()> {
        match self.before.take() {
            Some(before) => fs::write(SWITCH, before.trim()).with_context(|| format!("{SWITCH} stays on")),
            None => Ok(()),
        }
    }
}

/// Mounts something that is to be offered `io_uring`.
///
/// # Errors
/// Where the kernel has none, or mounting fails.
pub fn with_rings<T>(devices: &Devices, mount: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = fs::read_to_string(SWITCH).context("the kernel has no FUSE over io_uring")?;
    let lock = std::env::temp_dir().join(format!("polymux-rings-{}.lock", rustix::process::geteuid().as_raw()));
    let turn = File::options().create(true).truncate(false).write(true).open(lock)?;
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive)?;
    let switch: Arc<Mutex<dyn OnTop>> = Arc::new(Mutex::new(Switch { before: Some(before), _turn: turn }));
    devices.put_on_top(&switch);
    fs::write(SWITCH, "Y").context("FUSE over io_uring cannot be switched on")?;
    let mounted = mount();
    switch.lock().unwrap_or_else(PoisonError::into_inner).remove()?;
    mounted
}
