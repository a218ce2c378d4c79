//! `muster exec`: the whole path of a command.

use std::fs;

use crate::fleet::{Fleet, eventually};

#[test]
fn output_and_exit_code_come_back() {
    let fleet = Fleet::start();
    let host = fleet.host();
    let hostname = fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap().to_owned();

    let run = fleet.muster(&["exec", "--", "sh", "-c", "echo out; echo err >&2"]).expect_code(0);
    assert!(run.stdout.contains("out") && run.stderr.contains("err"), "{run:?}");
    for target in [vec!["--all"], vec!["--host", &host], vec!["--host", &hostname]] {
        let args = [&["exec"], target.as_slice(), &["--", "echo", "a b", "c"]].concat();
        assert!(fleet.ok(&args).contains("a b c"), "{args:?}");
    }
    let picked = format!("realm=default and host={hostname} and not label.tier");
    assert!(fleet.ok(&["exec", "--select", &picked, "--", "echo", "picked"]).contains("picked"));
    fleet
        .muster(&["exec", "--select", "label.tier=gold", "--", "true"])
        .expect_code(3)
        .expect_stderr("no host matches");
    let of_units = fleet.muster(&["exec", "--select", "phase=running", "--", "true"]);
    of_units.expect_code(2).expect_stderr("`phase` is a field of units");
    fleet.muster(&["exec", "--", "sh", "-c", "exit 7"]).expect_code(1);
    fleet.muster(&["exec", "--passthrough", "--", "sh", "-c", "exit 7"]).expect_code(7);
    fleet.muster(&["exec", "--host", "nowhere", "--", "true"]).expect_stderr("nowhere");

    let commands = fleet.json(&["command", "ls"]);
    let id = commands[0]["id"].as_str().unwrap();
    let shown = fleet.json(&["command", "show", id]);
    assert_eq!(shown["hosts"][0]["outcome"]["value"]["exit"]["code"], 7);
}

#[test]
fn options_reach_the_program() {
    let fleet = Fleet::start();
    let output = fleet.ok(&["exec", "--cwd", "/usr", "--env", "COLOUR=blue", "--", "sh", "-c", "pwd; echo $COLOUR"]);
    assert!(output.contains("/usr") && output.contains("blue"), "{output}");
    if nix::unistd::geteuid().is_root() {
        let output = fleet.ok(&["exec", "--user", "nobody", "--", "id", "-un"]);
        assert!(output.contains("nobody"), "{output}");
    }
}

#[test]
fn long_output_is_complete_and_in_order() {
    let fleet = Fleet::start();
    let output = fleet.ok(&["exec", "--", "seq", "100000"]);
    let numbers: Vec<&str> = output.lines().filter(|line| line.bytes().all(|b| b.is_ascii_digit())).collect();
    assert_eq!(numbers.len(), 100_000);
    assert!(numbers.iter().zip(1..).all(|(line, n)| *line == n.to_string()));
}

#[test]
fn output_is_streamed() {
    use crate::fleet::Running;
    let fleet = Fleet::start();
    let gate = fleet.home.path().join("gate");
    let script = format!("echo first; while ! test -e {}; do sleep 0.1; done; echo second", gate.display());
    let mut exec = Running::start(fleet.home.command().args(["exec", "--", "sh", "-c", &script]));
    exec.wait_for("the first line", |printed| printed.contains("first").then_some(()));
    assert!(!exec.printed().contains("second"));
    fs::write(gate, "").unwrap();
    exec.wait_for("the second line", |printed| printed.contains("second").then_some(()));
}

#[test]
fn impossible_program_has_one_outcome() {
    let fleet = Fleet::start();
    let plain = crate::fleet::file(&fleet.home, "not-a-program", "nothing that runs");
    fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    for (argv, words) in [
        (vec!["/no/such/program"], "/no/such/program"),
        (vec!["no-such-program"], "no-such-program"),
        (vec![plain.as_str()], "not-a-program"),
    ] {
        let args = [&["exec", "--"], argv.as_slice()].concat();
        fleet.muster(&args).expect_code(3).expect_stderr(words);
    }
    fleet.muster(&["exec", "--user", "no-such-user", "--", "true"]).expect_code(3).expect_stderr("no-such-user");
    fleet.muster(&["exec", "--cwd", "/no/such/folder", "--", "true"]).expect_code(3).expect_stderr("/no/such/folder");
    fleet.muster(&["exec", "--", "true"]).expect_code(0);
}

#[test]
fn endless_output_is_ended_and_cut() {
    let fleet = Fleet::start();
    let run = fleet.muster(&["exec", "--timeout", "2s", "--", "yes"]).expect_code(1);
    assert!(run.stderr.contains("timed out"), "{}", run.stderr);
    assert!(run.stdout.len() <= 2 * 1024 * 1024, "{} bytes came", run.stdout.len());
    assert!(run.stdout.len() > 500_000, "only {} bytes came", run.stdout.len());
    fleet.muster(&["exec", "--", "true"]).expect_code(0);
}

#[test]
fn time_limit_ends_all_children() {
    let fleet = Fleet::start();
    let mark = fleet.home.path().join("pids");
    // One that ignores SIGTERM, in a session of its own.
    let script = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 1000' & echo $$ >> {0}; sleep 1000",
        mark.display()
    );
    fleet.muster(&["exec", "--timeout", "1s", "--", "sh", "-c", &script]).expect_code(1).expect_stderr("timed out");
    let pids = fs::read_to_string(&mark).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        eventually("the end of what was forked", || match fs::read_to_string(format!("/proc/{pid}/cmdline")) {
            Ok(line) if line.contains("pids") => Err(format!("{pid} still runs: {line}")),
            _ => Ok(()),
        });
    }
}

#[test]
fn command_survives_agent_and_is_answered_once() {
    let mut fleet = Fleet::start();
    let mark = fleet.home.path().join("runs");
    let script = format!("echo run >> {}; sleep 3; echo survived; exit 5", mark.display());
    fleet.muster(&["exec", "--no-wait", "--", "sh", "-c", &script]).expect_code(0);
    eventually("the start of the command", || fs::read_to_string(&mark).map_err(|error| error.to_string()));
    fleet.kill();
    fleet.again();
    let shown = eventually("the outcome", || {
        let commands = fleet.json(&["command", "ls"]);
        let done = commands[0]["hosts"][0]["state"] == "done";
        if done { Ok(commands[0].clone()) } else { Err(commands.to_string()) }
    });
    assert_eq!(shown["hosts"][0]["outcome"]["value"]["exit"]["code"], 5);
    assert_eq!(fs::read_to_string(&mark).unwrap(), "run\n");
}
