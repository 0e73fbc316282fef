//! Tiers that fail in the middle of a move.
