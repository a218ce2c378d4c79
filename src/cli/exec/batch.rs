//! `muster exec --batch FILE`: runs a list of programs from a file, and reports each.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use muster_api::CommandHost;
use muster_base::failure::{Failure, FailureKind};
use muster_rules::unknown_keys;
use muster_topics::{
    command::{BATCH_MAX, Exec},
    name::UnitName,
    outcome::{Data, Status},
    process::Limits,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::command_verdict::status;
use crate::document_file;

/// A step of a batch, as it is written in the file. Missing fields have the values of the command line.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BatchStep {
    /// The program and its arguments.
    #[serde(default)]
    argv: Vec<String>,
    /// A line for `/bin/sh -c`, instead of a program.
    shell: Option<String>,
    /// The container to run in.
    container: Option<UnitName>,
    /// Working directory.
    cwd: Option<String>,
    /// Environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The user to run as.
    user: Option<String>,
    /// Standard input.
    stdin: Option<String>,
    /// Time limit, such as `90s`.
    timeout: Option<String>,
    /// Limits.
    #[serde(default)]
    limits: Limits,
}

/// Reads the steps of a file, and reports all its errors at once. Missing fields of a step are taken from `usual`.
pub(super) fn read(file: &Path, usual: &Exec) -> Result<Vec<Exec>, Failure> {
    let name = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let hint = "`muster exec --help` shows such a file";
    let wrong = |message: String| Failure::new(FailureKind::Usage, message).hint(hint);
    let text = document_file::read_file(file).map_err(|told| {
        let told = if told.hint.is_some() { told } else { told.with_hint(hint) };
        Failure::told(FailureKind::Usage, told.within(&name))
    })?;
    let documents = document_file::parse(&text).map_err(|message| wrong(format!("{name}: {message}")))?;
    let [Value::Array(listed)] = &documents[..] else {
        return Err(wrong(format!("{name}: expected one list of steps")));
    };
    if !(1..=BATCH_MAX).contains(&listed.len()) {
        return Err(wrong(format!("{name}: it has {} steps, and a batch has from 1 to {BATCH_MAX}", listed.len())));
    }
    let (mut steps, mut faults) = (Vec::new(), Vec::new());
    for (index, step) in listed.iter().enumerate() {
        match parse(step, usual) {
            Ok(step) => steps.push(step),
            Err(found) => faults.extend(found.into_iter().map(|fault| format!("{name}: step {}: {fault}", index + 1))),
        }
    }
    if faults.is_empty() { Ok(steps) } else { Err(wrong(faults.join("\n"))) }
}

fn parse(step: &Value, usual: &Exec) -> Result<Exec, Vec<String>> {
    let Value::Object(_) = step else { return Err(vec!["expected an object with `argv` or `shell`".to_owned()]) };
    let (mut known, mut faults) = (step.clone(), Vec::new());
    for key in unknown_keys::take_unknown(&mut known, &schemars::schema_for!(BatchStep).to_value()) {
        faults.push(format!("{}: there is no such key; {}", key.at, key.hint));
    }
    // Keys are checked one by one, so that one mistake does not hide the next.
    for (key, value) in known.as_object().into_iter().flatten() {
        let alone = serde_json::json!({ key: value });
        if let Err(error) = serde_json::from_value::<BatchStep>(alone) {
            faults.push(format!("{key}: {error}"));
        }
    }
    let step = match serde_json::from_value::<BatchStep>(known) {
        Ok(step) => step,
        Err(_) if !faults.is_empty() => return Err(faults),
        Err(error) => return Err(vec![error.to_string()]),
    };
    let timeout_ms = match step.timeout.as_deref().map(str::parse::<humantime::Duration>) {
        None => usual.timeout_ms,
        Some(Ok(timeout)) => super::millis(timeout.into()),
        Some(Err(error)) => {
            faults.push(format!("timeout: {error}"));
            0
        }
    };
    let env = usual.env.clone().into_iter().chain(step.env).collect();
    let exec = Exec {
        shell: step.shell,
        container: step.container.or_else(|| usual.container.clone()),
        cwd: step.cwd.or_else(|| usual.cwd.clone()),
        env,
        user: step.user.or_else(|| usual.user.clone()),
        stdin: step.stdin.map(|text| Data::signed(text.as_bytes())),
        limits: step.limits.and(usual.limits),
        argv: step.argv,
        timeout_ms,
        ..usual.clone()
    };
    if let Err(error) = exec.words() {
        faults.push(error.to_string());
    }
    if faults.is_empty() { Ok(exec) } else { Err(faults) }
}

/// The result of each step of a batch on a host, one per line; `None` if the outcome is not that of a batch.
pub(super) fn lines(host: &CommandHost, asked: &[Exec]) -> Option<String> {
    let Status::Batch { steps } = host.status()? else { return None };
    let mut text = String::new();
    for (index, exec) in asked.iter().enumerate() {
        let words = steps.get(index).map_or_else(
            || "not begun".to_owned(),
            |step| match &step.status {
                success if success.is_success() => "ok".to_owned(),
                other => format!("{:#}", status(other)),
            },
        );
        let _ = writeln!(
            text,
            "{}: step {} ({}): {words}",
            host.hostname,
            index + 1,
            muster_topics::argv::join(&exec.shown())
        );
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> Exec {
        Exec { user: Some("nobody".to_owned()), ..Exec::new(Vec::new(), 60_000) }
    }

    fn read_text(text: &str) -> Result<Vec<Exec>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), &usual()).map_err(|failure| {
            assert_eq!(failure.kind, FailureKind::Usage);
            failure.cause().unwrap().to_owned()
        })
    }

    #[test]
    fn batch_file_is_yaml_or_json() {
        let yaml = "- argv: [echo, a b]\n- shell: echo $A\n  env: {A: x}\n  timeout: 5s\n  cwd: /usr\n  user: root\n";
        let json = r#"[{"argv":["echo","a b"]},
                       {"shell":"echo $A","env":{"A":"x"},"timeout":"5s","cwd":"/usr","user":"root"}]"#;
        let steps = read_text(yaml).unwrap();
        assert_eq!(steps, read_text(json).unwrap());
        assert_eq!(
            (steps[0].argv[1].as_str(), steps[0].user.as_deref(), steps[0].timeout_ms),
            ("a b", Some("nobody"), 60_000)
        );
        assert_eq!(
            (steps[1].shell.as_deref(), steps[1].user.as_deref(), steps[1].timeout_ms),
            (Some("echo $A"), Some("root"), 5_000)
        );
    }

    #[test]
    fn every_mistake_is_named() {
        let wrong = "- argv: [echo]\n  cwdd: /usr\n  timeout: soon\n- {}\n- argv: [a]\n  shell: b\n- echo\n- argv: echo\n  user: 5\n";
        let told = read_text(wrong).unwrap_err();
        for words in [
            "step 1: cwdd",
            "did you mean `cwd`",
            "step 1: timeout",
            "step 2: ",
            "step 3: ",
            "step 4: expected an object",
            "step 5: argv",
            "step 5: user",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        for (text, words) in [
            ("", "one list"),
            ("argv: [a]", "one list"),
            ("[]", "from 1 to"),
            ("- argv: [a]\n  argv: [b]\n", "argv"),
            (r#"[{"argv":["a"],"argv":["b"]}]"#, "argv"),
            ("- [", ""),
            ("[{]", ""),
        ] {
            let told = read_text(text).unwrap_err();
            assert!(told.contains(words), "{text}: {told}");
        }
        let many = "- argv: [a]\n".repeat(BATCH_MAX + 1);
        assert!(read_text(&many).unwrap_err().contains("from 1 to"));
    }
}
