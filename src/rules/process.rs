//! Validates the spec of a process.

use std::collections::BTreeMap;

use super::{backoff::GOOD_AFTER_MS, common};
use muster_topics::{
    common::{CommonSpec, ProgramSpec},
    diagnostic::Diagnostic,
    probe::{Check, Which},
    process::{Forking, Limits, Log, Process, Resource, Rlimit},
    reload::{ON_CHANGE_MAX, Reload},
    signal::Signal,
    unit::{CONFIG_TEMPLATES_MAX, CONFIG_TEMPLATES_MAX_BYTES, CONFIGS_MAX, Channel, Restart, Rollback, YunoSpec},
};

/// The longest grace period: an hour. A stop that may take longer is a mistake in the unit of time.
pub const GRACE_MAX_MS: u64 = 3_600_000;

/// The longest time that a unit may have to stay up to count as running: an hour, as above.
pub const STARTED_AFTER_MAX_MS: u64 = 3_600_000;

/// The longest time to be up before a revision is verified: five minutes, after which earlier restarts do not count
/// either.
pub const VERIFY_AFTER_MAX_MS: u64 = GOOD_AFTER_MS.unsigned_abs();

/// The longest time that a unit may take to come up in another revision: a day, for those that rebuild an index first.
pub const HEALTHY_WITHIN_MAX_MS: u64 = 24 * 3_600_000;

/// The longest watchdog or start timeout: an hour, as above.
pub const SILENCE_MAX_MS: u64 = 3_600_000;

/// The shortest: with less, a moment without processor time would count as a failure.
pub const SILENCE_MIN_MS: u64 = 100;

/// The highest restart epoch that a spec may have: it leaves as many restarts before canonical JSON, and so the
/// revision, could not distinguish two (2⁵³).
pub const RESTART_EPOCH_MAX: u64 = 1 << 52;

/// The smallest memory limit: with less not even a shell starts, and 512 is a mistake in the unit.
pub const MEMORY_MIN_BYTES: u64 = 1024 * 1024;

/// The largest memory limit: what canonical JSON represents exactly.
pub const MEMORY_MAX_BYTES: u64 = 1 << 53;

/// The smallest log file: with less, each line would rotate all files.
pub const LOG_MIN_BYTES: u64 = 4 * 1024;

/// The largest log file: a gigabyte; larger ones cannot be handled well.
pub const LOG_MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// The most rotated log files: each rotation renames all of them.
pub const LOGS_KEPT_MAX: u32 = 100;

/// The shortest time after which a log is rotated: a minute. With less, the kept files cover too little time.
pub const LOG_AGE_MIN_MS: u64 = 60_000;

/// The most groups: more than any user has, and fewer than any kernel's limit.
pub const GROUPS_MAX: usize = 1_024;

/// The variables that tell a unit with a channel how to use it.
pub const NOTIFY_VARIABLES: [&str; 2] = ["NOTIFY_SOCKET", "WATCHDOG_USEC"];

/// The name of the merged config's file, without its extension; no single config may have it.
pub const MERGED: &str = "config";

/// Checks a spec.
///
/// # Errors
/// If something is wrong, with a message for its author.
pub fn check(spec: &YunoSpec) -> Result<(), Diagnostic> {
    faults(spec).into_iter().next().map_or(Ok(()), Err)
}

/// Returns everything that is wrong with a spec, part by part.
#[must_use]
pub fn faults(spec: &YunoSpec) -> Vec<Diagnostic> {
    let checks = [
        check_texts(spec),
        check_configs(spec),
        most("configs", " templates", spec.config_templates.templates.len(), CONFIG_TEMPLATES_MAX),
        most("configs", " bytes of templates", template_bytes(spec), CONFIG_TEMPLATES_MAX_BYTES),
        check_reload(spec),
        check_limits(&spec.program.limits),
        check_attributes(&spec.process),
        check_log(&spec.log),
        check_channel(spec),
        check_rollback(spec),
        check_replace(spec),
        check_container(spec),
        between("grace_ms", spec.program.grace_ms, 0, GRACE_MAX_MS),
        between("started_after_ms", spec.program.started_after_ms, 0, STARTED_AFTER_MAX_MS),
    ];
    checks.into_iter().chain(common::checks(&spec.common)).filter_map(Result::err).collect()
}

/// The system allows no NUL in its texts, and no `=` in the name of an environment variable.
fn check_texts(spec: &YunoSpec) -> Result<(), Diagnostic> {
    if let Some(arg) = spec.program.args.iter().position(|arg| arg.contains('\0')) {
        return Err(format!("argument {} contains a NUL", arg + 1).into());
    }
    for (name, value) in &spec.program.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("environment variable {name:?} has no valid name or value").into());
        }
        if name.starts_with("MUSTER_") {
            return Err(format!(
                "environment variable {name} is reserved: names that begin with MUSTER_ belong to the agent"
            )
            .into());
        }
        if !spec.channel.is_none() && NOTIFY_VARIABLES.contains(&name.as_str()) {
            return Err(format!("environment variable {name} is set by the agent for a unit with a channel").into());
        }
    }
    match &spec.program.cwd {
        Some(cwd) if !cwd.starts_with('/') || cwd.contains('\0') => {
            Err(Diagnostic::new(format_args!("cwd {cwd:?} is not an absolute path")).with_hint("begin it with /"))
        }
        _ => Ok(()),
    }
}

/// Each config has a file of its own beside the merged one, named by its id.
fn check_configs(spec: &YunoSpec) -> Result<(), Diagnostic> {
    if spec.configs.len() > CONFIGS_MAX {
        return Err(format!("there are {} configs; at most {CONFIGS_MAX} are allowed", spec.configs.len()).into());
    }
    for (index, config) in spec.configs.iter().enumerate() {
        if config.id.as_str() == MERGED {
            return Err(Diagnostic::new(format_args!("configs: the id {MERGED} is reserved for the merged file"))
                .with_hint("add it under another id"));
        }
        if spec.configs[..index].iter().any(|other| other.id == config.id) {
            return Err(Diagnostic::new(format_args!("configs: {} is listed twice", config.id))
                .with_hint("use one version of it"));
        }
    }
    Ok(())
}

fn check_reload(spec: &YunoSpec) -> Result<(), Diagnostic> {
    if spec.reload_signal == Signal::Kill {
        return Err(Diagnostic::new("reload_signal is kill, which would end it").with_hint("\"reload\": \"restart\""));
    }
    let by_channel = spec.on_change.iter().any(|one| one.action == Reload::Channel) || spec.reload == Reload::Channel;
    if by_channel && spec.channel != Channel::Lines {
        return Err(Diagnostic::new("reloading by channel needs a channel").with_hint("\"channel\": \"lines\""));
    }
    if spec.on_change.len() > ON_CHANGE_MAX {
        return Err(format!("on_change has {} files; at most {ON_CHANGE_MAX} are allowed", spec.on_change.len()).into());
    }
    match spec.on_change.iter().find(|one| !one.path.starts_with('/') || one.path.contains('\0')) {
        Some(one) => Err(Diagnostic::new(format_args!("on_change: {:?} is not an absolute path", one.path))
            .with_hint("begin it with /")),
        None => Ok(()),
    }
}

pub(super) fn check_limits(limits: &Limits) -> Result<(), Diagnostic> {
    if let Some(bytes) = limits.memory_bytes {
        between("limits.memory_bytes", bytes, MEMORY_MIN_BYTES, MEMORY_MAX_BYTES)?;
    }
    match limits.pids {
        Some(0) => Err("limits.pids is 0, and a unit needs at least one process".into()),
        _ => Ok(()),
    }
}

fn check_attributes(process: &Process) -> Result<(), Diagnostic> {
    if let Some(nice) = process.nice.filter(|nice| !(-20..=19).contains(nice)) {
        return Err(format!("process.nice is {nice}; it must be from -20 to 19").into());
    }
    if let Some(Forking { pid_file: Some(path) }) = &process.forking
        && (path.is_empty() || path.contains('\0'))
    {
        return Err(format!("process.forking.pid_file: {path:?} is not a path of a file").into());
    }
    check_rlimits("process.rlimits", &process.rlimits)?;
    let groups = process.groups.as_deref().unwrap_or_default();
    if groups.len() > GROUPS_MAX {
        return Err(format!("process.groups has {} groups; at most {GROUPS_MAX} are allowed", groups.len()).into());
    }
    match groups.iter().find(|group| group.is_empty() || group.contains('\0')) {
        Some(group) => Err(format!("process.groups: {group:?} is not a group name").into()),
        None => Ok(()),
    }
}

pub(super) fn check_rlimits(what: &str, rlimits: &BTreeMap<Resource, Rlimit>) -> Result<(), Diagnostic> {
    for (resource, Rlimit { soft, hard }) in rlimits {
        if soft.get().unwrap_or(u64::MAX) > hard.get().unwrap_or(u64::MAX) {
            let name = format!("{resource:?}").to_lowercase();
            return Err(format!("{what}.{name}: the soft limit ({soft}) is above the hard limit ({hard})").into());
        }
    }
    Ok(())
}

fn check_log(log: &Log) -> Result<(), Diagnostic> {
    between("log.max_bytes", log.max_bytes, LOG_MIN_BYTES, LOG_MAX_BYTES)?;
    between("log.keep", log.keep.into(), 0, LOGS_KEPT_MAX.into())?;
    match log.max_age_ms {
        Some(ms) => between("log.max_age_ms", ms, LOG_AGE_MIN_MS, 1 << 53),
        None => Ok(()),
    }
}

fn check_channel(spec: &YunoSpec) -> Result<(), Diagnostic> {
    between("start_timeout_ms", spec.program.start_timeout_ms, SILENCE_MIN_MS, SILENCE_MAX_MS)?;
    if spec.process.forking.is_some() && !spec.channel.is_none() {
        return Err(Diagnostic::new(
            "process.forking: a program with a channel reports when it is up, and stays in the foreground",
        )
        .with_hint("leave out one of them"));
    }
    match spec.watchdog_ms {
        Some(_) if spec.channel.is_none() => {
            Err(Diagnostic::new("watchdog_ms needs a channel").with_hint("add \"channel\": \"notify\" or \"lines\""))
        }
        Some(ms) => between("watchdog_ms", ms, SILENCE_MIN_MS, SILENCE_MAX_MS),
        None => Ok(()),
    }
}

fn check_rollback(spec: &YunoSpec) -> Result<(), Diagnostic> {
    let Some(within_ms) = spec.program.healthy_within_ms else { return Ok(()) };
    if spec.channel.is_none() && spec.process.forking.is_none() && within_ms <= spec.program.started_after_ms {
        return Err(format!(
            "healthy_within_ms is {within_ms}, and it is up after {} ms (started_after_ms) at the earliest, so it \
             would never be healthy",
            spec.program.started_after_ms
        )
        .into());
    }
    between("healthy_within_ms", within_ms, SILENCE_MIN_MS, HEALTHY_WITHIN_MAX_MS)
}

/// Two instances that run side by side listen on the same ports, if on any: a client may reach the one that is about to
/// end.
fn check_replace(spec: &YunoSpec) -> Result<(), Diagnostic> {
    if spec.replace.is_stop_first() {
        return Ok(());
    }
    let asks_port =
        |which: &Which| spec.program.probes.get(*which).is_some_and(|probe| !matches!(probe.check, Check::Exec(_)));
    match [Which::Start, Which::Ready].into_iter().find(asks_port) {
        Some(which) => Err(Diagnostic::new(format_args!(
            "replace is start_first, so two instances listen on one port \
                 for a while, and the old one may answer probes.{which}"
        ))
        .with_hint(
            "let the program report that it is up (\"channel\": \"notify\" or \
                 \"lines\"), or probe with a command (exec)",
        )),
        None => Ok(()),
    }
}

/// A program in a container is a command that stays in the foreground; it reads no files of the host.
fn check_container(spec: &YunoSpec) -> Result<(), Diagnostic> {
    if spec.container.is_none() {
        return Ok(());
    }
    let program = &spec.program;
    let plain = YunoSpec {
        transient: true,
        log: spec.log,
        container: spec.container.clone(),
        program: ProgramSpec {
            env: program.env.clone(),
            args: program.args.clone(),
            cwd: program.cwd.clone(),
            user: program.user.clone(),
            limits: program.limits,
            restart: Restart::Never,
            ..ProgramSpec::default()
        },
        common: CommonSpec { labels: spec.common.labels.clone(), rollback: Rollback::Never, ..CommonSpec::default() },
        ..YunoSpec::new(spec.artifact.clone())
    };
    if *spec == plain && !spec.program.args.is_empty() {
        return Ok(());
    }
    Err("container: only a unit of `muster exec --daemon` runs in a container".into())
}

pub(super) fn most(what: &str, things: &str, count: usize, max: usize) -> Result<(), Diagnostic> {
    let message = || Err(format!("{what}: there are {count}{things}; at most {max} are allowed").into());
    if count > max { message() } else { Ok(()) }
}

fn template_bytes(spec: &YunoSpec) -> usize {
    spec.config_templates.templates.iter().map(|one| one.at.len() + one.text.len()).sum()
}

pub(super) fn between(what: &str, value: u64, min: u64, max: u64) -> Result<(), Diagnostic> {
    match value {
        _ if value < min => Err(format!("{what} is {value}; it must be at least {min}").into()),
        _ if value > max => Err(format!("{what} is {value}; it must be at most {max}").into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a spec with further fields, and compares the field of the message.
    #[track_caller]
    fn check_fields(fields: serde_json::Value, complaint: Option<&str>) {
        let artifact = serde_json::json!({"sha256": "0".repeat(64), "size_bytes": 5, "role": "hello", "version": "1"});
        let mut spec = fields.clone();
        spec["artifact"] = artifact;
        let spec: YunoSpec = serde_json::from_value(spec).unwrap();
        match (check(&spec), complaint) {
            (Ok(()), None) => {}
            (Err(error), Some(words)) if error.cause.starts_with(words) => {}
            (found, _) => panic!("{fields}: {found:?}"),
        }
    }

    fn config(id: &str) -> serde_json::Value {
        serde_json::json!({"id": id, "version": "1", "sha256": "0".repeat(64)})
    }

    #[test]
    fn valid_process_specs_are_accepted() {
        use serde_json::json;
        check_fields(json!({}), None);
        check_fields(json!({"cwd": "/srv", "limits": {"memory_bytes": 1_048_576, "cpu": 0.5, "pids": 1}}), None);
        check_fields(json!({"process": {"nice": -20, "groups": ["adm", "12"], "capabilities": []}}), None);
        check_fields(json!({"process": {"rlimits": {"core": {"soft": 0, "hard": "unlimited"}}}}), None);
        check_fields(json!({"process": {"forking": {}}, "healthy_within_ms": 500}), None);
        check_fields(json!({"process": {"forking": {"pid_file": "/run/a.pid"}}}), None);
        check_fields(json!({"channel": "notify", "watchdog_ms": 10_000, "start_timeout_ms": 5_000}), None);
        check_fields(json!({"configs": [config("a.b"), config("c")]}), None);
        check_fields(json!({"channel": "lines", "watchdog_ms": 10_000}), None);
        check_fields(json!({"rollback": "never", "verify_after_ms": 0, "healthy_within_ms": 1_001}), None);
        check_fields(json!({"log": {"max_bytes": 4096, "keep": 0, "max_age_ms": 86_400_000}}), None);
        let (port, command) = (json!({"tcp": {"port": 1}}), json!({"exec": ["true"]}));
        check_fields(json!({"probes": {"ready": port}}), None);
        check_fields(json!({"replace": "start_first", "probes": {"ready": command, "live": port}}), None);
        for which in ["start", "ready"] {
            let fields = json!({"replace": "start_first", "probes": {which: port}});
            check_fields(fields, Some("replace is start_first"));
        }
    }

    #[test]
    fn yuno_in_container_must_be_a_daemon() {
        use serde_json::json;
        let daemon = json!({
            "container": "default/shop", "args": ["/bin/sleep", "5"], "transient": true, "restart": "never", "rollback": "never",
            "env": {"A": "b"}, "user": "shop", "cwd": "/", "limits": {"pids": 5},
        });
        check_fields(daemon.clone(), None);
        for (name, value) in [
            ("transient", json!(false)),
            ("restart", json!("always")),
            ("configs", json!([config("a")])),
            ("channel", json!("notify")),
            ("args", json!([])),
            ("process", json!({"nice": 1})),
        ] {
            let mut other = daemon.clone();
            other[name] = value;
            check_fields(other, Some("container: "));
        }
    }

    #[test]
    fn invalid_process_specs_are_refused() {
        use serde_json::json;
        for (fields, complaint) in [
            (json!({"args": ["", "a\0b"]}), "argument 2"),
            (json!({"env": {"": "b"}}), "environment variable"),
            (json!({"env": {"a=b": "b"}}), "environment variable"),
            (json!({"env": {"a": "\0"}}), "environment variable"),
            (json!({"env": {"MUSTER_UNIT": "b"}}), "environment variable MUSTER_UNIT is reserved"),
            (json!({"cwd": "srv"}), "cwd"),
            (json!({"cwd": "/a\0"}), "cwd"),
            (json!({"cwd": ""}), "cwd"),
            (json!({"configs": [config("a"), config("b"), config("a")]}), "configs: a is listed twice"),
            (json!({"configs": [config("config")]}), "configs: the id config"),
            (json!({"configs": (0..17).map(|n| config(&n.to_string())).collect::<Vec<_>>()}), "there are 17 configs"),
            (json!({"reload": "signal", "reload_signal": "kill"}), "reload_signal is kill"),
            (json!({"reload": "channel", "channel": "notify"}), "reloading by channel needs a channel"),
            (json!({"on_change": [{"path": "/a", "action": "channel"}]}), "reloading by channel needs a channel"),
            (
                json!({"on_change": [{"path": "a.pem", "action": "signal"}]}),
                "on_change: \"a.pem\" is not an absolute path",
            ),
            (json!({"on_change": vec![json!({"path": "/a", "action": "restart"}); 17]}), "on_change has 17 files"),
            (json!({"limits": {"memory_bytes": 512}}), "limits.memory_bytes"),
            (json!({"limits": {"memory_bytes": u64::MAX}}), "limits.memory_bytes"),
            (json!({"limits": {"pids": 0}}), "limits.pids"),
            (json!({"process": {"nice": 20}}), "process.nice"),
            (json!({"process": {"rlimits": {"nofile": {"soft": 2, "hard": 1}}}}), "process.rlimits.nofile"),
            (json!({"process": {"rlimits": {"core": {"soft": "unlimited", "hard": 1}}}}), "process.rlimits.core"),
            (json!({"process": {"groups": [""]}}), "process.groups"),
            (json!({"process": {"forking": {"pid_file": ""}}}), "process.forking.pid_file"),
            (json!({"process": {"forking": {"pid_file": "a\0b"}}}), "process.forking.pid_file"),
            (json!({"process": {"forking": {}}, "channel": "notify"}), "process.forking: a program with a channel"),
            (json!({"process": {"groups": vec!["a"; 1_025]}}), "process.groups"),
            (json!({"log": {"max_bytes": 1}}), "log.max_bytes"),
            (json!({"log": {"keep": 101}}), "log.keep"),
            (json!({"log": {"max_age_ms": 59_999}}), "log.max_age_ms"),
            (json!({"watchdog_ms": 1_000}), "watchdog_ms needs a channel"),
            (json!({"channel": "notify", "watchdog_ms": 99}), "watchdog_ms"),
            (json!({"start_timeout_ms": 0}), "start_timeout_ms"),
            (json!({"grace_ms": 3_600_001}), "grace_ms"),
            (json!({"priority": 10}), "priority"),
            (json!({"after": vec!["a/b"; 33]}), "after"),
            (json!({"requires": vec!["a/b"; 33]}), "requires"),
            (json!({"started_after_ms": 3_600_001}), "started_after_ms"),
            (json!({"restart_epoch": u64::MAX}), "restart_epoch"),
            (json!({"verify_after_ms": 300_001}), "verify_after_ms"),
            (json!({"healthy_within_ms": 1_000}), "healthy_within_ms is 1000, and it is up after 1000 ms"),
            (json!({"channel": "notify", "healthy_within_ms": 99}), "healthy_within_ms"),
            (json!({"healthy_within_ms": 86_400_001}), "healthy_within_ms"),
        ] {
            check_fields(fields, Some(complaint));
        }
    }
}
