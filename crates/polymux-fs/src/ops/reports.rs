//! The reports of `status`, `where` and `statfs`.

use polymux_records::attributes::VolumeSpace;
use polymux_records::blockmap::Owner;
use polymux_records::error::Result;
use polymux_records::passthrough::Obstacle;
use polymux_records::report::{
    ExtentReport, FileIo, FileLocation, TierLoadReport, TierShare, TierStatus, VolumeStatus,
};
use polymux_tier::Guarantee;
use polymux_types::{Block, Ino};
use polymux_volume::inode::{FileState, Inode, reference_of};
use polymux_volume::space::TierHandle;

use crate::mounted::Mounted;

/// Where inline files are, in the place of the name of a tier.
const METADATA_STORE: &str = "in the metadata store";

impl Mounted {
    pub(crate) fn volume_space(&self) -> VolumeSpace {
        let mut space = self.volume.tiers.volume_space();
        space.files_total = space.files_free.saturating_add(self.volume.inodes.len() as u64);
        space
    }

    pub(crate) fn status(&self) -> VolumeStatus {
        self.mover.note_device_reads();
        let tiers: Vec<TierStatus> = self
            .volume
            .tiers
            .all()
            .iter()
            .map(|tier| {
                let space = tier.space_now();
                TierStatus {
                    id: tier.id,
                    name: tier.name.clone(),
                    state: tier.state(),
                    shortage: self.volume.shortage_of(tier).or_else(|| tier.assumption()),
                    space,
                    reserve: space.map_or(0, |space| tier.reserve_of(&space)),
                    capabilities: tier.present().map(|tier| tier.capabilities().clone()),
                    draining: tier.is_draining(),
                    high_mark_bytes: space.map_or(0, |space| tier.high_mark_bytes(&space)),
                    low_mark_bytes: space.map_or(0, |space| tier.low_mark_bytes(&space)),
                    shares_file_system_with: self.volume.tiers.sharing_with(tier),
                    counters: tier.present().map(polymux_tier::Tier::counters).unwrap_or_default(),
                    taken_out: tier.times_taken_out(),
                    profile: tier.profile(),
                    load: self.load_of(tier),
                    device_reads_by_minute: self.mover.device_reads_of(tier.id).to_vec(),
                }
            })
            .collect();
        let guarantee = tiers
            .iter()
            .filter_map(|tier| tier.capabilities.as_ref())
            .map(|capabilities| capabilities.guarantee)
            .min()
            .unwrap_or(Guarantee::Volatile);
        VolumeStatus {
            id: self.volume.id,
            name: self.volume.name.clone(),
            epoch: self.volume.epochs.present(),
            read_only: self.volume.is_read_only(),
            guarantee,
            tiers,
            passthrough: self.data.passthrough_state(),
            inodes_cached: self.volume.inodes.len(),
            files_open: self.data.handles.open_count(),
            disowned_pending: self.volume.disowned.len() as u64,
            stamps_late: self.stamps.late_stamps.len() as u64,
            transactions_committed: self.volume.metadata.committed().0,
            transactions_durable: self.volume.metadata.durable().0,
            metadata_bytes: self.volume.metadata.bytes_used(),
            recovery: self.volume.recovery_notes.lock().iter().cloned().collect(),
            counters: self.all_counters(),
        }
    }

    fn load_of(&self, tier: &TierHandle) -> TierLoadReport {
        let now = self.volume.clock.elapsed();
        let load = tier.speed.schedule.load(now);
        let (read, write) = tier.lane_reports(now);
        let (moves_waited, behind_waited) = tier.deferral_reports();
        let budget = self.placement.write_budget.budget_left(tier.id, self.placement.logical_clock.now());
        TierLoadReport {
            foreground_read: load.foreground_read,
            foreground_written: load.foreground_written,
            mover_read: load.mover_read,
            mover_written: load.mover_written,
            queue_depth: load.queue_depth,
            latency_us_p50: load.latency_us_p50,
            latency_us_p99: load.latency_us_p99,
            mover_rate_max: load.mover_rate,
            write_budget_left: (budget != u64::MAX).then_some(budget),
            read,
            write,
            small_reads: self.placement.tier_reads.small_reads(tier.id),
            moves_waited,
            behind_waited,
        }
    }

    fn all_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.volume.counters.entries();
        let heat = self.placement.heat.counters();
        counters.push(("heat_entries", heat.entries));
        counters.push(("heat_evictions", heat.evictions));
        counters.push(("heat_bytes", heat.memory_bytes));
        counters.push(("sync_threads", self.data.sync_pool.threads_started() as u64));
        counters.push(("write_behind_threads", self.data.write_behind.threads_started() as u64));
        counters
    }

    pub(crate) fn locate(&self, ino: Ino) -> Result<FileLocation> {
        let inode = self.volume.inode(ino)?;
        let path = self.volume.path_of(ino)?;
        let open_handles = usize::try_from(inode.lifecycle.lock().handles).unwrap_or(usize::MAX);
        let Some(file) = inode.file() else {
            let size = self.attributes_of(&inode)?.size;
            return Ok(FileLocation {
                ino,
                path,
                size,
                home: None,
                bytes_inline: 0,
                shares: Vec::new(),
                extents: Vec::new(),
                extent_records: 0,
                damaged: Vec::new(),
                open_handles,
                io: FileIo::Closed(Err(Obstacle::NoObject)),
            });
        };
        self.data.ensure_size_or_guess(&inode, file)?;
        self.locate_file(&inode, file, path, open_handles)
    }

    fn locate_file(
        &self,
        inode: &Inode,
        file: &FileState,
        path: Option<Vec<u8>>,
        open_handles: usize,
    ) -> Result<FileLocation> {
        let size = file.size();
        let bytes_inline = if file.is_inline() { size } else { 0 };
        let (runs, objects, home, damaged) = {
            let layout = file.layout.read();
            let home = layout.map.home().map(|slot| layout.object(slot).tier);
            let runs = layout.map.runs(Block(0), Block::at_or_after(size));
            (runs, layout.objects.clone(), home, layout.damaged.clone())
        };
        let name_of = |id| self.volume.tiers.by_id(id).map(|tier| tier.name.clone());
        let mut extents = Vec::new();
        let mut mapped = vec![0_u64; objects.len()];
        for run in runs {
            let (start, end) = (run.start.first_byte(), run.end.first_byte().min(size));
            let tier = match run.owner {
                Some(Owner::Slot(slot)) => {
                    mapped[usize::from(slot)] += end - start;
                    Some(name_of(objects[usize::from(slot)].tier)?)
                }
                None if bytes_inline > 0 => Some(METADATA_STORE.to_owned()),
                Some(Owner::Hole) | None => None,
            };
            extents.push(ExtentReport { offset: start, length: end - start, tier });
        }
        let mut shares = Vec::new();
        for handle in self.volume.tiers.all().iter() {
            let Some(place) = objects.iter().position(|entry| entry.tier == handle.id) else { continue };
            let entry = objects[place];
            // A query for the location of a file never waits for a tier that does not answer.
            let object = reference_of(&entry);
            let stat = handle.shared().and_then(|tier| tier.ask(move |tier| tier.stat(object)).ok());
            shares.push(TierShare {
                tier: handle.id,
                name: handle.name.clone(),
                object: entry.object,
                bytes_mapped: mapped[place],
                bytes_allocated: stat.map(|stat| stat.allocated),
            });
        }
        Ok(FileLocation {
            ino: inode.ino,
            path,
            size,
            home: home.map(name_of).transpose()?,
            bytes_inline,
            shares,
            extents,
            extent_records: self.volume.metadata.extents(inode.ino)?.len() as u64,
            damaged: damaged.iter().map(|(start, end)| (*start, end - start)).collect(),
            open_handles,
            io: self.data.describe_io(inode, file),
        })
    }
}
