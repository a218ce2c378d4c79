//! Probes: how an agent checks whether a unit is up, ready and alive.
//!
//! A unit may have up to three. Until its `start` probe has succeeded, no other runs. It is `running` once its `ready`
//! probe has succeeded too (and it has said so itself, if it has a channel). From then on a `ready` probe that fails
//! shows as [`crate::unit::Observed::unready`] and ends nothing; a `live` probe that fails ends the process as one that
//! hangs.

use core::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The most words of a probe's command, and the longest of them in bytes: a command, not a script.
pub const ARGV_MAX: usize = 64;
/// See [`ARGV_MAX`].
pub const WORD_MAX_BYTES: usize = 4 * 1024;

/// The longest path of a request: what any server accepts.
pub const PATH_MAX_BYTES: usize = 2 * 1024;

/// The probes of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probes {
    /// Whether it has come up. It is tried until it passes or `start_timeout_ms` is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Probe>,
    /// Whether it can do its work now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Probe>,
    /// Whether it hangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Probe>,
}

impl Probes {
    /// Whether a unit counts as up only once a probe passes.
    #[must_use]
    pub fn tell_up(&self) -> bool {
        self.start.is_some() || self.ready.is_some()
    }

    /// Whether there is no probe.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns one of the probes, if it exists.
    #[must_use]
    pub fn get(&self, which: Which) -> Option<&Probe> {
        match which {
            Which::Start => self.start.as_ref(),
            Which::Ready => self.ready.as_ref(),
            Which::Live => self.live.as_ref(),
        }
    }

    /// Iterates over the probes.
    pub fn iter(&self) -> impl Iterator<Item = (Which, &Probe)> {
        Which::ALL.into_iter().filter_map(|which| Some((which, self.get(which)?)))
    }
}

/// One of a unit's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// [`Probes::start`]
    Start,
    /// [`Probes::ready`]
    Ready,
    /// [`Probes::live`]
    Live,
}

impl Which {
    /// All kinds of probes.
    pub const ALL: [Self; 3] = [Self::Start, Self::Ready, Self::Live];

    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Ready => "ready",
            Self::Live => "live",
        }
    }
}

impl core::fmt::Display for Which {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A repeated check, with the thresholds of its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Form", into = "Form")]
#[schemars(with = "Form")]
pub struct Probe {
    /// The check.
    pub check: Check,
    /// The time from one result to the next attempt. Until a unit is up it is at most a second.
    pub interval_ms: u64,
    /// The timeout of an attempt.
    pub timeout_ms: u64,
    /// It fails after this many consecutive failures. (For a start probe only successes count.)
    pub failures: u32,
    /// It passes after this many consecutive successes. (For a live probe only one.)
    pub successes: u32,
}

/// What a probe checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A command, which has to end with exit code 0: a program and its arguments, no shell. It runs as the unit does,
    /// with its user, environment, limits and working directory, and with placeholders such as `{port:NAME}` filled in.
    /// For a container it runs inside.
    Exec(Vec<String>),
    /// A TCP connection, which has to succeed.
    Tcp(Tcp),
    /// A GET request by HTTP/1.1, which has to have a good status. Redirects are not followed.
    Http(Http),
}

/// The target of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// The port.
    pub port: Port,
    /// The address; by default that of the endpoint, or loopback for a port number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// A request, and the expected status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// The port.
    pub port: Port,
    /// As in [`Tcp::address`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The path with its query; it begins with `/`.
    #[serde(default = "root", skip_serializing_if = "is_root")]
    pub path: String,
    /// The expected status; any from 200 to 399 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

fn root() -> String {
    "/".to_owned()
}

fn is_root(path: &String) -> bool {
    path == "/"
}

/// A port of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a port's number, or the name of an endpoint that the unit provides")]
pub enum Port {
    /// A number. For a container with its own network it is the port inside of an endpoint that it provides.
    Number(u16),
    /// The port of an endpoint that the unit provides.
    Endpoint(Name),
}

impl core::fmt::Display for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Endpoint(name) => name.fmt(f),
        }
    }
}

impl core::fmt::Display for Check {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let at = |address: &Option<IpAddr>, port: &Port| match address {
            Some(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            Some(address) => format!("{address}:{port}"),
            None => port.to_string(),
        };
        match self {
            Self::Exec(argv) => write!(f, "exec:{}", argv.join(" ")),
            Self::Tcp(Tcp { port, address }) => write!(f, "tcp:{}", at(address, port)),
            Self::Http(Http { port, address, path, status }) => {
                write!(f, "http:{}{path}", at(address, port))?;
                status.map_or(Ok(()), |status| write!(f, " ({status})"))
            }
        }
    }
}

/// The JSON form of a probe: exactly one of `exec`, `tcp` and `http`, and the numbers.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename = "Probe")]
#[schemars(rename = "Probe")]
struct Form {
    /// A program and its arguments, which has to end with exit code 0. It runs as the unit does, for a container
    /// inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exec: Option<Vec<String>>,
    /// A TCP connection, which has to succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp: Option<Tcp>,
    /// A GET request by HTTP/1.1, which has to have a good status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http: Option<Http>,
    /// The time from one result to the next attempt.
    #[serde(default = "interval_ms")]
    interval_ms: u64,
    /// The timeout of an attempt.
    #[serde(default = "timeout_ms")]
    timeout_ms: u64,
    /// It fails after this many consecutive failures.
    #[serde(default = "failures")]
    failures: u32,
    /// It passes after this many consecutive successes.
    #[serde(default = "successes")]
    successes: u32,
}

/// The default of [`Probe::interval_ms`]: ten seconds, as in Kubernetes.
#[must_use]
pub fn interval_ms() -> u64 {
    10_000
}

/// The default of [`Probe::timeout_ms`]: five seconds. That of Kubernetes is too short for a small host that is busy
/// starting everything else.
#[must_use]
pub fn timeout_ms() -> u64 {
    5_000
}

/// The default of [`Probe::failures`]: three, as in Kubernetes.
#[must_use]
pub fn failures() -> u32 {
    3
}

/// The default of [`Probe::successes`]: one, as in Kubernetes.
#[must_use]
pub fn successes() -> u32 {
    1
}

impl Probe {
    /// Creates one with the defaults.
    #[must_use]
    pub fn new(check: Check) -> Self {
        Self {
            check,
            interval_ms: interval_ms(),
            timeout_ms: timeout_ms(),
            failures: failures(),
            successes: successes(),
        }
    }
}

impl TryFrom<Form> for Probe {
    type Error = &'static str;

    fn try_from(form: Form) -> Result<Self, Self::Error> {
        let Form { exec, tcp, http, interval_ms, timeout_ms, failures, successes } = form;
        let check = match (exec, tcp, http) {
            (Some(argv), None, None) => Check::Exec(argv),
            (None, Some(tcp), None) => Check::Tcp(tcp),
            (None, None, Some(http)) => Check::Http(http),
            _ => return Err("a probe has exactly one of `exec`, `tcp` and `http`"),
        };
        Ok(Self { check, interval_ms, timeout_ms, failures, successes })
    }
}

impl From<Probe> for Form {
    fn from(probe: Probe) -> Self {
        let Probe { check, interval_ms, timeout_ms, failures, successes } = probe;
        let (exec, tcp, http) = match check {
            Check::Exec(argv) => (Some(argv), None, None),
            Check::Tcp(tcp) => (None, Some(tcp), None),
            Check::Http(http) => (None, None, Some(http)),
        };
        Self { exec, tcp, http, interval_ms, timeout_ms, failures, successes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, wanted: Option<&str>) {
        let parsed = serde_json::from_str::<Probe>(json);
        assert_eq!(parsed.as_ref().ok().map(|probe| probe.check.to_string()).as_deref(), wanted, "{parsed:?}");
        if let Ok(probe) = parsed {
            let again = serde_json::to_string(&probe).unwrap();
            assert_eq!(serde_json::from_str::<Probe>(&again).unwrap(), probe, "{again}");
        }
    }

    #[test]
    fn probe_forms_parse() {
        check(r#"{"exec":["/bin/true","-x"]}"#, Some("exec:/bin/true -x"));
        check(r#"{"tcp":{"port":80}}"#, Some("tcp:80"));
        check(r#"{"tcp":{"port":"web","address":"::1"}}"#, Some("tcp:[::1]:web"));
        check(r#"{"http":{"port":80,"path":"/a?b","status":204},"failures":1}"#, Some("http:80/a?b (204)"));
        check(r#"{"http":{"port":80,"address":"10.0.0.1"}}"#, Some("http:10.0.0.1:80/"));
        check("{}", None);
        check(r#"{"interval_ms":1}"#, None);
        check(r#"{"exec":[],"tcp":{"port":1}}"#, None);
        check(r#"{"tcp":{"port":70000}}"#, None);
        check(r#"{"tcp":{"port":1},"every":1}"#, None);
        check(r#"{"tcp":{"port":1,"path":"/"}}"#, None);
    }

    #[test]
    fn missing_fields_have_defaults() {
        let probe: Probe = serde_json::from_str(r#"{"tcp":{"port":1}}"#).unwrap();
        assert_eq!(probe, Probe::new(Check::Tcp(Tcp { port: Port::Number(1), address: None })));
        assert_eq!((probe.interval_ms, probe.timeout_ms, probe.failures, probe.successes), (10_000, 5_000, 3, 1));
        assert!(serde_json::from_str::<Probes>("{}").unwrap().is_none());
        assert!(serde_json::from_str::<Probes>(r#"{"alive":{}}"#).is_err());
    }
}
