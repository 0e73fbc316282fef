//! Files that were emptied, rewritten and closed, and whose new content is not durable yet.
//!
//! Lock order: the queue is a leaf.

use std::collections::VecDeque;
use std::sync::Arc;

use polymux_types::sync::Mutex;

use super::Inode;

/// Files whose new content is synced in the background, in the order in which they were closed.
#[derive(Debug, Default)]
pub(crate) struct ReplacedContents(Mutex<VecDeque<Arc<Inode>>>);

impl ReplacedContents {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn add(&self, inode: &Arc<Inode>) {
        self.0.lock().push_back(Arc::clone(inode));
    }

    /// Takes the file that waits longest.
    pub(crate) fn take(&self) -> Option<Arc<Inode>> {
        self.0.lock().pop_front()
    }
}
