//! A mistake that the model checker must find, switched on by one test for the thread that it runs on: all threads of a
//! checked schedule run on that one.

use std::cell::Cell;

thread_local! {
    static LEAVING_IS_FORGOTTEN: Cell<bool> = const { Cell::new(false) };
}

/// From now on a writer that leaves a node does not note its blocks as dirty.
pub fn forget_leaving() {
    LEAVING_IS_FORGOTTEN.set(true);
}

pub(super) fn is_leaving_noted() -> bool {
    !LEAVING_IS_FORGOTTEN.get()
}
