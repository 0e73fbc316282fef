//! Mounting by the set-id helper `fusermount3`, for users who may not mount.
//!
//! Protocol: the helper opens and mounts the device, and sends the descriptor over a socket whose number it reads from its
//! environment. The socket is its standard input, so that no descriptor has to be kept open by number.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::table::MountTable;
use super::{MountSettings, Unmount};
use crate::device::Device;

/// Program names of the helper, the current one and the former one.
const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];
/// Variable that passes the number of its socket to the helper.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// The options in one list, as `-o` takes it.
fn options(settings: &MountSettings) -> String {
    let mut source = String::new();
    for letter in settings.source.chars() {
        if matches!(letter, ',' | '\\') {
            source.push('\\');
        }
        source.push(letter);
    }
    let mut list = format!("fsname={source},{}", settings.driver_options());
    for (flag, name) in [
        (MountFlags::RDONLY, ",ro"),
        (MountFlags::NOSUID, ",nosuid"),
        (MountFlags::NODEV, ",nodev"),
        (MountFlags::NOEXEC, ",noexec"),
        (MountFlags::NOSYMFOLLOW, ",nosymfollow"),
    ] {
        if settings.flags.contains(flag) {
            list.push_str(name);
        }
    }
    list
}

pub(super) fn mount(mountpoint: &Path, settings: &MountSettings) -> io::Result<Device> {
    let (own, theirs) = UnixStream::pair()?;
    let helper = start(theirs.into(), mountpoint, &options(settings))?;
    let received = receive(&own);
    let output = helper.wait_with_output()?;
    match received {
        Ok(descriptor) => Ok(Device::from(descriptor)),
        Err(error) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if text.is_empty() { Err(error) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, text)) }
        }
    }
}

fn start(socket: OwnedFd, mountpoint: &Path, options: &str) -> io::Result<Child> {
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for program in PROGRAMS {
        let started = Command::new(program)
            .arg("-o")
            .arg(options)
            .arg("--")
            .arg(mountpoint)
            .env(SOCKET_VARIABLE, "0")
            .stdin(Stdio::from(socket.try_clone()?))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(child) => return Ok(child),
            Err(error) => last = error,
        }
    }
    Err(io::Error::new(last.kind(), format!("cannot run {}: {last}", PROGRAMS[0])))
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => break outcome?,
        }
    };
    if message.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the helper ended without mounting"));
    }
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the helper sent no descriptor"))
}

pub(super) fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let how = match how {
        Unmount::Idle => "-u",
        Unmount::Detach => "-uz",
    };
    let mut last = io::Error::from_raw_os_error(libc::EPERM);
    for program in PROGRAMS {
        match Command::new(program).arg(how).arg("--").arg(path).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            // The helper reports its reason as text only; one reason is that another process has unmounted the path already.
            Ok(_) if MountTable::read()?.at(path).is_none() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::super::MountAudience;
    use super::*;

    #[test]
    fn the_helper_hands_over_a_descriptor_that_is_mounted() {
        if rustix::fs::access("/dev/fuse", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_err() {
            return eprintln!("skipped: /dev/fuse cannot be opened");
        }
        if Command::new(PROGRAMS[0]).arg("-V").output().is_err() {
            return eprintln!("skipped: {} is not installed", PROGRAMS[0]);
        }
        let settings = MountSettings {
            source: "by-helper".to_owned(),
            subtype: "polymux",
            audience: MountAudience::Owner,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        };
        let place = tempfile::tempdir().unwrap();
        let is_mounted = || {
            let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
            table.lines().any(|line| line.starts_with("by-helper ") && line.contains(place.path().to_str().unwrap()))
        };
        let device = mount(place.path(), &settings).unwrap();
        assert!(is_mounted() && !device.is_closed());
        unmount(place.path(), Unmount::Detach).unwrap();
        assert!(!is_mounted());
    }

    #[test]
    fn the_helper_need_not_unmount_what_is_not_mounted_any_more() {
        let is_installed = PROGRAMS.iter().any(|program| Command::new(program).arg("-V").output().is_ok());
        if !is_installed {
            return eprintln!("skipped: none of {PROGRAMS:?} is installed");
        }
        let place = tempfile::tempdir().unwrap();
        for how in [Unmount::Idle, Unmount::Detach] {
            unmount(place.path(), how).unwrap();
        }
    }

    #[test]
    fn a_source_with_a_comma_stays_one_option() {
        let settings = MountSettings {
            source: "a,b\\c".to_owned(),
            subtype: "polymux",
            audience: MountAudience::Owner,
            flags: MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSYMFOLLOW,
        };
        assert_eq!(
            options(&settings),
            "fsname=a\\,b\\\\c,subtype=polymux,default_permissions,ro,nodev,noexec,nosymfollow"
        );
    }
}
