//! How well threads share flushes: a store whose log lies in memory and whose flush takes a given time, so that no disk
//! disturbs the measurement. `cargo run --release -p polymux-meta --example group_flush -- [flush in us]`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polymux_meta::{BLOCK, Batch, LogMedium, LogStore, LogStoreOptions, MetadataStore, OpenMode};

/// Memory whose durable writes take a while.
struct SlowMemory {
    bytes: Mutex<Vec<u8>>,
    flush: Duration,
}

impl LogMedium for SlowMemory {
    fn length(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset..offset + bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> std::io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        self.bytes.lock().unwrap()[offset..offset + blocks.len()].copy_from_slice(blocks);
        Ok(())
    }

    fn write_durable(&self, offset: u64, blocks: &[u8]) -> std::io::Result<()> {
        self.write(offset, blocks)?;
        self.flush()
    }

    fn flush(&self) -> std::io::Result<()> {
        std::thread::sleep(self.flush);
        Ok(())
    }

    fn description(&self) -> String {
        "memory with a slow flush".to_owned()
    }
}

fn main() {
    let flush_us = std::env::args().nth(1).map_or(60, |text| text.parse().expect("microseconds"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let options = LogStoreOptions { seeds: [1, 2], ..LogStoreOptions::new(OpenMode::CreateNew) };
    LogStore::open(&path, &options).unwrap().close().unwrap();
    let image = std::fs::read(path.join("log")).unwrap();
    assert!((image.len() as u64).is_multiple_of(BLOCK));
    let medium = SlowMemory { bytes: Mutex::new(image), flush: Duration::from_micros(flush_us) };
    let options = LogStoreOptions { seeds: [1, 2], ..LogStoreOptions::new(OpenMode::Existing) };
    let store = LogStore::open_with(&path, &options, Arc::new(medium)).unwrap();
    println!("| threads | per second | us per operation | flushes per operation |");
    for threads in [1, 2, 4, 8, 16] {
        let before = store.report().log;
        let begun = Instant::now();
        let operations: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|worker: u64| {
                    let store = &store;
                    scope.spawn(move || {
                        let mut count = 0_u64;
                        while begun.elapsed() < Duration::from_secs(2) {
                            let mut batch = Batch::new();
                            for kind in b"cdip" {
                                batch.put(
                                    [&[0, 0, 0, 0, *kind][..], &worker.to_be_bytes(), &count.to_be_bytes()].concat(),
                                    [7; 80],
                                );
                            }
                            let sequence = store.commit(batch).unwrap();
                            store.sync(sequence).unwrap();
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        let rate = operations as f64 / begun.elapsed().as_secs_f64();
        let flushes = store.report().log.flushes - before.flushes;
        println!("| {threads} | {rate:.0} | {:.1} | {:.3} |", 1e6 / rate, flushes as f64 / operations as f64);
    }
}
