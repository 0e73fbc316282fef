//! Builds the part that is preloaded, in C: frames of it may be unwound by thread cancellation, and it must need no other library, so that programs start as fast as without it.
//! It lies beside the library that cargo builds.

use std::path::Path;

const NAME: &str = "libpolymux_preload.so";
const SOURCES: [&str; 3] = ["preload/preload.c", "preload/numbers.h", "preload/direct.h"];
/// Two segments instead of four, and functions that are bound at their first call: each of these is a part of the time that a process needs to start.
const OPTIONS: [&str; 9] = [
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE",
    "-U_FILE_OFFSET_BITS",
    "-nostartfiles",
    "-Wl,-z,defs,-z,noseparate-code,-z,norelro,-z,lazy,--hash-style=gnu,--build-id=none",
    "-Wl,-soname,libpolymux_preload.so",
];

fn main() {
    // Code that a thread of the program may be in must not go with dlclose(3).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    SOURCES.iter().for_each(|source| println!("cargo:rerun-if-changed={source}"));
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    let profile = Path::new(&out).ancestors().nth(3).expect("it is that deep");
    let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).extra_warnings(true).get_compiler();
    let made = Path::new(&out).join(NAME);
    let mut command = compiler.to_command();
    command.args(OPTIONS).arg("-o").arg(&made).arg(SOURCES[0]);
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|architecture| architecture == "aarch64") {
        // Atomics in the C compiler's own library would have to be found when the program runs.
        command.arg("-mno-outline-atomics");
    }
    let status = command.status().unwrap_or_else(|error| panic!("a C compiler is needed: {error}"));
    assert!(status.success(), "{command:?} failed");
    // In place at once: a process may have the old one mapped.
    let fresh = profile.join(format!("{NAME}.{}", std::process::id()));
    let library = profile.join(NAME);
    std::fs::copy(&made, &fresh)
        .and_then(|_| std::fs::rename(&fresh, &library))
        .expect("cargo's directory can be written");
}
