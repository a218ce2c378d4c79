//! The verbs of every day: `status`, `ps`, `apply`, `logs`, `context`, lists that are watched, and completions.

use std::{fs, path::Path, process::Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    fleet::{Fleet, Running, eventually, file, muster},
    screen::Screen,
};

const SLEEPER: &str = "#!/bin/sh\necho begun\nexec sleep 1000\n";

#[test]
fn status_and_ps_show_what_there_is() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    let found = fleet.json(&["status"]);
    assert_eq!((&found["hosts"], &found["hosts_online"], &found["hosts_away"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(found["units"], json!({"running": 1}));
    assert_eq!((&found["context"], &found["operator"]), (&json!("local"), &json!("admin")));
    let shown = fleet.ok(&["status"]);
    for words in ["1: 1 online", "1: 1 running", "muster host ls --sort presence", "none under way", "local: http://"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // What is used is shown once it is measured.
    eventually("what the unit uses", || {
        let running = fleet.json(&["ps"]);
        let is_measured = running[0]["memory_bytes"].is_f64() && running[0]["phase"] == "running";
        if is_measured { Ok(()) } else { Err(running.to_string()) }
    });
    let shown = fleet.ok(&["ps", "--host", &fleet.host(), "-n", "5"]);
    assert!(shown.starts_with("HOST") && shown.contains("default/hello"), "{shown}");
    assert!(fleet.ok(&["logs", "default/hello", "-n", "1"]).lines().count() == 1);
}

#[test]
fn documents_of_units_and_deployments_are_applied_together() {
    let fleet = Fleet::start();
    let script = file(&fleet.home, "sleeper", SLEEPER);
    fleet.ok(&["artifact", "create", &script, "--role", "sleeper", "--version", "1"]);
    let host = fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap().to_owned();
    let unit = "unit: default/till\nkind: yuno\nartifact: sleeper@1\nrun: running\nafter: [default/db]\n";
    let deployment = format!(
        "deployment: default/base\ntarget: {{select: 'host={host}'}}\nunits:\n- {{name: db, artifact: sleeper@1, verify_after_ms: 300}}\n"
    );
    let both = file(&fleet.home, "both.yaml", &format!("{unit}---\n{deployment}"));
    let units = file(&fleet.home, "unit.yaml", unit);

    let planned = fleet.json(&["apply", &both, "--dry-run"]);
    assert_eq!(
        (&planned["units"][0]["action"], &planned["deployments"][0]["action"]),
        (&json!("create"), &json!("create"))
    );
    assert_eq!(fleet.json(&["unit", "ls"]), json!([]));
    fleet.muster(&["apply", &units, "--adopt"]).expect_code(2).expect_stderr("--adopt is for documents of deployments");
    assert_eq!(fleet.json(&["unit", "ls"]), json!([]));

    let done = fleet.json(&["apply", &both]);
    assert_eq!((&done["units"][0]["done"], &done["deployments"][0]["done"]), (&json!(true), &json!(true)));
    fleet.unit_in_phase("default/db", "running");
    fleet.unit_in_phase("default/till", "running");
    fleet.muster(&["apply", &both]).expect_code(0).expect_stderr("1 deployment: 0 created, 0 changed, 1 unchanged");
}

#[test]
fn contexts_are_listed_chosen_and_removed_without_a_console() {
    let mut fleet = Fleet::start();
    let link = fleet.sign_in_link();
    fleet.ok(&["--context", "second", "login", &link]);
    fleet.stop();
    let current = |fleet: &Fleet| {
        let listed = fleet.json(&["context", "ls"]);
        let mut current = listed.as_array().unwrap().iter().filter(|one| one["current"] == true);
        current.next().map(|one| one["name"].as_str().unwrap().to_owned())
    };
    assert_eq!(current(&fleet).as_deref(), Some("second"));
    assert!(!fleet.ok(&["context", "ls", "-o", "json"]).contains("token"));
    fleet.ok(&["context", "use", "local"]);
    assert_eq!(current(&fleet).as_deref(), Some("local"));
    fleet.muster(&["--context", "nowhere", "host", "ls"]).expect_code(2).expect_stderr("known are: local, second");
    fleet.muster(&["context", "rm", "local"]).expect_code(0).expect_stderr("\"second\" is used from now on");
    let file = fleet.home.context_file();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    fleet.ok(&["context", "rm", "second"]);
    fleet.muster(&["host", "ls"]).expect_code(2).expect_stderr("no console is known here");
    fs::write(&file, "form = ").unwrap();
    fleet.muster(&["context", "ls"]).expect_code(1).expect_stderr("context.toml");
}

#[test]
fn watched_list_is_shown_again_when_it_changes() {
    let fleet = Fleet::start();
    let mut screen = Screen::start(&fleet, &["ps", "-w"]);
    screen.wait_for("nothing is kept running");
    screen.wait_for("\x1b[?1049h");
    let mut command = fleet.home.command();
    let mut piped = Running::start(command.args(["unit", "ls", "-w", "-o", "json"]));
    piped.wait_for("the empty list", |printed| printed.contains("[]").then_some(()));

    let script = file(&fleet.home, "sleeper", SLEEPER);
    fleet.ok(&["artifact", "create", &script, "--role", "sleeper", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "sleeper", "--run"]);
    screen.wait_for("default/till");
    piped.wait_for("the unit in a line of its own", |printed| {
        printed.lines().skip(1).any(|line| line.starts_with("[{") && line.contains("default/till")).then_some(())
    });
    screen.press("q");
    screen.expect_given_back(0);
    let screen = Screen::start(&fleet, &["status", "--watch"]);
    screen.wait_for("muster deployment ls");
    screen.signal(Signal::SIGINT);
    screen.expect_given_back(130);
}

/// What bash completes a line to, as somebody who presses the tabulator behind it sees.
fn completed(fleet: &Fleet, line: &str) -> Vec<String> {
    let folder = Path::new(muster()).parent().unwrap().display().to_string();
    let ask = r#"set -u; . <(muster completions bash); COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        _clap_complete_muster muster "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = std::process::Command::new("bash");
    fleet.home.dress(&mut bash);
    bash.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap()));
    bash.args(["-c", ask, "bash"]).args(line.split(' ')).stdin(Stdio::null());
    let output = bash.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{line}: {said}");
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_words_and_names() {
    let mut fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    let script = file(&fleet.home, "sleeper", SLEEPER);
    fleet.ok(&["artifact", "create", &script, "--role", "sleeper", "--version", "1"]);
    fleet.ok(&["realm", "create", "shop"]);
    fleet.muster(&["secret", "set", "db-password", "--file", &script]).expect_code(0);
    let host = fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap().to_owned();
    let ordered = fleet.json(&["command", "ls", "-n", "500"]);
    let has = |fleet: &Fleet, line: &str, wanted: &str| {
        let found = completed(fleet, line);
        assert!(found.iter().any(|one| one == wanted), "{line}: {wanted} is none of {found:?}");
    };
    has(&fleet, "muster dep", "deployment");
    has(&fleet, "muster deployment ro", "rollback");
    has(&fleet, "muster -o j", "json");
    has(&fleet, "muster host show ", &host);
    has(&fleet, "muster logs def", "default/hello");
    has(&fleet, "muster artifact show s", "sleeper@1");
    has(&fleet, "muster realm show sh", "shop");
    has(&fleet, "muster secret show db", "db-password");
    has(&fleet, "muster context use ", "local");
    has(&fleet, "muster --context local host show ", &host);
    assert_eq!(completed(&fleet, "muster --context nowhere realm show sh"), Vec::<String>::new());
    // Nothing was ordered of a host by that.
    assert_eq!(fleet.json(&["command", "ls", "-n", "500"]), ordered);
    fleet.stop();
    assert_eq!(completed(&fleet, "muster realm show sh"), Vec::<String>::new());
    has(&fleet, "muster dep", "deployment");
    for shell in ["bash", "zsh", "fish"] {
        assert!(fleet.ok(&["completions", shell]).len() < 30_000, "{shell}");
    }
}
