//! Every rule of the module, on records made by hand.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;

const ROOT: NodeId = NodeId(1);
const FILE: NodeId = NodeId(2);

fn record(changes: Vec<Change>) -> Record {
    let operations = changes.into_iter().map(|change| Operation { change, path: PathBuf::new() }).collect();
    let directories = [(ROOT, BTreeMap::new())].into();
    Record { root: ROOT, files: BTreeMap::new(), directories, operations }
}

fn create(name: &str, node: NodeId) -> Change {
    Change::Create { directory: ROOT, name: name.into(), node, kind: NodeKind::File }
}

fn write(offset: u64, bytes: &[u8], durability: Durability) -> Change {
    Change::Write { node: FILE, offset, bytes: Arc::from(bytes), durability }
}

fn after(record: &Record) -> CrashStates {
    let mut states = CrashStates::new(record);
    for operation in &record.operations {
        states.begin(operation);
        states.complete(operation);
    }
    states
}

/// Bytes of the file `name`; `None` where there is none.
fn bytes(image: &Image, name: &str) -> Option<Vec<u8>> {
    match image.at(name)? {
        Node::File(content) => Some(content.read(0, usize::MAX)),
        Node::Directory(_) => None,
    }
}

#[test]
fn what_was_synced_stays_and_what_was_not_may_go_one_by_one() {
    let record = record(vec![
        create("a", FILE),
        write(0, &[1; 600], Durability::Cached),
        Change::Sync { node: FILE },
        Change::Sync { node: ROOT },
        write(0, &[2; 512], Durability::Cached),
        write(512, &[3; 512], Durability::Cached),
    ]);
    let states = after(&record);
    assert_eq!(states.unsynced(), [4, 5]);
    let left = |lost: &[usize]| {
        let fate = |position| if lost.contains(&position) { Fate::Lost } else { Fate::Kept };
        bytes(&states.image(NameOrder::Ordered, fate), "a").unwrap()
    };
    assert_eq!(left(&[4, 5]), [1; 600]);
    assert_eq!(left(&[5]), [vec![2; 512], vec![1; 88]].concat());
    assert_eq!(left(&[4]), [vec![1; 512], vec![3; 512]].concat());
    assert_eq!(left(&[]), [vec![2; 512], vec![3; 512]].concat());
}

#[test]
fn a_torn_write_leaves_whole_sectors_and_sometimes_only_its_length() {
    let record =
        record(vec![create("a", FILE), Change::Sync { node: ROOT }, write(256, &[9; 2048], Durability::Cached)]);
    let states = after(&record);
    let mut seen = std::collections::BTreeSet::new();
    for random in 0..2000 {
        let left = bytes(&states.image(NameOrder::Ordered, |_| Fate::Torn(random)), "a").unwrap();
        assert!(left.len() <= 2304 && left.iter().take(256).all(|byte| *byte == 0));
        let sectors: Vec<bool> = (0..5)
            .map(|sector| {
                let (from, to) = ((sector * 512).max(256).min(left.len()), (sector * 512 + 512).min(left.len()));
                let all = to > from && left[from..to].iter().all(|byte| *byte == 9);
                assert!(all || left[from..to].iter().all(|byte| *byte == 0), "sectors are whole");
                all
            })
            .collect();
        seen.insert((sectors, left.len()));
    }
    // 32 sets of sectors; without the last sector, the file has the length of the whole write or not.
    assert_eq!(seen.len(), 48, "every way is seen");
    assert!(seen.contains(&(vec![false; 5], 2304)), "the length alone");
    assert!(seen.contains(&(vec![false; 5], 0)), "nothing");
}

#[test]
fn a_durable_write_covers_its_own_bytes_only_and_comes_after_earlier_ones() {
    let record = record(vec![
        create("a", FILE),
        Change::Sync { node: ROOT },
        write(0, &[1; 1024], Durability::Cached),
        write(512, &[2; 512], Durability::Durable),
    ]);
    let states = after(&record);
    assert_eq!(states.unsynced(), [2]);
    let left = |fate| bytes(&states.image(NameOrder::Ordered, |_| fate), "a").unwrap();
    assert_eq!(left(Fate::Lost), [vec![0; 512], vec![2; 512]].concat());
    assert_eq!(left(Fate::Kept), [vec![1; 512], vec![2; 512]].concat());
}

#[test]
fn a_durable_write_in_whose_middle_the_crash_happens_may_be_lost() {
    let record = record(vec![create("a", FILE), Change::Sync { node: ROOT }, write(0, &[1; 512], Durability::Durable)]);
    let mut states = CrashStates::new(&record);
    for operation in &record.operations {
        states.begin(operation);
        if states.unsynced() != [2] {
            states.complete(operation);
        }
    }
    assert_eq!(bytes(&states.image(NameOrder::Ordered, |_| Fate::Lost), "a").unwrap(), []);
    states.complete(&record.operations[2]);
    assert_eq!(bytes(&states.image(NameOrder::Ordered, |_| Fate::Lost), "a").unwrap(), [1; 512]);
}

#[test]
fn a_synced_file_without_a_synced_name_is_gone() {
    let record = record(vec![create("a", FILE), write(0, &[1; 100], Durability::Durable), Change::Sync { node: FILE }]);
    assert_eq!(after(&record).image(NameOrder::Ordered, |_| Fate::Lost), Image::default());
}

#[test]
fn names_get_lost_in_order_or_each_for_itself() {
    let other = NodeId(3);
    let record = record(vec![
        create("a", FILE),
        create("b", other),
        Change::Rename { directory: ROOT, from: "a".into(), target: ROOT, to: "b".into(), node: FILE },
        Change::Remove { directory: ROOT, name: "b".into() },
    ]);
    let states = after(&record);
    let names = |order, lost: usize| {
        let image = states.image(order, |position| if position == lost { Fate::Lost } else { Fate::Kept });
        image.entries.into_keys().map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(NameOrder::Ordered, 0), Vec::<String>::new());
    assert_eq!(names(NameOrder::Ordered, 1), ["a"]);
    assert_eq!(names(NameOrder::Ordered, 2), ["a", "b"]);
    assert_eq!(names(NameOrder::Ordered, 3), ["b"]);
    assert_eq!(names(NameOrder::Any, 2), ["a"]);
    assert_eq!(names(NameOrder::Any, 3), ["b"]);
}

#[test]
fn an_ignored_sync_makes_nothing_durable_and_positions_stay() {
    let record = record(vec![
        create("a", FILE),
        Change::Sync { node: ROOT },
        write(0, &[1; 100], Durability::Durable),
        write(0, &[2; 100], Durability::Cached),
        Change::Sync { node: FILE },
    ]);
    assert_eq!(after(&record).unsynced(), []);
    let planted = record.without_syncs(|operation| {
        matches!(operation.change, Change::Write { .. }) || operation.change == Change::Sync { node: FILE }
    });
    assert_eq!(after(&planted).unsynced(), [2, 3]);
}
