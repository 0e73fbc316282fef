//! `mount.polymux SOURCE DIRECTORY [-sfnvw] [-o OPTIONS]`: the program that mount(8) calls for `mount -t polymux` and fstab.
//!
//! Invariant: the flags are those that mount(8) documents for helpers; one it does not know ends with exit code 1.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};

use crate::cli::MountArguments;
use crate::mount;
use crate::output;
use crate::remount;
use polymux_config::registry::Registry;

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

/// The request of mount(8).
#[derive(Debug, Default, PartialEq, Eq)]
struct HelperArguments {
    source: String,
    mount_point: PathBuf,
    options: Vec<String>,
    /// `-f`: check the arguments and do nothing.
    fake: bool,
}

/// Runs as the helper; `arguments` are those after the program's name.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let parsed = match parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            output::error(&error);
            return ExitCode::from(USAGE);
        }
    };
    if parsed.fake {
        return ExitCode::SUCCESS;
    }
    let mounted = Registry::from_environment().and_then(|registry| {
        if remount::is_asked_for(&parsed.options) {
            return remount::run(&registry, &parsed.mount_point, &parsed.options);
        }
        mount::run(
            &registry,
            &MountArguments {
                volume: volume_meant(parsed.source),
                mount_point: parsed.mount_point,
                options: parsed.options,
                foreground: false,
                degraded: false,
                read_only: false,
                from_copy: false,
                report_readiness: false,
                supervised: false,
            },
        )
    });
    match mounted {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::from(MOUNT_FAILED)
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<HelperArguments> {
    let mut parsed = HelperArguments::default();
    let mut positional = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_str();
        match text {
            Some("-o") => parsed.options.push(option_value("-o", rest.next())?),
            Some("-t" | "-N") => drop(option_value(text.unwrap_or_default(), rest.next())?),
            Some(flags) if flags.starts_with("-o") => parsed.options.push(flags[2..].to_owned()),
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => {
                for flag in flags[1..].chars() {
                    match flag {
                        'f' => parsed.fake = true,
                        // Sloppy, no mtab, verbose, read-write: nothing to do differently.
                        's' | 'n' | 'v' | 'w' => {}
                        'r' => parsed.options.push("ro".to_owned()),
                        other => bail!("mount.polymux does not know the flag -{other}"),
                    }
                }
            }
            _ => positional.push(argument.clone()),
        }
    }
    if parsed.options.iter().flat_map(|list| list.split(',')).any(|option| option.trim() == "from_copy") {
        bail!("starting from a copy is done by hand: polymux mount --from-copy");
    }
    let [source, mount_point] = <[OsString; 2]>::try_from(positional)
        .map_err(|_| anyhow!("usage: mount.polymux NAME|FILE DIRECTORY [-o OPTIONS]"))?;
    parsed.source = source.into_string().map_err(|_| anyhow!("the name of the volume is not UTF-8"))?;
    parsed.mount_point = PathBuf::from(mount_point);
    Ok(parsed)
}

/// mount(8) makes a path of a name where something of that name lies in its working directory: `media` becomes `/media`
/// at boot, where that is the mount point. A configuration is a file, so anything else was a name.
fn volume_meant(source: String) -> String {
    let path = std::path::Path::new(&source);
    if !path.is_absolute() || path.is_file() {
        return source;
    }
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) if !name.ends_with(".toml") => name.to_owned(),
        _ => source,
    }
}

fn option_value(flag: &str, value: Option<&OsString>) -> Result<String> {
    let value = value.ok_or_else(|| anyhow!("{flag} needs a value"))?;
    value.clone().into_string().map_err(|_| anyhow!("the value of {flag} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<HelperArguments> {
        parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_forms_that_mount_uses_are_understood() {
        let parsed = parse_line("media /media -sfnv -o rw,noatime -oallow_other").unwrap();
        assert_eq!(parsed.source, "media");
        assert_eq!(parsed.mount_point, PathBuf::from("/media"));
        assert_eq!(parsed.options, ["rw,noatime", "allow_other"]);
        assert!(parsed.fake);
        assert_eq!(parse_line("-r media /media -t polymux").unwrap().options, ["ro"]);
    }

    #[test]
    fn a_name_that_mount_made_a_path_of_is_a_name_again() {
        let directory = tempfile::tempdir().unwrap();
        let of = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(of("media")).unwrap();
        std::fs::write(of("config"), "").unwrap();
        assert_eq!(volume_meant(of("media")), "media");
        assert_eq!(volume_meant("media".to_owned()), "media");
        assert_eq!(volume_meant(of("config")), of("config"));
        assert_eq!(volume_meant(of("missing.toml")), of("missing.toml"));
    }

    #[test]
    fn anything_else_is_wrong_usage() {
        for line in
            ["media", "media /media /more", "media /media -o", "media /media -q", "media /media -o rw,from_copy"]
        {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
