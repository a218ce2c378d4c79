//! Limits of a yuno's process, and its attributes beside arguments and environment.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{canonical::INTEGER_MAX, capability::Capability};

/// Limits for all processes of a unit together, by its cgroup. What is left out is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most memory, swap included, in bytes. A process that exceeds it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most processor time: 1.5 is one and a half processors, continuously.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// The most processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl Limits {
    /// Returns the smaller of each limit.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            cpu: least(self.cpu, other.cpu),
            pids: least(self.pids, other.pids),
        }
    }

    /// Returns itself, if anything is limited.
    #[must_use]
    pub fn some(self) -> Option<Self> {
        Some(self).filter(|limits| !limits.is_none())
    }

    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A number of processors, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cores(u32);

/// The smallest number of processors: the kernel's minimum is a millisecond in a tenth of a second.
const CORES_MIN_MILLIS: u32 = 10;
/// The largest: more than any machine has.
const CORES_MAX: u32 = 65_536;

impl Cores {
    /// Creates it from a number of at least 0.01.
    #[must_use]
    pub fn new(number: f64) -> Option<Self> {
        let millis = (number * 1_000.0).round();
        let fits = millis >= f64::from(CORES_MIN_MILLIS) && number <= f64::from(CORES_MAX);
        fits.then_some(Self(millis as u32))
    }

    /// Returns it in thousandths.
    #[must_use]
    pub fn millis(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1_000.0)
    }
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| no_cores(text))
    }
}

fn no_cores(value: impl fmt::Display) -> String {
    format!("{value} is not a number of processors: use 0.01 or more, such as 0.5 or 2")
}

impl Serialize for Cores {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A whole number stays one, so that the output equals the input.
        match self.0 % 1_000 {
            0 => serializer.serialize_u32(self.0 / 1_000),
            _ => serializer.serialize_f64(f64::from(self.0) / 1_000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::new(number).ok_or_else(|| serde::de::Error::custom(no_cores(number)))
    }
}

impl JsonSchema for Cores {
    fn schema_name() -> Cow<'static, str> {
        "Cores".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of processors, to the thousandth.",
            "type": "number",
            "minimum": 0.01,
            "maximum": CORES_MAX,
            "examples": [0.5, 2]
        })
    }
}

/// Attributes of each process of a unit. What is left out has the system's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its supplementary groups, by name or number, in place of the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// The file mode creation mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<Umask>,
    /// The nice value: from -20 (which only root may set) to 19 (the lowest priority).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -20, max = 19))]
    pub nice: Option<i32>,
    /// Limits for each process, as in `setrlimit`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<Resource, Rlimit>,
    /// The only capabilities that it has and can ever get, as root or any other user. By default, those of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<Capability>>,
    /// Whether it gains no privileges by executing a file, such as one with the setuid bit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privs: bool,
    /// Whether it goes to the background: the started process ends with exit code 0 once the program is up, and one of
    /// the remaining processes is the main one. Otherwise the started process is the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forking: Option<Forking>,
}

/// How the main process of a program that goes to the background is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forking {
    /// The file with the process id of the main process: an absolute path, or one relative to the program's working
    /// directory. The id counts only if it is a process of the unit. Without a file the oldest remaining process is the
    /// main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<String>,
}

impl Process {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A file mode mask. It is written as octal digits, because a number read as decimal would open files to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umask(u32);

impl Umask {
    /// Returns its bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for Umask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= 0o777);
        bits.map(Self).ok_or_else(|| {
            let text: String = text.chars().take(16).collect();
            format!("umask {text:?} is not valid: use three octal digits, such as \"027\"")
        })
    }
}

impl fmt::Display for Umask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl Serialize for Umask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Umask {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Umask {
    fn schema_name() -> Cow<'static, str> {
        "Umask".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A file mode mask, in octal digits.",
            "type": "string",
            "pattern": "^0?[0-7]{3}$",
            "examples": ["027"]
        })
    }
}

/// One limit of a process: the present one, and how far the process itself may raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    /// The present limit.
    pub soft: Amount,
    /// The highest limit that the process may set itself.
    pub hard: Amount,
}

/// An amount, or `"unlimited"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(Option<u64>);

impl Amount {
    /// Returns the amount; `None` if there is no limit.
    #[must_use]
    pub fn get(self) -> Option<u64> {
        self.0
    }
}

const UNLIMITED: &str = "unlimited";

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            UNLIMITED => Ok(Self(None)),
            // What canonical JSON represents exactly.
            _ => match text.parse::<u64>() {
                Ok(amount) if amount <= INTEGER_MAX.unsigned_abs() => Ok(Self(Some(amount))),
                _ => Err(format!("use a whole number up to {INTEGER_MAX}, or \"{UNLIMITED}\"")),
            },
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(amount) => write!(f, "{amount}"),
            None => f.write_str(UNLIMITED),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(amount) => serializer.serialize_u64(amount),
            None => serializer.serialize_str(UNLIMITED),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(serde_json::Number),
            Text(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Number(number) => number.to_string(),
            // A quoted number would be written without quotes, and so be another revision than what was sent.
            Form::Text(text) if text == UNLIMITED => text,
            Form::Text(_) => String::new(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An amount, or no limit.",
            "oneOf": [
                { "type": "integer", "minimum": 0, "maximum": INTEGER_MAX },
                { "const": UNLIMITED }
            ]
        })
    }
}

/// A resource that can be limited for each process, by its name in `setrlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Address space, in bytes.
    As,
    /// A core file, in bytes.
    Core,
    /// Processor time, in seconds.
    Cpu,
    /// The heap, in bytes.
    Data,
    /// A written file, in bytes.
    Fsize,
    /// Locked memory, in bytes.
    Memlock,
    /// Message queues, in bytes.
    Msgqueue,
    /// How far the nice value may be lowered: 20 minus the value.
    Nice,
    /// Open files.
    Nofile,
    /// Processes of the user.
    Nproc,
    /// Real-time priority.
    Rtprio,
    /// Microseconds of real-time processor time without a pause.
    Rttime,
    /// Queued signals.
    Sigpending,
    /// The stack, in bytes.
    Stack,
}

/// How much of a unit's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The size at which the log is rotated.
    #[serde(default = "log_max_bytes")]
    pub max_bytes: u64,
    /// How many rotated files are kept.
    #[serde(default = "logs_kept")]
    pub keep: u32,
    /// The age at which the log is rotated even if it is not full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
}

impl Default for Log {
    fn default() -> Self {
        Self { max_bytes: log_max_bytes(), keep: logs_kept(), max_age_ms: None }
    }
}

impl Log {
    /// Whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The default of [`Log::max_bytes`]: with three rotated files, 16 MiB per unit, which are days of an ordinary service,
/// and 256 units of them 4 GiB.
fn log_max_bytes() -> u64 {
    4 * 1024 * 1024
}

/// The default of [`Log::keep`].
fn logs_kept() -> u32 {
    3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Serialize + serde::de::DeserializeOwned>(json: &str, wanted: Option<&str>) {
        let found = serde_json::from_str::<T>(json).ok().map(|value| serde_json::to_string(&value).unwrap());
        assert_eq!(found.as_deref(), wanted, "{json}");
    }

    #[test]
    fn processor_limits_parse() {
        for (json, wanted) in [
            ("0.5", Some("0.5")),
            ("2", Some("2")),
            ("2.0", Some("2")),
            ("0.01", Some("0.01")),
            ("0.3333", Some("0.333")),
            ("0.009", None),
            ("0", None),
            ("-1", None),
            ("1e9", None),
            ("\"1\"", None),
        ] {
            check::<Cores>(json, wanted);
        }
        assert_eq!(Cores::new(f64::NAN), None);
        assert_eq!("1.5".parse::<Cores>().unwrap().millis(), 1_500);
    }

    #[test]
    fn smaller_of_two_limits_applies() {
        let limits = |json: &str| serde_json::from_str::<Limits>(json).unwrap();
        let both = limits(r#"{"memory_bytes":5,"cpu":2}"#).and(limits(r#"{"memory_bytes":7,"cpu":0.5,"pids":3}"#));
        assert_eq!(both, limits(r#"{"memory_bytes":5,"cpu":0.5,"pids":3}"#));
        assert!(Limits::default().and(Limits::default()).is_none());
    }

    #[test]
    fn masks_are_octal() {
        for (json, wanted) in [
            ("\"027\"", Some("\"027\"")),
            ("\"0077\"", Some("\"077\"")),
            ("\"000\"", Some("\"000\"")),
            ("27", None),
            ("\"27\"", None),
            ("\"1777\"", None),
            ("\"028\"", None),
            ("\"+27\"", None),
        ] {
            check::<Umask>(json, wanted);
        }
    }

    #[test]
    fn sizes_and_counts_parse() {
        for (json, wanted) in [
            ("0", Some("0")),
            ("9007199254740992", Some("9007199254740992")),
            ("\"unlimited\"", Some("\"unlimited\"")),
            ("9007199254740993", None),
            ("-1", None),
            ("1.5", None),
            ("\"12\"", None),
            ("\"\"", None),
            ("null", None),
        ] {
            check::<Amount>(json, wanted);
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        check::<Limits>("{}", Some("{}"));
        check::<Limits>(r#"{"memory":5}"#, None);
        check::<Process>(r#"{"nise":5}"#, None);
        check::<Process>(r#"{"rlimits":{"files":{"soft":1,"hard":1}}}"#, None);
        check::<Process>(r#"{"rlimits":{"nofile":{"soft":1}}}"#, None);
        check::<Log>("{}", Some(r#"{"max_bytes":4194304,"keep":3}"#));
        check::<Log>(r#"{"max_age":5}"#, None);
    }
}
