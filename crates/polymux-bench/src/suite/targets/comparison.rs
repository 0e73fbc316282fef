//! Targets of one figure on several paths through Polymux: to the native file system, and to mergerfs.

use super::{Bound, Subject, Target, target};

/// The settings of mergerfs that programs are measured with.
pub(super) const PEERS: &[Subject] = &[Subject::MergerfsFast, Subject::MergerfsWriteBack];
/// Those of workloads that compare transports or modes, or split files.
pub(super) const FAST_PEER: &[Subject] = &[Subject::MergerfsFast];

/// One figure and its bounds.
pub(super) struct Comparison {
    pub(super) claim: &'static str,
    pub(super) workload: &'static str,
    pub(super) figure: &'static str,
    /// Kinds of devices; empty: all on which it was measured.
    pub(super) devices: &'static [&'static str],
    /// To native, as Polymux chooses how it does I/O; `None` where that is only shown.
    pub(super) chosen: Option<Bound>,
    /// To native, with files passed through.
    pub(super) passthrough: Option<Bound>,
    /// To mergerfs: the path of Polymux that is compared, and the bound.
    pub(super) mergerfs: (Subject, Bound),
    /// How mergerfs is set.
    pub(super) peers: &'static [Subject],
}

impl Comparison {
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> {
        let Self { claim, workload, figure, devices, .. } = *self;
        let to = move |subject, against, bound| target(claim, (workload, figure, devices), subject, against, bound);
        let chosen = self.chosen.map(|bound| to(Subject::Chosen, Subject::Native, bound));
        let passthrough = self.passthrough.map(|bound| to(Subject::Passthrough, Subject::Native, bound));
        let (compared, bound) = self.mergerfs;
        let peers = self.peers.iter().map(move |peer| to(compared, *peer, bound));
        chosen.into_iter().chain(passthrough).chain(peers)
    }
}
