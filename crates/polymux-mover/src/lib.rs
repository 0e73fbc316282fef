//! The mover: one mechanism for every reason to move blocks (DESIGN section 8, docs/design/0010).
//!
//! Invariants:
//! * A job is one file or ranges of it, a destination and a reason. A file is in one batch at a time.
//! * A job that cannot go on is parked with the reason and woken by an event; nothing here waits in a loop.
//! * A mover holds no lock of a file while it copies, and never more than the part that it switches.
//!
//! ```text
//! requests  reports     what programs ask for, and what they are shown (both also look at `planning`)
//!     │        │
//!     │     driver      steps of the background: batches out of the queue, and plans
//!     │      │   │
//!     │  planning execution
//!     │      │   │
//!     └──── mover       the state: jobs (`queue`), drains, the planner's, files to be laid out anew
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
