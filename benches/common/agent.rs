//! The agent as packages ship it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

/// Builds the agent (`--no-default-features --features agent`, profile `dist`) in its own target folder; returns the
/// program's path.
pub(crate) fn build() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--profile", "dist", "--no-default-features", "--features", "agent"])
        .args(["--target-dir", "target/footprint"])
        .current_dir(root)
        .env("SQLX_OFFLINE", "true")
        .status()?;
    ensure!(built.success(), "the agent does not build");
    Ok(root.join("target/footprint/dist/muster"))
}
