//! Capabilities of this machine for tests.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Says loudly that a test cannot run here. Panics where `CI` is set: there everything must run.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "this must run in CI, but: {why}");
    // Not `eprintln`, which the test harness would swallow.
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where the user may, empties the caches of the kernel: it asks anew for everything that it can ask for.
pub fn drop_caches() {
    if is_root() {
        std::fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
    }
}

/// Whether the long forms of the tests were asked for.
pub fn is_heavy() -> bool {
    std::env::var_os("POLYMUX_HEAVY").is_some_and(|value| value == "1")
}

/// Makes all tests on mounted volumes use one way for the bytes of open files: `cached`, `direct` or `write-back`; or `supervised`: the kernel collects
/// writes, and mounts outlive their daemon.
const IO_VARIABLE: &str = "POLYMUX_TEST_IO";

/// Mount options that make the bytes of open files go the way that the environment names; none where it names none.
pub fn wanted_io() -> &'static [&'static str] {
    match std::env::var(IO_VARIABLE).as_deref() {
        Err(_) => &[],
        Ok("cached") => &["-o", "passthrough=off"],
        Ok("direct") => &["-o", "passthrough=off,page_cache=off"],
        Ok("write-back") => &["-o", "io=write-back"],
        Ok("supervised") => &["-o", "io=auto"],
        Ok(other) => {
            panic!("{IO_VARIABLE} is `{other}`; `cached`, `direct`, `write-back` and `supervised` are possible")
        }
    }
}

/// Whether the kernel collects writes of all files (docs/design/0036).
pub fn collects_writes() -> bool {
    std::env::var(IO_VARIABLE).as_deref() == Ok("write-back") || are_supervised()
}

/// Whether mounts outlive their daemons, so that the process that a test starts is the supervisor.
pub fn are_supervised() -> bool {
    std::env::var(IO_VARIABLE).as_deref() == Ok("supervised")
}

/// Whether the kernel collects writes of all files, which excludes the tested behaviour.
pub fn skip_where_writes_are_collected(why: &str) -> bool {
    if collects_writes() {
        skip(why);
    }
    collects_writes()
}

/// Gives all volumes of the tests another policy.
const POLICY_VARIABLE: &str = "POLYMUX_TEST_POLICY";

/// The policy that the environment names.
pub fn wanted_policy() -> Option<String> {
    std::env::var(POLICY_VARIABLE).ok()
}

/// Whether the environment names a way for the bytes of open files, so that the choice without it cannot be seen.
pub fn skip_where_io_is_named() -> bool {
    let is_named = !wanted_io().is_empty();
    if is_named {
        skip(&format!("{IO_VARIABLE} names one way for all files"));
    }
    is_named
}

/// Whether the environment names a policy, so that the effects of another one cannot be seen.
pub fn skip_where_policy_is_named() -> bool {
    let is_named = wanted_policy().is_some();
    if is_named {
        skip(&format!("{POLICY_VARIABLE} names one policy for all volumes"));
    }
    is_named
}

pub fn have_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|directory| directory.join(name).is_file())
}

pub fn have_fuse() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
}

pub fn have_loop_devices() -> bool {
    is_root() && Path::new("/dev/loop-control").exists()
}

/// Held by a heavy test, so that tests do not disturb one another; released when dropped.
pub struct Turn {
    _file: File,
}

/// Waits for this test's turn, over all test processes of this user.
pub fn one_at_a_time() -> Turn {
    let path = std::env::temp_dir().join(format!("polymux-mounted-tests-{}.lock", rustix::process::geteuid().as_raw()));
    let file = File::options().create(true).truncate(false).write(true).open(path).expect("the lock file can be made");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("waiting for a lock works");
    Turn { _file: file }
}
