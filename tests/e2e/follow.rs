//! What goes on until somebody has seen enough: logs that are followed, commands that are cancelled.

use nix::sys::signal::Signal;

use crate::fleet::{Fleet, Running, eventually, file};

const COUNTER: &str = "#!/bin/sh\nn=0\nwhile :; do echo line $n; n=$((n+1)); sleep 0.1; done\n";

#[test]
fn a_log_is_followed_until_somebody_has_seen_enough() {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "counter", COUNTER);
    fleet.ok(&["artifact", "add", &path, "--role", "counter", "--version", "1"]);
    // Small files, so that it is rotated under whoever follows.
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "counter", "--log-size", "4K", "--run"]);
    fleet.unit_in_phase("default/a", "running");
    let mut follower = Running::start(fleet.home.command().args(["yuno", "logs", "-f", "-n", "5", "default/a"]));
    let line = |text: &str, wanted: usize| text.contains(&format!("line {wanted}\n")).then_some(());
    // It goes on over a restart, of which it sees the beginning.
    follower.wait_for("a later line", |text| line(text, 20));
    fleet.ok(&["yuno", "restart", "default/a"]);
    let printed = follower.wait_for("the first line again", |text| {
        let after = text.split_once("line 20\n")?.1;
        after.contains("line 0\n").then(|| text.to_owned())
    });
    let numbers: Vec<u32> = printed.lines().filter_map(|text| text.strip_prefix("line ")?.parse().ok()).collect();
    let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1 && pair[1] != 0).count();
    assert_eq!(gaps, 0, "every line, in order, once: {numbers:?}");

    follower.signal(Signal::SIGINT);
    follower.wait_for_end(0, "line 0");
    eventually("its end on the host", || {
        let commands = fleet.json(&["command", "ls"]);
        let follow = commands.as_array().unwrap().iter().find(|command| !command["verb"]["unit_follow"].is_null());
        let outcome = follow.unwrap()["hosts"][0]["outcome"]["value"]["status"].clone();
        if outcome == "completed" { Ok(()) } else { Err(commands.to_string()) }
    });
    fleet.muster(&["yuno", "logs", "-f", "--for", "300ms", "default/a"]).expect_code(0);
    fleet.muster(&["yuno", "logs", "-f", "--for", "2h", "default/a"]).expect_code(2).expect_stderr("60 minutes");
}

#[test]
fn logs_of_several_have_their_units_before_each_line() {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "counter", COUNTER);
    fleet.ok(&["artifact", "add", &path, "--role", "counter", "--version", "1"]);
    for unit in ["default/a", "default/b"] {
        fleet.ok(&["yuno", "create", unit, "--artifact", "counter", "--run"]);
    }
    let both = |printed: &str| {
        let has = |unit: &str| printed.lines().any(|line| line.contains(&format!(":default/{unit} | line ")));
        (has("a") && has("b")).then_some(())
    };
    eventually("lines of both", || {
        let printed = fleet.ok(&["yuno", "logs", "--select", "role=counter", "-n", "3"]);
        both(&printed).ok_or(printed)
    });
    let args = ["yuno", "logs", "-f", "-n", "1", "--select", "role=counter"];
    let mut follower = Running::start(fleet.home.command().args(args));
    follower.wait_for("lines of both", both);
    follower.signal(Signal::SIGINT);
    follower.wait_for_end(0, "line ");
    fleet.muster(&["yuno", "logs", "--select", "role=none"]).expect_code(1).expect_stderr("no yuno is picked");
}

#[test]
fn a_command_that_is_cancelled_ends() {
    let fleet = Fleet::start();
    let id = fleet.ok(&["exec", "--no-wait", "--", "sleep", "1000"]);
    let id = id.trim();
    let shown = |wanted: &str| {
        eventually(wanted, || {
            let command = fleet.json(&["command", "show", id]);
            let host = &command["hosts"][0];
            if host["state"] == wanted { Ok(host.clone()) } else { Err(command.to_string()) }
        })
    };
    shown("running");
    fleet.ok(&["command", "cancel", id]);
    let host = shown("done");
    assert_eq!(host["outcome"]["value"]["status"], "cancelled", "{host}");
    // What is over stays as it is.
    fleet.ok(&["command", "cancel", id]);
    assert_eq!(shown("done"), host);
}
