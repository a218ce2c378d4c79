//! What an operator asks for: waves, budgets, and what happens when hosts fail.
//!
//! **Invariant: all faults are reported at once**, each with its place. **Invariant: [`read`] accepts what [`write()`]
//! produces**, and yields the same policy; what a version stores is the whole policy, and never empty.

use jiff::tz::TimeZoneDatabase;
use muster_topics::{Millis, address::has_user_information, diagnostic::Diagnostic, name::Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    duration,
    share::percent_of,
    window::{self, Window, WindowZone},
};
use crate::{
    document::{DocumentFault, from_value, unknown},
    invisible::is_invisible,
    unknown_keys,
};

/// The most waves: a rollout of more is none that people follow.
const WAVES_MAX: usize = 20;
/// The most windows: each is looked at whenever a rollout is decided.
const WINDOWS_MAX: usize = 20;
/// The most attempts after a failure.
const ATTEMPTS_MAX: u64 = 10;
/// The longest query of a check.
const QUERY_MAX_BYTES: usize = 4096;
/// The longest address of an authority.
const URL_MAX_BYTES: usize = 1024;
/// From how many hosts on there are waves without saying so.
const WAVES_FROM_HOSTS: usize = 10;
/// What stands for a matcher of hosts in a check's query.
pub const HOSTS_VARIABLE: &str = "$hosts";
/// The longest that an authority may take: hosts wait for it.
const AUTHORITY_TIMEOUT_MAX_MS: Millis = 60_000;
const SECOND_MS: Millis = 1_000;

/// The policy of a rollout. A deployment without one changes on all its hosts at once.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPolicy {
    /// The sizes of the waves, in hosts that are admitted; what is left is the last wave. With ten hosts or more the default
    /// is one host, then a tenth.
    pub waves: Option<Vec<Share>>,
    /// How many hosts may change at the same time.
    pub max_in_flight: Share,
    /// How many hosts of a group may be unavailable.
    pub budget: Option<Budget>,
    /// How many hosts of a wave may fail.
    pub max_failures: Share,
    /// What happens when more fail.
    pub on_failure: OnFailure,
    /// How long after the last host of a wave has ended the next wave begins.
    pub soak_ms: Millis,
    /// Which waves wait for an operator.
    pub approve: Approve,
    /// When hosts may begin; always, if there are none.
    pub windows: Vec<Window>,
    /// How long after a wave has begun hosts are waited for that have not asked.
    pub deadline_ms: Millis,
    /// How long after its permit was granted a host counts as failed that has not ended.
    pub lost_after_ms: Millis,
    /// How often a host that has failed tries again.
    pub retries: Retries,
    /// A measurement of hosts that have changed beside those that have not.
    pub check: Option<Check>,
    /// Somebody else who is asked before a host is admitted.
    pub authority: Option<Authority>,
}

/// A number of hosts, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// So many.
    Count(u32),
    /// So much of them, in percent: 0 to 100.
    Percent(f64),
}

/// How many hosts of each group may be unavailable.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// The label whose values are the groups. Hosts without it are a group of their own.
    pub group_by: Name,
    /// How many hosts of a group may be unavailable.
    pub max_unavailable: Share,
}

/// What happens when more hosts fail than may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// No further host begins, until an operator resumes.
    #[default]
    Pause,
    /// A new version with the content of the one before goes to all hosts.
    Rollback,
}

/// Which waves wait for an operator before they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approve {
    /// None.
    #[default]
    None,
    /// The second wave: after the first one an operator looks.
    First,
    /// Each but the first.
    Each,
}

/// How often a host that has failed tries again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// How often.
    pub attempts: u32,
    /// How long after it has failed.
    pub after_ms: Millis,
}

/// A measurement of hosts that have changed beside those that have not.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// A PromQL query with `$hosts` where a matcher of hosts stands; the more, the worse.
    pub query: String,
    /// How much worse the changed hosts may be than the rest, in percent.
    pub worse_than_rest_by: f64,
}

/// Somebody else who is asked before a host is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Where, as an HTTPS URL.
    pub url: String,
    /// How long an answer may take; none in time is a no.
    pub timeout_ms: Millis,
}

impl Default for RolloutPolicy {
    fn default() -> Self {
        Self {
            waves: None,
            max_in_flight: Share::Percent(10.0),
            budget: None,
            max_failures: Share::Percent(2.0),
            on_failure: OnFailure::Pause,
            soak_ms: 2 * 60 * SECOND_MS,
            approve: Approve::None,
            windows: Vec::new(),
            deadline_ms: 24 * 3_600 * SECOND_MS,
            lost_after_ms: 3_600 * SECOND_MS,
            retries: Retries { attempts: 0, after_ms: 10 * 60 * SECOND_MS },
            check: None,
            authority: None,
        }
    }
}

impl RolloutPolicy {
    /// The sizes of the waves but the last one, for a deployment of so many hosts.
    #[must_use]
    pub fn waves_for(&self, hosts: usize) -> Vec<Share> {
        match &self.waves {
            Some(waves) => waves.clone(),
            None if hosts >= WAVES_FROM_HOSTS => vec![Share::Count(1), Share::Percent(10.0)],
            None => Vec::new(),
        }
    }

    /// Whether hosts look at windows in their own zones before they ask.
    #[must_use]
    pub fn has_host_windows(&self) -> bool {
        self.windows.iter().any(|window| *window.zone() == WindowZone::Host)
    }
}

/// Reads the policy that a document describes. The places of faults begin with `rollout`.
#[must_use]
pub fn read(value: &Value, zones: &TimeZoneDatabase) -> (Option<RolloutPolicy>, Vec<DocumentFault>) {
    let mut reader = PolicyReader { zones: Some(zones), faults: Vec::new() };
    let policy = match value {
        Value::Object(map) => reader.policy(map),
        _ => {
            reader.fault("rollout", "expected a policy, such as {waves: [1, 10%]}; {} is the default one".to_owned());
            RolloutPolicy::default()
        }
    };
    (reader.faults.is_empty().then_some(policy), reader.faults)
}

/// Reads the policy of a stored version; `None` if it has none, and all its hosts change at once.
///
/// # Errors
/// If it is none that this program understands, and why.
pub fn of(rollout: &Map<String, Value>) -> Result<Option<RolloutPolicy>, Diagnostic> {
    if rollout.is_empty() {
        return Ok(None);
    }
    let mut reader = PolicyReader { zones: None, faults: Vec::new() };
    let policy = reader.policy(rollout);
    match reader.faults.into_iter().next() {
        None => Ok(Some(policy)),
        Some(fault) => Err(fault.diagnostic.within(fault.at)),
    }
}

/// Writes a whole policy, as a version stores it and a document has it.
#[must_use]
pub fn write(policy: &RolloutPolicy) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    if let Some(waves) = &policy.waves {
        put("waves", waves.iter().map(|wave| wave.write()).collect());
    }
    put("max_in_flight", policy.max_in_flight.write());
    if let Some(Budget { group_by, max_unavailable }) = &policy.budget {
        put("budget", json!({ "group_by": format!("label.{group_by}"), "max_unavailable": max_unavailable.write() }));
    }
    put("max_failures", policy.max_failures.write());
    put("on_failure", policy.on_failure.word().into());
    put("soak", duration::write(policy.soak_ms).into());
    put("approve", policy.approve.word().into());
    if !policy.windows.is_empty() {
        put("windows", policy.windows.iter().map(Window::to_string).collect());
    }
    put("deadline", duration::write(policy.deadline_ms).into());
    put("lost_after", duration::write(policy.lost_after_ms).into());
    let Retries { attempts, after_ms } = policy.retries;
    put("retries", json!({ "attempts": attempts, "after": duration::write(after_ms) }));
    if let Some(Check { query, worse_than_rest_by }) = &policy.check {
        put("check", json!({ "query": query, "worse_than_rest_by": format!("{worse_than_rest_by}%") }));
    }
    if let Some(Authority { url, timeout_ms }) = &policy.authority {
        put("authority", json!({ "url": url, "timeout": duration::write(*timeout_ms) }));
    }
    map
}

impl OnFailure {
    const WORDS: [(&str, Self); 2] = [("pause", Self::Pause), ("rollback", Self::Rollback)];

    fn word(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Rollback => "rollback",
        }
    }
}

impl Approve {
    const WORDS: [(&str, Self); 3] = [("none", Self::None), ("first", Self::First), ("each", Self::Each)];

    fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::First => "first",
            Self::Each => "each",
        }
    }

    /// Whether a wave, from 1, waits for an operator.
    #[must_use]
    pub fn wants(self, wave: u32) -> bool {
        match self {
            Self::None => false,
            Self::First => wave == 2,
            Self::Each => wave >= 2,
        }
    }
}

const KEYS: [&str; 13] = [
    "waves",
    "max_in_flight",
    "budget",
    "max_failures",
    "on_failure",
    "soak",
    "approve",
    "windows",
    "deadline",
    "lost_after",
    "retries",
    "check",
    "authority",
];

struct PolicyReader<'a> {
    /// Which zones there are; `None` if that was checked before.
    zones: Option<&'a TimeZoneDatabase>,
    faults: Vec<DocumentFault>,
}

impl PolicyReader<'_> {
    fn fault(&mut self, at: &str, diagnostic: impl Into<Diagnostic>) {
        self.faults.push(DocumentFault { at: at.to_owned(), diagnostic: diagnostic.into() });
    }

    fn keep<T>(&mut self, at: &str, result: Result<T, impl Into<Diagnostic>>) -> Option<T> {
        result.map_err(|message| self.fault(at, message)).ok()
    }

    fn keys(&mut self, at: &str, map: &Map<String, Value>, known: &[&str]) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.fault(&format!("{at}.{key}"), unknown(&unknown_keys::nearest(key, known.iter().copied())));
        }
    }

    fn policy(&mut self, map: &Map<String, Value>) -> RolloutPolicy {
        self.keys("rollout", map, &KEYS);
        let default = RolloutPolicy::default();
        // A key without a value is one that is left out.
        let get = |key: &str| map.get(key).filter(|value| !value.is_null());
        let policy = RolloutPolicy {
            waves: get("waves").map(|value| self.waves(value)),
            max_in_flight: get("max_in_flight")
                .and_then(|value| self.admitting("rollout.max_in_flight", value))
                .unwrap_or(default.max_in_flight),
            budget: get("budget").and_then(|value| self.budget(value)),
            max_failures: get("max_failures")
                .and_then(|value| self.keep("rollout.max_failures", Share::read(value)))
                .unwrap_or(default.max_failures),
            on_failure: self.word("rollout.on_failure", get("on_failure"), &OnFailure::WORDS),
            soak_ms: self.duration("rollout.soak", get("soak"), 0, default.soak_ms),
            approve: self.word("rollout.approve", get("approve"), &Approve::WORDS),
            windows: get("windows").map(|value| self.windows(value)).unwrap_or_default(),
            deadline_ms: self.duration("rollout.deadline", get("deadline"), SECOND_MS, default.deadline_ms),
            lost_after_ms: self.duration("rollout.lost_after", get("lost_after"), SECOND_MS, default.lost_after_ms),
            retries: get("retries").and_then(|value| self.retries(value)).unwrap_or(default.retries),
            check: get("check").and_then(|value| self.check(value)),
            authority: get("authority").and_then(|value| self.authority(value)),
        };
        if policy.approve != Approve::None && policy.waves.as_ref().is_some_and(Vec::is_empty) {
            let message = "there is only one wave, and the first wave needs no approval: list sizes in `waves`";
            self.fault("rollout.approve", message);
        }
        policy
    }

    /// A share that has to admit somebody.
    fn admitting(&mut self, at: &str, value: &Value) -> Option<Share> {
        let share = self.keep(at, Share::read(value))?;
        if share.is_zero() {
            let message = "it would never admit a host: at least 1 is required (a share is never less than one host)";
            self.fault(at, message);
            return None;
        }
        Some(share)
    }

    fn waves(&mut self, value: &Value) -> Vec<Share> {
        let Value::Array(waves) = value else {
            let message = "expected a list of sizes, such as [1, 10%, 50%]; what is left is the last wave";
            self.fault("rollout.waves", message);
            return Vec::new();
        };
        if waves.len() > WAVES_MAX {
            self.fault("rollout.waves", format!("there are {}; at most {WAVES_MAX} are allowed", waves.len()));
            return Vec::new();
        }
        let mut found = Vec::new();
        for (index, wave) in waves.iter().enumerate() {
            let at = format!("rollout.waves.{index}");
            match self.keep(&at, Share::read(wave)) {
                Some(share) if share.is_zero() => self.fault(&at, "the wave has no hosts".to_owned()),
                share => found.extend(share),
            }
        }
        found
    }

    /// A table, whose keys are checked.
    fn table<'v>(&mut self, at: &str, value: &'v Value, known: &[&str], form: &str) -> Option<&'v Map<String, Value>> {
        let Value::Object(map) = value else {
            self.fault(at, format!("expected {form}"));
            return None;
        };
        self.keys(at, map, known);
        Some(map)
    }

    fn required<'v>(&mut self, at: &str, map: &'v Map<String, Value>, key: &str, form: &str) -> Option<&'v Value> {
        let value = map.get(key);
        if value.is_none() {
            self.fault(&format!("{at}.{key}"), format!("it is required: {form}"));
        }
        value
    }

    fn budget(&mut self, value: &Value) -> Option<Budget> {
        const FORM: &str = "{group_by: label.site, max_unavailable: 1}";
        let at = "rollout.budget";
        let map = self.table(at, value, &["group_by", "max_unavailable"], FORM)?;
        let group_by = self.required(at, map, "group_by", FORM).and_then(|value| {
            let wanted = || format!("expected a label, such as label.site: {FORM}");
            let name = value.as_str().and_then(|text| text.strip_prefix("label.")).ok_or_else(wanted);
            let name = name.and_then(|name| name.parse::<Name>().map_err(|error| error.to_string()));
            self.keep("rollout.budget.group_by", name)
        });
        let max_unavailable = self
            .required(at, map, "max_unavailable", FORM)
            .and_then(|value| self.admitting("rollout.budget.max_unavailable", value));
        Some(Budget { group_by: group_by?, max_unavailable: max_unavailable? })
    }

    fn windows(&mut self, value: &Value) -> Vec<Window> {
        let Value::Array(windows) = value else {
            let message = "expected a list of windows, such as ['Mon-Fri 02:00-05:00 Europe/Berlin']";
            self.fault("rollout.windows", message);
            return Vec::new();
        };
        if windows.len() > WINDOWS_MAX {
            self.fault("rollout.windows", format!("there are {}; at most {WINDOWS_MAX} are allowed", windows.len()));
            return Vec::new();
        }
        let mut found: Vec<Window> = Vec::new();
        for (index, value) in windows.iter().enumerate() {
            let window = from_value::<String>(value).and_then(|text| match self.zones {
                Some(zones) => window::read(&text, zones),
                None => text.parse(),
            });
            found.extend(self.keep(&format!("rollout.windows.{index}"), window));
        }
        let is_host = |window: &Window| *window.zone() == WindowZone::Host;
        if found.iter().any(is_host) && !found.iter().all(is_host) {
            let message = "windows in hosts' own zones cannot be combined with windows in named zones: the \
                           console does not know in which of them a host asks";
            self.fault("rollout.windows", message);
        }
        found
    }

    fn retries(&mut self, value: &Value) -> Option<Retries> {
        const FORM: &str = "{attempts: 2, after: 10m}";
        let default = RolloutPolicy::default().retries;
        let map = self.table("rollout.retries", value, &["attempts", "after"], FORM)?;
        let attempts = self.required("rollout.retries", map, "attempts", FORM).and_then(|value| {
            let attempts = value.as_u64().filter(|attempts| *attempts <= ATTEMPTS_MAX);
            let attempts = attempts.and_then(|attempts| u32::try_from(attempts).ok());
            self.keep("rollout.retries.attempts", attempts.ok_or(format!("expected a number from 0 to {ATTEMPTS_MAX}")))
        });
        let after_ms = self.duration("rollout.retries.after", map.get("after"), 0, default.after_ms);
        Some(Retries { attempts: attempts?, after_ms })
    }

    fn check(&mut self, value: &Value) -> Option<Check> {
        const FORM: &str = "{query: 'avg(muster_host_cpu_busy_ratio{$hosts})', worse_than_rest_by: 20%}";
        let map = self.table("rollout.check", value, &["query", "worse_than_rest_by"], FORM)?;
        let query = self.required("rollout.check", map, "query", FORM).and_then(|value| {
            let query = from_value::<String>(value).and_then(|query| match query.len() {
                0..=QUERY_MAX_BYTES if query.contains(HOSTS_VARIABLE) => Ok(query),
                0..=QUERY_MAX_BYTES => Err(format!(
                    "it must contain {HOSTS_VARIABLE}, which stands for the changed hosts, and then for the rest: {FORM}"
                )),
                length => Err(format!("it has {length} bytes; at most {QUERY_MAX_BYTES} are allowed")),
            });
            self.keep("rollout.check.query", query)
        });
        let worse = self.required("rollout.check", map, "worse_than_rest_by", FORM).and_then(|value| {
            let percent = value.as_str().and_then(|text| percent_of(text.strip_suffix('%')?));
            let percent = percent.ok_or_else(|| "expected a share that is not negative, such as 20%".to_owned());
            self.keep("rollout.check.worse_than_rest_by", percent)
        });
        Some(Check { query: query?, worse_than_rest_by: worse? })
    }

    fn authority(&mut self, value: &Value) -> Option<Authority> {
        const FORM: &str = "{url: 'https://orly.example.com/admit', timeout: 10s}";
        let map = self.table("rollout.authority", value, &["url", "timeout"], FORM)?;
        let url = self.required("rollout.authority", map, "url", FORM).and_then(|value| {
            let url = from_value::<String>(value).and_then(check_url);
            self.keep("rollout.authority.url", url)
        });
        let at = "rollout.authority.timeout";
        let timeout_ms = self.duration(at, map.get("timeout"), SECOND_MS, 10 * SECOND_MS);
        if timeout_ms > AUTHORITY_TIMEOUT_MAX_MS {
            self.fault(
                at,
                format!("at most {} is allowed, because hosts wait for it", duration::write(AUTHORITY_TIMEOUT_MAX_MS)),
            );
        }
        Some(Authority { url: url?, timeout_ms })
    }

    fn duration(&mut self, at: &str, value: Option<&Value>, min_ms: Millis, default_ms: Millis) -> Millis {
        let Some(value) = value else { return default_ms };
        let found =
            value.as_str().and_then(duration::read).or_else(|| value.as_u64().filter(|zero| *zero == 0).map(|_| 0));
        match found {
            Some(found_ms) if found_ms >= min_ms => return found_ms,
            Some(_) => self.fault(at, format!("at least {} is required", duration::write(min_ms))),
            None => self.fault(at, "expected a duration, such as 90s, 2m or 24h, of at most a year".to_owned()),
        }
        default_ms
    }

    fn word<T: Copy + Default>(&mut self, at: &str, value: Option<&Value>, words: &[(&str, T)]) -> T {
        let Some(value) = value else { return T::default() };
        // YAML reads `none` as text, but some write `no`.
        let text = value.as_str().unwrap_or_default();
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, found)) => *found,
            None => {
                let hint = unknown_keys::nearest(text, words.iter().map(|(word, _)| *word));
                self.fault(at, format!("unknown value {value}; {hint}"));
                T::default()
            }
        }
    }
}

/// What can be said of an address without asking anybody.
fn check_url(url: String) -> Result<String, String> {
    if url.len() > URL_MAX_BYTES {
        return Err(format!("it has {} bytes; at most {URL_MAX_BYTES} are allowed", url.len()));
    }
    let wanted = || "expected an address that begins with https://, because the answer lets hosts change".to_owned();
    let rest = url.strip_prefix("https://").ok_or_else(wanted)?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || host.starts_with(':') || url.chars().any(|c| is_invisible(c) || c == ' ') {
        return Err("expected an address, such as https://orly.example.com/admit".to_owned());
    }
    if has_user_information(&url) {
        return Err("an address must not have a password, because versions are shown to every operator".to_owned());
    }
    Ok(url)
}

/// The JSON Schema of a policy in a document.
#[must_use]
pub fn schema() -> Value {
    let share = |about: &str| {
        json!({
            "description": about,
            "oneOf": [
                { "type": "integer", "minimum": 0, "maximum": u32::MAX },
                { "type": "string", "pattern": "^\\s*[0-9.]+\\s*%?\\s*$" },
            ],
        })
    };
    let duration = |about: &str| {
        json!({
            "description": about,
            "oneOf": [{ "const": 0 }, { "type": "string", "pattern": "^\\s*(0|([0-9]+(w|d|h|m|s|ms))+)\\s*$" }],
        })
    };
    let table = |about: &str, properties: Value, required: &[&str]| {
        json!({
            "description": about,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    };
    let text = |about: &str| json!({ "description": about, "type": "string" });
    table(
        "How a version reaches its hosts. Left out: all at once; empty: the default policy.",
        json!({
            "waves": {
                "description": "The sizes of the waves, in hosts that are admitted; what is left is the last wave. From ten \
                                hosts on the default is [1, 10%].",
                "type": "array",
                "items": share("A number of hosts, or a share of them; at least one."),
                "maxItems": WAVES_MAX,
            },
            "max_in_flight": share("How many hosts may change at the same time; 10% by default."),
            "budget": table(
                "How many hosts of each group may be unavailable.",
                json!({
                    "group_by": text("The label whose values are the groups: label.site."),
                    "max_unavailable": share("How many hosts of a group may be unavailable; of a share, at least one."),
                }),
                &["group_by", "max_unavailable"],
            ),
            "max_failures": share("How many hosts of a wave may fail; 2% by default."),
            "on_failure": {
                "description": "What happens when more fail; `pause` by default.",
                "enum": OnFailure::WORDS.map(|(word, _)| word),
            },
            "soak": duration("How long after a wave has ended the next one begins; 2m by default."),
            "approve": {
                "description": "Which waves wait for an operator: none (the default), the second one, or each but the first.",
                "enum": Approve::WORDS.map(|(word, _)| word),
            },
            "windows": {
                "description": "When hosts may begin: 'Mon-Fri 02:00-05:00 Europe/Berlin', or with the zone `host`.",
                "type": "array",
                "items": { "type": "string" },
                "maxItems": WINDOWS_MAX,
            },
            "deadline": duration("How long after a wave has begun the rollout waits for hosts that are away; 24h by default."),
            "lost_after": duration("How long after it was admitted a silent host counts as failed; 1h by default."),
            "retries": table(
                "How many times a failed host retries; 0 by default.",
                json!({
                    "attempts": { "type": "integer", "minimum": 0, "maximum": ATTEMPTS_MAX },
                    "after": duration("How long after it has failed; 10m by default."),
                }),
                &["attempts"],
            ),
            "check": table(
                "A measurement that compares the changed hosts with the rest after each wave.",
                json!({
                    "query": text("A PromQL query with $hosts; the more, the worse."),
                    "worse_than_rest_by": text("How much worse the changed hosts may be: 20%."),
                }),
                &["query", "worse_than_rest_by"],
            ),
            "authority": table(
                "Who is asked before a host is admitted.",
                json!({
                    "url": text("Where, with https."),
                    "timeout": duration("How long an answer may take, at most a minute; 10s by default."),
                }),
                &["url"],
            ),
        }),
        &[],
    )
}
