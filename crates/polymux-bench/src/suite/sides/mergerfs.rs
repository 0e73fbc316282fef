//! mergerfs, the one that is found first in the search path.
//!
//! Settings are its defaults, or those that its documentation gives for speed, with files passed through where it can (from 2.41 on) or with
//! writes that the kernel collects. `minfreespace` is 0 in all of them, because its default is more than the devices have and every create would
//! fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// How mergerfs is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// As it comes.
    Default,
    /// As its documentation says for speed.
    Fast,
    /// For speed, with writes that the kernel collects.
    WriteBack,
    /// For speed, with each new file on the first branch that has space.
    FirstFound,
}

/// Those of its documentation that are for speed.
const FAST: &str = "cache.files=auto-full,dropcacheonclose=true,cache.readdir=true,cache.entry=60,cache.attr=60,\
                    cache.negative_entry=10,xattr=nosys,fuse_msg_size=256";

/// Whether it knows the option that lets the kernel read and write files of the branches itself.
static PASSES_THROUGH: LazyLock<bool> = LazyLock::new(|| {
    let help = Command::new("mergerfs").arg("--help").output();
    help.is_ok_and(|help| {
        [help.stdout, help.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("passthrough.io"))
    })
});

impl Settings {
    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "mergerfs",
            Self::Fast => "mergerfs fast",
            Self::WriteBack => "mergerfs write-back",
            Self::FirstFound => "mergerfs first found",
        }
    }

    /// Mount options.
    #[must_use]
    pub fn options(self) -> String {
        match self {
            Self::Default => "minfreespace=0".to_owned(),
            Self::Fast if *PASSES_THROUGH => format!("minfreespace=0,{FAST},passthrough.io=rw"),
            Self::Fast => format!("minfreespace=0,{FAST}"),
            Self::WriteBack => format!("minfreespace=0,{FAST},cache.writeback=true"),
            Self::FirstFound => format!("allow_other,minfreespace=64M,moveonenospc=true,category.create=ff,{FAST}"),
        }
    }
}

/// Why it cannot be measured here; `None`: it can.
#[must_use]
pub fn obstacle() -> Option<&'static str> {
    (!crate::suite::programs::is_installed("mergerfs")).then_some("mergerfs is not installed")
}

/// The command that serves it in the foreground.
#[must_use]
pub fn command(settings: Settings, branches: &[PathBuf], mount_point: &Path) -> Command {
    let paths: Vec<String> = branches.iter().map(|branch| branch.display().to_string()).collect();
    let mut command = Command::new("mergerfs");
    command.args(["-f", "-o", &settings.options(), &paths.join(":")]).arg(mount_point);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_settings_are_those_of_the_documentation() {
        let command = command(Settings::Fast, &["/a".into(), "/b".into()], Path::new("/m"));
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments[..2], ["-f", "-o"]);
        assert_eq!(arguments[3..], ["/a:/b", "/m"]);
        assert!(arguments[2].contains("cache.files=auto-full,dropcacheonclose=true"), "{}", arguments[2]);
        assert!(!Settings::Default.options().contains("cache"));
        let write_back = Settings::WriteBack.options();
        assert!(write_back.contains("cache.writeback=true") && !write_back.contains("passthrough.io"), "{write_back}");
    }
}
