//! Whether an operator's wish can become a command: as much as can be known before any host is
//! asked, so that a mistake is told to whoever made it, and at once.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    command::{
        Exec, FOLLOW_MAX_MS, FORWARD_NAME_MAX_BYTES, FORWARD_TIMEOUT_MAX_MS, FORWARD_UNITS_MAX, Forward,
        LIFETIME_MAX_MS, TARGET_HOSTS_MAX, Target, Verb,
    },
    name::{HostId, UnitName},
    unit::{NOTE_MAX_CHARS, Spec},
};

use crate::{api::NewTarget, console::Error, rules::lease};

/// How long a command may wait for its hosts, unless it is said.
const EXPIRES_IN_MS: Millis = 10 * 60_000;
/// The longest that a program may run.
const TIMEOUT_MAX_MS: u64 = 7 * 24 * 3_600_000;
/// The most output of a stream that is kept of one program on one host.
const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The most lines of a log in one answer.
const LOG_LINES_MAX: u32 = 10_000;

/// A host that nobody knows.
pub(in crate::console) fn unknown_host(name: &str) -> Error {
    let name: String = name.chars().take(100).collect();
    Error::not_found("unknown_host", format!("no host has the id or the hostname {name:?}"))
        .hint("`muster host ls` lists those that have joined")
}

/// Finds hosts by id, or by a hostname that only one has. Everything that fails is named.
pub(in crate::console) fn resolve(wanted: &[String], hosts: &[(HostId, String)]) -> Result<Vec<HostId>, Error> {
    let (mut found, mut unknown, mut ambiguous) = (Vec::new(), Vec::new(), Vec::new());
    for name in wanted {
        let by_id = hosts.iter().find(|(id, _)| id.to_string() == *name);
        let by_name: Vec<_> = hosts.iter().filter(|(_, hostname)| hostname == name).map(|(id, _)| *id).collect();
        match (by_id, &by_name[..]) {
            (Some((id, _)), _) | (None, [id]) => found.push(*id),
            (None, []) => unknown.push(name),
            (None, several) => ambiguous.push((name, several.to_vec())),
        }
    }
    if let [name] = unknown[..] {
        return Err(unknown_host(name));
    }
    if !unknown.is_empty() {
        let names = unknown.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        return Err(Error::not_found("unknown_host", format!("no host has the ids or hostnames {names}"))
            .hint("`muster host ls` lists those that have joined"));
    }
    if !ambiguous.is_empty() {
        let lines = ambiguous.iter().map(|(name, ids)| {
            let ids = ids.iter().map(HostId::to_string).collect::<Vec<_>>().join(", ");
            format!("{name:?} is the name of several hosts: {ids}")
        });
        let message = lines.collect::<Vec<_>>().join("; ");
        return Err(Error::conflict("ambiguous_host", message).hint("name the host by its id"));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Whom a command is for: as it is signed, and host by host.
pub(super) fn target(wanted: &NewTarget, hosts: &[(HostId, String)]) -> Result<(Target, Vec<HostId>), Error> {
    match wanted {
        NewTarget::All if hosts.is_empty() => Err(Error::conflict("no_hosts", "no host has joined yet")
            .hint("`muster token create` makes a one-time password for one")),
        NewTarget::All => Ok((Target::All, hosts.iter().map(|(id, _)| *id).collect())),
        NewTarget::Hosts(names) if names.is_empty() => {
            Err(Error::invalid("no_hosts", "a command needs at least one host"))
        }
        NewTarget::Hosts(names) if names.len() > TARGET_HOSTS_MAX => {
            Err(Error::invalid("too_many_hosts", format!("a command can list {TARGET_HOSTS_MAX} hosts"))
                .hint("give the command to all hosts, or in parts"))
        }
        NewTarget::Hosts(names) => {
            let hosts = resolve(names, hosts)?;
            Ok((Target::Hosts(hosts.clone()), hosts))
        }
    }
}

/// When a command that is issued at `now` expires.
pub(super) fn expiry(now: Millis, expires_in_ms: Option<u64>) -> Result<Millis, Error> {
    let wanted = expires_in_ms.map_or(Some(EXPIRES_IN_MS), |ms| Millis::try_from(ms).ok());
    match wanted.filter(|ms| (1_000..=LIFETIME_MAX_MS).contains(ms)) {
        Some(ms) => Ok(now + ms),
        None => Err(Error::invalid("bad_expiry", "a command waits from one second to seven days")),
    }
}

/// Whether a verb makes sense, as far as can be seen without looking anything up.
pub(in crate::console) fn verb(verb: &Verb, broadcast: bool) -> Result<(), Error> {
    match verb {
        Verb::Exec(exec) => check_exec(exec, broadcast),
        Verb::UnitApply { spec, .. } => {
            let Spec::Yuno(spec) = &**spec;
            no_secrets(&spec.env, broadcast)?;
            no_nul(spec.args.iter().chain(&spec.user))?;
            environment(&spec.env)?;
            match &lease::check(spec)[..] {
                [] => Ok(()),
                wrong => Err(Error::invalid("bad_endpoints", wrong.join("; "))),
            }
        }
        Verb::UnitFollow { for_ms, .. } if !(1..=FOLLOW_MAX_MS).contains(for_ms) => Err(Error::invalid(
            "bad_time",
            format!("a log can be followed for at most {} minutes", FOLLOW_MAX_MS / 60_000),
        )),
        Verb::UnitFollow { lines, .. } if *lines > LOG_LINES_MAX => {
            Err(Error::invalid("bad_lines", format!("at most {LOG_LINES_MAX} lines can be asked for")))
        }
        Verb::UnitLogs { lines, .. } if !(1..=LOG_LINES_MAX).contains(lines) => {
            Err(Error::invalid("bad_lines", format!("from 1 to {LOG_LINES_MAX} lines can be asked for")))
        }
        Verb::UnitHold { note, .. } | Verb::UnitRetire { note, .. } => check_note(note.as_deref()),
        Verb::UnitCommand(forward) => check_forward(forward),
        Verb::UnitStats { units, timeout_ms } => check_question(units, *timeout_ms),
        Verb::UnitLogs { .. }
        | Verb::UnitConfig { .. }
        | Verb::UnitPlay { .. }
        | Verb::UnitPause { .. }
        | Verb::UnitFollow { .. }
        | Verb::Cancel { .. }
        | Verb::UnitRun { .. }
        | Verb::UnitStop { .. }
        | Verb::UnitRestart { .. }
        | Verb::UnitUnhold { .. }
        | Verb::UnitLabel { .. }
        | Verb::UnitUpgrade { .. }
        | Verb::UnitFreeze { .. }
        | Verb::UnitThaw { .. }
        | Verb::UnitSignal { .. }
        | Verb::UnitRm { .. }
        | Verb::RealmSet { .. }
        | Verb::RealmRm { .. }
        | Verb::SnapshotTake { .. }
        | Verb::SnapshotLs
        | Verb::SnapshotDiff { .. }
        | Verb::SnapshotActivate { .. }
        | Verb::SnapshotDeactivate { .. }
        | Verb::SnapshotRm { .. } => Ok(()),
    }
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

fn check_exec(exec: &Exec, broadcast: bool) -> Result<(), Error> {
    if exec.argv.first().is_none_or(String::is_empty) {
        return Err(Error::invalid("no_program", "there is no program to run"));
    }
    if !(1..=TIMEOUT_MAX_MS).contains(&exec.timeout_ms) {
        return Err(Error::invalid("bad_timeout", "a program may run from one millisecond to seven days"));
    }
    if exec.output_max_bytes > OUTPUT_MAX_BYTES {
        return Err(Error::invalid("bad_output_max", format!("at most {OUTPUT_MAX_BYTES} bytes of output are kept")));
    }
    no_secrets(&exec.env, broadcast)?;
    no_nul(exec.argv.iter().chain(&exec.cwd).chain(&exec.user))?;
    environment(&exec.env)
}

/// Every host reads a broadcast, and environments are where people put their secrets.
fn no_secrets(env: &BTreeMap<String, String>, broadcast: bool) -> Result<(), Error> {
    if broadcast && !env.is_empty() {
        return Err(Error::invalid("env_in_broadcast", "a command to all hosts carries no environment")
            .hint("every host can read it; name the hosts instead"));
    }
    Ok(())
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
        // A host that calls itself what another one is.
        let other = hosts[0].0.to_string();
        hosts.push((HostId::random(), other));
        hosts
    }

    #[test]
    fn hosts_by_id_and_name() {
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
        assert!(unknown.problem.message.contains("\"x\", \"y\""), "{unknown}");
        let ambiguous = found(&["twin"]).unwrap_err();
        assert_eq!(ambiguous.problem.code, "ambiguous_host");
        assert!(ambiguous.problem.message.contains(&id), "{ambiguous}");
    }

    #[track_caller]
    fn check(json: &str, broadcast: bool, code: Option<&str>) {
        let parsed: Verb = serde_json::from_str(json).unwrap();
        assert_eq!(verb(&parsed, broadcast).err().map(|error| error.problem.code).as_deref(), code, "{json}");
    }

    #[test]
    fn verbs_that_make_no_sense() {
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1}}"#, true, None);
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A":"b"}}}"#, false, None);
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A":"b"}}}"#, true, Some("env_in_broadcast"));
        check(r#"{"exec":{"argv":["true"],"timeout_ms":1,"env":{"A=":"b"}}}"#, false, Some("bad_env"));
        check(r#"{"exec":{"argv":[],"timeout_ms":1}}"#, false, Some("no_program"));
        check(r#"{"exec":{"argv":[""],"timeout_ms":1}}"#, false, Some("no_program"));
        check(r#"{"exec":{"argv":["a\u0000"],"timeout_ms":1}}"#, false, Some("nul_byte"));
        check(r#"{"exec":{"argv":["true"],"timeout_ms":0}}"#, false, Some("bad_timeout"));
        check(
            r#"{"exec":{"argv":["true"],"timeout_ms":1,"output_max_bytes":99999999}}"#,
            false,
            Some("bad_output_max"),
        );
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
    fn expiries() {
        for (wanted, expires) in [
            (None, Some(600_007)),
            (Some(1_000), Some(1_007)),
            (Some(999), None),
            (Some(8 * 86_400_000), None),
            (Some(u64::MAX), None),
        ] {
            assert_eq!(expiry(7, wanted).ok(), expires, "{wanted:?}");
        }
    }

    #[test]
    fn targets() {
        let hosts = hosts();
        assert_eq!(target(&NewTarget::All, &hosts).unwrap().1.len(), 4);
        assert_eq!(target(&NewTarget::All, &[]).unwrap_err().status, 409);
        assert_eq!(target(&NewTarget::Hosts(vec![]), &hosts).unwrap_err().status, 400);
        let many = vec!["a".to_owned(); TARGET_HOSTS_MAX + 1];
        assert_eq!(target(&NewTarget::Hosts(many), &hosts).unwrap_err().problem.code, "too_many_hosts");
    }
}
