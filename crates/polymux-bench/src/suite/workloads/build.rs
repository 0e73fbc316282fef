//! `make` of a C project: a compiler reads many headers, and writes an object for each source.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::grounds;
use crate::suite::durable;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Headers of the project. Each source reads `HEADERS_OF_SOURCE` of them, and those of the C library.
const HEADERS: usize = 60;
const HEADERS_OF_SOURCE: usize = 20;
const FUNCTIONS_OF_SOURCE: usize = 30;

const MAKEFILE: &str = "sources := $(wildcard *.c)\n\
                        program: $(sources:.c=.o)\n\tcc -o $@ $^\n\
                        %.o: %.c $(wildcard *.h)\n\tcc -O1 -c -o $@ $<\n\
                        clean:\n\trm -f program *.o\n";

/// Two compilers at a time.
pub struct Build;

impl Workload for Build {
    fn name(&self) -> &'static str {
        "build"
    }

    fn about(&self) -> &'static str {
        "make -j2 of a C project of 120 sources (quick: 20) and 60 headers"
    }

    fn ends_with(&self) -> &'static str {
        durable::IN_WORDS
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::ms("make -j2")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        programs::missing(["make", "cc"])
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        write_project(&place.directory(Tier::First)?, place.scale.choose(20, 120))?;
        place.end_durably()
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?;
        let make = |arguments: &[&str]| {
            let mut make = Command::new("make");
            // Those of a `make` that runs the bench.
            make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
            programs::run(place.devices, make.arg("--silent").args(arguments).current_dir(&directory))
        };
        let ms = place.ms_until_durable(|| make(&["-j2"]).map(drop))?;
        make(&["clean"])?;
        Ok(vec![ms])
    }
}

/// Writes a project whose program compiles, links and does nothing.
fn write_project(directory: &Path, sources: usize) -> Result<()> {
    fs::write(directory.join("Makefile"), MAKEFILE)?;
    for header in 0..HEADERS {
        let text = format!(
            "#ifndef HEADER_{header}\n#define HEADER_{header}\nstruct record_{header} {{ long count; char name[{}]; }};\n\
             static inline long count_{header}(const struct record_{header} *record) {{ return record->count + {header}; }}\n#endif\n",
            header + 1
        );
        fs::write(directory.join(format!("header_{header}.h")), text)?;
    }
    for source in 0..sources {
        fs::write(directory.join(format!("source_{source}.c")), text_of_source(source)?)?;
    }
    fs::write(directory.join("main.c"), "int main(void) { return 0; }\n")?;
    Ok(())
}

fn text_of_source(source: usize) -> Result<String> {
    let headers: Vec<usize> = (0..HEADERS_OF_SOURCE).map(|index| (source * 7 + index) % HEADERS).collect();
    let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n".to_owned();
    for header in &headers {
        writeln!(text, "#include \"header_{header}.h\"")?;
    }
    for function in 0..FUNCTIONS_OF_SOURCE {
        let header = headers[function % headers.len()];
        writeln!(
            text,
            "long function_{source}_{function}(const struct record_{header} *record, long rounds) {{\n    \
             long sum = 0;\n    for (long round = 0; round < rounds; round++) {{\n        \
             sum += count_{header}(record) * round + (long)strlen(record->name);\n        \
             if (sum % {} == 0) printf(\"%ld\\n\", sum);\n    }}\n    return sum;\n}}",
            function + 3
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_compiles_and_is_cleaned() {
        if let Some(obstacle) = Build.obstacle() {
            eprintln!("skipped: {obstacle}");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        write_project(directory.path(), 3).unwrap();
        let make = |target: &str| {
            let made = Command::new("make").arg("--silent").arg(target).current_dir(directory.path()).status().unwrap();
            assert!(made.success());
        };
        make("program");
        assert!(Command::new(directory.path().join("program")).status().unwrap().success());
        make("clean");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1 + HEADERS + 3 + 1);
    }
}
