//! The properties of every policy, for those that exist for comparison.

#[path = "../../polymux-policy/tests/properties/of_every_policy.rs"]
mod of_every_policy;

use polymux_lab::PROMOTE_ALWAYS;
use polymux_policy::PolicyKind;

/// Policies that are tested.
const KINDS: &[PolicyKind] = &polymux_lab::ALL;

/// Whether a policy asks for no victim.
fn displaces_anything(kind: PolicyKind) -> bool {
    kind == PROMOTE_ALWAYS
}
