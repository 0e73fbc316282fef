//! A volume that is mounted in turn and open in a program in turn: neither runs beside the other, and each finds the files of the other.

mod mounted;

use std::fs;
use std::io::Read;

use mounted::volume::Ground;
use mounted::{Plan, TestVolume};
use polymux_embed::{Errno, FileOptions, LastLink, OpenError, Volume, VolumeOptions};

fn open(volume: &TestVolume) -> Result<Volume, OpenError> {
    let [configurations, locks] = ["config", "runtime"].map(|name| volume.outside().join(name));
    assert!(configurations.is_dir() && volume.config_path().starts_with(&configurations));
    VolumeOptions::new().directories(configurations, locks).open(&volume.name)
}

#[test]
fn a_program_and_a_daemon_use_a_volume_in_turn_and_refuse_each_other() {
    let plan = Plan { ground: Ground::Directories, fast_capacity: Some("4 MiB") };
    let Some(mut volume) = TestVolume::start(&plan) else { return };
    let large = vec![7; 8 << 20];
    fs::create_dir(volume.path().join("d")).unwrap();
    fs::write(volume.path().join("d/large"), &large).unwrap();
    fs::write(volume.path().join("small"), "small").unwrap();

    let refusal = open(&volume).unwrap_err();
    assert_eq!(refusal.errno(), Errno::EBUSY, "{refusal}");
    let place = volume.path().display().to_string();
    assert!(refusal.to_string().contains(&format!("is mounted already on {place} by process ")), "{refusal}");
    assert_eq!(refusal.to_string().lines().count(), 1);

    volume.unmount();
    let embedded = open(&volume).unwrap();
    let mut content = Vec::new();
    embedded.open_file("/d/large", &FileOptions::new().read()).unwrap().read_to_end(&mut content).unwrap();
    assert!(content == large);
    let file = embedded.open_file("d/new", &FileOptions::new().write().create_new(0o640)).unwrap();
    assert_eq!(file.write(b"from a program").unwrap(), 14);
    file.close().unwrap();
    embedded.unlink("/small").unwrap();
    assert_eq!(embedded.attributes("/d", LastLink::Follow).unwrap().links, 2);

    let refusal = volume.try_mount(&[]).unwrap_err();
    let process = std::process::id();
    assert!(refusal.contains(&format!("is in use already in a program by process {process}")), "{refusal}");
    let fsck = volume.polymux(["fsck", &volume.name]);
    assert!(!fsck.is_success() && fsck.text().contains("use"), "{}", fsck.text());

    embedded.close().unwrap();
    let fsck = volume.polymux(["fsck", &volume.name]);
    assert!(fsck.is_success(), "{}", fsck.text());
    volume.mount();
    assert_eq!(fs::read_to_string(volume.path().join("d/new")).unwrap(), "from a program");
    assert!(!volume.path().join("small").exists());
    assert!(fs::read(volume.path().join("d/large")).unwrap() == large);
}
