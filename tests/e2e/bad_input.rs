//! What an operator or a host may get wrong: one clear answer, nothing half made, and the right thing works afterwards.

use std::fs;

use crate::fleet::{Fleet, Home, Running, file};

#[test]
fn a_wrong_token_joins_nobody() {
    let fleet = Fleet::start();
    let good = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let other_fleet = Fleet::start();
    let foreign = other_fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    fleet.ok(&["token", "revoke", fleet.json(&["token", "ls"])[0]["id"].as_str().unwrap()]);
    let cut = &good[..good.len() - 9];
    for (token, code, words) in [("nonsense", 2, "token"), (cut, 2, "token"), (good.as_str(), 3, "revoked")] {
        let home = Home::new();
        let data = home.path().join("agent");
        let mut agent =
            Running::start(home.command().args(["agent", "--data-dir", data.to_str().unwrap(), "--join", token]));
        agent.wait_for_end(code, words);
    }
    assert_eq!(fleet.json(&["host", "ls"]).as_array().unwrap().len(), 1);
    drop(other_fleet);
    drop(foreign);
}

#[test]
fn documents_and_artifacts_are_checked_before_they_are_kept() {
    let fleet = Fleet::start();
    for (content, words) in [("{", "line 1"), (r#"{"a":1,"a":2}"#, "twice"), ("[99999999999999999999]", "2^53")] {
        let path = file(&fleet.home, "config.json", content);
        fleet.muster(&["config", "add", "a.b", "1", &path]).expect_code(1).expect_stderr(words);
    }
    assert_eq!(fleet.json(&["config", "ls"]), serde_json::json!([]));
    let path = file(&fleet.home, "config.json", "{}");
    fleet.ok(&["config", "add", "a.b", "1", &path]);
    fleet.ok(&["config", "add", "a.b", "1", &path]);
    fs::write(&path, r#"{"other": true}"#).unwrap();
    fleet.muster(&["config", "add", "a.b", "1", &path]).expect_code(1).expect_stderr("2");
    fleet.muster(&["config", "add", "A.b", "1", &path]).expect_code(2);

    fleet.muster(&["artifact", "add", "/no/such/file", "--role", "a", "--version", "1"]).expect_stderr("/no/such/file");
    let one = file(&fleet.home, "one", "#!/bin/sh\n");
    fleet.ok(&["artifact", "add", &one, "--role", "a", "--version", "1"]);
    fleet.ok(&["artifact", "add", &one, "--role", "a", "--version", "1"]);
    let two = file(&fleet.home, "two", "#!/bin/sh\necho\n");
    fleet.muster(&["artifact", "add", &two, "--role", "a", "--version", "1"]).expect_code(1).expect_stderr("hint:");
    assert_eq!(fleet.json(&["artifact", "ls"]).as_array().unwrap().len(), 1);
}

#[test]
fn what_does_not_exist_is_named() {
    let fleet = Fleet::start();
    fleet.muster(&["yuno", "create", "default/x", "--artifact", "nothing"]).expect_stderr("nothing");
    fleet.muster(&["yuno", "run", "default/x"]).expect_stderr("default/x");
    fleet.muster(&["yuno", "logs", "default/x"]).expect_stderr("default/x");
    fleet.muster(&["unit", "show", "not a name"]).expect_code(2);
    fleet.muster(&["command", "show", "0"]).expect_code(2);
    fleet.muster(&["no-such-verb"]).expect_code(2);
}

#[test]
fn without_a_console_the_command_line_says_so() {
    let home = Home::new();
    home.muster(&["host", "ls"]).expect_stderr("hint:");
    let mut fleet = Fleet::start();
    fleet.stop();
    fleet.muster(&["host", "ls"]).expect_code(4).expect_stderr("hint:");
}
