//! Writers, truncation and others in the middle of a copy, in a known order.
//!
//! Setup: a *gate* stands in front of every tier and lets one action of a user begin before the n-th operation
//! of the mover. The mover goes on when the action is done, or after a moment where the action waits for the mover. So for
//! every action each place in a move is tried, and in every order the file holds the data that its users wrote.

#[path = "conflicts/actions.rs"]
mod actions;
#[path = "conflicts/crashes.rs"]
mod crashes;
#[path = "conflicts/gate.rs"]
pub mod gate;
