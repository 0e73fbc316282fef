//! Which sides a workload is measured on.
//!
//! Paths are distinguished only in workloads where they make a difference, so that a run takes minutes.

use super::sides::{ExtendedAttributes, Mode, Route, Settings, SideKind, Transport};
use super::workload::{Routes, Scale};

/// Modes that are measured where none was asked for.
const DEFAULT_MODES: [Mode; 3] = [Mode::Auto, Mode::Passthrough, Mode::Cached];
/// Modes that are measured of programs, and of files on two tiers, where none was asked for.
const DEFAULT_MODES_OF_PROGRAMS: [Mode; 2] = [Mode::Auto, Mode::Passthrough];
const DEFAULT_MODES_OF_SPLIT_FILES: [Mode; 2] = [Mode::Auto, Mode::Cached];

/// The requested and the available modes and transports.
#[derive(Clone, Debug)]
pub struct Choice {
    modes: Vec<Mode>,
    transports: Vec<Transport>,
    /// Transports of workloads that compare transports.
    compared: Vec<Transport>,
    peers: Vec<Settings>,
    builds: BuildsCompared,
}

/// Whether a second build of Polymux is measured beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildsCompared {
    /// One alone, beside its peers.
    One,
    /// Two, without other peers.
    Two,
}

impl Choice {
    /// The choice of the paths that were asked for; without modes or transports: those that Polymux chooses, and those to compare them with.
    #[must_use]
    pub fn new(modes: &[Mode], transports: &[Transport], peers: &[Settings], builds: BuildsCompared) -> Self {
        let modes = if modes.is_empty() { &DEFAULT_MODES } else { modes };
        let (transports, compared): (&[_], &[_]) = match transports {
            [] => (&[Transport::Auto], &[Transport::Classic, Transport::IoUring]),
            asked => (asked, asked),
        };
        Self {
            modes: modes.to_vec(),
            transports: transports.to_vec(),
            compared: compared.to_vec(),
            peers: if builds == BuildsCompared::One { peers.to_vec() } else { Vec::new() },
            builds,
        }
    }

    fn routes(&self, routes: Routes) -> Vec<Route> {
        let across = |modes: &[Mode], transports: &[Transport]| -> Vec<Route> {
            let pairs = modes.iter().flat_map(|mode| transports.iter().map(move |transport| (mode, transport)));
            pairs.map(|(mode, transport)| Route::new(*mode, *transport)).collect()
        };
        let is_default = self.modes == DEFAULT_MODES;
        let through_daemon = if self.modes == [Mode::Direct] { [Mode::Direct] } else { [Mode::Cached] };
        match routes {
            Routes::Programs if is_default => across(&DEFAULT_MODES_OF_PROGRAMS, &self.transports),
            Routes::Cached if is_default => across(&DEFAULT_MODES_OF_SPLIT_FILES, &self.transports),
            Routes::Modes | Routes::Programs => across(&self.modes, &self.transports),
            Routes::Transports => {
                // The default choice of Polymux, and one mode over each transport: collected writes exist over one of them alone.
                let mut routes = if is_default { across(&[Mode::Auto], &self.transports) } else { Vec::new() };
                let mode = if is_default { Mode::Passthrough } else { self.modes[0] };
                routes.extend(across(&[mode], &self.compared));
                // Once more, as mergerfs is set for speed.
                let last = routes.last().copied();
                routes.extend(last.map(|route| Route { extended_attributes: ExtendedAttributes::Off, ..route }));
                routes
            }
            Routes::TransportsOfDaemon => across(&through_daemon, &self.compared),
            Routes::TransportsDirect => across(&[Mode::Direct], &self.compared),
            Routes::Cached => across(&through_daemon, &self.transports),
        }
    }

    /// The sides of a workload, native first.
    #[must_use]
    pub fn sides(&self, routes: Routes, peers: &[Settings]) -> Vec<SideKind> {
        let peers = peers.iter().filter(|settings| self.peers.contains(settings));
        let mut sides = vec![SideKind::Native];
        sides.extend(peers.map(|settings| SideKind::Mergerfs(*settings)));
        for route in self.routes(routes) {
            sides.push(SideKind::Polymux(route));
            if self.builds == BuildsCompared::Two {
                sides.push(SideKind::OtherBuild(route));
            }
        }
        sides
    }
}

/// Settings of mergerfs that are worth their time.
#[must_use]
pub fn peers(routes: Routes, scale: Scale) -> &'static [Settings] {
    match (routes, scale) {
        (Routes::Transports, Scale::Full) => &[Settings::Default, Settings::Fast],
        (Routes::Programs, Scale::Full) => &[Settings::Fast, Settings::WriteBack],
        _ => &[Settings::Fast],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Settings; 2] = [Settings::Default, Settings::Fast];

    fn names(sides: &[SideKind]) -> Vec<String> {
        sides.iter().map(|side| side.name()).collect()
    }

    #[test]
    fn paths_are_measured_where_they_matter() {
        let choice = Choice::new(&[], &[], &[], BuildsCompared::One);
        let modes = ["native", "polymux", "polymux passthrough", "polymux cached"];
        assert_eq!(names(&choice.sides(Routes::Modes, &[])), modes);
        let transports = [
            "native",
            "polymux",
            "polymux passthrough classic",
            "polymux passthrough io-uring",
            "polymux passthrough io-uring no-xattr",
        ];
        assert_eq!(names(&choice.sides(Routes::Transports, &[])), transports);
        assert_eq!(names(&choice.sides(Routes::Programs, &[])), ["native", "polymux", "polymux passthrough"]);
        assert_eq!(names(&choice.sides(Routes::Cached, &[])), ["native", "polymux", "polymux cached"]);
        let daemon = ["native", "polymux cached classic", "polymux cached io-uring"];
        assert_eq!(names(&choice.sides(Routes::TransportsOfDaemon, &[])), daemon);
        let direct = ["native", "polymux direct classic", "polymux direct io-uring"];
        assert_eq!(names(&choice.sides(Routes::TransportsDirect, &[])), direct);
        let choice = Choice::new(&[Mode::Direct], &[Transport::IoUring], &BOTH, BuildsCompared::One);
        assert_eq!(names(&choice.sides(Routes::Modes, &[])), ["native", "polymux direct io-uring"]);
        assert_eq!(
            names(&choice.sides(Routes::Cached, &BOTH))[1..],
            ["mergerfs", "mergerfs fast", "polymux direct io-uring"]
        );
    }

    #[test]
    fn each_path_through_one_build_is_followed_by_that_through_the_other() {
        let choice = Choice::new(&[], &[], &BOTH, BuildsCompared::Two);
        let sides =
            ["native", "polymux", "polymux, other build", "polymux passthrough", "polymux passthrough, other build"];
        assert_eq!(names(&choice.sides(Routes::Programs, &BOTH)), sides);
    }
}
