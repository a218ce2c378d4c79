//! Options of `muster yuno create` for limits and attributes of the process.

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
    /// The most memory, with everything that it forks, such as 64M; what takes more is killed
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    memory: Option<u64>,
    /// The most time of processors, such as 0.5
    #[arg(long, value_name = "CORES")]
    cpu: Option<Cores>,
    /// The most processes and threads
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,
    /// A limit of each of its processes, such as nofile=1024 or nofile=1024:4096; may be given several times
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
    /// Where it works, an absolute path; a folder of its own if not given
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    #[command(flatten)]
    limited: LimitFields,
    /// A group that it is in, in place of all that its user is in; may be given several times
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// The mask of the files that it makes, in octal digits
    #[arg(long)]
    umask: Option<Umask>,
    /// Its nice value
    #[arg(long, allow_negative_numbers = true)]
    nice: Option<i32>,
    /// A capability that it keeps, such as net_bind_service; all others are dropped; may be given several times
    #[arg(long = "capability", value_name = "NAME", conflicts_with = "no_capabilities")]
    capabilities: Vec<Capability>,
    /// It has no capabilities at all
    #[arg(long)]
    no_capabilities: bool,
    /// It can gain nothing by executing a file, such as one with the setuid bit
    #[arg(long)]
    no_new_privs: bool,
    /// It goes to the background by itself: it is up once the process that was started has ended with exit code 0, and the
    /// oldest process that is left is kept as its main one. (Better, have it stay in the foreground, if it can)
    #[arg(long, conflicts_with = "channel")]
    forking: bool,
    /// The same, and the program writes in this file which process is its main one
    #[arg(long, value_name = "FILE", conflicts_with = "channel")]
    pid_file: Option<String>,
    /// It speaks systemd's notify protocol: it is running once it has said READY=1
    #[arg(long, group = "channel")]
    notify: bool,
    /// It speaks JSON lines: it is running once it has said `ready`, and can be asked to play, for stats, and more
    #[arg(long, group = "channel")]
    lines: bool,
    /// How long it may take to say so, or to go to the background, and to pass its probes (--start, --ready), before it is
    /// ended
    #[arg(long, value_name = "TIME", default_value = "90s")]
    start_timeout: humantime::Duration,
    /// How long it may be silent after that (WATCHDOG=1, or `alive`) before it is ended
    #[arg(long, value_name = "TIME", requires = "channel")]
    watchdog: Option<humantime::Duration>,
    /// The size at which a new file of its log is begun
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    log_size: Option<u64>,
    /// How many old files of its log are kept
    #[arg(long, value_name = "COUNT")]
    log_keep: Option<u32>,
    /// The age at which a new file of its log is begun, such as 1d
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
