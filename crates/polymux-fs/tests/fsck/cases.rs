//! One planted damage: found, repaired or left, and found no more.

use std::collections::BTreeMap;

use polymux_fs::{CheckMode, Outcome};

use super::world::{World, errors};

/// The visible state of a mount.
pub type Contents = BTreeMap<String, Result<Vec<u8>, String>>;

/// Plants damage, expects it to be found under a name with a path that ends so, and to be repaired. Returns the state of the volume
/// after the repair.
pub fn repaired(kind: &str, path: Option<&str>, plant: impl FnOnce(&World)) -> Contents {
    let world = World::new();
    plant(&world);
    let before = world.records();
    let report = world.check(CheckMode::Report);
    let found = errors(&report);
    assert!(found.iter().any(|(name, outcome, _)| *name == kind && *outcome == Outcome::Correctable), "{found:?}");
    assert_path(&report, kind, path);
    assert_eq!(report.left, 0, "{found:?}");
    assert_eq!(world.records(), before, "a check that may not repair changes nothing");
    let report = world.check(CheckMode::Repair);
    let found = errors(&report);
    assert!(found.iter().any(|(name, outcome, _)| *name == kind && *outcome == Outcome::Corrected), "{found:?}");
    assert_eq!(report.left, 0, "{found:?}");
    assert_eq!(errors(&world.check(CheckMode::Report)), [], "after the repair of {found:?}");
    let contents = world.contents();
    assert_eq!(errors(&world.check(CheckMode::Report)), [], "after a mount");
    contents
}

/// Plants damage that cannot be repaired: it is reported with the path, and left.
pub fn left(kind: &str, path: Option<&str>, plant: impl FnOnce(&World)) {
    let world = World::new();
    plant(&world);
    for mode in [CheckMode::Report, CheckMode::Repair, CheckMode::Repair] {
        let report = world.check(mode);
        let found = errors(&report);
        assert!(found.iter().any(|(name, outcome, _)| *name == kind && *outcome == Outcome::Left), "{found:?}");
        assert!(report.left > 0);
        assert_path(&report, kind, path);
    }
}

/// Plants something that is reported as a note, and that is no error.
pub fn noted(kind: &str, path: Option<&str>, plant: impl FnOnce(&World)) {
    let world = World::new();
    plant(&world);
    let report = world.check(CheckMode::Repair);
    assert_eq!(errors(&report), []);
    assert!(report.findings.iter().any(|finding| finding.kind.name == kind), "{:?}", report.findings);
    assert_path(&report, kind, path);
}

fn assert_path(report: &polymux_fs::VolumeCheck, kind: &str, path: Option<&str>) {
    let paths: Vec<Option<&str>> = report
        .findings
        .iter()
        .filter(|finding| finding.kind.name == kind)
        .map(|finding| finding.path.as_deref())
        .collect();
    match path {
        None => assert!(!paths.is_empty()),
        Some(path) => assert!(paths.iter().flatten().any(|found| *found == path), "{paths:?} should have {path}"),
    }
}
