//! The machine on which the figures were measured.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::device::Device;
use crate::memory;
use crate::report::Section;

/// Processor time in seconds that the machine has spent on anything.
///
/// # Errors
/// Where the kernel does not say.
pub fn busy_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user nice system (idle iowait) irq softirq steal, in hundredths of a second on every Linux.
    let busy: f64 =
        ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4) && *at < 8).map(|(_, tick)| tick).sum();
    Ok(busy / 100.0)
}

/// A mount: its source and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Kind of the file system.
    pub kind: String,
    /// Device or name that is mounted.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: String,
}

impl Mount {
    /// The file system in words. Its journal, or the lack of one, decides the cost of fsync and the state after a crash.
    #[must_use]
    pub fn describe(&self) -> String {
        let device = Path::new(&self.source).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let has_journal = || {
            let journals = fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
            let mut names = journals.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.any(|name| name.strip_prefix(&device).is_some_and(|rest| rest.starts_with('-')))
        };
        let journal = if self.kind != "ext4" || has_journal() { "" } else { ", no journal" };
        format!("{}{journal} ({})", self.kind, self.options)
    }
}

/// The mount that a directory lies in.
///
/// # Errors
/// Where the table of mounts cannot be read.
pub fn mount_of(directory: &Path) -> Result<Mount> {
    let device = directory.metadata()?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    mount_in_table(&table, &number).with_context(|| format!("{} is on no mount of the table", directory.display()))
}

/// Fields of `mountinfo`: 2 is the device number, 5 the options; after a lone `-` come kind, source and the options of
/// the file system.
fn mount_in_table(table: &str, number: &str) -> Option<Mount> {
    table.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let mut tail = tail.split(' ');
        (*head.get(2)? == number).then_some(())?;
        let (kind, source) = (tail.next()?.to_owned(), tail.next()?.to_owned());
        Some(Mount { kind, source, options: format!("{}; {}", head.get(5)?, tail.next().unwrap_or_default()) })
    })
}

/// Model of the processor.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

/// Memory in mebibytes; `None` where the kernel does not say.
#[must_use]
pub fn memory_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory::field(&text, "MemTotal:").ok().map(|bytes| bytes >> 20)
}

/// Processors that may be used.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get)
}

/// Name and release of the kernel.
#[must_use]
pub fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

/// How this program was built.
#[must_use]
pub const fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug: the figures mean nothing" } else { "release" }
}

/// Drops the kernel's page cache, dentries and inodes.
///
/// # Errors
/// Where it refuses.
pub fn drop_caches() -> Result<()> {
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// Load average of the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// The machine and the device of a directory as a table.
///
/// # Errors
/// Where the directory or the table of mounts cannot be read.
pub fn describe(directory: &Path) -> Result<Section> {
    let mount = mount_of(directory)?;
    let mut section = Section::new("Machine", &["what", "value"]);
    let mut row = |what: &str, value: String| section.row(vec![what.into(), value.into()]);
    row("processor", processor());
    row("cores", processors().to_string());
    row("memory", memory_mib().map_or_else(|| "unknown".to_owned(), |memory| format!("{memory} MiB")));
    row("kernel", kernel());
    row("file system", mount.describe());
    row("device", Device::of(directory)?.map_or(mount.source, |device| device.describe()));
    row("build", build().to_owned());
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device_number() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                     30 22 0:26 / /tmp rw,nosuid - tmpfs scratch rw,size=4k\n";
        let found = mount_in_table(table, "0:26").unwrap();
        assert_eq!(
            (found.kind.as_str(), found.source.as_str(), found.options.as_str()),
            ("tmpfs", "scratch", "rw,nosuid; rw,size=4k")
        );
        assert_eq!(mount_in_table(table, "8:1"), None);
    }
}
