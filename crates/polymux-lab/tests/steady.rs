//! On a steady workload nothing moves any more after a while, with the policies that exist for comparison.

#[path = "../../polymux-fs/tests/common/mod.rs"]
mod common;
#[path = "../../polymux-fs/tests/migration/steady.rs"]
mod of_every_policy;

use common::settle;
use polymux_fs::PolicyKind;

/// Policies that are tested.
const KINDS: &[PolicyKind] = &polymux_lab::ALL;

const MIB: u64 = 1 << 20;

const fn mebibytes(count: usize) -> usize {
    count << 20
}
