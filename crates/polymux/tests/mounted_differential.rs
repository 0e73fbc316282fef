//! The same random operations on the mount and on a native file system: results, errors and final trees are the same.

mod mounted;

use std::collections::BTreeSet;
use std::mem::discriminant;

use mounted::environment::have_loop_devices;
use mounted::native::NativeMount;
use mounted::operations::{Operation, Side};
use mounted::tree::{difference, snapshot};
use mounted::{FileSystemKind, Plan, Random, TestVolume, is_heavy, one_at_a_time};

const OPERATIONS: usize = 6_000;

fn compare(volume: &mut TestVolume, native: &std::path::Path, seed: u64) {
    let name = format!("seed-{seed}");
    let roots = [native.join(&name), volume.path().join(&name)];
    roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
    let [mut expected, mut tested] = roots.map(|root| Side::new(&root));
    let mut random = Random::new(seed);
    let mut history: Vec<String> = Vec::new();
    let (mut kinds, mut succeeded) = (BTreeSet::new(), 0);
    for number in 0..OPERATIONS {
        let operation = Operation::random(&mut random);
        let (native, found) = (expected.apply(&operation), tested.apply(&operation));
        history.push(format!("{number}: {operation:?} -> {native:?}"));
        if native.is_ok() {
            succeeded += 1;
            kinds.insert(format!("{:?}", discriminant(&operation)));
        }
        if native != found {
            let shown = history[history.len().saturating_sub(25)..].join("\n");
            panic!("seed {seed}, operation {number}: natively {native:?}, on the volume {found:?}; before:\n{shown}");
        }
    }
    assert!(kinds.len() >= 20, "only {} kinds of operations ever succeeded", kinds.len());
    println!("seed {seed}: {succeeded} of {OPERATIONS} operations succeeded, {} kinds", kinds.len());
    assert_same_trees(&expected, &tested, seed);
    drop((expected, tested));
    volume.unmount();
    volume.mount();
    let [expected, tested] = [native.join(&name), volume.path().join(&name)].map(|root| Side::new(&root));
    assert_same_trees(&expected, &tested, seed);
}

fn assert_same_trees(expected: &Side, tested: &Side, seed: u64) {
    let (native, found) = (snapshot(expected.root()), snapshot(tested.root()));
    if let Some(difference) = difference(&native, &found) {
        panic!("seed {seed}: the trees differ: {difference}");
    }
    let paths = || native.keys().cloned();
    assert_eq!(expected.set_times(paths()), tested.set_times(paths()), "seed {seed}: times that were set differ");
}

#[test]
fn the_mount_and_a_native_file_system_answer_alike() {
    let _turn = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("4 MiB")) else { return };
    let native = have_loop_devices().then(|| NativeMount::new(volume.outside(), "native", FileSystemKind::Ext4, 256));
    let path = native.as_ref().map_or(volume.outside(), NativeMount::path).to_path_buf();
    for seed in 0..if is_heavy() { 100 } else { 8 } {
        compare(&mut volume, &path, seed);
    }
}
