//! Long-running commands: followed logs, and cancelled commands.

use std::{fs, path::PathBuf};

use nix::sys::signal::Signal;

use crate::fleet::{Fleet, Running, eventually, file};

/// The folder of the log of a yuno.
fn run_folder(fleet: &Fleet, unit: &str) -> PathBuf {
    fleet.data().join("agent/units").join(unit).join("run")
}

/// Makes a yuno of a script, and waits until its log has some words.
fn make(fleet: &Fleet, script: &str, words: &str) {
    let path = file(&fleet.home, "talker", script);
    fleet.ok(&["artifact", "create", &path, "--role", "talker", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "talker", "--log-size", "16M", "--run"]);
    eventually(words, || {
        let log = fs::read(run_folder(fleet, "default/a").join("log")).unwrap_or_default();
        if String::from_utf8_lossy(&log).contains(words) { Ok(()) } else { Err(format!("{} bytes", log.len())) }
    });
}

const COUNTER: &str = "#!/bin/sh\nn=0\nwhile :; do echo line $n; n=$((n+1)); sleep 0.1; done\n";

#[test]
fn log_is_followed_until_interrupted() {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "counter", COUNTER);
    fleet.ok(&["artifact", "create", &path, "--role", "counter", "--version", "1"]);
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
    fleet.ok(&["artifact", "create", &path, "--role", "counter", "--version", "1"]);
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
    fleet.muster(&["yuno", "logs", "--select", "role=none"]).expect_code(3).expect_stderr("no yuno matches role=none");
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

#[test]
fn logs_show_when_lines_were_written_and_those_of_a_time() {
    let fleet = Fleet::start();
    make(&fleet, "#!/bin/sh\necho first\nsleep 2\necho second\nexec sleep 1000\n", "second\n");
    let logs = |args: &[&str]| fleet.ok(&[&["yuno", "logs", "default/a"], args].concat());
    assert_eq!(logs(&[]), "first\nsecond\n");
    let timed = logs(&["-t"]);
    let lines: Vec<(&str, &str)> = timed.lines().filter_map(|line| line.split_once(' ')).collect();
    let [(one, "first"), (two, "second")] = lines[..] else { panic!("{timed}") };
    let between =
        humantime::parse_rfc3339(two).unwrap().duration_since(humantime::parse_rfc3339(one).unwrap()).unwrap();
    assert!(between.as_millis() >= 1_900, "{timed}");
    let age = humantime::parse_rfc3339(two).unwrap().elapsed().unwrap();
    assert!(age < crate::fleet::PATIENCE * 2, "{timed}");
    assert_eq!(logs(&["--since", two]), "second\n");
    assert_eq!(logs(&["--until", one]), "first\n");
    assert_eq!(logs(&["--since", "1h", "--until", "now"]), "first\nsecond\n");
    assert_eq!(logs(&["--since", "2020-01-01", "--until", "2020-01-02 12:00:00"]), "");
    assert_eq!(logs(&["-f", "--for", "300ms", "-t", "--since", two]), format!("{two} second\n"));
    fleet.muster(&["yuno", "logs", "default/a", "--since", "soon"]).expect_code(2).expect_stderr("2026-01-31");
    fleet.muster(&["yuno", "logs", "default/a", "-f", "--until", "now"]).expect_code(2);
    // As a log from before times were kept.
    fs::remove_file(run_folder(&fleet, "default/a").join("times")).unwrap();
    let run = fleet.muster(&["yuno", "logs", "default/a", "-t"]).expect_code(0);
    assert_eq!(run.stdout, "- first\n- second\n");
    run.expect_stderr("before times were recorded");
    let run = fleet.muster(&["yuno", "logs", "default/a", "--since", "1h"]).expect_code(0);
    assert_eq!(run.stdout, "");
    run.expect_stderr("before times were recorded are left out");
}

#[test]
fn omitted_log_lines_are_reported() {
    let fleet = Fleet::start();
    // Forty lines of 70 kB each, and one of 3 MB.
    let line = |count: u32| format!("head -c {count} /dev/zero | tr '\\0' x; echo end");
    let script = format!(
        "#!/bin/sh\nfor n in $(seq 40); do {}; done\nsleep 1\nuntil test -e {}; do sleep 0.1; done\n{}\nexec sleep 1000\n",
        line(70_000),
        fleet.home.path().join("go").display(),
        line(3_000_000),
    );
    make(&fleet, &script, "end\n");
    let folder = run_folder(&fleet, "default/a");
    let len = || fs::metadata(folder.join("log")).unwrap().len();
    eventually("all lines", || if len() >= 40 * 70_004 { Ok(()) } else { Err(len().to_string()) });
    let run = fleet.muster(&["yuno", "logs", "-n", "40", "default/a"]).expect_code(0);
    let lines = run.stdout.lines().count();
    assert!((10..40).contains(&lines) && run.stdout.lines().all(|line| line.len() == 70_003), "{lines}");
    run.expect_stderr(&format!("{lines} lines are shown, and there are more")).expect_stderr(folder.to_str().unwrap());
    // As many as fit are as many as were asked for.
    let run = fleet.muster(&["yuno", "logs", "-n", "5", "default/a"]).expect_code(0);
    let hostname = fleet.json(&["host", "show"])["hostname"].as_str().unwrap().to_owned();
    assert_eq!((run.stdout.lines().count(), run.stderr), (5, format!("default/a on {hostname}\n")));
    file(&fleet.home, "go", "");
    eventually("the long line", || if len() >= 5_800_000 { Ok(()) } else { Err(len().to_string()) });
    let run = fleet.muster(&["yuno", "logs", "-n", "1", "default/a"]).expect_code(0);
    assert!(run.stdout.len() > 1_000_000 && run.stdout.ends_with("xend\n"), "{}", run.stdout.len());
    run.expect_stderr("only the end of the last line is shown");
}

#[test]
fn truncated_or_moved_log_is_followed_from_its_start() {
    let fleet = Fleet::start();
    make(&fleet, COUNTER, "line 3\n");
    let mut follower = Running::start(fleet.home.command().args(["yuno", "logs", "-f", "-n", "2", "default/a"]));
    let after = |text: &str, words: &str| {
        let (_, after) = text.split_once(words)?;
        (after.matches("line ").count() > 3).then_some(())
    };
    // Which ones are its first depends on how soon it is there.
    follower.wait_for("lines", |text| (text.matches("line ").count() > 3).then_some(()));
    let log = run_folder(&fleet, "default/a").join("log");
    fs::File::create(&log).unwrap();
    follower.wait_for("lines after it was cut", |text| after(text, "the log was truncated"));
    fs::rename(&log, log.with_file_name("elsewhere")).unwrap();
    follower.wait_for("lines after it was moved away", |text| after(text, "was removed: the log continues"));
    follower.signal(Signal::SIGINT);
    follower.wait_for_end(0, "line ");
    // Times are those of what is there now.
    let timed = fleet.ok(&["yuno", "logs", "-t", "default/a"]);
    assert!(timed.lines().count() > 2 && timed.lines().all(|line| line.contains("Z line ")), "{timed}");
}
