//! Changes to a configuration file that may have been written by hand.
//!
//! Invariants:
//! * Comments, order and form of everything else stay. A comment right above a `[[tier]]` belongs to it.
//! * A change is read back before it is written: where the text is in a form that is not understood here, the
//!   whole file is written anew, from its parsed content.
//! * A file is replaced whole and durably: after a crash there is the old one or the new one.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::config::{self, VolumeConfig};
use crate::config_format::{self, Section, TierEntry, VolumeFile};

/// Lists a tier at a place in the speed order, 0 the fastest.
pub fn insert_tier(path: &Path, position: usize, tier: &TierEntry) -> Result<()> {
    edit(path, |file, text| {
        let position = position.min(file.tier.len());
        file.tier.insert(position, tier.clone());
        let fields = toml::to_string(tier)?;
        let parts = Parts::of(text);
        let block = format!("[[tier]]\n{fields}");
        let line = parts.start_of(position);
        let (before, after) = (join(&parts.lines[..line]), join(&parts.lines[line..]));
        let gap_before = if before.ends_with("\n\n") || before.is_empty() { "" } else { "\n" };
        let gap_after = if after.is_empty() { "" } else { "\n" };
        Ok(format!("{before}{gap_before}{block}{gap_after}{after}"))
    })
}

/// Lists a tier no more.
pub fn remove_tier(path: &Path, name: &str) -> Result<()> {
    edit(path, |file, text| without_tier(path, file, text, name))
}

/// Lists a tier no more that is lost, and takes it out of the rules and options that name it. Does nothing where it is not
/// listed. A rule that allows no other tier goes.
pub fn forget_tier(path: &Path, name: &str) -> Result<()> {
    edit(path, |file, text| {
        if file.tier.iter().all(|tier| tier.name != name) {
            return Ok(text.to_owned());
        }
        let changed = without_tier(path, file, text, name)?;
        for rule in &mut file.rule {
            rule.tiers.iter_mut().for_each(|tiers| tiers.retain(|tier| tier != name));
        }
        file.rule.retain(|rule| rule.tiers.as_ref().is_none_or(|tiers| !tiers.is_empty()));
        if file.options.metadata_copy.as_deref() == Some(name) {
            file.options.metadata_copy = None;
        }
        Ok(changed)
    })
}

/// Says on which tier the metadata store is. A second copy that was to be on the same tier is chosen anew.
pub fn set_metadata_tier(path: &Path, name: &str) -> Result<()> {
    edit(path, |file, text| {
        name.clone_into(&mut file.metadata);
        if file.options.metadata_copy.as_deref() == Some(name) {
            file.options.metadata_copy = None;
        }
        let is_key = |line: &str| line.split('=').next().is_some_and(|key| key.trim() == "metadata");
        let mut is_done = false;
        let lines = text.lines().map(|line| {
            if is_done || !is_key(line) {
                return format!("{line}\n");
            }
            is_done = true;
            format!("metadata = \"{name}\"\n")
        });
        Ok(lines.collect())
    })
}

/// Refuses to take a tier out of the list where the rest would be no valid configuration because something else names the
/// tier. Writes nothing.
pub fn check_removal(path: &Path, name: &str) -> Result<()> {
    let text = read(path)?;
    let mut wanted = config_format::parse(path, &text)?;
    let named_at = |section: Section, key: &str| {
        let line = config_format::line_of_key(&text, section, key);
        format!("{}:{line}: {key} names tier `{name}`", path.display())
    };
    for (index, rule) in wanted.rule.iter().enumerate() {
        if rule.tiers.iter().flatten().any(|tier| tier == name) {
            let title =
                rule.name.as_ref().map_or_else(|| format!("rule {}", index + 1), |name| format!("rule `{name}`"));
            let place = named_at(Section::Rule(index), "tiers");
            bail!("{place}, in {title}: take it out of the rule, or the rule away, first");
        }
    }
    if wanted.options.metadata_copy.as_deref() == Some(name) {
        let place = named_at(Section::Options, "metadata_copy");
        bail!("{place}: set it to another tier or to `{}`, and mount again, first", config::NO_COPY);
    }
    let changed = changed_text(path, &mut wanted, &text, |file, text| without_tier(path, file, text, name))?;
    let checked = VolumeConfig::parse(path, &changed);
    checked.map(|_| ()).map_err(|error| anyhow!("without tier `{name}` the configuration would be wrong: {error:#}"))
}

fn without_tier(path: &Path, file: &mut VolumeFile, text: &str, name: &str) -> Result<String> {
    let position = file.tier.iter().position(|tier| tier.name == name);
    let position = position.ok_or_else(|| anyhow!("{} lists no tier `{name}`", path.display()))?;
    file.tier.remove(position);
    let parts = Parts::of(text);
    let (start, end) = (parts.start_of(position), parts.start_of(position + 1));
    Ok(format!("{}{}", join(&parts.lines[..start]), join(&parts.lines[end..])))
}

/// Changes the parsed content of a file and, in the same way, its text. Where `change` fails, nothing is written.
pub fn edit(path: &Path, change: impl FnOnce(&mut VolumeFile, &str) -> Result<String>) -> Result<()> {
    // A link stays one.
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let text = read(&path)?;
    let mut wanted = config_format::parse(&path, &text)?;
    let changed = changed_text(&path, &mut wanted, &text, change)?;
    replace(&path, &changed).with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The text after a change, written anew where the change was made in a form that is not understood here.
fn changed_text(
    path: &Path,
    wanted: &mut VolumeFile,
    text: &str,
    change: impl FnOnce(&mut VolumeFile, &str) -> Result<String>,
) -> Result<String> {
    let changed = change(wanted, text)?;
    if config_format::parse(path, &changed).ok().as_ref() == Some(wanted) {
        return Ok(changed);
    }
    config_format::format(wanted)
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().ok_or_else(|| anyhow!("it has no directory"))?;
    let name = path.file_name().ok_or_else(|| anyhow!("it has no name"))?.to_string_lossy();
    let temporary = directory.join(format!(".{name}.{}.new", std::process::id()));
    let before = fs::metadata(path)?;
    let write = || -> Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        // Who is not allowed to give a file away keeps it.
        let _ = std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()));
        file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        Ok(fs::File::open(directory)?.sync_all()?)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// The lines of a configuration file, and where the part of each tier begins.
struct Parts<'a> {
    lines: Vec<&'a str>,
    /// First line of each tier, comments above it included; last, the first line after all of them.
    starts: Vec<usize>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let is_heading = |line: &str| line.trim_start().starts_with('[');
        let is_tier = |line: &str| line.trim_start().starts_with("[[tier]]");
        let mut starts: Vec<usize> =
            (0..lines.len()).filter(|line| is_tier(lines[*line])).map(|line| with_comments(&lines, line)).collect();
        let last = lines.iter().rposition(|line| is_tier(line));
        let next = last.and_then(|last| (last + 1..lines.len()).find(|line| is_heading(lines[*line])));
        starts.push(next.map_or(lines.len(), |line| with_comments(&lines, line)));
        Self { lines, starts }
    }

    /// First line of the part of a tier; for the index after the last tier, of the text that follows.
    fn start_of(&self, tier: usize) -> usize {
        self.starts.get(tier).copied().unwrap_or(self.lines.len())
    }
}

/// The first line of the comment that stands right above a line; the line itself where there is none.
fn with_comments(lines: &[&str], line: usize) -> usize {
    let above = lines[..line].iter().rev().take_while(|line| line.trim_start().starts_with('#')).count();
    line - above
}

/// Lines as a text in which each one ends.
fn join(lines: &[&str]) -> String {
    let mut text = lines.concat();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TierConfig;

    const HAND_WRITTEN: &str = r#"# My volume.
name = "media"   # the name
volume = "6b1f5c9e-0000-4000-8000-000000000001"
metadata = "fast"

# The NVMe.
[[tier]]
name = "fast"
path = "/mnt/nvme"

[[tier]]
name = "slow"    # spins
path = "/mnt/hdd"

# Choices.
[options]
noatime = true"#;

    fn edited(text: &str, change: impl FnOnce(&Path) -> Result<()>) -> (String, VolumeFile) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        change(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "permissions stay");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else stays");
        let text = fs::read_to_string(&path).unwrap();
        let file = config_format::parse(&path, &text).unwrap();
        (text, file)
    }

    fn names(file: &VolumeFile) -> Vec<&str> {
        file.tier.iter().map(|tier| tier.name.as_str()).collect()
    }

    fn new_tier() -> TierEntry {
        TierConfig::new("new", "/mnt/new".into()).to_entry()
    }

    #[test]
    fn a_tier_is_listed_at_its_place_and_all_else_stays() {
        for (position, expected) in
            [["new", "fast", "slow"], ["fast", "new", "slow"], ["fast", "slow", "new"]].iter().enumerate()
        {
            let (text, file) = edited(HAND_WRITTEN, |path| insert_tier(path, position, &new_tier()));
            assert_eq!(names(&file), expected);
            let kept: Vec<&str> = text.lines().filter(|line| HAND_WRITTEN.lines().any(|old| old == *line)).collect();
            for line in HAND_WRITTEN.lines() {
                assert!(kept.contains(&line), "`{line}` is gone:\n{text}");
            }
            assert!(text.contains("# The NVMe.\n[[tier]]\nname = \"fast\""), "a comment stays with its tier:\n{text}");
            assert!(file.options.noatime.unwrap());
        }
    }

    #[test]
    fn a_tier_goes_with_its_comment_and_comes_back() {
        let (text, file) = edited(HAND_WRITTEN, |path| remove_tier(path, "fast"));
        assert_eq!(names(&file), ["slow"]);
        assert!(!text.contains("NVMe") && text.contains("# Choices.\n[options]") && text.contains("# spins"), "{text}");
        for position in 0..3 {
            let (text, _) = edited(HAND_WRITTEN, |path| {
                insert_tier(path, position, &new_tier())?;
                remove_tier(path, "new")
            });
            let lines =
                |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&text), lines(HAND_WRITTEN));
        }
    }

    #[test]
    fn a_form_that_is_not_understood_is_written_anew() {
        let inline = "name = \"media\"\nvolume = \"6b1f5c9e-0000-4000-8000-000000000001\"\nmetadata = \"a\"\n\
                      tier = [{ name = \"a\", path = \"/a\" }, { name = \"b\", path = \"/b\" }]\n";
        let (_, file) = edited(inline, |path| insert_tier(path, 1, &new_tier()));
        assert_eq!(names(&file), ["a", "new", "b"]);
        let (_, file) = edited(inline, |path| remove_tier(path, "a"));
        assert_eq!(names(&file), ["b"]);
    }

    #[test]
    fn a_tier_that_something_else_names_is_refused_with_the_line_and_one_that_nothing_names_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media.toml");
        let refusal = |text: &str| {
            fs::write(&path, text).unwrap();
            let refusal = check_removal(&path, "slow").map_err(|error| format!("{error:#}"));
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "nothing is written");
            refusal
        };
        assert_eq!(refusal(HAND_WRITTEN), Ok(()));
        let ruled =
            format!("{HAND_WRITTEN}\n[[rule]]\nname = \"films\"\npath = \"films/**\"\ntiers = [\"fast\", \"slow\"]\n");
        let told = refusal(&ruled).unwrap_err();
        assert!(told.contains("media.toml:21: tiers names tier `slow`, in rule `films`"), "{told}");
        let unnamed = format!("{HAND_WRITTEN}\n[[rule]]\npath = \"films/**\"\ntiers = [\"slow\"]\n");
        let told = refusal(&unnamed).unwrap_err();
        assert!(told.contains("media.toml:20: ") && told.contains("in rule 1"), "{told}");
        let told = refusal(&format!("{HAND_WRITTEN}\nmetadata_copy = \"slow\"\n")).unwrap_err();
        assert!(told.contains("media.toml:18: metadata_copy names tier `slow`"), "{told}");
        let told = refusal(&HAND_WRITTEN.replace("metadata = \"fast\"", "metadata = \"slow\"")).unwrap_err();
        assert!(told.contains("metadata tier `slow`"), "{told}");
    }

    #[test]
    fn a_tier_that_is_not_listed_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media.toml");
        fs::write(&path, HAND_WRITTEN).unwrap();
        assert!(remove_tier(&path, "none").unwrap_err().to_string().contains("`none`"));
        assert_eq!(fs::read_to_string(&path).unwrap(), HAND_WRITTEN);
    }
}
