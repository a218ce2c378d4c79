//! `muster exec`: each option, and its misuse.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use nix::unistd::geteuid;
use serde_json::Value;

use crate::{
    fleet::{Fleet, Running, eventually, file},
    roles::Roles,
};

/// The outcome of the newest command.
fn outcome(fleet: &Fleet) -> Value {
    let id = fleet.json(&["command", "ls"])[0]["id"].as_str().unwrap().to_owned();
    fleet.json(&["command", "show", &id])["hosts"][0]["outcome"]["value"].clone()
}

#[test]
fn shell_is_used_only_on_request() {
    let fleet = Fleet::start();
    assert_eq!(fleet.ok(&["exec", "--", "echo", "a | b", "$HOME", "*"]), "a | b $HOME *\n");
    assert_eq!(fleet.ok(&["exec", "--shell", "--", "echo b a | tr ' ' '\\n' | sort"]), "a\nb\n");
    assert!(fleet.ok(&["command", "ls"]).contains("sh -c \"echo b a"));
    fleet.muster(&["exec", "--shell", "--", "echo", "a"]).expect_code(2).expect_stderr("quotes");
    fleet.muster(&["exec", "--passthrough", "--shell", "--", "exit 9"]).expect_code(9);
}

#[test]
fn standard_input_is_passed() {
    let fleet = Fleet::start();
    let words = file(&fleet.home, "words", "b\na\n\"quoted\" \\ and more\n");
    assert_eq!(fleet.ok(&["exec", "--stdin", &words, "--", "sort"]), "\"quoted\" \\ and more\na\nb\n");
    assert_eq!(fleet.ok(&["exec", "--", "cat"]), "", "without one there is nothing to read");
    let bytes: Vec<u8> = (0..32 * 1024_u32).map(|n| (n % 251) as u8).collect();
    let largest = fleet.home.path().join("largest");
    fs::write(&largest, &bytes).unwrap();
    let sum = Command::new("sha256sum").stdin(fs::File::open(&largest).unwrap()).output().unwrap().stdout;
    let largest = largest.to_str().unwrap();
    assert_eq!(fleet.ok(&["exec", "--stdin", largest, "--", "sha256sum"]).as_bytes(), sum);
    // As a text in a signed body these would be three times as long.
    let lines = file(&fleet.home, "lines", &"\n".repeat(32 * 1024));
    assert_eq!(fleet.ok(&["exec", "--stdin", &lines, "--", "wc", "-l"]).trim(), "32768");

    let mut command = fleet.home.command();
    command.args(["exec", "--stdin", "-", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"from a pipe");

    let large = file(&fleet.home, "large", &"x".repeat(32 * 1024 + 1));
    fleet.muster(&["exec", "--stdin", &large, "--", "cat"]).expect_code(2).expect_stderr("32");
    fleet.muster(&["exec", "--stdin", "/dev/zero", "--", "cat"]).expect_code(2).expect_stderr("/dev/zero");
    fleet.muster(&["exec", "--stdin", "/no/such", "--", "cat"]).expect_code(2).expect_stderr("/no/such");
    fleet.muster(&["exec", "--all", "--stdin", &words, "--", "cat"]).expect_stderr("every host can read it");
    fleet.muster(&["exec", "--all", "--env", "A=b", "--", "env"]).expect_stderr("every host can read it");
    // Not even those who may list commands see what was read.
    let commands = fleet.json(&["command", "ls"]);
    for command in commands.as_array().unwrap() {
        assert!(!command["verb"].to_string().contains("quoted"), "{command}");
    }
}

#[test]
fn streams_are_shown_live_late_or_never() {
    let fleet = Fleet::start();
    let gate = fleet.home.path().join("gate");
    let script =
        format!("echo early; echo trouble >&2; while ! test -e {}; do sleep 0.1; done; echo late", gate.display());
    let args = ["exec", "--stdout", "capture", "--shell", "--", &script];
    let mut exec = Running::start(fleet.home.command().args(args));
    exec.wait_for("the stream", |printed| printed.contains("trouble").then_some(()));
    assert!(!exec.printed().contains("early"), "{}", exec.printed());
    fs::write(gate, "").unwrap();
    exec.wait_for("what was captured", |printed| printed.contains("early\nlate").then_some(()));

    let both = "echo out; echo err >&2; at=$(readlink /proc/$$/fd/1); echo $at >&2";
    let run = fleet.muster(&["exec", "--stdout", "drop", "--shell", "--", both]).expect_code(0);
    let host = format!("on {}\n", fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap());
    assert_eq!((run.stdout, run.stderr), (String::new(), format!("{host}err\n/dev/null\n")));
    let run = fleet.muster(&["exec", "--stderr", "drop", "--shell", "--", both]).expect_code(0);
    assert_eq!((run.stdout, run.stderr), ("out\n".to_owned(), host));
    fleet.muster(&["exec", "--stdout", "return", "--", "true"]).expect_code(2).expect_stderr("capture");
}

#[test]
fn output_limit_applies_per_stream_and_is_reported() {
    let fleet = Fleet::start();
    let script = "head -c 5000 /dev/zero | tr '\\0' o; head -c 5000 /dev/zero | tr '\\0' e >&2";
    let args = ["exec", "--output-max", "3K", "--stderr-max", "10", "--shell", "--", script];
    let run = fleet.muster(&args).expect_code(0);
    assert_eq!(run.stdout.len(), 3 * 1024);
    assert!(run.stderr.contains("eeeeeeeeee") && !run.stderr.contains("eeeeeeeeeee"), "{}", run.stderr);
    assert!(run.stderr.contains("stdout was cut") && run.stderr.contains("stderr was cut"), "{}", run.stderr);
    let outcome = outcome(&fleet);
    let dropped = |stream: &str| outcome[stream]["dropped_bytes"].as_u64().unwrap();
    assert_eq!((dropped("stdout"), dropped("stderr")), (5_000 - 3 * 1024, 4_990));
    fleet.muster(&["exec", "--output-max", "1G", "--", "true"]).expect_stderr("bytes of an output stream");
}

#[test]
fn refusals_have_types() {
    let fleet = Fleet::start();
    let plain = file(&fleet.home, "plain", "nothing that runs");
    fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    for (args, code, words) in [
        (vec!["--", "/no/such/program"], "no_such_file", "/no/such/program"),
        (vec!["--", "no-such-program"], "no_such_file", "no-such-program"),
        (vec!["--", plain.as_str()], "not_executable", "plain"),
        (vec!["--cwd", "/no/such", "--", "true"], "no_such_folder", "/no/such"),
        (vec!["--cwd", plain.as_str(), "--", "true"], "no_such_folder", "plain"),
        (vec!["--user", "no-such-user", "--", "true"], "unknown_user", "no-such-user"),
        (vec!["--env", "LD_PRELOAD=/tmp/x.so", "--", "true"], "denied", "LD_PRELOAD"),
        (vec!["--env", "LD_LIBRARY_PATH=/tmp", "--", "true"], "denied", "allow_env"),
        (vec!["--env", "BASH_ENV=/tmp/x", "--", "true"], "denied", "bash"),
    ] {
        fleet.muster(&[&["exec"], args.as_slice()].concat()).expect_code(3).expect_stderr(words);
        assert_eq!(
            (outcome(&fleet)["status"].as_str(), outcome(&fleet)["code"].as_str()),
            (Some("refused"), Some(code))
        );
    }
    // A way there that is not straight is the operator's business.
    fleet.ok(&["exec", "--cwd", "/usr/../usr/./bin", "--", "true"]);
}

#[test]
fn contradictory_options_are_refused() {
    let fleet = Fleet::start();
    for (args, words) in [
        (vec!["--env", "=x", "--", "true"], "NAME=VALUE"),
        (vec!["--timeout", "0s", "--", "true"], "one millisecond"),
        (vec!["--timeout", "8d", "--", "true"], "seven days"),
        (vec!["--output-max", "many", "--", "true"], "output-max"),
        (vec!["--", ""], "argv"),
        (vec!["--shell", "--", " "], "shell"),
    ] {
        let run = fleet.muster(&[&["exec"], args.as_slice()].concat());
        assert!(run.code != 0, "{args:?}");
        run.expect_stderr(words);
    }
    assert_eq!(fleet.json(&["command", "ls"]).as_array().unwrap().len(), 0);
}

#[test]
fn another_user_with_all_its_groups() {
    if !geteuid().is_root() {
        return;
    }
    let fleet = Fleet::start();
    let wanted = Command::new("id").args(["-G", "nobody"]).output().unwrap().stdout;
    assert_eq!(fleet.ok(&["exec", "--user", "nobody", "--", "id", "-G"]).as_bytes(), wanted);
    assert_eq!(fleet.ok(&["exec", "--user", "nobody", "--shell", "--", "echo $USER $HOME; id -un"]).lines().count(), 2);
}

#[test]
fn policy_decides_allowed_variables() {
    let roles = Roles::start();
    let config = roles.agent_config_with("[policy]\nallow_env = ['LD_LIBRARY_PATH']\ndeny_env = ['AWS_*']");
    let _agent = Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]));
    roles.wait_for_host("online");
    let set = |variable: &str| roles.home.muster(&["exec", "--env", variable, "--", "true"]);
    set("LD_LIBRARY_PATH=/tmp").expect_code(0);
    set("LD_PRELOAD=/tmp/x").expect_code(3).expect_stderr("LD_PRELOAD");
    set("AWS_SECRET=x").expect_code(3).expect_stderr("policy");
    let bad = roles.agent_config_with("[policy]\ndeny_env = ['A=B']");
    roles.home.muster(&["agent", "--config", &bad]).expect_code(2).expect_stderr("A=B");
}

/// Whether a process lives whose command line has a text.
fn lives(marker: &str) -> bool {
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        fs::read(entry.path().join("cmdline")).ok()
    });
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(marker))
}

/// One that forks twice, each time into a session of its own, and ignores SIGTERM.
fn daemon(marker: &str, started: &str) -> String {
    format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; (setsid sh -c \"echo {marker} >> {started}; sleep 1000; : {marker}\" &) &'; \
         sleep 1000; : {marker}"
    )
}

#[test]
fn timed_out_or_cancelled_command_leaves_nothing() {
    let fleet = Fleet::start();
    let started = fleet.home.path().join("started").display().to_string();
    let marker = format!("leaves-nothing-{}", std::process::id());
    let script = daemon(&marker, &started);
    fleet.muster(&["exec", "--timeout", "1s", "--shell", "--", &script]).expect_code(1).expect_stderr("timed out");
    assert!(fs::read_to_string(&started).is_ok(), "the grandchild had begun");
    assert!(!lives(&marker), "it is over when its outcome is told");

    fs::remove_file(&started).unwrap();
    let id = fleet.ok(&["exec", "--no-wait", "--shell", "--", &script]);
    eventually("the grandchild", || fs::read_to_string(&started).map_err(|error| error.to_string()));
    fleet.ok(&["command", "cancel", id.trim()]);
    eventually("the outcome", || {
        let outcome = outcome_of(&fleet, id.trim());
        if outcome["status"] == "cancelled" { Ok(()) } else { Err(outcome.to_string()) }
    });
    assert!(!lives(&marker));
}

fn outcome_of(fleet: &Fleet, id: &str) -> Value {
    fleet.json(&["command", "show", id])["hosts"][0]["outcome"]["value"].clone()
}

#[test]
fn fork_bomb_ends_with_its_command() {
    let fleet = Fleet::start();
    let marker = format!("fork-bomb-{}", std::process::id());
    let bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)\n";
    let args = ["exec", "--pids", "40", "--timeout", "2s", "--", "python3", "-c", bomb, &marker];
    let run = fleet.muster(&args);
    if run.stderr.contains("cannot be limited here") {
        // This machine has no cgroup for it: then it was not even begun.
        return assert!(!lives(&marker));
    }
    run.expect_code(1).expect_stderr("timed out");
    assert!(!lives(&marker));
    assert_eq!(fleet.ok(&["exec", "--pids", "3", "--", "echo", "fine"]), "fine\n");
}
