//! Carrying out: batches of parts, each copied, made durable and switched.
//!
//! A part begins (`part`), is copied (`copy`) at the rate that its tiers admit (`pace`), is switched in the map (`commit`), and what it left
//! behind is cleared up (`compact`). `batch` does that for several files at a time.

pub(crate) mod batch;
mod commit;
mod compact;
mod copy;
pub(crate) mod interrupt;
mod pace;
pub(crate) mod part;
