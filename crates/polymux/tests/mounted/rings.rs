//! Whether the kernel offers `io_uring` to file systems that are being mounted. Only root can say so, for the whole machine, and
//! it counts at the moment of the mount; so it is on for just that long.

use std::fs::File;

use super::environment::is_root;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// `io-uring` makes all tests on mounted volumes use that transport.
const VARIABLE: &str = "POLYMUX_TEST_TRANSPORT";

/// Mounts that are made while this exists are offered `io_uring`.
pub struct Offered {
    before: String,
    _turn: File,
}

impl Offered {
    /// Fails with the reason where that cannot be.
    pub fn try_new() -> Result<Self, String> {
        if !is_root() {
            return Err("only root switches FUSE over io_uring on".to_owned());
        }
        let turn = turn();
        let before = std::fs::read_to_string(SWITCH).map_err(|_| "the kernel has no FUSE over io_uring".to_owned())?;
        std::fs::write(SWITCH, "Y").map_err(|error| format!("FUSE over io_uring cannot be switched on: {error}"))?;
        Ok(Self { before, _turn: turn })
    }
}

/// Whether the environment asks for `io_uring` in every test on a mounted volume.
pub fn are_wanted_everywhere() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "io-uring")
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(SWITCH, self.before.trim()) {
            eprintln!("{SWITCH} stays on: {error}");
        }
    }
}

/// Mounts that are made while the returned file is open are offered no `io_uring`; `None` where the machine's owner switched it on.
pub fn withheld() -> Option<File> {
    let turn = turn();
    let is_on = std::fs::read_to_string(SWITCH).is_ok_and(|text| text.starts_with('Y'));
    (!is_on).then_some(turn)
}

/// Waits until no other process of this user has changed the switch.
fn turn() -> File {
    let path = std::env::temp_dir().join(format!("polymux-rings-{}.lock", rustix::process::geteuid().as_raw()));
    let file = File::options().create(true).truncate(false).write(true).open(path).expect("the lock file can be made");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("waiting for a lock works");
    file
}
