//! The death of a daemon at a chosen moment of a request, planted by tests of the recovery in the next daemon.
//!
//! Invariant: builds for release do nothing of this. In others, where `POLYMUX_TEST_DEATH` names a file, its text says which requests are fatal, as
//! `rename|rename2 answer 2`: kinds of requests, the moment, and how many daemons die of one. Each takes itself off that number first.

/// Moment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It was read through the classic transport, and nothing was done.
    Start,
    /// It was carried out, and is not answered.
    Answer,
}

/// Kills this process where its death is planted here.
#[cfg(not(debug_assertions))]
pub(crate) fn may_die(_opcode: u32, _moment: Moment) {}

#[cfg(debug_assertions)]
pub(crate) use planted::may_die;

#[cfg(debug_assertions)]
mod planted {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    use super::Moment;
    use crate::wire::Opcode;

    static PLANTED: OnceLock<Option<PathBuf>> = OnceLock::new();

    pub(crate) fn may_die(opcode: u32, moment: Moment) {
        let planted = PLANTED.get_or_init(|| std::env::var_os("POLYMUX_TEST_DEATH").map(PathBuf::from));
        let Some(path) = planted else { return };
        let Ok(text) = std::fs::read_to_string(path) else { return };
        let mut words = text.split_whitespace();
        let name = Opcode::from_number(opcode).map_or("", Opcode::name);
        let moment = match moment {
            Moment::Start => "start",
            Moment::Answer => "answer",
        };
        let kinds = words.next().unwrap_or_default();
        if !kinds.split('|').any(|kind| kind == name) || words.next() != Some(moment) {
            return;
        }
        let left: u32 = words.next().and_then(|word| word.parse().ok()).expect("it says how many daemons die");
        let changed = if left > 1 {
            let new = path.with_extension("new");
            std::fs::write(&new, format!("{kinds} {moment} {}", left - 1)).and_then(|()| std::fs::rename(&new, path))
        } else {
            std::fs::remove_file(path)
        };
        // Where two threads die at once, one of them finds it changed.
        let _ = changed;
        kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        loop {
            std::thread::park();
        }
    }
}
