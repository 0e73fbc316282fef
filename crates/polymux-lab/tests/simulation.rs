//! Under a steady load migration comes to rest, and hot data becomes fast, with the policies that exist for comparison.

#[path = "../../polymux-policy/tests/simulation/load.rs"]
mod load;
#[path = "../../polymux-policy/tests/simulation/of_every_policy.rs"]
mod of_every_policy;
#[path = "../../polymux-policy/tests/simulation/world.rs"]
mod world;

use polymux_policy::PolicyKind;

/// Policies that are tested.
const KINDS: &[PolicyKind] = &polymux_lab::ALL;
