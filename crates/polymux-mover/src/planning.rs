//! Planning: from facts about ranges and tiers to jobs in the queue.
//!
//! Invariants:
//! * Each step looks at a bounded number of nodes and files, whatever the size of the volume.
//! * Bytes that jobs on their way will bring to a tier, or take off it, count as moved already, and those that are about to be freed as
//!   free: nothing is planned twice.
//! * A file that cannot be asked for its size (its tier is missing) is passed over, and all others are planned.
//! * Decisions change nothing: `reports` asks for the same ones.
//!
//! ```text
//! relief        promotion    eviction   balance          rules   drain     one step of the background each
//!  │    │           │           │       │                  │
//!  │  load_balance  cache_look  victims layout, window     │
//!  ├────┴─ planned  │           │       │                  │
//!  advise     └─────┼── worth ──┘       │                  │
//!                   │     │             │                  │
//!              facts, tables, bundles and their submission ┘
//! ```

mod advise;
mod balance;
pub(crate) mod bundle;
mod cache_look;
mod drain;
mod eviction;
pub(crate) mod facts;
pub(crate) mod load_balance;
pub(crate) mod planned;
pub(crate) mod promotion;
mod relief;
pub(crate) mod rules;
mod submission;
pub(crate) mod tables;
mod victims;
pub(crate) mod worth;
