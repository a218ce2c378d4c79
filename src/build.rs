//! Builds what the package embeds.

fn main() {}
