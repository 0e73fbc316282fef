//! Writers, readers and the mover at once, on real threads.
