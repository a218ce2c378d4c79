//! A console whose disk is full. (An agent's is in `bad_input`.)

use std::{fs, io::Write, path::Path};

use nix::sys::statvfs::statvfs;

use super::{
    bus::Kind,
    stage::{Party, Special, Stage},
};
use crate::fleet::eventually;

/// Takes all of a disk.
fn fill(ballast: &Path) {
    let free = statvfs(ballast.parent().unwrap()).unwrap();
    let mut file = fs::File::create(ballast).unwrap();
    let block = [0; 4096];
    for _ in 0..free.blocks_available() * free.fragment_size() / 4096 + 1 {
        // The console may take the last of it first.
        if file.write_all(&block).is_err() {
            return;
        }
    }
}

#[test]
fn full_console_disk_is_reported_and_loses_no_outcome() {
    let special = Special { console_disk_mib: Some(32), ..Special::default() };
    let stage = Stage::start_special(Kind::Own, special);
    let gate = stage.home.path().join("gate");
    let line = |n: usize| {
        let wait = format!("while ! test -e {}; do sleep 0.1; done", gate.display());
        format!("{}; {wait}; seq 100000", stage.note(&format!("full-{n}")))
    };
    let ids: Vec<String> = (0..8).map(|n| stage.exec(&line(n))).collect();
    (0..ids.len()).for_each(|n| stage.wait_for_effect(&format!("full-{n}")));
    let ballast = stage.in_console("ballast");
    fill(&ballast);
    fs::write(&gate, "").unwrap();
    eventually("the console's own words", || {
        let printed = stage.printed(Party::Console);
        let said = printed.lines().any(|line| line.contains("cannot be stored") && line.contains("full"));
        if said { Ok(()) } else { Err(printed) }
    });
    let run = eventually("an order that is not taken", || {
        let run = stage.home.muster(&["exec", "--no-wait", "--", "true"]);
        if run.code == 0 { Err("it was taken".to_owned()) } else { Ok(run) }
    });
    assert!(run.code == 1 && run.stderr.contains("disk") && run.stderr.contains("hint"), "{run:?}");

    fs::remove_file(&ballast).unwrap();
    for (n, id) in ids.iter().enumerate() {
        stage.succeeds(id);
        assert_eq!(stage.effects(&format!("full-{n}")), 1);
        assert_eq!(stage.stored_output(id), (1..=100_000_u32).map(|n| n.to_string().len() + 1).sum::<usize>());
    }
    stage.ok(&["exec", "--", "true"]);
    assert!(!stage.printed(Party::Console).contains("panicked"));
}
