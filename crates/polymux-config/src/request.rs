//! How a volume is to be opened, over the options of its configuration.
//!
//! Invariant: an option that a request leaves open is that of the configuration, and the default where that says nothing.

use polymux_fs::{
    Access, AccessTimes, BootId, MissingTiers, MountOptions, PageCache, PassthroughUse, Promotion, ReaderLayout,
};

use crate::config::VolumeConfig;

/// How a volume is to be opened; `None` leaves an option to the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenRequest {
    /// Read-only or not.
    pub access: Option<Access>,
    /// Whether access times change.
    pub access_times: Option<AccessTimes>,
    /// Behaviour when a tier is missing.
    pub missing: Option<MissingTiers>,
    /// Which files the kernel may use directly.
    pub passthrough: Option<PassthroughUse>,
    /// Whether the kernel keeps pages of the others.
    pub page_cache: Option<PageCache>,
    /// Source of the metadata store.
    pub metadata_source: Option<MetadataSource>,
}

/// Source of the metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataSource {
    /// The store is lost or damaged, and is made anew from its second copy.
    SecondCopy,
}

/// The present boot of this kernel. Where it cannot be read, all boots count as one: memory left from before is examined.
pub fn present_boot() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    BootId(u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes())
}

impl OpenRequest {
    /// Options for the file system.
    #[must_use]
    pub fn mount_options(&self, config: &VolumeConfig) -> MountOptions {
        let mut options = MountOptions::default();
        if config.options.noatime == Some(true) {
            options.access_times = AccessTimes::Never;
        }
        options.access = self.access.unwrap_or(options.access);
        options.access_times = self.access_times.unwrap_or(options.access_times);
        options.missing = self.missing.unwrap_or(options.missing);
        options.sync_on_replace = config.options.sync_on_replace.unwrap_or(options.sync_on_replace);
        if let Some(seconds) = config.options.flush_interval {
            options.flush_interval_ms = seconds.saturating_mul(1000);
        }
        if let Some(seconds) = config.options.hang_after {
            options.hang_after_ms = seconds.saturating_mul(1000);
        }
        options.reader_layout = config.options.reader_layout.map_or(options.reader_layout, ReaderLayout::from);
        options.promotion = config.options.promotion.map_or(options.promotion, Promotion::from);
        if let Some(milliseconds) = config.options.deferral_ms_max {
            options.deferral_ms_max = milliseconds.0;
        }
        if let Some(seconds) = config.options.stamp_delay {
            options.stamp_delay_ms = seconds.saturating_mul(1000);
        }
        let of_config = config.options.passthrough.map(PassthroughUse::from);
        options.passthrough = self.passthrough.or(of_config).unwrap_or(options.passthrough);
        let of_config = config.options.page_cache.map(PageCache::from);
        options.page_cache = self.page_cache.or(of_config).unwrap_or(options.page_cache);
        options.boot = present_boot();
        if let Some(size) = config.options.inline_size_max {
            options.inline_size_max = u32::try_from(size.0.0).unwrap_or(u32::MAX);
        }
        if let Some(half_life) = &config.options.heat_half_life {
            options.heat_half_life_seconds = u32::try_from(half_life.seconds).unwrap_or(u32::MAX);
        }
        if let Some(size) = config.options.heat_memory {
            options.heat_memory_bytes = size.0.0;
        }
        options
    }
}
