//! The state of the metadata store and of its second copy, for `polymux status`.

use polymux_config::metadata_copy::{Metadata, OpenedStore};
use polymux_meta::{CopyState, StoreView, WindowPlace};

use crate::protocol::{MetadataCopyReport, MetadataStoreReport};

/// The state of the store.
pub fn of_store(metadata: &Metadata) -> MetadataStoreReport {
    let report = match &metadata.opened {
        OpenedStore::Writable(store) => store.report(),
        OpenedStore::ForReading(view) => return of_view(view),
    };
    let (log_window, log_window_reason) = match report.window.place {
        WindowPlace::Surviving(path) => (Some(path), None),
        WindowPlace::Region => (Some(report.medium.clone()), None),
        WindowPlace::Plain(reason) => (None, Some(reason)),
    };
    MetadataStoreReport {
        log_medium: report.medium,
        log_window,
        log_window_reason,
        survived_entries: report.window.survived_entries,
        log_bytes: report.log_bytes,
        log_used_bytes: report.log_used_bytes,
        memtable_bytes: report.memtable_bytes,
        tables: report.tables,
        table_bytes: report.table_bytes,
        ballast_held_bytes: report.ballast_bytes.0,
        ballast_wanted_bytes: report.ballast_bytes.1,
        replayed_entries: report.replayed_entries,
        stalled_operations: report.stalled_commits,
        log_syncs: report.log.syncs,
        log_flushes: report.log.flushes,
        log_payload_bytes: report.log.payload_bytes,
        log_appended_bytes: report.log.appended_bytes,
        log_device_bytes: report.log.device_bytes,
    }
}

fn of_view(view: &StoreView) -> MetadataStoreReport {
    let log = view.log().summary();
    let levels = || view.partitions().into_iter().flat_map(|partition| partition.levels);
    MetadataStoreReport {
        log_medium: "for reading".to_owned(),
        log_window: None,
        log_window_reason: Some("nothing is written".to_owned()),
        survived_entries: 0,
        log_bytes: log.ring_bytes,
        log_used_bytes: view.log_bytes_used(),
        memtable_bytes: 0,
        tables: levels().map(|level| level.tables).sum(),
        table_bytes: levels().map(|level| level.bytes).sum(),
        ballast_held_bytes: 0,
        ballast_wanted_bytes: 0,
        replayed_entries: 0,
        stalled_operations: 0,
        log_syncs: 0,
        log_flushes: 0,
        log_payload_bytes: 0,
        log_appended_bytes: 0,
        log_device_bytes: 0,
    }
}

/// The state of the second copy.
pub fn of_copy(metadata: &Metadata) -> MetadataCopyReport {
    let tier = metadata.copy_tier().map(str::to_owned);
    let Some(report) = metadata.writable().and_then(|store| store.report().copy) else {
        return MetadataCopyReport {
            tier,
            state: "none".to_owned(),
            reason: metadata.reason_of_no_copy().map(str::to_owned),
            lag_bytes: None,
            lag_ms: None,
            transaction: None,
            table_bytes: 0,
            shipped_bytes: 0,
            rebuilds: 0,
        };
    };
    let state = match report.state {
        CopyState::Current => "current",
        CopyState::Failing => "failing",
        CopyState::Rebuilding => "rebuilding",
        CopyState::Unreachable => "unreachable",
        CopyState::Refused => "refused",
    };
    MetadataCopyReport {
        tier,
        state: state.to_owned(),
        reason: Some(report.reason).filter(|reason| !reason.is_empty()),
        lag_bytes: report.lag_bytes,
        lag_ms: report.lag_ms,
        transaction: report.lag_bytes.map(|_| report.arrived.get()),
        table_bytes: report.table_bytes,
        shipped_bytes: report.shipped_bytes,
        rebuilds: report.rebuilds,
    }
}
