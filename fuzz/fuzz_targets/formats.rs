//! Every on-disk format: the first byte says which, the second whether checksums are made to fit, the rest is the input.
//!
//! What has to hold is what `crates/polymux/tests/fuzz_formats.rs` checks.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use polymux_types::on_disk_format::OnDiskFormat;

static FORMATS: LazyLock<Vec<OnDiskFormat>> = LazyLock::new(|| {
    let mut formats = polymux_tier::on_disk_formats();
    formats.extend(polymux_meta::on_disk_formats());
    formats.extend(polymux_fs::on_disk_formats());
    formats
});

fuzz_target!(|data: &[u8]| {
    let [which, repair, input @ ..] = data else { return };
    let format = &FORMATS[usize::from(*which) % FORMATS.len()];
    let mut input = input.to_vec();
    if repair % 2 == 1 {
        (format.repair)(&mut input);
    }
    if let Err(reason) = format.check(&input) {
        panic!("{}: {reason}", format.name);
    }
});
