//! Builds the shim, a small program that the agent embeds, so that one `cargo build` builds everything.
//!
//! A second cargo builds the shim with a profile and flags of its own, in a target folder of its
//! own (so the two never wait for each other's lock), and offline (this package depends on all that
//! the shim needs, so it is already there).

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Makes the shim small: one runs for each program.
const PROFILE: [&str; 6] = [
    "profile.release.opt-level=\"s\"",
    "profile.release.lto=\"fat\"",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.debug=false",
    "profile.release.strip=true",
];

/// A static binary at fixed addresses has no relocations, so all shims share its pages.
const STATIC: &str = "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static";

/// Has the linker place the parts of the C library that an idle shim runs next to the shim's own code: code is loaded
/// in blocks of 64 KiB.
const ORDER: &str = "-Clink-arg=-Wl,--no-warn-symbol-ordering,--symbol-ordering-file=";

/// The folder of `sqlx::migrate!`, which cannot tell cargo by itself.
const MIGRATIONS: &str = "store/migrations";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={MIGRATIONS}");
    println!("cargo::rustc-env=MUSTER_SHIM_PROGRAM={}", shim()?.display());
    Ok(())
}

/// Builds the shim and returns its path: as small as possible, or as well as a linker without symbol ordering and a C
/// library without a static version allow.
fn shim() -> Result<PathBuf> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../shim");
    let target_dir = Path::new(&env::var("OUT_DIR")?).join("shim");
    let target = env::var("TARGET")?;
    watch(&folder)?;
    let order = format!("{ORDER}{}", folder.join("hot.txt").display());
    let mut complaints = String::new();
    for (flags, order) in [(STATIC, Some(&order)), (STATIC, None), ("", None)] {
        let built = build(&folder, &target_dir, &target, flags, order)?;
        if built.status.success() {
            return Ok(target_dir.join(target).join("release/muster-shim"));
        }
        complaints += &String::from_utf8_lossy(&built.stderr);
    }
    Err(format!("the shim cannot be built:\n{complaints}").into())
}

fn build(folder: &Path, target_dir: &Path, target: &str, flags: &str, order: Option<&String>) -> Result<Output> {
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["rustc", "--release", "--bin", "muster-shim", "--offline", "--locked", "--quiet"]);
    // Also for the host's own target: then the flags apply to the shim, and not to build scripts.
    cargo.args(["--target", target]);
    cargo.arg("--manifest-path").arg(folder.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(target_dir);
    cargo.args(PROFILE.into_iter().flat_map(|setting| ["--config", setting]));
    for (name, _) in env::vars_os().filter(|(name, _)| disturbs(name)) {
        cargo.env_remove(name);
    }
    // This overrides flags from configuration files.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
    cargo.arg("--").args(order);
    Ok(cargo.output()?)
}

/// Whether a variable of this build must not reach the shim's: wrappers such as clippy's, flags such as those for
/// coverage, settings of profile and target. Registries, linkers and the number of jobs apply to it, too.
fn disturbs(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let theirs = ["CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_UNSTABLE_", "CARGO_FEATURE_", "CARGO_CFG_", "CARGO_PKG_"];
    let exactly =
        ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "LLVM_PROFILE_FILE"];
    theirs.iter().any(|prefix| name.starts_with(prefix)) || exactly.contains(&name.as_ref())
}

/// Makes cargo run this again only if sources of the shim change, its tests excepted.
fn watch(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    Ok(())
}
