//! Permission: mode bits, POSIX ACLs, sticky directories, set-id rules.
//!
//! Invariants: nothing is changed; every function answers from attributes it is handed. A front end whose kernel checks
//! permissions switches these checks off ([`polymux_records::caller::Permissions`]); inheritance of groups and default ACLs is done here
//! in any case.

mod acl;
mod check;

pub use acl::{ACCESS_ACL, Acl, DEFAULT_ACL};
pub use check::{EXECUTE, READ, WRITE};
