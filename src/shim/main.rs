//! The shim.

fn main() {}
