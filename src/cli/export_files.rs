//! `muster unit export --files`: what a host has at some paths, as a document to begin with.
//!
//! The host is asked by a program that it runs, so this needs the right to run programs there, and is in the ledger as such.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use muster_api::{Command, NewCommand, NewTarget};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::{
    command::{Exec, Keep, Verb},
    diagnostic::Diagnostic,
    files::{FILES_MAX, TEXTS_MAX_BYTES},
};
use serde_json::{Map, Value, json};

use super::{command_follower, command_report::report, session::CliSession};

/// How long the host may take.
const TIMEOUT_MS: u64 = 60_000;

/// The longest answer: the largest texts in base64, and what is around them.
const OUTPUT_MAX_BYTES: u64 = 256 * 1024;

/// What to do with what is no text.
const ARTIFACT_HINT: &str = "make it an artifact (`muster artifact create`)";

/// Prints a line for each path and what is in it: kind, owner, group, mode, size, and path, target or content in base64.
const SCRIPT: &str = r#"
encode() { base64 | tr -d '\n'; }
max=$1; shift
for path; do
    if ! [ -e "$path" ] && ! [ -L "$path" ]; then printf 'none - - - - %s -\n' "$(printf %s "$path" | encode)"; continue; fi
    find "$path" -xdev | LC_ALL=C sort | head -n "$max" | while IFS= read -r one; do
        name=$(printf %s "$one" | encode)
        about=$(stat -c '%U %G %a %s' -- "$one") || continue
        if [ -L "$one" ]; then printf 'link %s %s %s\n' "$about" "$name" "$(readlink -- "$one" | tr -d '\n' | encode)"
        elif [ -d "$one" ]; then printf 'folder %s %s -\n' "$about" "$name"
        elif [ -f "$one" ]; then
            if [ "${about##* }" -gt 32768 ]; then printf 'large %s %s -\n' "$about" "$name"
            else printf 'file %s %s %s\n' "$about" "$name" "$(encode < "$one")"; fi
        else printf 'other %s %s -\n' "$about" "$name"; fi
    done
done
"#;

/// Asks a host, and returns the document.
pub(super) async fn document(session: &CliSession, host: &str, paths: &[String]) -> Result<Value, Failure> {
    if let Some(path) = paths.iter().find(|path| !path.starts_with('/')) {
        return Err(Failure::new(FailureKind::Usage, format!("{path:?} is not an absolute path of a host")));
    }
    let max = (FILES_MAX + 1).to_string();
    let words = ["/bin/sh", "-c", SCRIPT, "export", &max].map(str::to_owned);
    let argv = words.into_iter().chain(paths.iter().cloned()).collect();
    let exec = Exec {
        stdout: Keep::Stream,
        stderr: Keep::Capture,
        output_max_bytes: OUTPUT_MAX_BYTES,
        ..Exec::new(argv, TIMEOUT_MS)
    };
    let target = NewTarget::Hosts(vec![host.to_owned()]);
    let wanted = NewCommand { target, expires_in_ms: Some(TIMEOUT_MS), verb: Verb::Exec(exec), copied_from: None };
    let command: Command = session.client.post("commands", &wanted).await?;
    let (hosts, output) = command_follower::collect(session, &command).await?;
    report(&command, &hosts)?;
    let hostname = hosts.first().map_or(host, |host| host.hostname.as_str());
    let files = entries(&String::from_utf8_lossy(&output)).map_err(|faults| {
        let title = format!("{} cannot be exported", counted(faults.len(), "path"));
        Failure::told(FailureKind::Failed, Diagnostic::listed(title, faults).unwrap_or_default())
    })?;
    Ok(json!({ "unit": "default/files", "kind": "files", "hosts": [hostname], "run": "running", "files": files }))
}

/// Reads what the host has printed; the error is everything that cannot be part of a document.
fn entries(output: &str) -> Result<Map<String, Value>, Vec<Diagnostic>> {
    let (mut entries, mut faults, mut texts_bytes) = (BTreeMap::new(), Vec::new(), 0);
    for line in output.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, owner, group, mode, size, path, value] = words[..] else {
            let problem = Diagnostic::new("the host's answer is too long or not valid");
            faults.push(problem.with_hint("name fewer paths"));
            break;
        };
        let (Some(path), Some(value)) = (decoded(path), decoded(value)) else {
            faults.push(Diagnostic::new("a path that is not UTF-8 cannot be written in a document"));
            continue;
        };
        let path = String::from_utf8_lossy(&path).into_owned();
        let owned = |mut entry: Value| {
            entry["owner"] = owner.into();
            entry["group"] = group.into();
            entry["mode"] = format!("{mode:0>4}").into();
            entry
        };
        let entry = match (kind, String::from_utf8(value)) {
            ("none", _) => Err(Diagnostic::new("there is nothing").with_hint("`absent: true` describes that")),
            ("large", _) => {
                Err(Diagnostic::new(format!("it has {size} bytes, too many for a text")).with_hint(ARTIFACT_HINT))
            }
            ("file", Ok(text)) if !text.contains('\0') => {
                texts_bytes += text.len();
                Ok(owned(json!({ "text": text })))
            }
            ("file", _) => Err(Diagnostic::new("it is not text").with_hint(ARTIFACT_HINT)),
            ("folder", _) => Ok(owned(json!({ "directory": {} }))),
            ("link", Ok(to)) => Ok(json!({ "link": to, "owner": owner, "group": group })),
            _ => Err(Diagnostic::new("it is not a file, folder or link")),
        };
        match entry {
            Ok(entry) => drop(entries.insert(path, entry)),
            Err(fault) => faults.push(fault.within(path)),
        }
    }
    if entries.len() > FILES_MAX {
        let problem = format!("there are more than {FILES_MAX} files and folders");
        faults.push(Diagnostic::new(problem).with_hint("pack the folder, and make it an artifact"));
    }
    if texts_bytes > TEXTS_MAX_BYTES {
        let problem = format!("the texts have {texts_bytes} bytes together; at most {TEXTS_MAX_BYTES} are allowed");
        faults.push(Diagnostic::new(problem).with_hint("make large ones artifacts"));
    }
    if faults.is_empty() { Ok(entries.into_iter().collect()) } else { Err(faults) }
}

fn decoded(word: &str) -> Option<Vec<u8>> {
    if word == "-" { Some(Vec::new()) } else { STANDARD.decode(word).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_describes_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(at("conf.d")).unwrap();
        std::fs::write(at("conf.d/a b"), "text\n").unwrap();
        std::fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink("conf.d", at("link")).unwrap();
        let run = |paths: &[String]| {
            let output = std::process::Command::new("/bin/sh")
                .args(["-c", SCRIPT, "export", "257"])
                .args(paths)
                .output()
                .unwrap();
            entries(&String::from_utf8(output.stdout).unwrap())
        };
        let found = run(&[at("conf.d"), at("link"), at("empty")]).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!((&found[&at("conf.d/a b")]["text"], &found[&at("empty")]["text"]), (&json!("text\n"), &json!("")));
        assert_eq!((&found[&at("conf.d")]["directory"], &found[&at("link")]["link"]), (&json!({}), &json!("conf.d")));
        assert_eq!(found[&at("empty")]["mode"].as_str().unwrap().len(), 4);
        std::fs::write(at("binary"), [0, 159]).unwrap();
        std::fs::write(at("large"), vec![b'x'; 40_000]).unwrap();
        let faults = run(&[at("binary"), at("large"), at("none")]).unwrap_err();
        assert!(
            faults[0].cause.contains("not text")
                && faults[1].cause.contains("40000 bytes")
                && faults[2].cause.contains("nothing"),
            "{faults:?}"
        );
        assert!(entries("file too short").unwrap_err()[0].cause.contains("not valid"));
    }
}
