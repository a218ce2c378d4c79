//! The `muster` program.

fn main() {}
