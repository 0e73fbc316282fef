//! The metadata store of Polymux against the one it began with: the same trait, the same workload, in one run on one
//! device.

#![forbid(unsafe_code)]

mod fjall_store;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use fjall_store::FjallStore;
use polymux_bench::device::Device;
use polymux_bench::machine;
use polymux_bench::report::Report;
use polymux_bench::scratch::Scratch;
use polymux_bench::store::{self, OpenStore, StoreArguments};
use polymux_bench::store_workload::{self, Candidate};

/// Measures both stores and prints ratios.
#[derive(Parser)]
#[command(name = "interim-store", version)]
struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
}

fn make_interim(path: &Path) -> Result<OpenStore> {
    Ok(OpenStore::without_counters(Arc::new(FjallStore::open(path, store::MEMORY_BYTES)?)))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse().store;
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut report = Report::new("interim-store", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let device = Device::of(scratch.path())?;
    let candidates = [
        Candidate { name: "polymux", make: &|path| store::make(path, store::MEMORY_BYTES) },
        Candidate { name: "interim", make: &make_interim },
    ];
    for section in store_workload::measure(&candidates, &scratch, device.as_ref(), &arguments.workload)? {
        report.add(section);
    }
    report.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interim_store_still_keeps_what_the_trait_promises() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let mut batch = polymux_meta::Batch::new();
        batch.put(*b"key", *b"value");
        let store = make_interim(&path).unwrap().store;
        store.sync(store.commit(batch).unwrap()).unwrap();
        drop(store);
        let store = make_interim(&path).unwrap().store;
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
