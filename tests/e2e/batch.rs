//! `muster exec --batch`: several programs in one command, and one outcome.

use std::fs;

use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file};

fn outcome(fleet: &Fleet) -> Value {
    let id = fleet.json(&["command", "ls"])[0]["id"].as_str().unwrap().to_owned();
    fleet.json(&["command", "show", &id])["hosts"][0]["outcome"]["value"].clone()
}

fn statuses(outcome: &Value) -> Vec<String> {
    let steps = outcome["steps"].as_array().unwrap_or_else(|| panic!("{outcome}"));
    steps.iter().map(|step| step["status"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn steps_run_in_order_until_one_fails() {
    let fleet = Fleet::start();
    let mark = fleet.home.path().join("mark").display().to_string();
    let steps = format!(
        "- argv: [echo, first]\n- shell: echo $A; echo err >&2\n  env: {{A: second}}\n  cwd: /usr\n\
         - argv: [cat]\n  stdin: third\n- shell: exit 4\n- argv: [touch, {mark}]\n"
    );
    let steps = file(&fleet.home, "steps.yaml", &steps);
    let run = fleet.muster(&["exec", "--batch", &steps]).expect_code(1);
    assert_eq!(run.stdout, "first\nsecond\nthird");
    for words in ["err", "step 1 (echo first): ok", "step 4", "exit code 4", "step 5", "not begun"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert!(fs::metadata(&mark).is_err(), "nothing comes after a failure");
    let outcome = outcome(&fleet);
    assert_eq!(outcome["status"], "batch");
    assert_eq!(statuses(&outcome), ["exited"; 4]);
    assert_eq!(outcome["steps"][1]["stdout_bytes"], json!(7));
    assert_eq!(outcome["steps"][3]["exit"], json!({"code": 4}));
    assert!(fleet.ok(&["command", "ls"]).contains("batch of 5 steps"));

    let run = fleet.muster(&["exec", "--keep-going", "--batch", &steps]).expect_code(1);
    assert!(fs::metadata(&mark).is_ok() && run.stderr.contains("): ok"), "{run:?}");
}

#[test]
fn invalid_step_is_refused_by_type() {
    let fleet = Fleet::start();
    let steps = "- argv: [/no/such/program]\n- argv: ['true']\n  user: no-such-user\n- argv: [echo, on]\n";
    let steps = file(&fleet.home, "steps.yaml", steps);
    let run = fleet.muster(&["exec", "--keep-going", "--batch", &steps]).expect_code(1);
    assert_eq!(run.stdout, "on\n");
    let outcome = outcome(&fleet);
    let codes: Vec<_> = outcome["steps"].as_array().unwrap().iter().map(|step| step["code"].clone()).collect();
    assert_eq!(codes, [json!("no_such_file"), json!("unknown_user"), Value::Null]);
}

#[test]
fn output_of_many_steps_is_in_order() {
    let fleet = Fleet::start();
    let step = |n: u32| format!("- argv: [seq, '{}', '{}']\n", n * 10_000 + 1, (n + 1) * 10_000);
    let steps = file(&fleet.home, "steps.yaml", &(0..12).map(step).collect::<String>());
    let output = fleet.ok(&["exec", "--batch", &steps]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 120_000);
    assert!(lines.iter().zip(1..).all(|(line, n)| *line == n.to_string()));
    let told: u64 =
        outcome(&fleet)["steps"].as_array().unwrap().iter().map(|step| step["stdout_bytes"].as_u64().unwrap()).sum();
    assert_eq!(told, output.len() as u64);
}

#[test]
fn all_faults_of_the_file_are_named() {
    let fleet = Fleet::start();
    for (text, words) in [
        (
            "- argv: [echo]\n  cwdd: /\n  timeout: soon\n- {}\n",
            vec!["step 1: cwdd", "`cwd`", "step 1: timeout", "step 2"],
        ),
        ("- argv: [a]\n  argv: [b]\n", vec!["argv"]),
        ("[{\"argv\":[\"a\"],\"argv\":[\"b\"]}]", vec!["argv"]),
        ("argv: [a]", vec!["list"]),
        ("[]", vec!["from 1 to 32"]),
        ("- argv: [a\n", vec!["steps.yaml"]),
    ] {
        let steps = file(&fleet.home, "steps.yaml", text);
        let run = fleet.muster(&["exec", "--batch", &steps]).expect_code(2);
        for words in words {
            assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
        }
    }
    fleet.muster(&["exec", "--batch", "/no/such/file"]).expect_code(2).expect_stderr("/no/such/file");
    fleet.muster(&["exec", "--keep-going", "--", "true"]).expect_code(2);
    let secret = file(&fleet.home, "steps.yaml", "- argv: [env]\n  env: {A: b}\n");
    fleet.muster(&["exec", "--all", "--batch", &secret]).expect_stderr("every host can read it");
    assert_eq!(fleet.json(&["command", "ls"]).as_array().unwrap().len(), 0);
}

#[test]
fn batch_survives_kill_and_runs_each_step_once() {
    let mut fleet = Fleet::start();
    let effects = fleet.home.path().join("effects");
    let gate = fleet.home.path().join("gate");
    let (at, open) = (effects.display(), gate.display());
    let steps = format!(
        "- shell: echo one >> {at}; echo out one\n- argv: [/no/such]\n\
         - shell: echo two >> {at}; echo out two; while ! test -e {open}; do sleep 0.05; done\n\
         - shell: echo three >> {at}; echo out three\n"
    );
    let steps = file(&fleet.home, "steps.yaml", &steps);
    let id = fleet.ok(&["exec", "--no-wait", "--keep-going", "--batch", &steps]);
    let read = || fs::read_to_string(&effects).unwrap_or_default();
    eventually("the second step", || if read().contains("two") { Ok(()) } else { Err(read()) });
    fleet.kill();
    fs::write(&gate, "").unwrap();
    fleet.again();
    let outcome = eventually("the outcome", || {
        let shown = fleet.json(&["command", "show", id.trim()]);
        let outcome = shown["hosts"][0]["outcome"]["value"].clone();
        if outcome.is_object() { Ok(outcome) } else { Err(shown.to_string()) }
    });
    assert_eq!(statuses(&outcome), ["exited", "refused", "exited", "exited"], "{outcome}");
    assert_eq!(read(), "one\ntwo\nthree\n");
    let bytes: Vec<_> = outcome["steps"].as_array().unwrap().iter().map(|step| step["stdout_bytes"].clone()).collect();
    assert_eq!(bytes, [json!(8), Value::Null, json!(8), json!(10)]);
}

#[test]
fn cancel_ends_the_whole_batch() {
    let fleet = Fleet::start();
    let mark = fleet.home.path().join("mark").display().to_string();
    let steps = format!("- argv: [sleep, '1000']\n- argv: [touch, {mark}]\n");
    let steps = file(&fleet.home, "steps.yaml", &steps);
    let id = fleet.ok(&["exec", "--no-wait", "--keep-going", "--batch", &steps]);
    let host = || fleet.json(&["command", "show", id.trim()])["hosts"][0].clone();
    eventually("its start", || if host()["state"] == "running" { Ok(()) } else { Err(host().to_string()) });
    fleet.ok(&["command", "cancel", id.trim()]);
    eventually("its end", || if host()["state"] == "done" { Ok(()) } else { Err(host().to_string()) });
    assert_eq!(statuses(&host()["outcome"]["value"]), ["cancelled"]);
    assert!(fs::metadata(&mark).is_err());
}
