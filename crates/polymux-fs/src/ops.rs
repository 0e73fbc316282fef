//! The operations of [`crate::FileSystem`], one file per family. Each checks permission, then calls down.
//!
//! Invariants: no path string, no lock of a directory, no key of the store; those belong to the modules below.
//! `ops` and the mover never import each other.

mod attribute_flags;
mod attributes;
mod background;
mod census;
mod directories;
mod files;
mod names;
mod privileges;
mod profiles;
mod reports;
mod xattrs;
