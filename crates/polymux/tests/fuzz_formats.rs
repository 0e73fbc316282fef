//! Every on-disk format against mutated bytes: raw, and with checksums made to fit.
//!
//! `cargo test` tries a fixed set of inputs. With `POLYMUX_FUZZ_SECONDS=N` each target of each format runs for so long, from
//! a seed that is printed (`POLYMUX_FUZZ_SEED` repeats it). An input that fails is written to a file; put it into
//! `tests/corpus/FORMAT/`, and it is tried first for ever after.

mod fuzz;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuzz::{Effort, Outcome, Target};
use polymux_config::config_format;
use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};

/// Default number of inputs for each target and format.
const INPUTS: u64 = 3000;

const SECONDS_VARIABLE: &str = "POLYMUX_FUZZ_SECONDS";
const SEED_VARIABLE: &str = "POLYMUX_FUZZ_SEED";

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn config() -> OnDiskFormat {
    const SAMPLE: &str = "name = \"media\"\nvolume = \"6b1f5c9e-0000-4000-8000-000000000001\"\nmetadata = \"fast\"\n\n\
        [[tier]]\nname = \"fast\"\npath = \"/mnt/fast\"\ncapacity = \"5.3 TiB\"\nreserve = \"5 %\"\n\n\
        [[tier]]\nname = \"slow\"\npath = \"/mnt/slow\"\n\n[options]\nnoatime = true\nmetadata_ballast = \"0 B\"\n";
    OnDiskFormat {
        name: "config",
        samples: || vec![SAMPLE.as_bytes().to_vec()],
        repair: |_| {},
        read_and_write: |bytes| {
            let text = std::str::from_utf8(bytes).ok()?;
            let file = config_format::parse(Path::new("media.toml"), text).ok()?;
            Some(config_format::format(&file).expect("what was read can be written").into_bytes())
        },
        form: FormatForm::HasUnused,
    }
}

fn formats() -> Vec<OnDiskFormat> {
    let mut formats = polymux_tier::on_disk_formats();
    formats.extend(polymux_meta::on_disk_formats());
    formats.extend(polymux_fs::on_disk_formats());
    formats.push(config());
    formats
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not `{text}`")))
}

/// Effort and seed of a run.
fn settings() -> (Effort, u64) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    match number(SECONDS_VARIABLE) {
        Some(seconds) => (Effort::Time(Duration::from_secs(seconds)), number(SEED_VARIABLE).unwrap_or_else(now)),
        None => (Effort::Inputs(INPUTS), number(SEED_VARIABLE).unwrap_or(1)),
    }
}

fn fuzz_all(target: Target) {
    let (effort, seed) = settings();
    let mut failures = Vec::new();
    for format in formats() {
        let outcome = fuzz::run(&format, target, effort, seed, &corpus());
        let Outcome { inputs, accepted, failure } = outcome;
        println!("{:<22} {target:?}, seed {seed}: {inputs} inputs, {accepted} accepted", format.name);
        assert!(accepted > 0, "{}: not even its samples are accepted", format.name);
        if let Some((input, reason)) = failure {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{target:?}-{seed}.input", format.name));
            std::fs::write(&path, &input).expect("the input can be kept");
            failures.push(format!("{}: {reason}; the input is in {}", format.name, path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn no_raw_bytes_make_a_reader_panic_allocate_too_much_or_misread_what_it_accepts() {
    fuzz_all(Target::RawBytes);
}

#[test]
fn nor_do_bytes_whose_checksums_fit() {
    fuzz_all(Target::ChecksumsRepaired);
}

#[test]
fn names_of_formats_differ() {
    let mut names: Vec<&str> = formats().iter().map(|format| format.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    for entry in std::fs::read_dir(corpus()).expect("there is a corpus").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(names.contains(&name.as_str()), "{name} of the corpus is no format");
    }
}

/// A format with a length, that many bytes, and a checksum; its reader is the one given.
fn planted(name: &'static str, read_and_write: fn(&[u8]) -> Option<Vec<u8>>) -> OnDiskFormat {
    OnDiskFormat {
        name,
        samples: || vec![seal(vec![3, 0, 7, 8, 9])],
        repair: |bytes| {
            if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
                *checksum = crc32c::crc32c(body).to_le_bytes();
            }
        },
        read_and_write,
        form: FormatForm::Unique,
    }
}

fn seal(mut body: Vec<u8>) -> Vec<u8> {
    body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    body
}

/// Length and content of a planted format whose checksum fits.
fn open(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let (length, content) = body.split_first_chunk::<2>()?;
    (u32::from_le_bytes(*checksum) == crc32c::crc32c(body))
        .then_some((usize::from(u16::from_le_bytes(*length)), content))
}

#[test]
fn the_fuzzer_finds_bugs_that_lie_behind_a_checksum_and_only_there() {
    let good = planted("good", |bytes| {
        let (length, content) = open(bytes)?;
        let length = u16::try_from(length).ok().filter(|length| usize::from(*length) == content.len())?;
        Some(seal([&length.to_le_bytes()[..], content].concat()))
    });
    let panics = planted("panics", |bytes| {
        let (length, content) = open(bytes)?;
        Some(content[..length].to_vec()).and(None)
    });
    let allocates = planted("allocates", |bytes| {
        let (length, _) = open(bytes)?;
        Some(vec![0_u8; length * 4096]).and(None)
    });
    let forgets = planted("forgets", |bytes| {
        let (length, content) = open(bytes)?;
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        Some(seal([&[length, 0][..], content].concat()))
    });
    let nothing = Path::new("/nonexistent");
    let find = |format: &OnDiskFormat, target| fuzz::run(format, target, Effort::Inputs(INPUTS), 1, nothing).failure;
    std::panic::set_hook(Box::new(|_| {}));
    let found = [&panics, &allocates, &forgets].map(|format| {
        (find(format, Target::RawBytes).is_some(), find(format, Target::ChecksumsRepaired).map(|(_, reason)| reason))
    });
    let good = find(&good, Target::ChecksumsRepaired);
    let _ = std::panic::take_hook();
    assert_eq!(good, None, "a reader without a bug passes");
    for ((raw, repaired), needle) in found.into_iter().zip(["panicked", "allocated", "written differently"]) {
        assert!(!raw, "mutations alone do not get past the checksum");
        let reason = repaired.expect("with the checksum repaired the bug is found");
        assert!(reason.contains(needle), "{reason}");
    }
}
