//! Turns a unit's spec into the exact launch for a shim.

use std::{collections::BTreeMap, ffi::CString, path::Path};

use muster_rules::{
    backoff::{GOOD_AFTER_MS, IMMEDIATE_RESTARTS},
    plan::Failure,
    port_lease::EndpointWiring,
    render::unit::RenderedProcess,
};
use muster_shim::{
    ChannelWelcome, ForkingMode, Launch, NotifyKind, OutputMode, ProcessAttributes, RestartOn, SOCKET_VARIABLE,
    attributes::{LimitResource, ResourceLimit},
    cgroup::Cgroup,
};
use muster_topics::{
    capability::Capability,
    diagnostic::Diagnostic,
    name::UnitName,
    process::{self, Process},
    unit::{Channel, Desired, Restart, Run, YunoSpec},
};
use nix::unistd::{self, Gid};
use uuid::Uuid;

use super::place::InstanceFolder;
use crate::execute::program_path::SEARCH_PATH;

pub(in crate::unit) use super::signal_number::signal_number;

/// What is launched of a unit, and as which user.
#[derive(Clone)]
pub(super) struct LaunchRequest<'a> {
    pub(super) unit: &'a UnitName,
    pub(super) host: &'a str,
    pub(super) desired: &'a Desired,
    pub(super) spec: &'a YunoSpec,
    pub(super) place: &'a InstanceFolder,
    /// The configuration that it reads.
    pub(super) config: Option<&'a Path>,
    pub(super) wiring: &'a EndpointWiring,
    /// Its environment and its arguments.
    pub(super) rendered: &'a RenderedProcess,
    pub(super) program: &'a Path,
    pub(super) user: Option<muster_shim::ResolvedUser>,
    /// How it is launched in a container, if it runs in one.
    pub(super) inside: Option<&'a Launch>,
    pub(super) attempts: u32,
}

pub(super) fn launch(wanted: LaunchRequest<'_>, cgroup: Cgroup) -> Launch {
    let LaunchRequest { unit, host, desired, spec, place, config, wiring, rendered, program, user, inside, attempts } =
        wanted;
    if let Some(inside) = inside {
        return inside.clone();
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let config = config.map(text);
    let mut env: BTreeMap<_, _> = [("HOME", text(&place.work())), ("PATH", SEARCH_PATH.to_owned())]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    env.extend(rendered.env.clone());
    env.insert("MUSTER_UNIT".to_owned(), unit.to_string());
    env.insert("MUSTER_REALM".to_owned(), unit.realm().to_string());
    let mut argv = vec![text(program)];
    let config_path = config.as_deref().unwrap_or_default();
    argv.extend(rendered.args.iter().map(|arg| wiring.fill(arg, Some(config_path))));
    let welcome = ChannelWelcome {
        unit: unit.to_string(),
        host: host.to_owned(),
        realm: unit.realm().to_string(),
        playing: desired.run == Run::Playing,
        config: config.clone(),
    };
    env.extend(wiring.variables());
    env.extend(config.map(|config| ("MUSTER_CONFIG".to_owned(), config)));
    let notify = notify(spec, welcome);
    let cwd = spec.program.cwd.clone().unwrap_or_else(|| text(&place.work()));
    let forking = spec.process.forking.as_ref().map(|forking| ForkingMode {
        pid_file: forking.pid_file.as_ref().map(|file| text(&Path::new(&cwd).join(file))),
        start_timeout_ms: spec.program.start_timeout_ms,
    });
    if let Some(notify) = &notify {
        let (socket, watchdog, factor) = match notify.lines {
            Some(_) => (SOCKET_VARIABLE, "MUSTER_WATCHDOG_MS", 1),
            None => ("NOTIFY_SOCKET", "WATCHDOG_USEC", 1_000),
        };
        env.insert(socket.to_owned(), format!("@{}", notify.name));
        env.extend(notify.watchdog_ms.map(|ms| (watchdog.to_owned(), ms.saturating_mul(factor).to_string())));
    }
    Launch {
        protocol: muster_shim::PROTOCOL,
        argv,
        env: env.into_iter().collect(),
        cwd,
        user,
        attributes: attributes(&spec.process),
        cgroup,
        inside: None,
        notify,
        forking,
        output: OutputMode::Log { max_bytes: spec.log.max_bytes, keep: spec.log.keep, max_age_ms: spec.log.max_age_ms },
        restart: muster_shim::RestartLimits {
            on: match spec.program.restart {
                Restart::Always => RestartOn::Always,
                Restart::OnFailure => RestartOn::Failure,
                Restart::Never => RestartOn::Never,
            },
            // After the immediate restarts the agent decides.
            budget: IMMEDIATE_RESTARTS.saturating_sub(attempts),
            reset_after_ms: GOOD_AFTER_MS.unsigned_abs(),
        },
        timeout_ms: None,
        stop_signal: signal_number(spec.stop_signal()),
        grace_ms: spec.program.grace_ms,
    }
}

/// Returns the socket for a unit that has a channel, under a unique name.
fn notify(spec: &YunoSpec, welcome: ChannelWelcome) -> Option<NotifyKind> {
    let lines = match spec.channel {
        Channel::None => return None,
        Channel::Notify => None,
        Channel::Lines => Some(welcome),
    };
    Some(NotifyKind {
        name: format!("muster-{}", Uuid::new_v4()),
        start_timeout_ms: spec.program.start_timeout_ms,
        watchdog_ms: spec.watchdog_ms,
        lines,
    })
}

fn attributes(process: &Process) -> ProcessAttributes {
    let rlimit = |(of, limit): (&process::Resource, &process::Rlimit)| ResourceLimit {
        resource: resource(*of),
        soft: limit.soft.get(),
        hard: limit.hard.get(),
    };
    let numbers = |list: &Vec<Capability>| list.iter().map(|capability| capability.number()).collect();
    ProcessAttributes {
        umask: process.umask.map(process::Umask::bits),
        nice: process.nice,
        rlimits: process.rlimits.iter().map(rlimit).collect(),
        capabilities: process.capabilities.as_ref().map(numbers),
        no_new_privs: process.no_new_privs,
    }
}

fn resource(resource: process::Resource) -> LimitResource {
    use process::Resource as Of;
    match resource {
        Of::As => LimitResource::As,
        Of::Core => LimitResource::Core,
        Of::Cpu => LimitResource::Cpu,
        Of::Data => LimitResource::Data,
        Of::Fsize => LimitResource::Fsize,
        Of::Memlock => LimitResource::Memlock,
        Of::Msgqueue => LimitResource::Msgqueue,
        Of::Nice => LimitResource::Nice,
        Of::Nofile => LimitResource::Nofile,
        Of::Nproc => LimitResource::Nproc,
        Of::Rtprio => LimitResource::Rtprio,
        Of::Rttime => LimitResource::Rttime,
        Of::Sigpending => LimitResource::Sigpending,
        Of::Stack => LimitResource::Stack,
    }
}

/// Returns the user and groups of a unit; `None` if they are the agent's own.
pub(super) fn find_user(spec: &YunoSpec) -> Result<Option<muster_shim::ResolvedUser>, Failure> {
    let own = unistd::geteuid();
    let user = spec.program.user.as_deref().map(by_name).transpose()?;
    let groups = spec.process.groups.as_ref().map(|groups| groups.iter().map(|name| find_group(name)).collect());
    let groups: Option<Vec<u32>> = groups.transpose()?;
    let (uid, gid) = match &user {
        Some(user) => (user.uid, user.gid),
        None => (own, unistd::getegid()),
    };
    let groups = match (groups, &user) {
        (Some(groups), _) => groups,
        // A process that already is this user need not switch, and may not be allowed to.
        (None, Some(user)) if user.uid != own => all_groups(user)?,
        (None, _) => return Ok(None),
    };
    Ok(Some(muster_shim::ResolvedUser { uid: uid.as_raw(), gid: gid.as_raw(), groups }))
}

fn by_name(name: &str) -> Result<unistd::User, Failure> {
    unistd::User::from_name(name)
        .map_err(|errno| failure(format!("user {name:?} cannot be looked up: {errno}")))?
        .ok_or_else(|| {
            failure(
                Diagnostic::new(format_args!("there is no user {name:?} on this host"))
                    .with_hint("create it; `muster unit run` tries again at once"),
            )
        })
}

fn all_groups(user: &unistd::User) -> Result<Vec<u32>, Failure> {
    let groups = CString::new(user.name.as_str())
        .map_err(|error| failure(error.to_string()))
        .and_then(|name| unistd::getgrouplist(&name, user.gid).map_err(|errno| failure(errno.to_string())))?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
}

/// Returns a group by name, or by number, which need not have a name.
fn find_group(name: &str) -> Result<u32, Failure> {
    let found = unistd::Group::from_name(name)
        .map_err(|errno| failure(format!("group {name:?} cannot be looked up: {errno}")))?;
    found.map(|group| group.gid.as_raw()).or_else(|| name.parse().ok()).ok_or_else(|| {
        failure(
            Diagnostic::new(format_args!("there is no group {name:?} on this host"))
                .with_hint("create it; `muster unit run` tries again at once"),
        )
    })
}

/// A missing user or group may be created later, or come with a directory service.
fn failure(error: impl Into<Diagnostic>) -> Failure {
    Failure { error: error.into(), may_heal: true }
}
