//! Options of `muster unit create yuno` for limits and attributes of the process.

use std::collections::BTreeMap;

use clap::Args;
use muster_topics::{
    capability::Capability,
    process::{Amount, Cores, Forking, Limits, Log, Process, Resource, Rlimit, Umask},
    unit::Channel,
};

/// What a unit may use.
#[derive(Args, Clone, Debug)]
#[group(id = "limited")]
pub struct LimitFields {
    /// Memory for it and its children, such as 64M
    ///
    /// It is killed if it takes more.
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    memory: Option<u64>,
    /// Processors, such as 0.5
    #[arg(long, value_name = "CORES")]
    cpu: Option<Cores>,
    /// Processes and threads
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,
    /// Limit of each of its processes; repeatable
    ///
    /// Such as nofile=1024 or nofile=1024:4096.
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]", value_parser = parse_rlimit)]
    rlimits: Vec<(Resource, Rlimit)>,
}

impl LimitFields {
    /// The limits of all its processes together.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { memory_bytes: self.memory, cpu: self.cpu, pids: self.pids }
    }

    /// The limits of each of its processes.
    #[must_use]
    pub fn rlimits(&self) -> BTreeMap<Resource, Rlimit> {
        self.rlimits.iter().copied().collect()
    }
}

/// What a process may use and what it is given.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub struct ProcessOptions {
    /// Working directory [default: a folder of its own]
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    #[command(flatten)]
    limited: LimitFields,
    /// Group, in place of all groups of its user; repeatable
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// Umask, in octal digits
    #[arg(long)]
    umask: Option<Umask>,
    /// Nice value
    #[arg(long, allow_negative_numbers = true)]
    nice: Option<i32>,
    /// Capability to keep, such as net_bind_service; repeatable
    ///
    /// All others are dropped.
    #[arg(long = "capability", value_name = "NAME", conflicts_with = "no_capabilities")]
    capabilities: Vec<Capability>,
    /// Drop all capabilities
    #[arg(long)]
    no_capabilities: bool,
    /// Set no_new_privs, so that setuid programs give it nothing
    #[arg(long)]
    no_new_privs: bool,
    /// Accept that it goes to the background by itself
    ///
    /// It is up once the process that was started has ended with exit code 0; the oldest process that is left is its
    /// main one. It is better to have it stay in the foreground, if it can.
    #[arg(long, conflicts_with = "channel")]
    forking: bool,
    /// Like --forking, with the main process from this file
    #[arg(long, value_name = "FILE", conflicts_with = "channel")]
    pid_file: Option<String>,
    /// Use systemd's notify protocol: it runs after READY=1
    #[arg(long, group = "channel")]
    notify: bool,
    /// Use JSON lines: it runs after it has said `ready`
    ///
    /// It can then be asked to play, for stats, and more.
    #[arg(long, group = "channel")]
    lines: bool,
    /// Time within which it must be up
    ///
    /// That is: say so, or go to the background, and pass --start and --ready. It is ended if it does not.
    #[arg(long, value_name = "TIME", default_value = "90s")]
    start_timeout: humantime::Duration,
    /// End it if it is silent for so long (WATCHDOG=1, or `alive`)
    #[arg(long, value_name = "TIME", requires = "channel")]
    watchdog: Option<humantime::Duration>,
    /// Begin a new file of its log at this size
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    log_size: Option<u64>,
    /// Keep so many old files of its log
    #[arg(long, value_name = "COUNT")]
    log_keep: Option<u32>,
    /// Begin a new file of its log at this age, such as 1d
    #[arg(long, value_name = "TIME")]
    log_age: Option<humantime::Duration>,
}

/// The options as fields of a spec.
pub struct ProcessFields {
    /// Working directory.
    pub cwd: Option<String>,
    /// Limits.
    pub limits: Limits,
    /// Attributes of the process.
    pub process: Process,
    /// How much of its output is kept.
    pub log: Log,
    /// How it communicates with its agent.
    pub channel: Channel,
    /// Start timeout.
    pub start_timeout_ms: u64,
    /// Longest silence.
    pub watchdog_ms: Option<u64>,
}

impl ProcessOptions {
    /// As fields of a spec.
    #[must_use]
    pub fn into_fields(self) -> ProcessFields {
        let usual = Log::default();
        let millis = |age: humantime::Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        ProcessFields {
            cwd: self.cwd,
            channel: match (self.notify, self.lines) {
                (true, _) => Channel::Notify,
                (false, true) => Channel::Lines,
                (false, false) => Channel::None,
            },
            start_timeout_ms: millis(self.start_timeout),
            watchdog_ms: self.watchdog.map(millis),
            limits: self.limited.limits(),
            process: Process {
                groups: (!self.groups.is_empty()).then_some(self.groups),
                umask: self.umask,
                nice: self.nice,
                rlimits: self.limited.rlimits(),
                capabilities: (self.no_capabilities || !self.capabilities.is_empty()).then_some(self.capabilities),
                no_new_privs: self.no_new_privs,
                forking: (self.forking || self.pid_file.is_some()).then_some(Forking { pid_file: self.pid_file }),
            },
            log: Log {
                max_bytes: self.log_size.unwrap_or(usual.max_bytes),
                keep: self.log_keep.unwrap_or(usual.keep),
                max_age_ms: self.log_age.map(millis),
            },
        }
    }
}

fn parse_rlimit(text: &str) -> Result<(Resource, Rlimit), String> {
    let (name, amounts) = text.split_once('=').ok_or("use NAME=SOFT or NAME=SOFT:HARD, such as nofile=1024")?;
    let resource = serde_json::from_value(name.into()).map_err(|error| error.to_string())?;
    let (soft, hard) = amounts.split_once(':').unwrap_or((amounts, amounts));
    let amount = |text: &str| text.parse::<Amount>();
    Ok((resource, Rlimit { soft: amount(soft)?, hard: amount(hard)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rlimits() {
        for (text, wanted) in [
            ("nofile=10", Some(r#"["nofile",{"soft":10,"hard":10}]"#)),
            ("nofile=10:20", Some(r#"["nofile",{"soft":10,"hard":20}]"#)),
            ("core=0:unlimited", Some(r#"["core",{"soft":0,"hard":"unlimited"}]"#)),
            ("nofile", None),
            ("files=1", None),
            ("nofile=", None),
            ("nofile=1:", None),
            ("nofile=-1", None),
        ] {
            let found = parse_rlimit(text).ok().map(|pair| serde_json::to_string(&pair).unwrap());
            assert_eq!(found.as_deref(), wanted, "{text}");
        }
    }
}
