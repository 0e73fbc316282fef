//! Volumes by name: where their configurations, locks and sockets are, the format of a configuration, and how the tiers, the metadata
//! store and the file system that it describes are made and opened.
//!
//! Everything that makes or opens a volume goes through here: the daemon, commands that need no daemon, and programs that have the file system as
//! a library. Nothing here knows the kernel's side of a mount.
//!
//! Direction of calls: `creation` → `opening` → `metadata_copy` → `metadata`, `tiers`, `config_edit` → `request` → `config` with `steering_config` →
//! `config_format`, `names`. `registry` and `lock` stand beside it.

#![forbid(unsafe_code)]

pub mod config;
pub mod config_edit;
pub mod config_format;
pub mod creation;
pub mod lock;
pub mod metadata;
pub mod metadata_copy;
pub mod names;
pub mod opening;
pub mod process_end;
pub mod random;
pub mod refusal;
pub mod registry;
pub mod request;
pub mod steering_config;
pub mod tiers;
