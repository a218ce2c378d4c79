//! Rebuilds the console when a migration has changed: `sqlx::migrate!` cannot tell cargo itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=store/migrations");
}
