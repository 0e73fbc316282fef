//! `polymux run`: runs a program with the library that uses files past the mount (docs/design/0047, docs/design/0049).

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cli::RunArguments;

const PRELOADED: &str = "libpolymux_preload.so";
/// Loaded by the preloaded library when it is needed, from its own directory.
const LOADED: &str = "libpolymux_direct.so";
/// As `ld.so(8)` and the libraries know them.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const REPORT_VARIABLE: &str = "POLYMUX_REPORT";

/// The directory with both libraries: that of this program (as cargo builds them), or `lib/polymux` beside it (as `make install` puts them).
fn directory_of_libraries(program: &Path) -> Result<PathBuf> {
    let beside = program.parent().unwrap_or(Path::new("/"));
    let candidates = [beside.to_owned(), beside.join("../lib/polymux")];
    let has_both = |directory: &&PathBuf| [PRELOADED, LOADED].iter().all(|name| directory.join(name).is_file());
    let Some(found) = candidates.iter().find(has_both) else {
        let [first, second] = candidates.map(|directory| directory.display().to_string());
        bail!("{PRELOADED} and {LOADED} are neither in {first} nor in {second}: `make install-preload` installs them");
    };
    Ok(found.canonicalize()?)
}

/// The value of `LD_PRELOAD` with a library behind those that are there already: it calls the C library only.
fn preload_list(library: &Path, before: Option<OsString>) -> Result<OsString> {
    let separates = |byte: &u8| matches!(byte, b' ' | b':');
    if library.as_os_str().as_bytes().iter().any(separates) {
        bail!("{} has a space or a colon in its path, which {PRELOAD_VARIABLE} cannot express", library.display());
    }
    let mut list = before.unwrap_or_default();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(library);
    Ok(list)
}

/// Becomes the program.
///
/// # Errors
/// The libraries are missing, or the program cannot be run.
pub fn run(arguments: &RunArguments) -> Result<()> {
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let library = directory_of_libraries(&program)?.join(PRELOADED);
    let Some((name, rest)) = arguments.command.split_first() else { bail!("no program is given") };
    let mut command = Command::new(name);
    command.args(rest).env(PRELOAD_VARIABLE, preload_list(&library, std::env::var_os(PRELOAD_VARIABLE))?);
    match (&arguments.report, &arguments.report_file) {
        (_, Some(file)) => drop(command.env(REPORT_VARIABLE, std::path::absolute(file)?)),
        (true, None) => drop(command.env(REPORT_VARIABLE, "1")),
        (false, None) => {}
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", name.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay_and_paths_that_cannot_be_said_are_refused() {
        let library = Path::new("/usr/lib/polymux/libpolymux_preload.so");
        assert_eq!(preload_list(library, None).unwrap(), library.as_os_str());
        let list = preload_list(library, Some("libjemalloc.so.2".into())).unwrap();
        assert_eq!(list, "libjemalloc.so.2:/usr/lib/polymux/libpolymux_preload.so");
        assert!(preload_list(Path::new("/a b/lib.so"), None).is_err());
    }

    #[test]
    fn the_libraries_are_looked_for_beside_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bin/polymux");
        let library = directory.path().join("lib/polymux");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::create_dir_all(&library).unwrap();
        let error = directory_of_libraries(&program).unwrap_err().to_string();
        assert!(error.contains("make install-preload"), "{error}");
        [PRELOADED, LOADED].iter().for_each(|name| std::fs::write(library.join(name), "").unwrap());
        assert_eq!(directory_of_libraries(&program).unwrap(), library.canonicalize().unwrap());
    }
}
