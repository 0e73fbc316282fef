//! Changes of a block map, recorded so that they can be taken back: a file of a tebibyte has half a million extents, and a change touches
//! a few of them.
//!
//! Invariant: steps are taken back in the order opposite to that in which they were made, on the map as the last of them left it.

use polymux_types::Block;

use super::exceptions::{Exception, Exceptions};

/// The state before a step.
#[derive(Clone, Debug)]
enum Step {
    Home(Option<u8>),
    /// The exception with this end block; `None`: there was none.
    Exception(Block, Option<Exception>),
    /// All exceptions went at once.
    Exceptions(Exceptions),
}

/// The steps of a change.
#[derive(Clone, Debug, Default)]
pub struct UndoLog(Vec<Step>);

impl UndoLog {
    pub(super) fn note_home(&mut self, before: Option<u8>) {
        self.0.push(Step::Home(before));
    }

    pub(super) fn note_exception(&mut self, end: Block, before: Option<Exception>) {
        self.0.push(Step::Exception(end, before));
    }

    pub(super) fn note_cleared(&mut self, before: Exceptions) {
        self.0.push(Step::Exceptions(before));
    }

    /// Number of steps.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn take_back(self, home: &mut Option<u8>, exceptions: &mut Exceptions) {
        for step in self.0.into_iter().rev() {
            match step {
                Step::Home(before) => *home = before,
                Step::Exception(end, Some(before)) => {
                    exceptions.insert(end, before);
                }
                Step::Exception(end, None) => {
                    exceptions.remove(end);
                }
                Step::Exceptions(before) => *exceptions = before,
            }
        }
    }
}
