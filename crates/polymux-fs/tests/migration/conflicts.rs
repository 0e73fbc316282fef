//! Writers, truncation and others in the middle of a copy, in a known order.
