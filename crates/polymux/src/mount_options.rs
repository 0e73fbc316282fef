//! Options of one mount, as `-o` gives them, over those of the configuration.
//!
//! Invariant: an option that is neither known nor marked as meant for another program (`x-…`) is refused, because a
//! mount that silently ignores an option is worse than none.

use anyhow::{Result, bail};
use polymux_config::config::VolumeConfig;
use polymux_config::config_format::{
    ExtendedAttributesEntry, IoEntry, LeasesEntry, ProcessorLatencyEntry, SupervisorEntry, TransportEntry,
};
use polymux_config::request::{MetadataSource, OpenRequest};
use polymux_fs::{Access, AccessTimes, MissingTiers, MountOptions, PageCache, PassthroughUse};
use polymux_fuse::{ExtendedAttributes, FuseOptions, IoStyle, MountFlags, ProcessorLatency, Sharing, Transport};

/// Options from the command line; `None` leaves one to the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedOptions {
    /// How the volume is opened.
    pub volume: OpenRequest,
    /// For all users or the owner.
    pub sharing: Option<Sharing>,
    /// Restrictions on the files of the mount.
    pub restrictions: Restrictions,
    /// How reads and writes are shared with the kernel.
    pub io: Option<IoStyle>,
    /// Whether the mount outlives its daemon.
    pub supervisor: Option<Supervisor>,
    /// Whether files have extended attributes.
    pub extended_attributes: Option<ExtendedAttributes>,
    /// Whether programs may read files past the mount.
    pub leases: Option<LeasesEntry>,
}

/// Mount flags set and cleared for files of a mount. Both sets are disjoint; a flag in neither is left to the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restrictions {
    /// In force.
    pub on: MountFlags,
    /// Not in force, because that was asked for.
    pub off: MountFlags,
}

impl Default for Restrictions {
    fn default() -> Self {
        Self { on: MountFlags::empty(), off: MountFlags::empty() }
    }
}

/// The restrictions: the option that turns each on, the one that turns it off, and the kernel's flag.
const RESTRICTIONS: [(&str, &str, MountFlags); 4] = [
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("nosymfollow", "symfollow", MountFlags::NOSYMFOLLOW),
];

impl Restrictions {
    /// Takes one option; says whether it was one of these. A later one overrides an earlier one.
    fn apply(&mut self, option: &str) -> bool {
        for (on, off, flag) in RESTRICTIONS {
            if option == on {
                (self.on, self.off) = (self.on | flag, self.off - flag);
                return true;
            }
            if option == off {
                (self.on, self.off) = (self.on - flag, self.off | flag);
                return true;
            }
        }
        false
    }

    /// These flags, with `default` for those they leave open.
    pub fn over(self, default: MountFlags) -> MountFlags {
        (default | self.on) - self.off
    }

    fn to_list(self) -> impl Iterator<Item = &'static str> {
        RESTRICTIONS.into_iter().filter_map(move |(on, off, flag)| {
            match (self.on.contains(flag), self.off.contains(flag)) {
                (true, _) => Some(on),
                (_, true) => Some(off),
                _ => None,
            }
        })
    }
}

/// Options of mount(8) that Polymux does not have, and their replacements.
fn why_refused(option: &str) -> Option<&'static str> {
    Some(match option {
        "sync" => "programs that need each write on disk open their files with O_SYNC, or call fsync",
        "dirsync" => "programs that need a name on disk call fsync on its directory",
        "strictatime" | "norelatime" => "access times follow relatime, or do not change (noatime)",
        "lazytime" => "access times follow relatime and are written with the next flush",
        "nodiratime" => "noatime turns access times off, those of directories among them",
        "mand" => "there are no mandatory locks",
        "iversion" => "inodes have no version",
        _ => return None,
    })
}

/// How reads and writes are shared with the kernel, as the configuration says.
const fn io_style(entry: IoEntry) -> IoStyle {
    match entry {
        IoEntry::Auto => IoStyle::Auto,
        IoEntry::Passthrough => IoStyle::Passthrough,
        IoEntry::WriteBack => IoStyle::WriteBack,
    }
}

/// Whether files have extended attributes, as the configuration says.
const fn extended_attributes(entry: ExtendedAttributesEntry) -> ExtendedAttributes {
    match entry {
        ExtendedAttributesEntry::On => ExtendedAttributes::Kept,
        ExtendedAttributesEntry::Off => ExtendedAttributes::Refused,
    }
}

/// Whether idle processors are kept awake, as the configuration says.
const fn processor_latency(entry: ProcessorLatencyEntry) -> ProcessorLatency {
    match entry {
        ProcessorLatencyEntry::Auto => ProcessorLatency::Auto,
        ProcessorLatencyEntry::Low => ProcessorLatency::Low,
        ProcessorLatencyEntry::System => ProcessorLatency::System,
    }
}

/// Whether a second process keeps a mount, so that the death of its daemon costs programs a pause (docs/design/0037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supervisor {
    /// Where that is possible: the kernel collects writes and sends requests again, and memory outlives the daemon.
    Auto,
    /// No.
    Off,
}

impl From<SupervisorEntry> for Supervisor {
    fn from(entry: SupervisorEntry) -> Self {
        match entry {
            SupervisorEntry::Auto => Self::Auto,
            SupervisorEntry::Off => Self::Off,
        }
    }
}

impl RequestedOptions {
    /// Reads lists as `mount -o` takes them; a later option overrides an earlier one.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut requested = Self::default();
        for option in lists.into_iter().flat_map(|list| list.split(',')).map(str::trim) {
            requested.apply(option)?;
        }
        Ok(requested)
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        if self.restrictions.apply(option) {
            return Ok(());
        }
        if let Some(instead) = why_refused(option) {
            bail!("mount option `{option}` is not offered: {instead}");
        }
        match option {
            "ro" => self.volume.access = Some(Access::ReadOnly),
            "rw" => self.volume.access = Some(Access::ReadWrite),
            "allow_other" => self.sharing = Some(Sharing::Everybody),
            "noatime" => self.volume.access_times = Some(AccessTimes::Never),
            "relatime" | "atime" => self.volume.access_times = Some(AccessTimes::Relative),
            // From the command line only; `mount.polymux` refuses it.
            "from_copy" => self.volume.metadata_source = Some(MetadataSource::SecondCopy),
            "degraded" => self.volume.missing = Some(MissingTiers::Degraded),
            "io=auto" => self.io = Some(IoStyle::Auto),
            "io=passthrough" => self.io = Some(IoStyle::Passthrough),
            "io=write-back" => self.io = Some(IoStyle::WriteBack),
            "supervisor=auto" => self.supervisor = Some(Supervisor::Auto),
            "supervisor=off" => self.supervisor = Some(Supervisor::Off),
            "passthrough=auto" => self.volume.passthrough = Some(PassthroughUse::Auto),
            "passthrough=read" => self.volume.passthrough = Some(PassthroughUse::Read),
            "passthrough=off" => self.volume.passthrough = Some(PassthroughUse::Off),
            "page_cache=on" => self.volume.page_cache = Some(PageCache::On),
            "page_cache=off" => self.volume.page_cache = Some(PageCache::Off),
            "extended_attributes=on" => self.extended_attributes = Some(ExtendedAttributes::Kept),
            "extended_attributes=off" => self.extended_attributes = Some(ExtendedAttributes::Refused),
            "leases=on" => self.leases = Some(LeasesEntry::On),
            "leases=off" => self.leases = Some(LeasesEntry::Off),
            // For mount(8) and systemd, not for us; of the owners' options mount(8) makes `nosuid,nodev,noexec` as it should.
            "" | "defaults" | "nofail" | "fail" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner"
            | "group" | "_netdev" => {}
            // Always in effect here.
            "async" | "diratime" | "nolazytime" | "nostrictatime" | "nomand" | "noiversion" | "loud" => {}
            other if other.starts_with("x-") || other.starts_with("X-") || other.starts_with("comment=") => {}
            other => bail!("unknown mount option `{}`", other.escape_debug()),
        }
        Ok(())
    }

    /// The list that [`RequestedOptions::parse`] reads back as this.
    pub fn to_list(&self) -> String {
        let options = [
            self.volume.access.map(|access| if access == Access::ReadOnly { "ro" } else { "rw" }),
            self.sharing.filter(|sharing| *sharing == Sharing::Everybody).map(|_| "allow_other"),
            self.volume.access_times.map(|times| if times == AccessTimes::Never { "noatime" } else { "relatime" }),
            self.volume.missing.filter(|missing| *missing == MissingTiers::Degraded).map(|_| "degraded"),
            self.io.map(|named| match named {
                IoStyle::Auto => "io=auto",
                IoStyle::Passthrough => "io=passthrough",
                IoStyle::WriteBack => "io=write-back",
            }),
            self.supervisor.map(|named| match named {
                Supervisor::Auto => "supervisor=auto",
                Supervisor::Off => "supervisor=off",
            }),
            self.volume.passthrough.map(|named| match named {
                PassthroughUse::Auto => "passthrough=auto",
                PassthroughUse::Read => "passthrough=read",
                PassthroughUse::Off => "passthrough=off",
            }),
            self.volume.page_cache.map(|kept| if kept == PageCache::On { "page_cache=on" } else { "page_cache=off" }),
            self.extended_attributes.map(|named| match named {
                ExtendedAttributes::Kept => "extended_attributes=on",
                ExtendedAttributes::Refused => "extended_attributes=off",
            }),
            self.leases.map(|named| if named == LeasesEntry::On { "leases=on" } else { "leases=off" }),
            self.volume.metadata_source.map(|MetadataSource::SecondCopy| "from_copy"),
        ];
        options.into_iter().flatten().chain(self.restrictions.to_list()).collect::<Vec<_>>().join(",")
    }

    /// Whether programs may read files past the mount.
    pub fn leases(&self, config: &VolumeConfig) -> LeasesEntry {
        self.leases.or(config.options.leases).unwrap_or(LeasesEntry::Off)
    }

    /// Whether a supervisor is to keep the mount. Only then it is started; whether it can is known once the kernel was asked.
    pub fn supervisor(&self, config: &VolumeConfig) -> Supervisor {
        let kernel = self.for_kernel(config);
        let asked = self.supervisor.or(config.options.supervisor.map(Supervisor::from)).unwrap_or(Supervisor::Auto);
        let may_collect = kernel.io != IoStyle::Passthrough && kernel.transport != Transport::IoUring;
        let is_of_use = may_collect && kernel.access == Access::ReadWrite;
        if is_of_use { asked } else { Supervisor::Off }
    }

    /// How reads and writes are shared with the kernel. `auto` gives way to options that exist only without collected writes.
    fn io_style(&self, config: &VolumeConfig) -> IoStyle {
        let asked = self.io.or(config.options.io.map(io_style)).unwrap_or_default();
        let has_no_pages = self.volume.mount_options(config).page_cache == PageCache::Off;
        let names_passthrough = self.volume.passthrough.is_some() || config.options.passthrough.is_some();
        let names_rings = config.options.transport == Some(TransportEntry::IoUring);
        match asked {
            IoStyle::WriteBack if has_no_pages => {
                log::warn!("`io = \"write-back\"` collects nothing without the page cache (`page_cache = \"off\"`)");
                IoStyle::Passthrough
            }
            IoStyle::Auto if has_no_pages || names_passthrough || names_rings => IoStyle::Passthrough,
            asked => asked,
        }
    }

    /// Options for the kernel.
    pub fn for_kernel(&self, config: &VolumeConfig) -> FuseOptions {
        let access = self.volume.access.unwrap_or(MountOptions::default().access);
        let mut options = FuseOptions::new(config.name.clone(), access);
        if let Some(allow_other) = config.options.allow_other {
            options.sharing = if allow_other { Sharing::Everybody } else { Sharing::OwnerOnly };
        }
        options.sharing = self.sharing.unwrap_or(options.sharing);
        options.restrictions = self.restrictions.over(options.restrictions);
        if let Some(threads) = config.options.threads {
            options.threads = usize::from(threads.get());
        }
        options.transport = match config.options.transport {
            None | Some(TransportEntry::Auto) => Transport::Auto,
            Some(TransportEntry::Classic) => Transport::Classic,
            Some(TransportEntry::IoUring) => Transport::IoUring,
        };
        options.processor_latency =
            config.options.processor_latency.map_or(options.processor_latency, processor_latency);
        options.io = self.io_style(config);
        let of_config = config.options.extended_attributes.map(extended_attributes);
        options.extended_attributes = self.extended_attributes.or(of_config).unwrap_or(options.extended_attributes);
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_are_understood_or_tolerated() {
        let requested = RequestedOptions::parse([
            "defaults,rw,ro,allow_other",
            "noatime,nofail,x-systemd.requires=/mnt,_netdev,user,noauto,exec,,nodev",
        ])
        .unwrap();
        assert_eq!(requested.volume.access, Some(Access::ReadOnly), "the later of rw and ro counts");
        assert_eq!(requested.sharing, Some(Sharing::Everybody));
        assert_eq!(requested.volume.access_times, Some(AccessTimes::Never));
        assert_eq!(requested.restrictions.on, MountFlags::NODEV);
        assert_eq!(requested.restrictions.off, MountFlags::NOEXEC);
    }

    #[test]
    fn an_unknown_option_is_refused_by_name() {
        for option in ["writeback", "uid=1000", "noatim", "ro=1"] {
            let error = RequestedOptions::parse([option]).unwrap_err().to_string();
            assert!(error.contains(option) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_is_not_in_force_is_refused_with_what_there_is_instead() {
        for option in
            ["sync", "dirsync", "strictatime", "norelatime", "lazytime", "nodiratime", "mand", "iversion", "remount"]
        {
            let error = RequestedOptions::parse([option]).unwrap_err().to_string();
            assert!(error.contains(option) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_later_of_a_restriction_and_its_opposite_counts() {
        let of = |list: &str| RequestedOptions::parse([list]).unwrap().restrictions;
        assert_eq!(of("noexec,exec,nosymfollow").over(MountFlags::NODEV), MountFlags::NODEV | MountFlags::NOSYMFOLLOW);
        assert_eq!(
            of("exec,noexec,dev").over(MountFlags::NODEV | MountFlags::NOSUID),
            MountFlags::NOSUID | MountFlags::NOEXEC
        );
    }

    #[test]
    fn a_list_survives_writing_and_reading() {
        for list in [
            "",
            "ro",
            "rw,allow_other,noatime,nosuid,degraded,io=write-back,supervisor=off,passthrough=read,page_cache=off,extended_attributes=off,leases=on,from_copy",
            "relatime",
            "noexec,nodev,suid,nosymfollow",
        ] {
            let requested = RequestedOptions::parse([list]).unwrap();
            assert_eq!(RequestedOptions::parse([requested.to_list().as_str()]).unwrap(), requested);
        }
    }
}
