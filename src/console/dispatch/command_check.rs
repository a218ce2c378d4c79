//! Validates a new command as far as possible without asking a
//! host, so that its author hears of a mistake at once.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use muster_rules::{id, intent, port_lease};
use muster_topics::{
    Millis,
    command::{
        BATCH_MAX, Batch, Exec, FOLLOW_MAX_MS, FORWARD_NAME_MAX_BYTES, FORWARD_TIMEOUT_MAX_MS, FORWARD_UNITS_MAX,
        Forward, Keep, LIFETIME_MAX_MS, LOG_LINES_MAX, OUTPUT_MAX_BYTES, STDIN_MAX_BYTES, Verb,
    },
    diagnostic::Diagnostic,
    effective::RENDER_MAX_BYTES,
    name::{HostId, UnitName},
    outcome::{Data, Stream},
    unit::{NOTE_MAX_CHARS, Spec},
    verb_table::VerbClass,
};

use crate::error::Error;

/// The longest timeout of a program.
const TIMEOUT_MAX_MS: u64 = 7 * 24 * 3_600_000;

/// The error for an unknown host.
pub(crate) fn unknown_host(name: &str) -> Error {
    let name: String = name.chars().take(100).collect();
    Error::not_found("unknown_host", format!("no host has the id or the hostname {name:?}"))
        .hint("`muster host ls`, or GET /api/v1/hosts, lists those that have joined")
}

/// Resolves hosts by id, by a unique hostname, or by the unique beginning of an id. All failures are reported.
pub(crate) fn resolve(wanted: &[String], hosts: &[(HostId, String)]) -> Result<Vec<HostId>, Error> {
    let (mut found, mut unknown, mut ambiguous) = (Vec::new(), Vec::new(), Vec::new());
    for name in wanted {
        match id::host(name, hosts.iter().map(|(id, hostname)| (*id, hostname.as_str()))) {
            Ok(id) => found.push(id),
            Err(none) if none.is_empty() => unknown.push(name),
            Err(several) => ambiguous.push((name, several)),
        }
    }
    if let [name] = unknown[..] {
        return Err(unknown_host(name));
    }
    if !unknown.is_empty() {
        let names = unknown.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        return Err(Error::not_found("unknown_host", format!("no host has the ids or hostnames {names}"))
            .hint("`muster host ls`, or GET /api/v1/hosts, lists those that have joined"));
    }
    if !ambiguous.is_empty() {
        let lines = ambiguous.iter().map(|(name, several)| {
            let named = |id: &HostId| {
                let hostname = hosts.iter().find(|(host, _)| host == id).map_or("", |(_, hostname)| hostname);
                if hostname == name.as_str() { id.to_string() } else { format!("{id} ({hostname})") }
            };
            let is_name = hosts.iter().any(|(_, hostname)| hostname == name.as_str());
            let what = if is_name { "is the name of several hosts" } else { "is the beginning of several hosts' ids" };
            format!("{name:?} {what}: {}", several.iter().map(named).collect::<Vec<_>>().join(", "))
        });
        let message = lines.collect::<Vec<_>>().join("; ");
        return Err(Error::conflict("ambiguous_host", message).hint("use the host's id, or more of its beginning"));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns when a command that is issued at `now` expires.
pub(super) fn expiry(now: Millis, verb: &Verb, expires_in_ms: Option<u64>) -> Result<Millis, Error> {
    let wanted = expires_in_ms.map_or(Some(intent::lifetime_ms(verb)), |ms| Millis::try_from(ms).ok());
    match wanted.filter(|ms| (1_000..=LIFETIME_MAX_MS).contains(ms)) {
        Some(ms) => Ok(now + ms),
        None => Err(Error::invalid("bad_expiry", "a command waits from one second to seven days")),
    }
}

/// Checks a verb as far as possible without any lookup.
pub(crate) fn verb(verb: &Verb, broadcast: bool) -> Result<(), Error> {
    no_secrets(verb.secret(), broadcast)?;
    match verb.class() {
        VerbClass::Program => check_program(verb),
        VerbClass::Unit => match verb {
            Verb::UnitApply { .. } => verb.specs().try_for_each(|(_, spec)| check_spec(spec)),
            Verb::UnitHold { note, .. } | Verb::UnitRetire { note, .. } => check_note(note.as_deref()),
            // What others say beside the unit was checked when it was parsed.
            _ => Ok(()),
        },
        VerbClass::UnitSet => check_set(verb),
        VerbClass::Question | VerbClass::Action => check_question_verb(verb),
        VerbClass::Host | VerbClass::HostQuestion | VerbClass::Cancel => Ok(()),
    }
}

fn check_program(verb: &Verb) -> Result<(), Error> {
    match verb {
        Verb::Batch(batch) => check_batch(batch),
        one => one.execs().iter().try_for_each(check_exec),
    }
}

fn check_set(verb: &Verb) -> Result<(), Error> {
    let (mut seen, units) = (BTreeSet::new(), verb.units());
    if let Some(twice) = units.iter().find(|unit| !seen.insert(**unit)) {
        return Err(Error::invalid("bad_units", format!("{twice} is listed twice")));
    }
    if units.is_empty() {
        return Err(Error::invalid("bad_units", "a set needs at least one unit"));
    }
    verb.specs().try_for_each(|(_, spec)| check_spec(spec))
}

fn check_question_verb(verb: &Verb) -> Result<(), Error> {
    match verb {
        Verb::UnitFollow { for_ms, .. } if !(1..=FOLLOW_MAX_MS).contains(for_ms) => Err(Error::invalid(
            "bad_time",
            format!("a log can be followed for at most {} minutes", FOLLOW_MAX_MS / 60_000),
        )),
        Verb::UnitFollow { lines, .. } if *lines > LOG_LINES_MAX => {
            Err(Error::invalid("bad_lines", format!("at most {LOG_LINES_MAX} lines can be requested")))
        }
        Verb::UnitLogs { lines, .. } if !(1..=LOG_LINES_MAX).contains(lines) => {
            Err(Error::invalid("bad_lines", format!("from 1 to {LOG_LINES_MAX} lines can be requested")))
        }
        Verb::UnitCommand(forward) => check_forward(forward),
        Verb::UnitStats { units, timeout_ms } => check_question(units, *timeout_ms),
        Verb::Render { templates, .. } => check_templates(templates),
        Verb::Plan(_) => verb.specs().try_for_each(|(_, spec)| check_spec(spec)),
        // What others say beside the unit was checked when it was parsed.
        _ => Ok(()),
    }
}

fn check_spec(spec: &Spec) -> Result<(), Error> {
    let user = spec.yuno().and_then(|yuno| yuno.program.user.as_ref());
    no_nul(spec.args().iter().chain(user))?;
    environment(spec.env())?;
    match Diagnostic::all(port_lease::check(spec)) {
        None => Ok(()),
        Some(wrong) => Err(Error::told(StatusCode::BAD_REQUEST, "bad_endpoints", wrong)),
    }
}

fn check_templates(templates: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes: usize = templates.iter().map(|(name, text)| name.len() + text.len()).sum();
    if bytes > RENDER_MAX_BYTES {
        let message =
            format!("the templates have {bytes} bytes, and a host renders at most {RENDER_MAX_BYTES} at once");
        return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("ask for fewer"));
    }
    Ok(())
}

fn check_note(note: Option<&str>) -> Result<(), Error> {
    if note.is_some_and(|note| note.chars().count() > NOTE_MAX_CHARS || note.chars().any(char::is_control)) {
        let rule = format!("the note of a hold is one line of at most {NOTE_MAX_CHARS} characters");
        return Err(Error::invalid("bad_note", rule));
    }
    Ok(())
}

fn check_forward(forward: &Forward) -> Result<(), Error> {
    if !(1..=FORWARD_NAME_MAX_BYTES).contains(&forward.name.len()) {
        let message = format!("the name of a yuno's command has from 1 to {FORWARD_NAME_MAX_BYTES} bytes");
        return Err(Error::invalid("bad_name", message));
    }
    check_question(&forward.units, forward.timeout_ms)
}

fn check_question(units: &[UnitName], timeout_ms: u64) -> Result<(), Error> {
    if !(1..=FORWARD_UNITS_MAX).contains(&units.len()) {
        let message = format!("from 1 to {FORWARD_UNITS_MAX} units can be asked at once");
        return Err(Error::invalid("bad_units", message));
    }
    if !(1..=FORWARD_TIMEOUT_MAX_MS).contains(&timeout_ms) {
        return Err(Error::invalid("bad_timeout", "units may take from one millisecond to an hour to answer"));
    }
    Ok(())
}

fn check_exec(exec: &Exec) -> Result<(), Error> {
    if let Err(error) = exec.words() {
        return Err(Error::invalid("no_program", error.to_string()));
    }
    if exec.daemon {
        check_daemon(exec)?;
    } else if !(1..=TIMEOUT_MAX_MS).contains(&exec.timeout_ms) {
        return Err(Error::invalid("bad_timeout", "a program may run from one millisecond to seven days"));
    }
    if exec.max_bytes(Stream::Stdout).max(exec.max_bytes(Stream::Stderr)) > OUTPUT_MAX_BYTES {
        return Err(Error::invalid(
            "bad_output_max",
            format!("at most {OUTPUT_MAX_BYTES} bytes of an output stream are kept"),
        ));
    }
    check_stdin(exec.stdin.as_ref())?;
    no_nul(exec.argv.iter().chain(&exec.shell).chain(&exec.cwd).chain(&exec.user))?;
    environment(&exec.env)
}

/// Checks a daemon as a unit.
fn check_daemon(exec: &Exec) -> Result<(), Error> {
    let wrong = |message| Err(Error::invalid("bad_daemon", message));
    if exec.timeout_ms != 0 {
        return wrong("a daemon has no time limit: its `timeout_ms` is 0");
    }
    if exec.stdin.is_some() {
        return wrong("a daemon reads no standard input");
    }
    if exec.stdout != Keep::Stream || exec.stderr != Keep::Stream {
        return wrong("a daemon prints into its unit's log");
    }
    Ok(())
}

fn check_batch(batch: &Batch) -> Result<(), Error> {
    if !(1..=BATCH_MAX).contains(&batch.steps.len()) {
        let message = format!("a batch has from 1 to {BATCH_MAX} steps, and this one {}", batch.steps.len());
        return Err(Error::invalid("bad_batch", message));
    }
    if batch.steps.iter().any(|exec| exec.daemon) {
        return Err(Error::invalid("bad_batch", "no step of a batch is a daemon"));
    }
    for (index, exec) in batch.steps.iter().enumerate() {
        check_exec(exec).map_err(|mut error| {
            error.problem.diagnostic.cause = format!("step {}: {}", index + 1, error.problem.diagnostic.cause);
            error
        })?;
    }
    let kept = |stream| batch.steps.iter().map(|exec| exec.max_bytes(stream)).fold(0, u64::saturating_add);
    if kept(Stream::Stdout).max(kept(Stream::Stderr)) > OUTPUT_MAX_BYTES {
        return Err(Error::invalid(
            "bad_output_max",
            format!("of all steps together at most {OUTPUT_MAX_BYTES} bytes of an output stream are kept"),
        ));
    }
    Ok(())
}

fn check_stdin(stdin: Option<&Data>) -> Result<(), Error> {
    let Some(data) = stdin else { return Ok(()) };
    let bytes =
        data.to_bytes().map_err(|error| Error::invalid("bad_stdin", format!("stdin is not valid base64: {error}")))?;
    if bytes.len() > STDIN_MAX_BYTES {
        let message = format!("stdin has {} bytes, and a command can bring {STDIN_MAX_BYTES}", bytes.len());
        return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "stdin_too_large", message)
            .hint("put what is large into an artifact, or onto the host"));
    }
    Ok(())
}

/// Refuses broadcasts with environments or standard input: every host reads a broadcast, and these may contain secrets.
fn no_secrets(secret: Option<&str>, broadcast: bool) -> Result<(), Error> {
    let Some(secret) = secret.filter(|_| broadcast) else { return Ok(()) };
    let code = match secret {
        "environment" => "env_in_broadcast",
        "standard input" => "stdin_in_broadcast",
        _ => "args_in_broadcast",
    };
    Err(Error::invalid(
        code,
        format!("a command to all hosts, to a group or by a select expression carries no {secret}"),
    )
    .hint("every host can read it; name the hosts instead"))
}

fn no_nul<'a>(mut texts: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    if texts.any(|text| text.contains('\0')) {
        return Err(Error::invalid("nul_byte", "no argument, path or user may have a NUL byte"));
    }
    Ok(())
}

fn environment(env: &BTreeMap<String, String>) -> Result<(), Error> {
    let bad =
        |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    match env.iter().find(bad) {
        Some((name, _)) => Err(Error::invalid("bad_env", format!("{name:?} cannot be set in an environment"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<(HostId, String)> {
        let names = ["a", "twin", "twin"];
        let mut hosts: Vec<_> = names.iter().map(|name| (HostId::random(), (*name).to_owned())).collect();
        // One host's name is another's id.
        let other = hosts[0].0.to_string();
        hosts.push((HostId::random(), other));
        hosts
    }

    #[test]
    fn hosts_resolve_by_id_and_name() {
        let hosts = hosts();
        let id = hosts[1].0.to_string();
        let found = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            resolve(&names, &hosts)
        };
        assert_eq!(found(&["a"]).unwrap(), [hosts[0].0]);
        assert_eq!(found(&["a", "a", &hosts[0].0.to_string()]).unwrap(), [hosts[0].0]);
        assert_eq!(found(&[&id]).unwrap(), [hosts[1].0]);
        let unknown = found(&["x", "a", "y"]).unwrap_err();
        assert_eq!(unknown.status, 404);
        assert!(unknown.problem.diagnostic.cause.contains("\"x\", \"y\""), "{unknown}");
        let ambiguous = found(&["twin"]).unwrap_err();
        assert_eq!(ambiguous.problem.code, "ambiguous_host");
        assert!(ambiguous.problem.diagnostic.cause.contains(&id), "{ambiguous}");
        assert_eq!(found(&[&id[..13]]).unwrap(), [hosts[1].0]);
        let alike: Vec<(HostId, String)> =
            ["deadbeef-0000-4000-8000-000000000001", "deadbe11-0000-4000-8000-000000000002"]
                .map(|id| (id.parse().unwrap(), format!("host-{}", &id[35..])))
                .to_vec();
        let several = resolve(&["deadbe".to_owned()], &alike).unwrap_err().problem;
        assert_eq!(
            several.diagnostic.cause,
            "\"deadbe\" is the beginning of several hosts' ids: deadbe11-0000-4000-8000-000000000002 (host-2), \
             deadbeef-0000-4000-8000-000000000001 (host-1)"
        );
    }

    #[track_caller]
    fn check(json: &str, broadcast: bool, code: Option<&str>) {
        let parsed: Verb = serde_json::from_str(json).unwrap();
        assert_eq!(verb(&parsed, broadcast).err().map(|error| error.problem.code).as_deref(), code, "{json}");
    }

    #[test]
    fn invalid_verbs_are_refused() {
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1}}"#, true, None);
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A":"b"}}}"#, false, None);
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A":"b"}}}"#, true, Some("env_in_broadcast"));
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A=":"b"}}}"#, false, Some("bad_env"));
        check(r#"{"exec":{"argv":[],"timeout_ms":1}}"#, false, Some("no_program"));
        check(r#"{"exec":{"argv":[""],"timeout_ms":1}}"#, false, Some("no_program"));
        check(r#"{"exec":{"argv":["a\u0000"],"timeout_ms":1}}"#, false, Some("nul_byte"));
        check(r#"{"exec":{"shell":"a | b","timeout_ms":1}}"#, true, None);
        check(r#"{"exec":{"shell":"a","argv":["b"],"timeout_ms":1}}"#, false, Some("no_program"));
        check(r#"{"exec":{"shell":"a\u0000","timeout_ms":1}}"#, false, Some("nul_byte"));
        check(r#"{"exec":{"argv":["cat"],"timeout_ms":1,"stdin":{"text":"a"}}}"#, false, None);
        check(r#"{"exec":{"argv":["cat"],"timeout_ms":1,"stdin":{"text":"a"}}}"#, true, Some("stdin_in_broadcast"));
        check(r#"{"exec":{"argv":["cat"],"timeout_ms":1,"stdin":{"base64":"?"}}}"#, false, Some("bad_stdin"));
        let large = "x".repeat(STDIN_MAX_BYTES + 1);
        let large = format!(r#"{{"exec":{{"argv":["cat"],"timeout_ms":1,"stdin":{{"text":"{large}"}}}}}}"#);
        check(&large, false, Some("stdin_too_large"));
        check(
            r#"{"exec":{"argv":["true"],"timeout_ms":1,"stderr_max_bytes":99999999}}"#,
            false,
            Some("bad_output_max"),
        );
        check(r#"{"exec":{"argv":["true"],"timeout_ms":0}}"#, false, Some("bad_timeout"));
        check(
            r#"{"exec":{"argv":["true"],"timeout_ms":1,"output_max_bytes":99999999}}"#,
            false,
            Some("bad_output_max"),
        );
        check(r#"{"exec":{"argv":["top"],"timeout_ms":0,"daemon":true}}"#, true, None);
        check(r#"{"exec":{"argv":["top"],"timeout_ms":5,"daemon":true}}"#, true, Some("bad_daemon"));
        check(r#"{"exec":{"argv":["top"],"timeout_ms":0,"daemon":true,"stdout":"drop"}}"#, true, Some("bad_daemon"));
        check(r#"{"batch":{"steps":[{"argv":["top"],"timeout_ms":0,"daemon":true}]}}"#, true, Some("bad_batch"));
        check(r#"{"exec":{"argv":["top"],"timeout_ms":5,"container":"default/shop"}}"#, true, None);
        check(r#"{"exec":{"argv":["top"],"timeout_ms":0,"daemon":true,"container":"default/shop"}}"#, true, None);
        let batch = |steps: &[&str]| format!(r#"{{"batch":{{"steps":[{}]}}}}"#, steps.join(","));
        let step = r#"{"argv":["true"],"timeout_ms":1,"output_max_bytes":9}"#;
        check(&batch(&[step]), true, None);
        check(&batch(&[]), true, Some("bad_batch"));
        check(&batch(&[step; BATCH_MAX + 1]), true, Some("bad_batch"));
        check(&batch(&[step, r#"{"timeout_ms":1}"#]), true, Some("no_program"));
        check(
            &batch(&[step, r#"{"argv":["cat"],"timeout_ms":1,"stdin":{"text":"a"}}"#]),
            true,
            Some("stdin_in_broadcast"),
        );
        check(&batch(&[r#"{"argv":["true"],"timeout_ms":1}"#; 17]), true, Some("bad_output_max"));
        check(r#"{"unit_logs":{"unit":"a/b","lines":0}}"#, false, Some("bad_lines"));
        check(r#"{"unit_command":{"units":["a/b"],"name":"level","timeout_ms":1}}"#, true, None);
        check(r#"{"unit_command":{"units":["a/b"],"name":"","timeout_ms":1}}"#, true, Some("bad_name"));
        check(r#"{"unit_command":{"units":[],"name":"level","timeout_ms":1}}"#, true, Some("bad_units"));
        check(r#"{"unit_stats":{"units":["a/b"],"timeout_ms":0}}"#, true, Some("bad_timeout"));
        check(r#"{"unit_follow":{"unit":"a/b","lines":0,"for_ms":3600000}}"#, false, None);
        check(r#"{"unit_follow":{"unit":"a/b","lines":0,"for_ms":3600001}}"#, false, Some("bad_time"));
        check(r#"{"unit_run":{"unit":"a/b"}}"#, true, None);
        check(r#"{"unit_hold":{"unit":"a/b","note":"why"}}"#, true, None);
        check(r#"{"unit_retire":{"unit":"a/b","note":"two\nlines"}}"#, true, Some("bad_note"));
    }

    #[test]
    fn invalid_expiries_are_refused() {
        for (wanted, expires) in [
            (None, Some(600_007)),
            (Some(1_000), Some(1_007)),
            (Some(999), None),
            (Some(8 * 86_400_000), None),
            (Some(u64::MAX), None),
        ] {
            let exec = serde_json::from_str(r#"{"exec":{"argv":["true"],"timeout_ms":1}}"#).unwrap();
            assert_eq!(expiry(7, &exec, wanted).ok(), expires, "{wanted:?}");
        }
        let stop = serde_json::from_str(r#"{"unit_stop":{"unit":"a/b"}}"#).unwrap();
        assert_eq!(expiry(7, &stop, None).ok(), Some(7 + LIFETIME_MAX_MS), "what is wanted of a unit stays wanted");
    }
}
