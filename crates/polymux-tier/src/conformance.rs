//! The suite that every backend and wrapper passes.
