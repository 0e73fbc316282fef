//! Turns the statistics of the file system into the reports of [`crate::protocol`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use polymux_door::Door;
use polymux_fs::{
    BackgroundThreads, CheckProgress, FileIo, FileLocation, FileSystem, PassthroughState, TierState, TierStatus,
};
use polymux_fuse::{Bursts, ConnectionState};
use polymux_tier::{Capabilities, Guarantee};
use polymux_types::Ino;
use polymux_types::sync::RwLock;

use crate::fsck::{self, FsckReport};
use crate::metadata_report;
use crate::protocol::{
    DeferralReport, ExtentReport, IdleProcessorsReport, LaneReport, ProfileReport, ShareReport, SmallReadsReport,
    SpaceReport, StatusReport, TierFileReport, TierFilesReport, TierReport, WaitClass, WhereReport,
};
use crate::tier_forget;
use polymux_config::config::VolumeConfig;
use polymux_config::metadata_copy::Metadata;

/// Files with lost bytes that a status names.
const DAMAGED_LISTED_MAX: usize = 10;

/// The daemon's own state in addition to its file system.
pub struct DaemonView {
    /// Where programs get leases, if they may.
    pub door: Option<Arc<Door>>,
    /// The mounted file system.
    pub file_system: Arc<FileSystem>,
    /// The threads that do its background work.
    pub background: Arc<BackgroundThreads>,
    /// Its configuration, as its file says now.
    pub config: RwLock<VolumeConfig>,
    /// Where that file is.
    pub config_path: PathBuf,
    /// Directory it is mounted on.
    pub mount_point: PathBuf,
    /// Threads that serve requests of the kernel.
    pub threads: usize,
    /// How these come, and how many of them.
    pub connection: Arc<ConnectionState>,
    /// Why the mount ends with this process; `None` where another daemon takes it over.
    pub ends_with_daemon: Option<String>,
    /// Warnings of the mount.
    pub warnings: Vec<String>,
    /// Its metadata store.
    pub metadata: Metadata,
}

impl DaemonView {
    /// Checks the volume while it is in use, until `on_progress` ends it.
    ///
    /// # Errors
    /// `EINTR` where it was ended; whatever fails on the way.
    pub fn check(
        &self,
        on_progress: &mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
    ) -> polymux_fs::Result<FsckReport> {
        let start = std::time::Instant::now();
        let check = self.file_system.check_mounted(on_progress)?;
        let mut report = fsck::report_of(&self.config.read().name, "online", &check, start.elapsed());
        report.finish();
        Ok(report)
    }

    /// Everything about the volume at this moment.
    pub fn status(&self) -> polymux_fs::Result<StatusReport> {
        let status = self.file_system.status()?;
        let space = self.file_system.space().ok();
        let config = self.config.read().clone();
        Ok(StatusReport {
            volume: status.id.to_string(),
            name: status.name,
            mount_point: self.mount_point.display().to_string(),
            pid: std::process::id(),
            epoch: status.epoch.get(),
            read_only: status.read_only,
            guarantee: status.guarantee.to_string(),
            guarantee_meaning: meaning_of(status.guarantee).to_owned(),
            transport: self.connection.transport(),
            idle_processors: idle_processors_report(self.connection.bursts()),
            passthrough: passthrough_in_words(status.passthrough),
            leases: self.leases(),
            ends_with_daemon: self.ends_with_daemon.clone(),
            threads: self.threads,
            messages: to_map(self.connection.messages.totals()),
            metadata_tier: config.tiers[config.metadata].name.clone(),
            metadata_bytes: status.metadata_bytes,
            metadata_store: metadata_report::of_store(&self.metadata),
            metadata_copy: metadata_report::of_copy(&self.metadata),
            tiers: status.tiers.iter().map(|tier| tier_report(&config, tier)).collect(),
            space: space.map(|space| SpaceReport { total: space.total, free: space.free, available: space.available }),
            inodes_cached: status.inodes_cached,
            files_open: status.files_open,
            disowned_pending: status.disowned_pending,
            stamps_late: status.stamps_late,
            transactions_committed: status.transactions_committed,
            transactions_durable: status.transactions_durable,
            damaged: tier_forget::damaged_report(&self.file_system.damaged_files(DAMAGED_LISTED_MAX)?),
            recovery: self.metadata.recovery.iter().cloned().chain(status.recovery).collect(),
            warnings: self.warnings.clone(),
            counters: to_map(status.counters),
            moves: self.moves_summary(),
        })
    }

    /// The files that depend on a tier.
    pub fn files_of_tier(&self, tier: &str, listed_max: usize) -> polymux_fs::Result<TierFilesReport> {
        let found = self.file_system.files_of_tier(tier, listed_max)?;
        let (state, reason) = state_and_reason(&found.state);
        let path = |path: Option<Vec<u8>>| path.map(|path| String::from_utf8_lossy(&path).into_owned());
        let listed = found.listed.into_iter().map(|file| TierFileReport {
            ino: file.ino.get(),
            path: path(file.path),
            only: file.is_only,
        });
        Ok(TierFilesReport {
            tier: found.tier,
            state: state.to_owned(),
            reason,
            files: found.files,
            only: found.only,
            listed: listed.collect(),
        })
    }

    /// Where a file's bytes are.
    pub fn locate(&self, ino: Ino) -> polymux_fs::Result<WhereReport> {
        self.file_system.locate(ino).map(where_report)
    }
}

fn tier_report(config: &VolumeConfig, tier: &TierStatus) -> TierReport {
    let configured = config.tiers.iter().find(|configured| configured.name == tier.name);
    let (state, reason) = state_and_reason(&tier.state);
    TierReport {
        id: tier.id.get(),
        name: tier.name.clone(),
        path: configured.map_or_else(String::new, |configured| configured.path.display().to_string()),
        state: state.to_owned(),
        reason: reasons_in_words(reason, tier.shortage.clone()),
        file_system: tier.capabilities.as_ref().map(|capabilities| capabilities.file_system.clone()),
        guarantee: tier.capabilities.as_ref().map(|capabilities| capabilities.guarantee.to_string()),
        capacity: configured.and_then(|configured| configured.capacity).map(|capacity| capacity.0.0),
        total: tier.space.map(|space| space.total),
        used: tier.space.map(|space| space.used),
        free: tier.space.map(|space| space.free),
        reserve: tier.reserve,
        draining: tier.draining,
        high_mark: tier.high_mark_bytes,
        low_mark: tier.low_mark_bytes,
        shares_file_system_with: tier.shares_file_system_with.clone(),
        capabilities: tier.capabilities.as_ref().map(capability_map).unwrap_or_default(),
        counters: to_map(tier.counters.entries().into_iter().chain([("taken_out", tier.taken_out)])),
        read: lane_report(&tier.load.read),
        write: lane_report(&tier.load.write),
        profile: ProfileReport::of(&tier.profile),
        small_reads: small_reads_report(&tier.load.small_reads),
        moves_waited: deferral_report(&tier.load.moves_waited),
        behind_waited: deferral_report(&tier.load.behind_waited),
        device_reads_by_minute: tier.device_reads_by_minute.clone(),
    }
}

fn deferral_report(deferral: &polymux_fs::DeferralReport) -> DeferralReport {
    let classes = polymux_fs::deferral_wait_ends_ms().into_iter().zip(deferral.by_wait);
    let waits = classes.map(|(up_to_ms, requests)| WaitClass { up_to_ms, requests });
    DeferralReport {
        requests: deferral.requests,
        at_bound: deferral.at_bound,
        longest_us: deferral.longest_us,
        waits: waits.filter(|class| class.requests > 0).collect(),
    }
}

fn lane_report(lane: &polymux_fs::LaneReport) -> LaneReport {
    LaneReport {
        bytes_per_second: lane.bytes_per_second,
        outstanding_bytes: lane.outstanding_bytes,
        in_flight: lane.in_flight,
        service_us: lane.service_us,
        is_saturated: lane.is_saturated,
        delivered_bytes: lane.delivered_bytes,
    }
}

fn small_reads_report(reads: &polymux_fs::SmallReadsReport) -> SmallReadsReport {
    SmallReadsReport {
        per_second: reads.per_second,
        latency_us: reads.latency_us,
        alone_us: reads.alone_us,
        device_us: reads.device_us,
        most_per_second: reads.most_per_second,
        depth_hundredths: reads.depth_hundredths,
        busy_percent: reads.busy_percent,
        sampled: reads.sampled,
        is_limit: reads.is_limit,
    }
}

fn reasons_in_words(state: Option<String>, shortage: Option<String>) -> Option<String> {
    match (state, shortage) {
        (Some(state), Some(shortage)) => Some(format!("{state}; {shortage}")),
        (state, shortage) => state.or(shortage),
    }
}

/// The state of a tier in a word, and why it is not online.
fn state_and_reason(state: &TierState) -> (&'static str, Option<String>) {
    match state {
        TierState::Online => ("online", None),
        TierState::Failing(reason) => ("failing", Some(reason.clone())),
        TierState::NotAnswering(reason) => ("not answering", Some(reason.clone())),
        TierState::Missing(reason) => ("missing", Some(reason.clone())),
    }
}

fn to_map(entries: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn capability_map(capabilities: &Capabilities) -> BTreeMap<String, String> {
    let entries = [
        ("sparse", capabilities.sparse.to_string()),
        ("punch_hole", capabilities.punch_hole.to_string()),
        ("preallocate", capabilities.preallocate.to_string()),
        ("allocates_ahead", capabilities.allocates_ahead.to_string()),
        ("seek_data", capabilities.seek_data.to_string()),
        ("extended_attributes", capabilities.extended_attributes.to_string()),
        ("nowait_read", capabilities.nowait_read.to_string()),
        ("uncached_read", capabilities.uncached_read.to_string()),
        ("nowait_write", capabilities.nowait_write.to_string()),
        ("file_size_max", capabilities.file_size_max.to_string()),
        ("block_size", capabilities.block_size.to_string()),
        ("timestamp_granularity_ns", capabilities.timestamp_granularity_ns.to_string()),
        ("overwrite", format!("{:?}", capabilities.overwrite)),
        ("rotation", format!("{:?}", capabilities.rotation)),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The meaning of a guarantee for a caller of fsync (P21: a volume guarantees no more than its weakest tier).
pub fn meaning_of(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Durable => "after fsync, data survives a crash of the machine",
        Guarantee::Remote => "after fsync, data is as safe as the server below says; a lost connection can delay it",
        Guarantee::Volatile => "a tier is in memory: NOTHING survives a crash or reboot of the machine, fsync or not",
    }
}

fn idle_processors_report(bursts: Result<Bursts, String>) -> IdleProcessorsReport {
    match bursts {
        Ok(bursts) => IdleProcessorsReport {
            bursts: bursts.count,
            awake_seconds: bursts.duration.as_secs_f64(),
            sleep_reason: None,
        },
        Err(reason) => IdleProcessorsReport { sleep_reason: Some(reason), ..IdleProcessorsReport::default() },
    }
}

fn passthrough_in_words(state: PassthroughState) -> String {
    match state {
        PassthroughState::Possible(0) => "on, no file is passed through now".to_owned(),
        PassthroughState::Possible(1) => "on, 1 open file is passed through now".to_owned(),
        PassthroughState::Possible(open) => format!("on, {open} open files are passed through now"),
        PassthroughState::NotOffered => "off: this kernel does not offer it (Linux 6.9 and later do)".to_owned(),
        PassthroughState::CollectsWrites => "off: the kernel collects writes (`io = \"write-back\"`)".to_owned(),
        PassthroughState::Refused => {
            "off: the kernel gives it to daemons with CAP_SYS_ADMIN only (mount as root)".to_owned()
        }
        PassthroughState::ReadOnly => "off: the volume is mounted read-only".to_owned(),
        PassthroughState::Off => "off: the configuration says `passthrough = \"off\"`".to_owned(),
    }
}

fn io_in_words(io: FileIo) -> String {
    match io {
        FileIo::Closed(Ok(())) => "passed through to its object when it is opened".to_owned(),
        FileIo::Closed(Err(obstacle)) => format!("through the daemon when it is opened: {}", obstacle.describe()),
        FileIo::PassedThrough => "passed through to its object, for reading".to_owned(),
        FileIo::ChangedDirectly => "passed through to its object, also for changes".to_owned(),
        FileIo::Held => {
            "held by a program that maps it or has it since before this mount: not moved until it lets go".to_owned()
        }
        FileIo::ThroughDaemon(obstacle) => format!("through the daemon: {}", obstacle.describe()),
    }
}

fn where_report(location: FileLocation) -> WhereReport {
    WhereReport {
        ino: location.ino.get(),
        path: location.path.map(|path| String::from_utf8_lossy(&path).into_owned()),
        size: location.size,
        home: location.home,
        bytes_inline: location.bytes_inline,
        tiers: location
            .shares
            .into_iter()
            .map(|share| ShareReport {
                tier: share.name,
                object: format!("{:016x}", share.object),
                bytes_mapped: share.bytes_mapped,
                bytes_allocated: share.bytes_allocated,
            })
            .collect(),
        extents: location
            .extents
            .into_iter()
            .map(|extent| ExtentReport { offset: extent.offset, length: extent.length, tier: extent.tier })
            .collect(),
        extent_records: location.extent_records,
        damaged: location.damaged,
        open_handles: location.open_handles,
        io: io_in_words(location.io),
    }
}
