//! `polymux tier forget`: a tier that is lost leaves a volume for good (docs/design/0027).
//!
//! Invariants:
//! * The list of losses is on disk, synced, before anything changes, and before the user is asked.
//! * Without a terminal nothing is done unasked: `--yes` says it.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use polymux_fs::{DamagedFiles, LostFile};

use crate::cli::TierForgetArguments;
use crate::client;
use crate::output;
use crate::protocol::{Answer, DamagedFilesReport, LostFileReport, Request};
use polymux_config::registry::Registry;

/// Totals of the list.
#[derive(Default)]
struct Summary {
    whole: u64,
    part: u64,
    bytes: u64,
    end_unknown: u64,
    /// Files of which nothing exact can be said.
    uncertain: u64,
}

/// Lists the losses, asks, and forgets the tier.
pub fn run(registry: &Registry, arguments: &TierForgetArguments) -> Result<()> {
    let name = client::volume_name(registry, &arguments.volume)?;
    let tier = &arguments.tier;
    let list = arguments.list.clone().unwrap_or_else(|| default_list(&name, tier));
    let summary = write_list(registry, &name, tier, &list)?;
    output::line(&format!(
        "with tier `{tier}` volume `{name}` loses {} wholly and {} in part ({} bytes mapped there): {}",
        output::files(summary.whole),
        output::files(summary.part),
        summary.bytes,
        list.display()
    ))?;
    if summary.end_unknown > 0 {
        output::line(&format!(
            "{} may have been longer than is known: only the tier knew their end",
            output::files(summary.end_unknown)
        ))?;
    }
    if summary.uncertain > 0 {
        output::warn(&format!(
            "{} cannot be read well enough to say what they lose; the list has them as `unknown`, and `polymux fsck` says more",
            output::files(summary.uncertain)
        ));
    }
    if arguments.no {
        return Ok(());
    }
    if !arguments.yes {
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            bail!("nothing was changed: --yes forgets tier `{tier}` without asking");
        }
        if !agrees(tier)? {
            bail!("nothing was changed");
        }
    }
    let answer = client::ask_with_progress(registry, &name, &Request::TierForget { tier: tier.clone() }, &mut |_| ())?;
    match answer {
        Some(Answer::TierChanged(change)) => {
            change.warnings.iter().for_each(|warning| output::warn(warning));
            output::line(&change.done)?;
            if summary.whole + summary.part > 0 {
                output::line(
                    "their lost bytes are an I/O error until they are overwritten or the files deleted; `polymux fsck \
                     --accept FILE...` makes them zeros",
                )?;
            }
            Ok(())
        }
        Some(_) => bail!("the daemon of volume `{name}` answered something else"),
        None => bail!("volume `{name}` is not mounted any more"),
    }
}

fn agrees(tier: &str) -> Result<bool> {
    eprint!("Forget tier `{tier}` for good? What is on it cannot be brought back later. [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn default_list(volume: &str, tier: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    PathBuf::from(format!("polymux-lost-{volume}-{tier}-{seconds}.txt"))
}

/// Writes the list, durably. A file that is there already is not replaced.
fn write_list(registry: &Registry, volume: &str, tier: &str, path: &Path) -> Result<Summary> {
    // Names in directories that others may not list stand in it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot make the list {}", path.display()))?;
    let mut target = BufWriter::new(file);
    let mut summary = Summary::default();
    let mut written = writeln!(
        target,
        "# Files of volume {volume} that lose bytes with tier {tier}\n# whole, part or unknown (what it loses cannot be said), size (+: may have been longer), lost \
         bytes (start-end, end not included), path"
    );
    let answer =
        client::ask_with_progress(registry, volume, &Request::TierLosses { tier: tier.to_owned() }, &mut |part| {
            let Answer::TierLossPart(files) = part else { return };
            for lost in files {
                summary.add(lost);
                let line = writeln!(target, "{}", line_of(lost));
                if written.is_ok() {
                    written = line;
                }
            }
        });
    let told = answer.and_then(|answer| match answer {
        Some(Answer::Done) => Ok(()),
        Some(_) => bail!("the daemon of volume `{volume}` answered something else"),
        None => bail!("volume `{volume}` is not mounted: mount it with --degraded first"),
    });
    let kept = told.and_then(|()| {
        written?;
        Ok(target.into_inner().map_err(|error| error.into_error())?.sync_all()?)
    });
    if let Err(error) = kept {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(summary)
}

impl Summary {
    fn add(&mut self, lost: &LostFileReport) {
        if lost.problem.is_some() {
            self.uncertain += 1;
            return;
        }
        *(if lost.whole { &mut self.whole } else { &mut self.part }) += 1;
        self.end_unknown += u64::from(lost.end_unknown);
        self.bytes += lost.ranges.iter().map(|(start, end)| end - start).sum::<u64>();
    }
}

fn line_of(lost: &LostFileReport) -> String {
    let path = lost.path.as_ref().map_or_else(|| format!("[inode {}, no name]", lost.ino), |path| format!("/{path}"));
    if lost.problem.is_some() {
        return format!("unknown\t-\t-\t{path}");
    }
    let ranges = lost.ranges.iter().map(|(start, end)| format!("{start}-{end}")).collect::<Vec<_>>().join(",");
    let (what, longer) = (if lost.whole { "whole" } else { "part" }, if lost.end_unknown { "+" } else { "" });
    format!("{what}\t{}{longer}\t{ranges}\t{path}", lost.size)
}

/// A path on one line of a list, without anything that a terminal acts on.
fn shown(path: &[u8]) -> String {
    output::path(Path::new(OsStr::from_bytes(path)))
}

/// The daemon's word for files with lost bytes.
pub fn damaged_report(found: &DamagedFiles) -> DamagedFilesReport {
    let listed = found.listed.iter().map(|(ino, path)| match path {
        Some(path) => format!("/{}", shown(path)),
        None => format!("[inode {ino}, no name]"),
    });
    DamagedFilesReport {
        files: found.count,
        listed: listed.collect(),
        complete: found.is_complete,
        unreadable: found.unreadable.iter().map(|ino| ino.get()).collect(),
    }
}

/// The daemon's word for a lost file.
pub fn report_of(lost: &LostFile) -> LostFileReport {
    LostFileReport {
        ino: lost.ino.get(),
        path: lost.path.as_deref().map(shown),
        size: lost.size,
        end_unknown: !lost.is_end_known,
        whole: lost.is_whole,
        ranges: lost.ranges.clone(),
        problem: lost.problem.clone(),
    }
}
