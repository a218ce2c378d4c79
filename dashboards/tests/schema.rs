//! Tests each committed dashboard against Grafana's own published types.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn every_dashboard_matches_grafanas_types() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = here.join("../target/tools/grafana");
    assert!(target.exists(), "{} is not there; `tests/tools grafana` provides it, as tests/run does", target.display());
    let in_folder = |flavour: &str| {
        let entries = fs::read_dir(here.join(flavour)).unwrap();
        let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= 6, "{flavour}: {files:?}");
        files
    };
    let checked = Command::new("node")
        .arg(here.join("tests/schema/check.js"))
        .args(in_folder("promql"))
        .args(in_folder("influxql"))
        .env("NODE_PATH", target.join("node_modules"))
        .current_dir(&target)
        .output()
        .unwrap_or_else(|error| panic!("node: {error}; tests/run installs it from Debian's packages"));
    let printed = [checked.stdout, checked.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(checked.status.success() && printed.contains(" 0 wrong"), "{printed}");
    println!("{printed}");
}
