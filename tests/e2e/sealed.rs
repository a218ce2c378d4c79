//! Sealed secrets: they are not readable on the bus, in the console's folder, in logs, or in the agent's journal.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    fleet::{Fleet, Running, eventually, file},
    wire::{mosquitto, of_host, payloads},
};

const OF_EXEC: &str = "xk3-the-value-of-an-environment";
const OF_STDIN: &str = "xk3-the-words-of-standard-input";
const OF_BATCH: &str = "xk3-the-value-of-a-later-step";
const OF_UNIT: &str = "xk3-the-value-of-a-unit";
const OF_ARGS: &str = "xk3-the-value-of-an-argument";

/// What `sha256sum` prints of a text: how a test sees that a program was given it, without printing it.
pub(crate) fn sum(text: &str) -> String {
    use std::io::Write;
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// Fails if a file in or below a folder holds one of the texts.
#[track_caller]
pub(crate) fn assert_absent(folder: &Path, texts: &[&str]) {
    let mut folders = vec![folder.to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // A socket has no content, and what a database has just removed is gone.
            let Ok(content) = fs::read(&path) else { continue };
            files += 1;
            for text in texts {
                let found = content.windows(text.len()).any(|piece| piece == text.as_bytes());
                assert!(!found, "{text:?} is in {}", path.display());
            }
        }
    }
    assert!(files > 0, "{} has no files", folder.display());
}

#[test]
fn secrets_are_readable_only_by_their_host() {
    let mut fleet = Fleet::start();
    let host = fleet.host();
    let observer = fleet.issue("observer", "reader");
    let read = |fleet: &Fleet| {
        let mut reader = Running::start(mosquitto("mosquitto_sub", fleet, &observer).args(["-v", "-t", "muster/#"]));
        let topic = of_host(&host, "presence");
        reader.wait_for("retained presence", |printed| (!payloads(printed, &topic).is_empty()).then_some(()));
        reader
    };
    let mut reader = read(&fleet);

    let digest = r#"printf %s "$TOKEN" | sha256sum"#;
    let shown = fleet.ok(&["exec", "--env", &format!("TOKEN={OF_EXEC}"), "--shell", "--", digest]);
    assert_eq!(shown, sum(OF_EXEC));
    let words = file(&fleet.home, "words", OF_STDIN);
    assert_eq!(fleet.ok(&["exec", "--stdin", &words, "--", "sha256sum"]), sum(OF_STDIN));

    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/yuno.py");
    fleet.ok(&["artifact", "create", sample.to_str().unwrap(), "--role", "sample", "--version", "1"]);
    let variable = format!("TOKEN={OF_UNIT}");
    fleet.ok(&["yuno", "create", "default/sample", "--artifact", "sample", "--lines", "--env", &variable, "--run"]);
    let unit = fleet.unit_in_phase("default/sample", "running");
    let environment = fs::read(format!("/proc/{}/environ", unit["observed"]["pid"])).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains(&variable));
    // It knows no such command; that it has heard of it is all that matters.
    let run = fleet.muster(&["yuno", "command", "default/sample", "unheard-of", &format!("p={OF_ARGS}")]);
    assert_eq!(run.code, 1, "{} {}", run.stdout, run.stderr);
    reader.wait_for("all commands", |printed| (payloads(printed, &of_host(&host, "cmd")).len() >= 4).then_some(()));

    // What waits in the journal over a restart is sealed there, and opened when its turn comes.
    let (gate, given) = (fleet.home.path().join("gate"), fleet.home.path().join("given"));
    let steps = serde_json::json!([
        {"shell": format!("until test -e {}; do sleep 0.1; done", gate.display())},
        {"shell": format!("{digest} > {}", given.display()), "env": {"TOKEN": OF_BATCH}},
    ]);
    let batch = file(&fleet.home, "batch.json", &steps.to_string());
    let id = fleet.ok(&["exec", "--no-wait", "--batch", &batch]).trim().to_owned();
    let state = |fleet: &Fleet| fleet.json(&["command", "show", &id])["hosts"][0]["state"].clone();
    eventually("the first step", || match state(&fleet) {
        state if state == "running" => Ok(()),
        state => Err(state.to_string()),
    });
    fs::remove_file(&batch).unwrap();
    let agent = fleet.data().join("agent");
    for store in ["agent.db", "agent.db-wal"] {
        let content = fs::read(agent.join(store)).unwrap_or_default();
        let held = String::from_utf8_lossy(&content).into_owned();
        assert!([OF_EXEC, OF_STDIN, OF_BATCH, OF_ARGS].iter().all(|text| !held.contains(text)), "{store}");
    }
    let (mut seen, mut printed) = (reader.stop().1, fleet.stop());
    fleet.again();
    reader = read(&fleet);
    fs::write(&gate, "").unwrap();
    eventually("the end of the batch", || match state(&fleet) {
        state if state == "done" => Ok(()),
        state => Err(state.to_string()),
    });
    let shown = fleet.json(&["command", "show", &id]);
    assert_eq!(fs::read_to_string(&given).unwrap(), sum(OF_BATCH), "{shown}");

    seen.push_str(&reader.stop().1);
    printed.push_str(&fleet.stop());
    let secrets = [OF_EXEC, OF_STDIN, OF_BATCH, OF_UNIT, OF_ARGS];
    for secret in secrets {
        assert!(!seen.contains(secret), "{secret:?} was on the bus");
        assert!(!printed.contains(secret) && !shown.to_string().contains(secret), "{secret:?} was printed");
    }
    assert_absent(&fleet.data().join("console"), &secrets);
    // Of what was run nothing is left on the host, either.
    let left = fs::read_dir(fleet.data().join("agent/exec")).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}
