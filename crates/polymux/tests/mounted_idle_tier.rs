//! Programs that look at files make no request to a tier that is idle (docs/design/0029), counted by the daemon itself.

mod mounted;

use std::fs;

use mounted::command::shell;
use mounted::{Plan, TestVolume};

const FILES: usize = 1500;
const FILE_BYTES: usize = 20_000;

/// The requests that the daemon sent to the objects of a tier so far.
fn requests(volume: &TestVolume, tier: &str) -> Vec<(String, u64)> {
    let status = volume.status();
    let tiers = status["tiers"].as_array().expect("tiers are listed");
    let tier = tiers.iter().find(|of| of["name"] == tier).expect("the tier is listed");
    let count = |name: &str| (name.to_owned(), tier["counters"][name].as_u64().expect("it is counted"));
    ["looks", "reads", "writes", "truncates", "allocates", "syncs", "descriptors_opened"].map(count).to_vec()
}

#[test]
fn find_ls_du_and_backups_make_no_request_to_an_idle_tier() {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere()) else { return };
    let first_tier = "[[tier]]\nname = \"fast\"";
    let rule = "[[rule]]\npath = \"archive/**\"\ntiers = [\"slow\"]\n";
    volume.edit_config(first_tier, &format!("{rule}\n{first_tier}"));
    volume.mount();
    let content = vec![7; FILE_BYTES];
    for directory in 0..15 {
        let directory = volume.path().join(format!("archive/{directory}"));
        fs::create_dir_all(&directory).expect("made");
        (0..FILES / 15).for_each(|file| fs::write(directory.join(file.to_string()), &content).expect("written"));
    }
    volume.unmount();
    volume.mount();
    let before = requests(&volume, "slow");
    let seen = shell(
        volume.path(),
        "find . -type f -printf '%s %b\\n'; ls -lR > /dev/null; du -a > /dev/null; stat archive/*/* > /dev/null",
    );
    shell(volume.path(), "! command -v getfattr > /dev/null || getfattr -R -d -m - archive > /dev/null");
    assert_eq!(requests(&volume, "slow"), before);
    let seen = seen.to_string();
    let blocks: Vec<(u64, u64)> = seen
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(size, blocks)| (size.parse().expect("a size"), blocks.parse().expect("a number of blocks")))
        .collect();
    assert_eq!(blocks.len(), FILES);
    let is_whole = |(size, blocks): &(u64, u64)| (*size, *blocks * 512 >= *size) == (FILE_BYTES as u64, true);
    assert!(blocks.iter().all(is_whole), "{blocks:?}");
    assert!(before[0].1 < FILES as u64 / 10, "nor does the mount ask: {before:?}");
}
