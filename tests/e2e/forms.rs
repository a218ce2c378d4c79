//! Output for programs: with `-o json` standard output has one document, or one on each line, or nothing.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::fleet::{Fleet, Home, eventually, file};

/// What stands on standard output with `-o json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One document.
    Document,
    /// One on each line, and at least one line.
    Lines,
    /// Nothing.
    Nothing,
}

use Form::{Document, Lines, Nothing};

/// Each verb in lines that are typed, one after the other, with what stands on standard output and the exit code. What
/// is in braces is put in.
const VERBS: &[(&str, Form, i32)] = &[
    // What prints text has no other form.
    ("agent install --dry-run", Nothing, 2),
    ("agent uninstall", Nothing, 2),
    ("agent detach", Nothing, 2),
    ("agent --print-config", Nothing, 2),
    ("console init", Nothing, 2),
    ("console issue --role operator --name x --out {dir}/x", Nothing, 2),
    ("console certificates", Nothing, 2),
    ("console revoke x", Nothing, 2),
    ("broker render --program mosquitto --console main", Nothing, 2),
    ("broker password operator-anna", Nothing, 2),
    ("completions bash", Nothing, 2),
    ("man --out {dir}/man", Nothing, 2),
    ("doctor", Document, 0),
    ("host ls", Document, 0),
    ("host show", Document, 0),
    ("host refresh", Nothing, 0),
    ("host show nobody", Nothing, 3),
    ("token create", Document, 0),
    ("token create --count 2", Document, 0),
    ("token ls", Document, 0),
    ("token revoke {token}", Nothing, 0),
    ("authority show", Document, 0),
    ("authority show", Document, 0),
    ("authority finish", Nothing, 3),
    ("authority rotate signing", Document, 0),
    ("authority cancel", Document, 0),
    ("authority rotate signing", Document, 0),
    ("authority finish", Document, 0),
    ("authority rotate root", Document, 0),
    ("authority rotate signing", Nothing, 3),
    ("authority cancel", Document, 0),
    ("login ls", Document, 0),
    ("login --new-link", Document, 0),
    ("login revoke nobody", Nothing, 3),
    ("exec -- echo it", Lines, 0),
    ("exec --no-wait -- echo it", Lines, 0),
    ("exec --shell -- 'printf a; printf b >&2; exit 3'", Lines, 1),
    ("exec --daemon -- sleep 1000", Lines, 0),
    ("exec --batch {batch}", Lines, 0),
    ("exec --host nobody -- echo it", Nothing, 3),
    ("command ls", Document, 0),
    ("command show {command}", Document, 0),
    ("command cancel {command}", Nothing, 0),
    ("host label canary=yes", Document, 0),
    ("host label", Document, 0),
    ("artifact create {script} --role sleeper --version 1", Document, 0),
    ("artifact create {script} --role sleeper --version 2", Document, 0),
    ("artifact ls", Document, 0),
    ("artifact show sleeper", Document, 0),
    ("artifact rm sleeper@2", Nothing, 0),
    ("artifact gc --dry-run", Document, 0),
    ("config create app.main 1 {config}", Document, 0),
    ("config ls", Document, 0),
    ("config show app.main", Document, 0),
    ("config diff app.main@1 app.main@1", Document, 0),
    ("secret set db --file {config}", Document, 0),
    ("secret ls", Document, 0),
    ("secret show db", Document, 0),
    ("secret history db", Document, 0),
    ("secret rotate-key", Document, 0),
    ("secret rm db", Nothing, 0),
    ("realm create shop", Nothing, 0),
    ("realm ls", Document, 0),
    ("realm endpoints", Document, 0),
    ("realm show shop", Document, 0),
    ("realm set shop --enabled no", Nothing, 0),
    ("realm rm shop", Nothing, 0),
    ("unit create yuno default/a --artifact sleeper --config app.main --run", Document, 0),
    ("unit create yuno default/b --artifact sleeper --run --no-wait", Document, 0),
    ("unit create yuno default/a --artifact sleeper --arg x", Nothing, 3),
    ("unit run default/a", Document, 0),
    ("yuno play default/a", Document, 3),
    ("yuno pause default/a", Document, 0),
    ("yuno command default/a tempo", Document, 1),
    ("yuno stats default/a", Document, 1),
    ("unit restart default/a", Document, 0),
    ("unit restart default/a", Document, 0),
    ("unit upgrade --dry-run", Document, 0),
    ("unit signal HUP default/a", Document, 0),
    ("unit freeze default/a", Document, 0),
    ("unit thaw default/a", Document, 0),
    ("unit ls", Document, 0),
    ("unit show default/a", Document, 0),
    ("unit logs default/a", Lines, 0),
    ("unit logs --select role=sleeper", Lines, 0),
    ("unit logs -f --for 300ms default/a", Lines, 0),
    ("unit config default/a", Document, 0),
    ("unit stop --all --yes", Document, 0),
    ("unit stop default/none", Nothing, 3),
    ("unit quota default/none --cpu 1", Nothing, 3),
    ("status", Document, 0),
    ("ps", Document, 0),
    ("apply {unit} --dry-run", Document, 0),
    ("apply {unit}", Document, 0),
    ("apply {config}", Nothing, 2),
    ("logs default/a", Lines, 0),
    ("context ls", Document, 0),
    ("context use nowhere", Nothing, 2),
    ("context rm nowhere", Nothing, 2),
    ("unit ls", Document, 0),
    ("unit show default/a", Document, 0),
    ("unit tasks default/a", Nothing, 2),
    ("unit exec default/none -- true", Nothing, 3),
    ("unit create files", Nothing, 2),
    ("unit create packages", Nothing, 2),
    ("unit export", Document, 0),
    ("unit apply {unit}", Document, 0),
    ("unit apply {unit} --dry-run", Document, 0),
    ("unit hold default/a", Document, 0),
    ("unit unhold default/a", Document, 0),
    ("unit label default/a --set tier=gold", Document, 0),
    ("snapshot create one", Nothing, 0),
    ("snapshot ls", Document, 0),
    ("snapshot diff one", Document, 0),
    ("snapshot activate one", Document, 0),
    ("snapshot deactivate one", Document, 0),
    ("snapshot rm one", Nothing, 0),
    ("unit retire --all --yes", Document, 0),
    ("unit rm default/a", Document, 0),
    ("unit rm --all --yes", Document, 0),
    ("config rm app.main@1", Nothing, 0),
    ("deployment schema", Document, 0),
    ("deployment apply {deployment} --dry-run", Document, 0),
    ("plan {deployment}", Document, 0),
    ("plan {unit}", Nothing, 2),
    ("deployment apply {deployment}", Document, 0),
    ("deployment apply {unit}", Nothing, 2),
    ("unit apply {deployment}", Nothing, 2),
    ("deployment ls", Document, 0),
    ("deployment show default/fleet", Document, 0),
    ("deployment export default/fleet", Document, 0),
    ("deployment history default/fleet", Document, 0),
    ("deployment diff default/fleet", Document, 0),
    ("deployment changes", Document, 0),
    ("deployment changes default/fleet -n 1", Document, 0),
    ("deployment watch default/fleet", Lines, 0),
    ("deployment rollback default/fleet", Nothing, 3),
    ("unit detach default/d", Document, 0),
    ("deployment adopt default/fleet default/d", Document, 0),
    ("deployment confirm --dry-run", Document, 0),
    ("deployment sync", Document, 0),
    ("deployment apply {rollout}", Document, 0),
    ("rollout ls", Document, 0),
    ("rollout ls default/wave", Document, 0),
    ("rollout show default/wave", Document, 0),
    ("rollout hosts default/wave", Document, 0),
    ("rollout watch default/wave", Lines, 0),
    ("rollout pause default/wave", Nothing, 3),
    ("rollout resume default/wave", Nothing, 3),
    ("rollout promote default/wave", Nothing, 3),
    ("rollout retry default/wave", Nothing, 3),
    ("rollout cancel default/wave --yes", Nothing, 3),
    ("rollout release default/wave --host nobody", Nothing, 3),
    ("deployment rm default/wave --yes", Document, 0),
    ("host cordon --all", Document, 0),
    ("host cordon", Document, 0),
    ("host uncordon --all", Document, 0),
    ("deployment rm default/fleet --dry-run", Document, 0),
    ("deployment rm default/fleet --yes", Document, 0),
    ("host drain --all --yes", Document, 0),
    ("host uncordon --all", Document, 0),
    ("var set lanes 3 --json", Document, 0),
    ("var ls", Document, 0),
    ("var rm lanes", Nothing, 0),
    ("render {script} --host {host}", Document, 0),
    ("render --unit default/none --host {host}", Nothing, 3),
    ("render --host {host}", Nothing, 2),
    // There is no runtime.
    ("unit create container default/c --image docker.io/library/none:1 --timeout 10s", Document, 1),
    ("container clone default/none default/d", Nothing, 3),
    ("container adopt none --as default/e --timeout 10s", Document, 1),
    ("rule set fuller --metric disk_used --level 99%", Document, 0),
    ("alert ls", Document, 0),
    ("alert history", Document, 0),
    ("rule ls", Document, 0),
    ("rule rm fuller", Nothing, 0),
    ("silence create --reason test", Document, 0),
    ("silence ls", Document, 0),
    ("silence rm {silence}", Nothing, 0),
    ("metric query 1+1", Document, 0),
    ("metric query '\"text\"'", Document, 0),
    ("metric query up --csv", Nothing, 2),
    ("metric ls", Document, 0),
    ("metric export up", Nothing, 2),
    ("metric stores", Document, 0),
    ("top", Document, 0),
    ("backup create-key", Document, 0),
    ("backup create-key --out {dir}/backup-key", Document, 0),
    ("backup create", Nothing, 3),
    ("backup ls", Document, 0),
    ("backup verify {config} --identity {dir}/backup-key", Nothing, 2),
    ("backup restore {config} --identity {dir}/backup-key --data-dir {dir}/restored", Nothing, 2),
    ("clock show", Document, 0),
    ("clock confirm --yes", Document, 0),
    ("dashboard export --out {dir}/dashboards", Document, 0),
    ("ycommand -c list-yunos -c list-configs", Lines, 0),
    // It adds hosts.
    ("simulate --hosts 1 --for 1s --every 300ms", Lines, 0),
    ("host revoke --yes sim-00000", Nothing, 0),
    ("host rm --yes sim-00000", Nothing, 0),
];

/// The words of a line as a shell would take them.
fn words(line: &str, put_in: impl Fn(&str) -> String) -> Vec<String> {
    let mut all = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => all.extend(part.split_whitespace().map(str::to_owned)),
            _ => all.push(part.to_owned()),
        }
    }
    for word in &mut all {
        while let (Some(begin), Some(end)) = (word.find('{'), word.find('}')) {
            let value = put_in(&word[begin + 1..end]);
            word.replace_range(begin..=end, &value);
        }
    }
    all
}

/// What one verb printed, as values.
#[track_caller]
fn values(line: &str, stdout: &str, form: Form) -> Vec<Value> {
    let parse = |text: &str| {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{line}: no JSON ({error}): {text:?} of {stdout:?}"))
    };
    let values: Vec<Value> = match form {
        Document => vec![parse(stdout)],
        Lines => stdout.lines().map(parse).collect(),
        Nothing => Vec::new(),
    };
    assert_eq!(values.is_empty(), stdout.is_empty(), "{line}: {form:?} is wanted: {stdout}");
    values
}

/// The verbs that there are, by what help lists.
fn leaves(home: &Home, verb: &[String], found: &mut BTreeSet<String>) {
    let mut words: Vec<&str> = verb.iter().map(String::as_str).collect();
    words.push("--help");
    // All verbs of the program stand in groups.
    let help = home.muster(if verb.is_empty() { &["help", "--all"] } else { &words }).expect_code(0).stdout;
    let listed = match verb {
        [] => help.split_once("\nEverywhere:").map(|(groups, _)| groups),
        _ => help.split_once("Commands:\n").map(|(_, rest)| rest.split("\n\n").next().unwrap_or_default()),
    };
    let Some(listed) = listed else {
        found.insert(verb.join(" "));
        return;
    };
    // What goes on in a second line is indented further.
    let names = listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        leaves(home, &[verb, &[name.to_owned()]].concat(), found);
    }
}

#[test]
fn every_verb_prints_json_or_nothing_to_standard_output() {
    let fleet = Fleet::start();
    let script = file(&fleet.home, "sleeper", "#!/bin/sh\necho begun\nexec sleep 1000\n");
    let config = file(&fleet.home, "app.json", "{\"a\": 1}");
    let batch = file(&fleet.home, "batch.yaml", "- argv: [echo, one]\n- shell: echo two\n");
    let unit = "unit: default/a\nkind: yuno\nartifact: sleeper@1\nconfigs: [app.main@1]\nrun: running\n";
    let unit = file(&fleet.home, "unit.yaml", unit);
    let deployment = "deployment: default/fleet\ntarget: {select: 'host=*'}\nunits:\n\
                      - {name: d, artifact: sleeper@1, verify_after_ms: 300}\n";
    let deployment = file(&fleet.home, "deployment.yaml", deployment);
    let rollout = "deployment: default/wave\ntarget: {select: 'host=*'}\nrollout: {soak: 0}\nunits:\n\
                   - {name: w, artifact: sleeper@1, verify_after_ms: 300}\n";
    let rollout = file(&fleet.home, "rollout.yaml", rollout);
    let first = |args: &[&str], field: &str| fleet.json(args)[0][field].as_str().unwrap().to_owned();
    let put_in = |name: &str| match name {
        "dir" => fleet.home.path().display().to_string(),
        "script" => script.clone(),
        "config" => config.clone(),
        "batch" => batch.clone(),
        "unit" => unit.clone(),
        "deployment" => deployment.clone(),
        "rollout" => rollout.clone(),
        "host" => fleet.host(),
        "token" => first(&["token", "ls"], "id"),
        "command" => first(&["command", "ls"], "id"),
        "silence" => first(&["silence", "ls"], "id"),
        other => panic!("nothing stands for {other}"),
    };
    // There is no unit yet that a hint could name.
    assert!(fleet.summary.contains("unit create --help") && !fleet.summary.contains("default/"), "{}", fleet.summary);
    let (mut all, mut faults) = (BTreeSet::new(), Vec::new());
    leaves(&fleet.home, &[], &mut all);
    for (line, form, code) in VERBS {
        let words = words(line, put_in);
        let args: Vec<&str> = ["-o", "json"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let run = fleet.muster(&args);
        let printed = std::panic::catch_unwind(|| values(line, &run.stdout, *form));
        if printed.is_err() || run.code != *code {
            faults.push(format!("{line}: {form:?} and {code} are wanted: {run:?}"));
        }
        all.retain(|verb| !(words.starts_with(&verb.split(' ').map(str::to_owned).collect::<Vec<_>>())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    // It goes on, and has a test of its own below.
    all.remove("up");
    // Verbs of one kind that stand for those of all units.
    all.retain(|verb| match verb.split_once(' ') {
        Some(("yuno" | "container", word)) => ["play", "pause", "command", "stats", "clone", "adopt"].contains(&word),
        _ => true,
    });
    assert!(all.is_empty(), "verbs that no line of the table has: {all:?}");
}

#[test]
fn output_and_outcomes_of_exec_are_events_for_programs() {
    let fleet = Fleet::start();
    let script = "echo one; sleep 0.3; echo two >&2; exit 3";
    let run = fleet.muster(&["-o", "json", "exec", "--shell", "--", script]).expect_code(1);
    let events = values("exec", &run.stdout, Lines);
    let host = fleet.host();
    assert_eq!(events[0]["event"], "command");
    assert_eq!(events[0]["verb"]["exec"]["shell"], script);
    let outcome = events.last().unwrap();
    assert_eq!((&outcome["event"], &outcome["host"]), (&"host".into(), &host.clone().into()));
    assert_eq!(outcome["outcome"]["value"]["exit"]["code"], 3, "{outcome}");
    let text = |stream: &str| -> String {
        let of = events.iter().filter(|event| event["event"] == "output" && event["stream"] == stream);
        of.map(|event| event["data"]["text"].as_str().unwrap_or("?")).collect()
    };
    assert_eq!(text("stdout"), "one\n");
    assert_eq!(text("stderr"), "two\n");
    let hostname = fleet.json(&["host", "show"])["hostname"].clone();
    let mut outputs = events.iter().filter(|event| event["event"] == "output");
    assert!(outputs.all(|event| event["host"] == host && event["hostname"] == hostname), "{}", run.stdout);
    let bytes = values("exec", &fleet.ok(&["-o", "json", "exec", "--", "printf", "\\377"]), Lines);
    assert_eq!(bytes[1]["data"]["base64"], "/w==", "{bytes:?}");
    // What a daemon is called from now on.
    let events = values("exec", &fleet.ok(&["-o", "json", "exec", "--daemon", "--", "sleep", "1000"]), Lines);
    assert!(events.iter().any(|event| event["unit"].as_str().is_some_and(|unit| unit.starts_with("default/exec-"))));
    // And for who reads YAML.
    let yaml = fleet.ok(&["-o", "yaml", "exec", "--", "echo", "it"]);
    assert!(yaml.starts_with("---\n") && yaml.contains("\nevent: output\n"), "{yaml}");
}

#[test]
fn lines_of_logs_are_objects_for_programs() {
    let fleet = Fleet::start();
    let script = file(&fleet.home, "talker", "#!/bin/sh\nprintf 'one\\ntwo \"quoted\"\\nno end'\nexec sleep 1000\n");
    fleet.ok(&["artifact", "create", &script, "--role", "talker", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "talker", "--run"]);
    let lines = eventually("its log", || {
        let stdout = fleet.ok(&["-o", "json", "yuno", "logs", "default/a"]);
        let lines = values("unit logs", &stdout, if stdout.is_empty() { Nothing } else { Lines });
        if lines.len() == 3 { Ok(lines) } else { Err(stdout) }
    });
    for (line, text) in lines.iter().zip(["one", "two \"quoted\"", "no end"]) {
        assert_eq!((&line["text"], &line["unit"]), (&text.into(), &"default/a".into()));
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert_eq!(line["host"].as_str(), Some(&fleet.host()[..]));
    }
}

#[test]
fn up_prints_json_for_programs() {
    let home = Home::new();
    let mut child = home
        .command()
        .args(["-o", "json", "up", "--no-sample", "--web-port", "0", "--mqtt-port", "0", "--hosts-port", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    let summary: Value = loop {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "it ended: {text}");
        if let Ok(summary) = serde_json::from_str(&text) {
            break summary;
        }
    };
    assert!(summary["web"].as_str().is_some_and(|url| url.starts_with("http://")), "{summary}");
    assert!(summary["sign_in"].is_null(), "{summary}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("", Some(0)));
}

/// Runs a verb whose standard output nobody reads; gives its exit code and what it complained of.
fn unread(command: &mut Command) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn closed_pipe_ends_verbs_quietly() {
    let fleet = Fleet::start();
    let host = fleet.json(&["host", "ls"])[0]["id"].as_str().unwrap().to_owned();
    for args in [
        &["completions", "bash"][..],
        &["host", "ls"],
        &["-o", "json", "host", "ls"],
        &["exec", "--host", &host, "--", "echo", "it"],
        &["broker", "render", "--program", "mosquitto", "--console", "main"],
        &["broker", "--print-config"],
        &["agent", "--print-config"],
        &["metric", "export", "{__name__=~\".+\"}"],
    ] {
        let (code, complaint) = unread(fleet.home.command().args(args));
        assert_eq!((code, complaint.as_str()), (Some(1), ""), "{args:?}");
    }
    // Help is for people, too.
    let (_, complaint) = unread(fleet.home.command().arg("--help"));
    assert_eq!(complaint, "");
    // What cannot be written is told where somebody may want it.
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = fleet.home.command().args(["completions", "bash"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("standard output"));
}

#[test]
fn closed_log_pipe_ends_no_role() {
    let home = Home::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = ["--log", "debug", "up", "--no-sample", "--web-port", "0", "--mqtt-port", "0", "--hosts-port", "0"];
    let mut child = home.command().args(args).stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("Ctrl-C") {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "it ended: {text}");
    }
    assert_eq!(home.muster(&["exec", "--", "echo", "it"]).expect_code(0).stdout, "it\n");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
