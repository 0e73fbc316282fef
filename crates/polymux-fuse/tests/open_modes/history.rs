//! The latest operations on a file, reported when it is found to be wrong.

use std::collections::VecDeque;

/// Actions that are kept.
const KEPT: usize = 60;

/// The last actions on a file.
#[derive(Default)]
pub struct History(VecDeque<String>);

impl History {
    pub fn note(&mut self, action: String) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(action);
    }

    pub fn text(&self) -> String {
        let actions: Vec<&str> = self.0.iter().map(String::as_str).collect();
        actions.join("\n  ")
    }
}

/// Bytes for people: where each run of the same byte begins, how long it is, and the byte.
pub fn runs(bytes: &[u8]) -> String {
    let mut start = 0;
    let mut texts = Vec::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        texts.push(format!("{start}+{}: {}", run.len(), run[0]));
        start += run.len();
    }
    texts.join(", ")
}
