//! The TOML form of a volume's configuration: one file per volume (DESIGN section 13).
//!
//! Invariants:
//! * Unknown keys are errors, so that a misspelt option is never silently ignored.
//! * Every error names the file and the line.

mod policy_name;
pub mod rules;
mod schedule;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use polymux_fs::{PageCache, PassthroughUse, Promotion, ReaderLayout};
use polymux_types::{ByteSize, Percent};
use serde::{Deserialize, Serialize};

pub use policy_name::PolicyName;
pub use rules::RuleEntry;
pub use schedule::{TimeSpan, WindowEntry};

/// A configuration file as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeFile {
    /// Name of the volume.
    pub name: String,
    /// Identity, written by `create`.
    pub volume: String,
    /// Name of the tier that holds the metadata store.
    pub metadata: String,
    /// Policy for the files that no rule gives another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// Tiers in speed order, fastest first.
    pub tier: Vec<TierEntry>,
    /// Rules in the order in which they are asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<RuleEntry>,
    /// Mount options.
    #[serde(default, skip_serializing_if = "OptionsEntry::is_default")]
    pub options: OptionsEntry,
}

/// One `[[tier]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierEntry {
    /// Name of the tier.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Most bytes that the volume uses there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Size>,
    /// Space left free of new data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Reserve>,
    /// Share of the tier above which files leave it for slower ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_mark: Option<Share>,
    /// Share at which that ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_mark: Option<Share>,
    /// Bytes per second that movers read or write there at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover_rate: Option<Size>,
    /// Requests per second of movers there at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover_iops: Option<std::num::NonZeroU32>,
    /// Bytes per day that are written there only because they are used much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<Size>,
}

/// The `[options]` table. `None` is the program's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionsEntry {
    /// Whether users other than the one who mounts may use the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_other: Option<bool>,
    /// Whether access times stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noatime: Option<bool>,
    /// Whether replacing a file by rename waits for the new data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_on_replace: Option<bool>,
    /// Seconds between flushes of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_interval: Option<u32>,
    /// Seconds after which a tier whose calls do not return counts as not answering; 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hang_after: Option<u32>,
    /// Milliseconds that migrations and write-behind yield at most to reads and syncs on the same tier: 0 to 1,000; 0: not at
    /// all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferral_ms_max: Option<DeferralMs>,
    /// Seconds that a mount waits for tiers that are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_wait: Option<u32>,
    /// Threads that serve requests of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<std::num::NonZeroU16>,
    /// How requests of the kernel come; default: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportEntry>,
    /// Whether idle processors are kept awake while requests come one upon the other; default: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_latency: Option<ProcessorLatencyEntry>,
    /// Whether a second process keeps the mount when the daemon dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<SupervisorEntry>,
    /// How reads and writes are shared with the kernel; default: `auto`, which is `write-back` where the mount outlives its daemon, else `passthrough`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoEntry>,
    /// Which files the kernel may use directly, where it can; default: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passthrough: Option<PassthroughEntry>,
    /// Whether the kernel keeps pages of the files that it does not use directly; default: `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_cache: Option<PageCacheEntry>,
    /// Whether files have extended attributes, ACLs among them; default: `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_attributes: Option<ExtendedAttributesEntry>,
    /// Whether programs may read files past the mount; default: `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<LeasesEntry>,
    /// When files of the policy `spread` are laid out for those who read them; default: `when-written`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reader_layout: Option<ReaderLayoutEntry>,
    /// How soon data that keeps a slower device busy moves up; default: `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<PromotionEntry>,
    /// Threads that move blocks between tiers, 0 to 16; with 0 nothing is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movers: Option<Movers>,
    /// Bytes of memory for the metadata store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_memory: Option<Size>,
    /// Bytes that the metadata store keeps for days when its tier is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_ballast: Option<Size>,
    /// Tier that holds the second copy of the metadata store, or `none`; default: the next durable one on another file
    /// system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_copy: Option<String>,
    /// File in byte-addressable memory (DAX) that holds the end of the metadata log. It is made by `create`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_region: Option<PathBuf>,
    /// Seconds between two rounds of shipping to the second copy; 0: synced metadata is in the copy too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_copy_interval: Option<u32>,
    /// Seconds after which the description on objects, for `rebuild`, follows a change of names or attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp_delay: Option<u32>,
    /// Largest file that lives in the metadata store; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_size_max: Option<Size>,
    /// Hours of the week for automatic migrations; default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_windows: Option<Vec<WindowEntry>>,
    /// Whether movers slow down beside programs; default: they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movers_polite: Option<bool>,
    /// Time in which heat halves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heat_half_life: Option<TimeSpan>,
    /// Bytes of memory for heat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heat_memory: Option<Size>,
}

impl OptionsEntry {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A size such as `5.3 TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub ByteSize);

impl TryFrom<String> for Size {
    type Error = polymux_types::units::UnitError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        exact_size(size.0)
    }
}

/// A number of threads that move blocks: at most 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Movers(pub u16);

impl Movers {
    /// More would only wait for one another: a tier is the target of one mover at a time.
    const MAX: u16 = 16;
}

impl TryFrom<u16> for Movers {
    type Error = String;

    fn try_from(number: u16) -> Result<Self, Self::Error> {
        if number <= Self::MAX {
            Ok(Self(number))
        } else {
            Err(format!("movers is {number}; 0 to {} are possible", Self::MAX))
        }
    }
}

impl From<Movers> for u16 {
    fn from(movers: Movers) -> Self {
        movers.0
    }
}

/// Milliseconds that a request may be held back: at most a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct DeferralMs(pub u32);

impl DeferralMs {
    /// With more, written data would be in memory only for longer than the kernel itself leaves it there.
    const MAX: u32 = 1000;
}

impl TryFrom<u32> for DeferralMs {
    type Error = String;

    fn try_from(milliseconds: u32) -> Result<Self, Self::Error> {
        if milliseconds <= Self::MAX {
            Ok(Self(milliseconds))
        } else {
            Err(format!("deferral_ms_max is {milliseconds}; 0 to {} are possible", Self::MAX))
        }
    }
}

impl From<DeferralMs> for u32 {
    fn from(milliseconds: DeferralMs) -> Self {
        milliseconds.0
    }
}

/// How reads and writes are shared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoEntry {
    /// Suits most volumes.
    Auto,
    /// The kernel uses whole files on one tier directly, and sends each write to others at once.
    Passthrough,
    /// The kernel collects writes, and sends them later.
    WriteBack,
}

/// Which files the kernel may use directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassthroughEntry {
    /// Wherever it is safe and the data is well placed.
    Auto,
    /// Only for those who read.
    Read,
    /// None.
    Off,
}

impl From<PassthroughEntry> for PassthroughUse {
    fn from(entry: PassthroughEntry) -> Self {
        match entry {
            PassthroughEntry::Auto => Self::Auto,
            PassthroughEntry::Read => Self::Read,
            PassthroughEntry::Off => Self::Off,
        }
    }
}

/// How soon data that keeps a slower device busy moves up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromotionEntry {
    /// When programs leave the devices time for it.
    Polite,
    /// At once, where that pays back within seconds.
    Prompt,
}

impl From<PromotionEntry> for Promotion {
    fn from(entry: PromotionEntry) -> Self {
        match entry {
            PromotionEntry::Polite => Self::Polite,
            PromotionEntry::Prompt => Self::Prompt,
        }
    }
}

/// When spread files are laid out for those who read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderLayoutEntry {
    /// Once they are written, and when their readers waited.
    WhenWritten,
    /// When their readers waited.
    WhenRead,
    /// They stay as they were written.
    Never,
}

impl From<ReaderLayoutEntry> for ReaderLayout {
    fn from(entry: ReaderLayoutEntry) -> Self {
        match entry {
            ReaderLayoutEntry::WhenWritten => Self::WhenWritten,
            ReaderLayoutEntry::WhenRead => Self::WhenRead,
            ReaderLayoutEntry::Never => Self::Never,
        }
    }
}

/// Whether the kernel keeps pages of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageCacheEntry {
    /// It does.
    On,
    /// Only of mappings.
    Off,
}

impl From<PageCacheEntry> for PageCache {
    fn from(entry: PageCacheEntry) -> Self {
        match entry {
            PageCacheEntry::On => Self::On,
            PageCacheEntry::Off => Self::Off,
        }
    }
}

/// Whether programs may read files past the mount (docs/design/0046).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasesEntry {
    /// Programs get descriptors of the objects of files that they may read.
    On,
    /// They go through the kernel.
    Off,
}

/// Whether files have extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtendedAttributesEntry {
    /// They do.
    On,
    /// They are not supported.
    Off,
}

/// Whether a mount outlives its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupervisorEntry {
    /// Where that is possible.
    Auto,
    /// It does not.
    Off,
}

/// How requests of the kernel come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportEntry {
    /// Through `io_uring` where the kernel offers it.
    Auto,
    /// From `/dev/fuse`.
    Classic,
    /// Through `io_uring`; where the kernel does not offer it, with a warning from `/dev/fuse`.
    IoUring,
}

/// Whether idle processors are kept awake while requests come one upon the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessorLatencyEntry {
    /// On small virtual machines.
    Auto,
    /// On every machine that allows it.
    Low,
    /// They sleep as the system decides.
    System,
}

/// A share such as `90 %`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(pub Percent);

impl TryFrom<String> for Share {
    type Error = polymux_types::units::UnitError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.0.to_string()
    }
}

/// A size or a share of a tier such as `5 %`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Reserve {
    /// So many bytes.
    Bytes(ByteSize),
    /// This share of the tier.
    Share(Percent),
}

impl Reserve {
    /// The reserve in bytes of a tier of `total` bytes.
    pub fn bytes_of(self, total: u64) -> ByteSize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(percent) => ByteSize(percent.of(total)),
        }
    }
}

impl TryFrom<String> for Reserve {
    type Error = polymux_types::units::UnitError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.contains('%') { text.parse().map(Self::Share) } else { text.parse().map(Self::Bytes) }
    }
}

impl From<Reserve> for String {
    fn from(reserve: Reserve) -> Self {
        match reserve {
            Reserve::Bytes(bytes) => exact_size(bytes),
            Reserve::Share(percent) => percent.to_string(),
        }
    }
}

/// A size in the largest unit that expresses it exactly, because sizes that are printed for people are rounded.
fn exact_size(size: ByteSize) -> String {
    for (power, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if size.0 != 0 && size.0.is_multiple_of(1 << power) {
            return format!("{} {unit}", size.0 >> power);
        }
    }
    format!("{} B", size.0)
}

/// Reads the text of a configuration file; `path` is only for messages.
pub fn parse(path: &Path, text: &str) -> Result<VolumeFile> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        anyhow!("{}:{line}: {message}", path.display())
    })
}

/// Number of the line, from 1, that a byte lies on.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// A part of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The lines before the first heading.
    Top,
    /// The `[[tier]]` of this index.
    Tier(usize),
    /// The `[[rule]]` of this index.
    Rule(usize),
    /// `[options]`.
    Options,
}

/// Number of the line, from 1, on which a key of a section is set; where it is written in some other form, or not at all,
/// that of the section's heading, else 1.
pub fn line_of_key(text: &str, section: Section, key: &str) -> usize {
    let mut current = Some(Section::Top);
    let (mut tiers, mut rules) = (0, 0);
    let mut heading = 1;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("[[tier]]") {
            current = Some(Section::Tier(tiers));
            tiers += 1;
        } else if line.starts_with("[[rule]]") {
            current = Some(Section::Rule(rules));
            rules += 1;
        } else if line.starts_with('[') && !is_continued(line) {
            current = line.starts_with("[options]").then_some(Section::Options);
        } else if current == Some(section)
            && line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        {
            return index + 1;
        }
        if current == Some(section) && line.starts_with('[') && !is_continued(line) {
            heading = index + 1;
        }
    }
    heading
}

/// Whether a line that begins with a bracket is a value of an array that begins above, not a heading.
fn is_continued(line: &str) -> bool {
    line.starts_with("[\"") || line.starts_with("['")
}

/// The text of a configuration file.
pub fn format(file: &VolumeFile) -> Result<String> {
    let body = toml::to_string_pretty(file)?;
    Ok(format!("# A Polymux volume. Tiers stand in speed order, fastest first.\n{body}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"name = "media"
volume = "6b1f5c9e-0000-4000-8000-000000000001"
metadata = "fast"

[[tier]]
name = "fast"
path = "/mnt/nvme"
capacity = "1 TiB"
reserve = "5 %"

[[tier]]
name = "slow"
path = "/mnt/hdd"
reserve = "1 GiB"

[options]
noatime = true
threads = 4
"#;

    fn error_of(text: &str) -> String {
        parse(Path::new("/etc/polymux/media.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn a_file_survives_writing_and_reading() {
        let file = parse(Path::new("x"), GOOD).unwrap();
        assert_eq!(file.tier[0].reserve, Some(Reserve::Share(Percent::new(5))));
        assert_eq!(file.tier[1].reserve, Some(Reserve::Bytes(ByteSize(1 << 30))));
        let again = parse(Path::new("x"), &format(&file).unwrap()).unwrap();
        assert_eq!(file, again);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = error_of(&GOOD.replace("noatime = true", "noatme = true"));
        assert!(error.starts_with("/etc/polymux/media.toml:17: ") && error.contains("noatme"), "{error}");
        let error = error_of(&GOOD.replace("reserve = \"5 %\"", "reserv = \"5 %\""));
        assert!(error.starts_with("/etc/polymux/media.toml:9: ") && error.contains("reserv"), "{error}");
    }

    #[test]
    fn a_wrong_size_is_refused_with_its_line() {
        let error = error_of(&GOOD.replace("1 TiB", "1 XiB"));
        assert!(error.starts_with("/etc/polymux/media.toml:8: ") && error.contains("1 XiB"), "{error}");
        let error = error_of(&GOOD.replace("5 %", "500 %"));
        assert!(error.starts_with("/etc/polymux/media.toml:9: ") && error.contains("500 %"), "{error}");
    }

    #[test]
    fn too_many_movers_are_refused_with_the_line() {
        assert_eq!(
            parse(Path::new("x"), &GOOD.replace("threads = 4", "movers = 0")).unwrap().options.movers,
            Some(Movers(0))
        );
        let error = error_of(&GOOD.replace("threads = 4", "movers = 17"));
        assert!(error.starts_with("/etc/polymux/media.toml:18: ") && error.contains("0 to 16"), "{error}");
    }

    #[test]
    fn a_deferral_of_more_than_a_second_is_refused_with_the_line() {
        for milliseconds in [0, 1000] {
            let file =
                parse(Path::new("x"), &GOOD.replace("threads = 4", &format!("deferral_ms_max = {milliseconds}")));
            assert_eq!(file.unwrap().options.deferral_ms_max, Some(DeferralMs(milliseconds)));
        }
        let error = error_of(&GOOD.replace("threads = 4", "deferral_ms_max = 1001"));
        assert!(error.starts_with("/etc/polymux/media.toml:18: ") && error.contains("0 to 1000"), "{error}");
    }

    #[test]
    fn when_files_are_laid_out_for_readers_is_one_of_three() {
        for (word, layout) in [
            ("when-written", ReaderLayout::WhenWritten),
            ("when-read", ReaderLayout::WhenRead),
            ("never", ReaderLayout::Never),
        ] {
            let text = GOOD.replace("threads = 4", &format!("reader_layout = \"{word}\""));
            let entry = parse(Path::new("x"), &text).unwrap().options.reader_layout;
            assert_eq!(entry.map(ReaderLayout::from), Some(layout));
        }
        for (word, promotion) in [("prompt", Promotion::Prompt), ("polite", Promotion::Polite)] {
            let text = GOOD.replace("threads = 4", &format!("promotion = \"{word}\""));
            let entry = parse(Path::new("x"), &text).unwrap().options.promotion;
            assert_eq!(entry.map(Promotion::from), Some(promotion));
        }
        let error = error_of(&GOOD.replace("threads = 4", "reader_layout = \"always\""));
        assert!(error.starts_with("/etc/polymux/media.toml:18: ") && error.contains("when-read"), "{error}");
    }

    #[test]
    fn a_key_given_twice_is_refused_with_its_line() {
        let error = error_of(&GOOD.replace("noatime = true", "noatime = true\nnoatime = false"));
        assert!(error.starts_with("/etc/polymux/media.toml:18: "), "{error}");
    }

    #[test]
    fn sizes_are_written_exactly() {
        for bytes in [0, 1, 1023, 1024, 1536, 10 << 20, (1 << 40) + 1, 3 << 40] {
            let text = String::from(Size(ByteSize(bytes)));
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
    }
}
