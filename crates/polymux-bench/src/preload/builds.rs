//! A C project that takes two compilers a second or two.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

const FILES: usize = 60;

/// Writes sources and a makefile.
pub(super) fn make_project(directory: &Path) -> Result<PathBuf> {
    let names: Vec<String> = (0..FILES).map(|number| format!("part{number}")).collect();
    for name in &names {
        let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n".to_owned();
        for number in 0..20 {
            let body = format!("{{ return n < 2 ? n : {name}_{number}(n - 1) + (int)strlen(\"{name}\"); }}");
            writeln!(text, "int {name}_{number}(int n);\nint {name}_{number}(int n)\n{body}")?;
        }
        fs::write(directory.join(format!("{name}.c")), text)?;
    }
    let objects: Vec<String> = names.iter().map(|name| format!("{name}.o")).collect();
    let objects = objects.join(" ");
    fs::write(directory.join("Makefile"), format!("all.a: {objects}\n\tar rcs $@ $^\nclean:\n\trm -f *.o all.a\n"))?;
    Ok(directory.to_owned())
}

/// Builds all of it anew.
pub(super) fn build(project: &Path) -> Result<Command> {
    for entry in fs::read_dir(project)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "o" || extension == "a") {
            fs::remove_file(path)?;
        }
    }
    let mut command = Command::new("make");
    command.args(["-s", "-j2", "-C"]).arg(project);
    Ok(command)
}
