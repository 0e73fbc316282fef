//! Policies, rules, pins and the reports about them, through the real command and a mounted volume.

mod mounted;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mounted::native::text;
use mounted::volume::Ground;
use mounted::{Finished, Plan, Random, TestVolume, skip_where_policy_is_named};
use serde_json::Value;

const MEBIBYTE: usize = 1 << 20;

/// A volume whose tiers evict nothing, however full the disk is that they lie on.
fn create() -> Option<TestVolume> {
    let volume = TestVolume::create(&Plan { ground: Ground::Directories, fast_capacity: None })?;
    for tier in ["name = \"fast\"", "name = \"slow\""] {
        volume.edit_config(tier, &format!("{tier}\nhigh_mark = \"100 %\"\nlow_mark = \"99 %\""));
    }
    Some(volume)
}

/// A mounted volume to whose configuration this text is added.
fn start_with(rules: &str) -> Option<TestVolume> {
    let mut volume = create()?;
    append_to_config(&volume, rules);
    volume.mount();
    Some(volume)
}

fn config_of(volume: &TestVolume) -> String {
    fs::read_to_string(volume.config_path()).expect("the configuration can be read")
}

fn append_to_config(volume: &TestVolume, text: &str) {
    fs::write(volume.config_path(), config_of(volume) + text).expect("the configuration can be written");
}

fn write(volume: &TestVolume, name: &str, mebibytes: usize) -> PathBuf {
    let path = volume.path().join(name);
    fs::create_dir_all(path.parent().expect("it lies in a directory")).expect("a directory can be made");
    fs::write(&path, Random::new(mebibytes as u64).bytes(mebibytes * MEBIBYTE)).expect("a file can be written");
    path
}

fn done(volume: &TestVolume, arguments: &[&str]) -> Finished {
    let finished = volume.polymux(arguments.iter().copied());
    assert!(finished.is_success(), "{arguments:?}: {}", finished.text());
    finished
}

fn json(volume: &TestVolume, arguments: &[&str]) -> Value {
    serde_json::from_str(&done(volume, arguments).stdout).expect("--json prints JSON")
}

/// One line states the error.
#[track_caller]
fn assert_refused(volume: &TestVolume, arguments: &[&str], words: &[&str]) {
    let finished = volume.polymux(arguments.iter().copied());
    assert!(!finished.is_success(), "{arguments:?} is not refused: {}", finished.text());
    assert_eq!(finished.stderr.lines().count(), 1, "one line says what is wrong: {}", finished.text());
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is missing in: {}", finished.stderr);
    }
}

/// Waits until a file lies wholly on one tier.
#[track_caller]
fn wait_until_on(volume: &TestVolume, file: &Path, tier: &str) {
    let start = Instant::now();
    loop {
        let bytes = volume.bytes_per_tier(file);
        if bytes.get(tier).is_some_and(|bytes| *bytes > 0) && bytes.values().filter(|bytes| **bytes > 0).count() == 1 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(90), "{} is not on {tier}: {bytes:?}", file.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_pinned_directory_takes_its_files_along_and_is_explained_listed_and_kept() {
    let Some(mut volume) = start_with("") else { return };
    let file = write(&volume, "films/new/one", 5);
    wait_until_on(&volume, &file, "fast");
    let films = volume.path().join("films");
    let said = done(&volume, &["pin", text(&films), "--tier", "slow"]).stdout;
    assert!(said.contains("everything below") && said.contains("`slow`"), "{said}");
    wait_until_on(&volume, &file, "slow");
    let second = write(&volume, "films/two", 3);
    wait_until_on(&volume, &second, "slow");

    let explained = done(&volume, &["explain", text(&file)]).stdout;
    assert!(explained.contains("The directory /films above it is pinned."), "{explained}");
    assert!(explained.contains("It may be on tier `slow` only.") && explained.contains("It stays: "), "{explained}");
    let told = json(&volume, &["explain", "--json", text(&file)]);
    assert_eq!((&told["steered_by"]["by"], &told["steered_by"]["path"]), (&"pin".into(), &"films".into()));
    assert_eq!(told["allowed_tiers"], serde_json::json!(["slow"]));

    volume.unmount();
    volume.mount();
    let pins = json(&volume, &["pin", "--list", &volume.name, "--json"]);
    assert_eq!(pins["pins"].as_array().map(Vec::len), Some(1), "{pins}");
    assert_eq!((&pins["pins"][0]["path"], &pins["pins"][0]["tier"]), (&"films".into(), &"slow".into()));
    let listed = done(&volume, &["pin", "--list", &volume.name]).stdout;
    assert!(listed.contains("/films/"), "{listed}");

    let said = done(&volume, &["unpin", text(&second)]).stderr;
    assert!(said.contains("no pin of its own"), "{said}");
    done(&volume, &["unpin", text(&films)]);
    let told = json(&volume, &["explain", "--json", text(&file)]);
    assert_eq!(told["steered_by"]["by"], "volume");
    assert!(done(&volume, &["pin", "--list", &volume.name]).stdout.contains("nothing"));
    volume.unmount();
}

#[test]
fn a_rule_places_moves_counts_and_is_explained_with_its_line() {
    if skip_where_policy_is_named() {
        return;
    }
    let rules = "\n# Films are read once.\n[[rule]]\nname = \"films\"\npath = \"films/**\"\ntiers = [\"slow\"]\n\n\
                 [[rule]]\npath = \"*.never\"\npolicy = \"static\"\n";
    let Some(mut volume) = start_with(rules) else { return };
    let film = write(&volume, "films/one", 4);
    let other = write(&volume, "other", 2);
    wait_until_on(&volume, &film, "slow");
    wait_until_on(&volume, &other, "fast");

    let line = 1 + config_of(&volume).lines().position(|line| line == "[[rule]]").expect("there is a rule");
    let explained = done(&volume, &["explain", text(&film)]).stdout;
    let place = format!("{}, line {line}", volume.config_path().display());
    assert!(explained.contains("Rule 1, `films`,") && explained.contains(&place), "{explained}");

    let listed = json(&volume, &["policy", "list", "--json", &volume.name]);
    assert_eq!(listed["current"], "hot-cold");
    assert_eq!((&listed["rules"][0]["files"], &listed["rules"][1]["files"]), (&1.into(), &0.into()), "{listed}");
    assert_eq!(listed["rules"][0]["line"], line);
    let advised = json(&volume, &["policy", "advise", "--json", &volume.name]);
    assert_eq!((&advised["tier"], advised["steps"].as_array().map(Vec::len)), (&"fast".into(), Some(4)), "{advised}");
    let said = if advised["reads"] == 0 { "no small reads are known" } else { "serves at best" };
    let advised = done(&volume, &["policy", "advise", &volume.name]).stdout;
    assert!(advised.contains(said), "{advised}");
    let listed = done(&volume, &["policy", "list", &volume.name]);
    assert!(listed.stderr.contains("matches no file now: path *.never"), "{}", listed.text());
    assert!(listed.stdout.contains("path films/**") && !listed.stderr.contains("films"), "{}", listed.text());
    volume.unmount();
}

#[test]
fn a_policy_is_set_at_run_time_and_files_follow() {
    let Some(mut volume) = start_with("\n# By hand.\n[options]\nnoatime = true # quick\n") else { return };
    let name = volume.name.clone();
    let file = write(&volume, "a/film.iso", 4);
    wait_until_on(&volume, &file, "fast");
    done(&volume, &["policy", "set", &name, "lru"]);
    done(&volume, &["policy", "set", &name, "static", "--path", "*.iso", "--tiers", "slow"]);
    wait_until_on(&volume, &file, "slow");
    let config = config_of(&volume);
    assert!(config.contains("# By hand.\n[options]\nnoatime = true # quick\n"), "{config}");
    let told = json(&volume, &["explain", "--json", text(&file)]);
    assert_eq!((&told["policy"], &told["steered_by"]["number"]), (&"static".into(), &1.into()), "{told}");

    assert_refused(&volume, &["policy", "set", &name, "lru", "--path", "**/*.iso"], &["a rule for", "rule on line"]);
    assert_refused(&volume, &["policy", "set", &name, "lru", "--path", "x", "--tiers", "tape"], &["`tape`", "`fast`"]);
    assert_refused(&volume, &["policy", "set", &name, "lfu"], &["lfu", "hot-cold"]);
    assert_refused(&volume, &["policy", "set", &name, "lru", "--path", "a["], &["pattern"]);
    assert_eq!(config_of(&volume), config, "what is refused changes nothing");

    volume.unmount();
    let said = done(&volume, &["policy", "set", &name, "poly"]).stdout;
    assert!(said.contains("next mount"), "{said}");
    assert_eq!(json(&volume, &["policy", "list", "--json", &name])["rules"][0]["files"], Value::Null);
    volume.mount();
    let listed = json(&volume, &["policy", "list", "--json", &name]);
    assert_eq!((&listed["current"], &listed["rules"][0]["files"]), (&"poly".into(), &1.into()));
    volume.unmount();
}

#[test]
fn a_plan_names_what_a_pause_holds_back_and_nothing_else() {
    if skip_where_policy_is_named() {
        return;
    }
    let Some(mut volume) = start_with("") else { return };
    let name = volume.name.clone();
    let file = write(&volume, "big", 6);
    wait_until_on(&volume, &file, "fast");
    let said = done(&volume, &["plan", &name]).stdout;
    assert!(said.contains("nothing would move (policy hot-cold)"), "{said}");
    done(&volume, &["pause", &name]);
    done(&volume, &["pin", text(&file), "--tier", "slow"]);
    let plan = json(&volume, &["plan", &name, "--json"]);
    assert_eq!((&plan["moves"][0]["to"], &plan["files"][0]["path"]), (&"slow".into(), &"big".into()), "{plan}");
    assert_eq!((&plan["bytes_total"], &plan["files_total"]), (&(6 * MEBIBYTE).into(), &1.into()));
    let said = done(&volume, &["plan", &name, "--policy", "static"]).stdout;
    assert!(said.contains("policy static, if it were") && said.contains("/big") && said.contains("paused"), "{said}");
    let explained = done(&volume, &["explain", text(&file)]).stdout;
    assert!(explained.contains("It is pinned.") && explained.contains("to tier `slow`"), "{explained}");
    assert!(explained.contains("Not now: Moving is paused."), "{explained}");
    done(&volume, &["resume", &name]);
    wait_until_on(&volume, &file, "slow");
    assert!(done(&volume, &["plan", &name]).stdout.contains("nothing would move"));
    assert_refused(&volume, &["plan", &name, "--policy", "lfu"], &["lfu"]);
    volume.unmount();
}

#[test]
fn limits_windows_and_heat_are_taken_over_at_the_mount() {
    let options = "\n[options]\nmove_windows = [\"Mon-Fri 01:00-06:00\", \"Sat,Sun 00:00-24:00\", \"00:00-24:00\"]\n\
                   movers_polite = false\nheat_half_life = \"2 h\"\nheat_memory = \"4 MiB\"\n";
    let Some(mut volume) = create() else { return };
    append_to_config(&volume, options);
    let limits = "name = \"slow\"\nmover_rate = \"4 MiB\"\nmover_iops = 500\nwrite_budget = \"1 GiB\"";
    volume.edit_config("name = \"slow\"", limits);
    volume.mount();
    let file = write(&volume, "file", 16);
    let start = Instant::now();
    done(&volume, &["migrate", text(&file), "--to", "slow", "--wait"]);
    wait_until_on(&volume, &file, "slow");
    assert!(start.elapsed() > Duration::from_secs(1), "16 MiB at 4 MiB a second took {:?}", start.elapsed());
    volume.unmount();
}

#[test]
fn wrong_configurations_are_refused_with_their_line_before_anything_is_touched() {
    let Some(mut volume) = create() else { return };
    let config = config_of(&volume);
    let first = config.lines().count() + 1;
    for (text, line, words) in [
        ("[[rule]]\npath = \"x\"\ntiers = [\"tape\"]\n", first + 2, &["no tier `tape`", "`fast`"][..]),
        ("[[rule]]\npath = \"x\"\n", first, &["no effect", "`policy`, `tiers` or `passthrough`"]),
        ("[[rule]]\npolicy = \"lru\"\n[[rule]]\npath = \"x\"\npolicy = \"poly\"\n", first + 2, &["never decides"]),
        ("[[rule]]\npath = \"x\"\npolcy = \"lru\"\n", first + 2, &["polcy"]),
        ("[[rule]]\nolder_than = \"3 months\"\npolicy = \"lru\"\n", first + 1, &["3 months", "30 d"]),
        ("[[rule]]\nsize_min = \"2 MiB\"\nsize_max = \"1 MiB\"\npolicy = \"lru\"\n", first + 1, &["above"]),
        ("[options]\nmove_windows = [\"Mo 01:00-02:00\"]\n", first + 1, &["no day `Mo`"]),
        ("[options]\nheat_half_life = \"1 s\"\n", first + 1, &["1 min"]),
    ] {
        fs::write(volume.config_path(), format!("{config}{text}")).expect("the configuration can be written");
        let said = volume.try_mount(&[]).expect_err("it is refused");
        let place = format!("{}:{line}: ", volume.config_path().display());
        assert_eq!(said.lines().count(), 1, "{said}");
        for word in words.iter().copied().chain([place.as_str()]) {
            assert!(said.contains(word), "{word:?} is missing in: {said}");
        }
        assert_refused(&volume, &["policy", "set", &volume.name, "lru"], &[&place]);
    }
    fs::write(volume.config_path(), config).expect("the configuration can be written");
    volume.mount();
    let file = write(&volume, "file", 1);
    assert_refused(&volume, &["pin", text(&file), "--tier", "tape"], &["no tier `tape`", "`fast`, `slow`"]);
    assert_refused(&volume, &["pin", "/", "--tier", "fast"], &["does not lie on a Polymux volume"]);
    assert_refused(&volume, &["explain", text(volume.path())], &["is a directory"]);
    assert_refused(&volume, &["explain", text(&volume.path().join("none"))], &["none"]);
    volume.unmount();
}
