//! A secret in everything that can speak: it is said, and nobody hears it.

use std::fs;

use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, Running, eventually, file},
    sealed::assert_absent,
    wire::{mosquitto, of_host, payloads},
};

const SECRET: &str = "xk4-\"the\" value/of+a&secret";

/// What no text has of it: as it is and escaped for JSON, in base64 with the lines around it, and by itself.
const HIDDEN: [&str; 3] = ["value/of+a&secret", "InRoZSIgdmFsdWUvb2YrYSZzZWNyZ", "aGUiIHZhbHVlL29mK2Em"];

/// It says what it was given, and ends.
const PROGRAM: &str = "#!/bin/sh\necho \"env $PW\"\nprintf %s \"$PW\" | base64\nsleep 1\nexit 3\n";

struct Bench {
    fleet: Fleet,
}

impl Bench {
    fn apply(&self, name: &str, fields: Value) {
        let mut document = json!({"unit": format!("default/{name}"), "run": "running"});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let path = file(&self.fleet.home, &format!("{name}.json"), &document.to_string());
        self.fleet.ok(&["unit", "apply", &path, "--no-wait"]);
    }

    /// Waits until a verb prints these words, and returns everything that it prints.
    #[track_caller]
    fn prints(&self, argv: &[&str], words: &str) -> String {
        eventually(words, || {
            let run = self.fleet.muster(argv);
            let printed = format!("{}{}", run.stdout, run.stderr);
            if printed.contains(words) { Ok(printed) } else { Err(printed) }
        })
    }
}

#[test]
fn secret_is_masked_in_everything_that_can_speak() {
    let mut bench = Bench { fleet: Fleet::start() };
    let fleet = &bench.fleet;
    let (host, observer) = (fleet.host(), fleet.issue("observer", "reader"));
    let mut reader = Running::start(mosquitto("mosquitto_sub", fleet, &observer).args(["-v", "-t", "muster/#"]));
    let presence = of_host(&host, "presence");
    reader.wait_for("retained presence", |printed| (!payloads(printed, &presence).is_empty()).then_some(()));
    let secret = file(&fleet.home, "secret", SECRET);
    fleet.ok(&["secret", "set", "pw", "--file", &secret]);
    let program = file(&fleet.home, "program", PROGRAM);
    fleet.ok(&["artifact", "create", &program, "--role", "program", "--version", "1"]);

    let folder = fleet.home.path().canonicalize().unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let template = json!({"template": "[db]\npw={{ secret('pw') }}\n"});
    let with_validator = |script: &str| {
        let mut entry = template.clone();
        entry["validate"] = json!(["/bin/sh", "-c", script, "{}"]);
        json!({"kind": "files", "files": {at("quoted.conf"): entry}})
    };
    // A validator, which quotes the line that it refuses.
    bench.apply("quotes", with_validator("sed 's/^/bad line: /' \"$0\" >&2; base64 \"$0\" >&2; exit 1"));
    // A program after a change.
    let tells = at("tells.conf");
    let run = ["/bin/sh", "-c", "cat \"$0\"; base64 \"$0\"; echo told", &tells];
    bench.apply("tells", json!({"kind": "files", "files": {&tells: template}, "on_change": [{"do": {"run": run}}]}));
    // A process with its last lines, and its probe.
    let probe = json!({"exec": ["/bin/sh", "-c", "echo \"probe $PW\"; exit 1"], "timeout_ms": 5_000});
    let env = json!({"PW": "{{ secret('pw') }}"});
    bench.apply("speaks", json!({"artifact": "program@1", "render": true, "env": env, "probes": {"ready": probe}}));

    let fleet = &bench.fleet;
    let mut heard = bench.prints(&["-o", "json", "unit", "show", "default/quotes"], "bad line: pw=***");
    heard += &bench.prints(&["unit", "tasks", "default/quotes"], "pw=***");
    heard += &bench.prints(&["-o", "json", "unit", "tasks", "default/tells"], "it has ended with code 0");
    let tasks = fleet.json(&["unit", "tasks", "default/tells"]);
    let tasks = tasks["tasks"].as_array().unwrap();
    let number = tasks.iter().find(|task| task["action"] == "notify").unwrap()["number"].to_string();
    let log = bench.prints(&["unit", "tasks", "default/tells", "--task", &number], "told");
    assert!(log.contains("pw=***") && log.contains("[db]"), "{log}");
    heard += &log;
    heard += &bench.prints(&["-o", "json", "unit", "show", "default/speaks"], "env ***");
    let log = bench.prints(&["yuno", "logs", "default/speaks"], "env ***");
    heard += &log;
    heard += &bench.prints(&["plan", &at("quotes.json")], "quotes");
    assert_eq!(fs::read_to_string(&tells).unwrap(), format!("[db]\npw={SECRET}\n"), "the file itself has it");
    heard += &fleet.json(&["command", "ls"]).to_string();
    heard += &reader.stop().1;
    assert!(heard.contains("bad line: pw=***"), "the bus has it");
    heard += &bench.fleet.stop();
    for hidden in HIDDEN {
        let at = heard.find(hidden).map(|at| heard[..at].chars().rev().take(200).collect::<Vec<_>>());
        assert_eq!(at.map(|before| before.into_iter().rev().collect::<String>()), None, "{hidden}");
    }
    let data = bench.fleet.data();
    assert_absent(&data.join("console"), &HIDDEN);
    for store in ["agent.db", "agent.db-wal"] {
        let content = fs::read(data.join("agent").join(store)).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        assert!(!HIDDEN.iter().any(|hidden| content.contains(hidden)), "{store}");
    }
}
