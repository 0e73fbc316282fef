//! The properties of every policy, for those of the product.

#[path = "properties/of_every_policy.rs"]
mod of_every_policy;

use polymux_policy::PolicyKind;

/// Policies that are tested.
const KINDS: &[PolicyKind] = &PolicyKind::ALL;

/// Whether a policy asks for no victim.
fn displaces_anything(_: PolicyKind) -> bool {
    false
}
