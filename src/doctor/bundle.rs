//! An archive for somebody who helps: findings, versions, configurations and the end of the logs.
//!
//! **Invariant: every text passes [`redact`] before it is written**, with all secrets that this installation's own files
//! hold.

use std::{env, io::Write, path::Path, process::Stdio, time::Duration};

use flate2::{Compression, write::GzEncoder};
use muster_base::{
    clock,
    failure::{Failure, FailureContext as _},
    files::{SECRET_MODE, write_atomically},
};
use muster_rules::mask::is_secret_key;
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    files, redact,
    report::Report,
    setup::{Part, PartSetup},
};

/// How many lines of a log are taken: some hours of a busy agent.
const LOG_LINES: &str = "1000";
/// How long the log may take.
const LOG: Duration = Duration::from_secs(20);
/// A block of a tar archive.
const BLOCK: usize = 512;

/// Writes the archive, which only its owner may read.
///
/// # Errors
/// If it cannot be written.
pub async fn write(path: &Path, report: &Report, parts: &[(Part, PartSetup)]) -> Result<Vec<String>, Failure> {
    let files = contents(report, parts).await;
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    let what = format!("the bundle {}", path.display());
    packed.write_all(&tar(&files, clock::now_ms() / 1_000)).trying(&what)?;
    write_atomically(path, &packed.finish().trying(&what)?, SECRET_MODE).trying(&what)?;
    Ok(files.into_iter().map(|(name, _)| name).collect())
}

/// The files of a bundle: names and texts.
async fn contents(report: &Report, parts: &[(Part, PartSetup)]) -> Vec<(String, String)> {
    let secrets: Vec<String> = parts.iter().flat_map(|(_, setup)| secrets(setup)).collect();
    let mut all = vec![("findings.txt".to_owned(), redact::text(&report.text(), &secrets))];
    let json = serde_json::to_string_pretty(report).unwrap_or_default();
    all.push(("findings.json".to_owned(), redact::text(&json, &secrets)));
    all.push(("versions.txt".to_owned(), versions(&report.version)));
    for (part, setup) in parts {
        let name = part.as_str();
        let text = setup.config.as_deref().map(files::text);
        if let Some(Ok(Some(text))) = text {
            let shown = redact::toml(&text, &secrets).unwrap_or_else(|| "# not valid TOML, left out\n".to_owned());
            all.push((format!("configuration/{name}.toml"), shown));
        }
        if let Some(log) = log(setup).await {
            all.push((format!("logs/{name}.log"), redact::text(&log, &secrets)));
        }
    }
    all
}

/// The secrets in the files of a part.
fn secrets(setup: &PartSetup) -> Vec<String> {
    let mut all = Vec::new();
    for path in setup.private.iter().chain(&setup.config) {
        let Ok(Some(text)) = files::text(path) else { continue };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => all.extend(redact::secrets_of_toml(&text)),
            Some("json") => all.extend(serde_json::from_str(&text).map_or_else(|_| Vec::new(), |json| of_json(&json))),
            _ => all.extend(redact::secrets_of_lines(&text)),
        }
    }
    all
}

/// Texts of a JSON document at secret keys, line by line.
fn of_json(json: &Value) -> Vec<String> {
    match json {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(text) if is_secret_key(key) => redact::secrets_of_lines(text),
                other => of_json(other),
            })
            .collect(),
        Value::Array(all) => all.iter().flat_map(of_json).collect(),
        _ => Vec::new(),
    }
}

/// The versions of everything that matters, and the names of variables for muster: their values may be secret.
fn versions(version: &str) -> String {
    let mut text = format!("muster {version}\n");
    let first = |path: &str| std::fs::read_to_string(path).unwrap_or_default().lines().next().map(str::to_owned);
    text += &format!("kernel {}\n", first("/proc/sys/kernel/osrelease").unwrap_or_default());
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    text.extend(system.lines().filter(|line| line.starts_with("PRETTY_NAME=")).map(|line| format!("{line}\n")));
    text += &format!("processor {}\n", env::consts::ARCH);
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    text.extend(names.filter(|name| name.starts_with("MUSTER_")).map(|name| format!("{name} is set\n")));
    text
}

/// The end of the log of a part's service.
async fn log(setup: &PartSetup) -> Option<String> {
    let service = setup.service?;
    let mut journal = Command::new("journalctl");
    journal.args(["--no-pager", "--quiet", "--output", "short-iso", "--lines", LOG_LINES, "--unit", service]);
    journal.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = timeout(LOG, journal.output()).await.ok()?.ok()?;
    (!output.stdout.is_empty()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A tar archive (ustar) of these files, in a folder of its own.
fn tar(files: &[(String, String)], at_s: i64) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, text) in files {
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        let name = format!("muster-doctor/{name}");
        put(0, &name.as_bytes()[..name.len().min(100)]);
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", text.len()).as_bytes());
        put(136, format!("{:011o}\0", at_s.max(0)).as_bytes());
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        all.extend_from_slice(&header);
        all.extend_from_slice(text.as_bytes());
        all.resize(all.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end it.
    all.resize(all.len() + 2 * BLOCK, 0);
    all
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn archive_is_read_by_tar() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let files = [("a.txt".to_owned(), "one\n".to_owned()), ("logs/b.log".to_owned(), "x".repeat(1_000))];
        fs::write(&path, tar(&files, 1_700_000_000)).unwrap();
        let done = Command::new("tar").arg("-xf").arg(&path).arg("-C").arg(folder.path()).status().unwrap();
        assert!(done.success());
        let read = |name: &str| fs::read_to_string(folder.path().join("muster-doctor").join(name)).unwrap();
        assert_eq!((read("a.txt").as_str(), read("logs/b.log").len()), ("one\n", 1_000));
    }

    #[test]
    fn secrets_of_json_are_found_line_by_line() {
        let json = serde_json::json!({
            "key": "-----BEGIN PRIVATE KEY-----\nabcdef\n-----END PRIVATE KEY-----\n",
            "membership": {"host": "h", "revision_key": "r3vision"}
        });
        assert_eq!(of_json(&json), ["abcdef", "r3vision"]);
    }
}
