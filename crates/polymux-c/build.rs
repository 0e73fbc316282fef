//! Gives the library its name for the dynamic linker. The number is `POLYMUX_ABI` of the header: programs that were linked with another one
//! do not start.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpolymux.so.1");
    // It has threads of its own, whose code must not go with dlclose(3).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
