//! Reports of the next decisions of the planner, and of the reasons for the place of a file. Nothing is changed by them.

mod explain;
mod plan;
