//! Runs workloads on grounds, repetition by repetition, side by side.
//!
//! Invariants:
//! * In each repetition every side has its turn, and which one begins changes, so that all meet the same machine.
//! * A side that fails in a workload is left out of it from then on, and its error is reported. A failure of the native
//!   side ends the workload on that ground: there is nothing to compare with.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::ground::Ground;
use super::outcome::{DeviceFacts, Measurement, SideValues, Skipped, Tree};
use super::routes::{self, Choice};
use super::sides::{Builds, SideKind};
use super::stand::Stand;
use super::workload::{Place, Scale, Temperature, Workload};
use crate::throttled::{self, Format};

/// Share of its limit that a device reaches at least on a machine that is quiet enough.
const QUIET: f64 = 0.8;

/// Share of its limit beyond which the limit does not hold.
const BROKEN: f64 = 1.25;

/// Workloads, sides and scale of a run.
pub struct Plan {
    /// The workloads.
    pub workloads: Vec<&'static dyn Workload>,
    /// The sides.
    pub choice: Choice,
    /// How much.
    pub scale: Scale,
    /// How often.
    pub repetitions: usize,
    /// The file system of the devices; `None`: each one that a workload is measured on.
    pub file_system: Option<Format>,
    /// The programs.
    pub builds: Builds,
    /// The tree to unpack.
    pub tree: Option<PathBuf>,
}

/// The results so far.
#[derive(Clone, Default)]
pub struct Found {
    /// Figures.
    pub measurements: Vec<Measurement>,
    /// Measurements that could not be run.
    pub skipped: Vec<Skipped>,
    /// Devices.
    pub devices: Vec<DeviceFacts>,
    /// The tree.
    pub tree: Option<Tree>,
}

impl Found {
    /// Says loudly that something is not measured, and keeps it.
    pub fn skip(&mut self, what: String, reason: String) {
        throttled::stop_if_interrupted();
        eprintln!("skipped: {what}: {reason}");
        self.skipped.push(Skipped { what, reason });
    }
}

impl Plan {
    fn sides(&self, workload: &dyn Workload) -> Vec<SideKind> {
        let routes = workload.routes();
        let scale = if workload.needs_default_mergerfs() { Scale::Full } else { self.scale };
        let peers = routes::peers(routes, scale);
        let keep = |side: &SideKind| !workload.leaves_out(*side);
        self.choice.sides(routes, peers).into_iter().filter(keep).collect()
    }

    /// Each ground with its workloads, in the order in which they are named.
    fn grounds(&self) -> Vec<(Ground, Vec<&'static dyn Workload>)> {
        let mut grounds: Vec<(Ground, Vec<&'static dyn Workload>)> = Vec::new();
        for workload in &self.workloads {
            let is_asked_for = |ground: &Ground| self.file_system.is_none_or(|asked| asked == ground.format);
            for ground in workload.grounds(self.scale).into_iter().filter(is_asked_for) {
                match grounds.iter_mut().find(|(known, _)| *known == ground) {
                    Some((_, workloads)) => workloads.push(*workload),
                    None => grounds.push((ground, vec![*workload])),
                }
            }
        }
        grounds
    }

    /// Runs everything, and passes the results so far to `keep` after each workload, so that an interrupted run keeps them.
    ///
    /// # Errors
    /// Where devices or sides cannot be made; failures of workloads are found, not returned.
    pub fn run(&self, mut keep: impl FnMut(&Found) -> Result<()>) -> Result<Found> {
        let mut found = Found::default();
        for workload in self.workloads.iter().filter(|workload| workload.grounds(self.scale).is_empty()) {
            found.skip(workload.name().to_owned(), "the quick form leaves it out".to_owned());
        }
        let grounds = self.grounds();
        let count = grounds.len();
        for (number, (ground, workloads)) in grounds.into_iter().enumerate() {
            eprintln!("[{}/{count}] {ground}", number + 1);
            let mut kinds: Vec<SideKind> = Vec::new();
            for kind in workloads.iter().flat_map(|workload| self.sides(*workload)) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            let mut stand = Stand::make(ground, &kinds, self.scale, &self.builds)?;
            for (kind, reason) in stand.failed() {
                found.skip(format!("{} on {ground}", kind.name()), reason.clone());
            }
            note_device(&stand, &mut found)?;
            for workload in workloads {
                self.run_workload(&mut stand, workload, &mut found)?;
                keep(&found)?;
            }
            stand.end()?;
        }
        // As they are listed, not as the grounds came.
        let place = |workload: &str| self.workloads.iter().position(|known| known.name() == workload);
        found.measurements.sort_by_key(|measurement| place(&measurement.workload));
        Ok(found)
    }

    fn run_workload(&self, stand: &mut Stand, workload: &'static dyn Workload, found: &mut Found) -> Result<()> {
        let ground = *stand.ground();
        let what = |kind: SideKind| format!("{} on {ground}: {}", workload.name(), kind.name());
        if let Some(reason) = workload.obstacle() {
            found.skip(workload.name().to_owned(), reason);
            return Ok(());
        }
        if workload.needs_archive() && stand.archive().is_none() {
            let packed = self.tree.as_deref().ok_or_else(|| anyhow::anyhow!("no tree of 2,000 files was found"));
            match packed.and_then(|tree| stand.pack(tree)) {
                Ok(tree) => found.tree = Some(tree),
                Err(error) => {
                    found.skip(workload.name().to_owned(), format!("{error:#}"));
                    return Ok(());
                }
            }
        }
        eprintln!("  {}", workload.name());
        let mut turns: Vec<Turn> = Vec::new();
        let kinds: Vec<SideKind> = self.sides(workload).into_iter().filter(|kind| stand.has(*kind)).collect();
        for kind in kinds.iter().copied() {
            match workload.prepare(&self.place(stand, workload, kind, 0)) {
                Ok(()) => turns.push(Turn { kind, values: vec![Vec::new(); workload.figures().len()] }),
                Err(error) => found.skip(what(kind), format!("{error:#}")),
            }
        }
        let dropped = self.repeat(stand, workload, &mut turns)?;
        for (kind, reason) in dropped {
            found.skip(what(kind), reason);
        }
        found.measurements.extend(measurements(workload, &ground, &turns));
        for kind in kinds {
            if let Err(error) = workload.clean(&self.place(stand, workload, kind, 0)) {
                eprintln!("warning: {} leaves files behind on {}: {error:#}", workload.name(), kind.name());
            }
        }
        stand.settle()?;
        stand.trim();
        Ok(())
    }

    /// Runs all repetitions. Keeps the sides that completed, and returns the others with their errors.
    fn repeat(
        &self,
        stand: &mut Stand,
        workload: &'static dyn Workload,
        turns: &mut Vec<Turn>,
    ) -> Result<Vec<(SideKind, String)>> {
        let mut dropped = Vec::new();
        stand.settle()?;
        for repetition in 0..self.repetitions {
            if workload.temperature() == Temperature::Cold {
                stand.forget()?;
            }
            stand.throttle()?;
            for kind in order(turns.iter().map(|turn| turn.kind).collect(), repetition) {
                let measured = workload.measure(&self.place(stand, workload, kind, repetition));
                let turn = turns.iter().position(|turn| turn.kind == kind).expect("a side leaves after its turn only");
                match measured {
                    Ok(values) => {
                        for (kept, value) in turns[turn].values.iter_mut().zip(values) {
                            kept.push(value);
                        }
                    }
                    Err(error) => {
                        turns.remove(turn);
                        dropped.push((kind, format!("{error:#}")));
                    }
                }
                stand.settle()?;
            }
            stand.unthrottle()?;
        }
        Ok(dropped)
    }

    fn place<'a>(
        &'a self,
        stand: &'a Stand,
        workload: &'static dyn Workload,
        kind: SideKind,
        repetition: usize,
    ) -> Place<'a> {
        Place {
            scale: self.scale,
            repetition,
            ground: stand.ground(),
            devices: stand.devices(),
            side: stand.side(kind),
            workload: workload.name(),
            archive: stand.archive(),
        }
    }
}

/// The order of a repetition: another side begins each time, and of any two the one comes first in one repetition and the other in the next.
fn order<T>(mut sides: Vec<T>, repetition: usize) -> Vec<T> {
    if !sides.is_empty() {
        let by = repetition / 2 % sides.len();
        sides.rotate_left(by);
    }
    if !repetition.is_multiple_of(2) {
        sides.reverse();
    }
    sides
}

/// A side in one workload.
struct Turn {
    kind: SideKind,
    /// For each figure, one value for each repetition.
    values: Vec<Vec<f64>>,
}

fn measurements(workload: &dyn Workload, ground: &Ground, turns: &[Turn]) -> Vec<Measurement> {
    let Some(native) = turns.iter().find(|turn| turn.kind == SideKind::Native) else { return Vec::new() };
    let figures = workload.figures().iter().enumerate();
    let measurement = |(index, figure): (usize, &super::figure::Figure)| Measurement {
        workload: workload.name().to_owned(),
        about: workload.about().to_owned(),
        ends_with: workload.ends_with().to_owned(),
        figure: figure.name.to_owned(),
        unit: figure.unit,
        file_system: ground.file_system().to_owned(),
        device: ground.device(),
        sides: turns
            .iter()
            .map(|turn| {
                let to = (turn.kind != SideKind::Native).then_some(native.values[index].as_slice());
                SideValues::new(turn.kind.name(), turn.kind.route(), turn.values[index].clone(), to)
            })
            .collect(),
    };
    figures.map(measurement).collect()
}

/// Records the measured speed of the first device, and the limits of all.
fn note_device(stand: &Stand, found: &mut Found) -> Result<()> {
    let ground = stand.ground();
    for kind in std::iter::once(ground.first).chain(ground.second) {
        if !found.devices.iter().any(|device| device.name == kind.name()) {
            let limits = kind.limits();
            found.devices.push(DeviceFacts {
                name: kind.name().to_owned(),
                read_bytes_per_s_max: limits.read_bytes,
                written_bytes_per_s_max: limits.written_bytes,
                reads_per_s_max: limits.reads,
                writes_per_s_max: limits.writes,
                found_share_of_limit: Vec::new(),
            });
        }
    }
    let Some(share) = stand.check_limit()? else { return Ok(()) };
    let device = found.devices.iter_mut().find(|device| device.name == ground.first.name());
    device.expect("it was just noted").found_share_of_limit.push(share);
    ensure!(share <= BROKEN, "the limit of {ground} does not hold: direct writes reach {share:.2} of it");
    if share < QUIET {
        eprintln!(
            "warning: direct writes reach {share:.2} of the limit of {ground}: the machine is too busy to believe figures"
        );
    }
    Ok(())
}

/// A tree of sources that is there wherever Polymux is built, or else one of the system.
#[must_use]
pub fn usual_tree() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let registries = [cargo, home].into_iter().flatten().map(|directory| directory.join("registry/src"));
    registries.chain(["/usr/share".into(), "/usr/include".into()]).find(|directory| directory.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_sides_each_comes_first_in_every_other_repetition() {
        for sides in 2..7_usize {
            for (one, other) in (0..sides).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let comes_first = |repetition: &usize| {
                    let order = order((0..sides).collect(), *repetition);
                    order.iter().position(|side| *side == one) < order.iter().position(|side| *side == other)
                };
                let counted = [0, 2, 4, 6].map(|from| (from..from + 2).filter(comes_first).count());
                assert_eq!(counted, [1; 4], "{one} and {other} of {sides}");
            }
        }
    }
}
