//! The mover: one mechanism for every reason to move blocks (DESIGN section 8, docs/design/0010).
//!
//! Invariants:
//! * A job is one file or ranges of it, a destination and a reason. A file is in one batch at a time.
//! * A job that cannot go on is parked with the reason and woken by an event; nothing here waits in a loop.
//! * A mover holds no lock of a file while it copies, and never more than the part that it switches.
//!
//! ```text
//! requests   reports    driver        asked for by programs, shown to them; the steps of the background
//!      │        │        │    │
//!      └────────┴─ planning  execution
//!                     │        │
//!                     └─ mover ┘       the state: jobs (`queue`), drains, the planner's, files to be laid out anew
//! ```

#![forbid(unsafe_code)]

mod driver;
mod execution;
mod mover;
mod planning;
mod queue;
mod reports;
mod requests;

pub use mover::Mover;
