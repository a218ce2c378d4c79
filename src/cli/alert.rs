//! `muster alert`: alerts of hosts, their history, rules, and silences.

use clap::{Args, Subcommand, ValueEnum};
use muster_api::{Alert, AlertRule, AlertSilence, AlertSort, AlertStanding, Host, NewAlertRule, NewAlertSilence};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_rules::alert::{defaults, words};
use muster_topics::{
    Millis,
    alert::{Metric, Rule, Severity},
    diagnostic::Diagnostic,
    name::{HostId, Name},
    select::HostSelect,
};
use reqwest::Method;

use super::{print, session::CliSession};
use muster_api::host_names::HostNames;

/// Verbs on alerts.
#[derive(Subcommand, Clone, Debug)]
pub enum AlertVerb {
    /// List active alerts
    #[command(alias = "list")]
    Ls {
        /// Which ones
        #[command(flatten)]
        which: AlertFilterOptions,
        /// Show so many at most [default: 1000]
        #[arg(short = 'n', long, value_name = "N")]
        limit: Option<u32>,
    },
    /// List active and past alerts, newest first
    History {
        /// Which ones
        #[command(flatten)]
        which: AlertFilterOptions,
        /// Show so many at most
        #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
        limit: u32,
    },
    /// List rules of alerts
    ///
    /// These are the rules that are set on the console, and the built-in ones of agents.
    Rules,
    /// Set a rule for all hosts, or for one
    #[command(
        after_long_help = "A rule replaces a built-in rule of the same name, and a rule for one host that for all. What \
                    is not given stays as it is in the rule before, or in the built-in one."
    )]
    Set(RuleOptions),
    /// Remove a rule that was set on the console
    ///
    /// A built-in rule of the same name is in force again.
    Rm {
        /// Name
        rule: Name,
        /// Remove the one for this host
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
    /// Silence alerts for some time
    ///
    /// They are still recorded and shown, but sent to nobody.
    Silence {
        /// Silence alerts of this host [default: all hosts]
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Silence alerts of this rule [default: all rules]
        #[arg(long, value_name = "RULE")]
        rule: Option<Name>,
        /// Silence for so long
        #[arg(long = "for", value_name = "TIME", default_value = "2h")]
        time: humantime::Duration,
        /// Reason, for the people who find the silence
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// List silences in force
    Silences,
    /// End a silence
    Unsilence {
        /// Id, or the beginning of it
        ///
        /// `muster alert silences` shows it.
        id: String,
    },
}

/// Which alerts.
#[derive(Args, Clone, Debug)]
pub struct AlertFilterOptions {
    /// Show alerts of this host only
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Show alerts of the hosts that this selects
    ///
    /// Such as 'label.site=north'.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "host")]
    select: Option<HostSelect>,
    /// Show alerts of this rule only
    #[arg(long, value_name = "RULE")]
    rule: Option<Name>,
    /// Order: since, severity or host
    ///
    /// `since` shows the newest alerts first, `severity` the worst.
    #[arg(long, value_name = "ORDER", default_value = "since", value_parser = AlertSort::WORDS, hide_possible_values = true)]
    sort: String,
}

/// A rule, or what is to change of one.
#[derive(Args, Clone, Debug)]
pub struct RuleOptions {
    /// Name
    rule: Name,
    /// Host that it is for [default: all hosts]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// What is measured
    ///
    /// One of disk_used, inodes_used, disk_unresponsive, memory_used, cpu_busy, load_per_core, temperature, files_used,
    /// pids_used, ports_used, conntrack_used, unit_cpu_busy, unit_memory, unit_disk_used, unit_restarts, unit_broken,
    /// unit_failed, unit_rolled_back, certificate_left, store_used, clock_off, store_unwritable, duplicate.
    #[arg(long, value_parser = metric, value_name = "METRIC")]
    metric: Option<Metric>,
    /// Mount point or unit (REALM/NAME) that it is about
    #[arg(long, value_name = "MOUNT|UNIT")]
    of: Option<String>,
    /// Raise the alert beyond this level
    ///
    /// A share such as 90%, a size such as 512MiB, or a number.
    #[arg(long, value_parser = words::level, value_name = "LEVEL", visible_alias = "below", allow_negative_numbers = true)]
    above: Option<f64>,
    /// Clear the alert at this level [default: that of --above]
    #[arg(long, value_parser = words::level, value_name = "LEVEL", allow_negative_numbers = true)]
    clear: Option<f64>,
    /// Raise the alert after the condition has held for so long
    #[arg(long = "for", value_name = "TIME")]
    time: Option<humantime::Duration>,
    /// Severity
    #[arg(long, value_enum)]
    severity: Option<HowBad>,
    /// Switch the rule off
    #[arg(long)]
    off: bool,
}

/// How bad an alert is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum HowBad {
    /// Good to know
    Info,
    /// Somebody should look today
    Warning,
    /// Somebody should look now
    Critical,
}

impl From<HowBad> for Severity {
    fn from(how: HowBad) -> Self {
        match how {
            HowBad::Info => Self::Info,
            HowBad::Warning => Self::Warning,
            HowBad::Critical => Self::Critical,
        }
    }
}

fn metric(text: &str) -> Result<Metric, String> {
    Metric::ALL.into_iter().find(|metric| metric.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = Metric::ALL.iter().map(|metric| metric.as_str()).collect();
        let told =
            Diagnostic::new("there is no metric of this name").with_hint(format!("it is one of {}", known.join(", ")));
        format!("{told:#}")
    })
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: AlertVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        AlertVerb::Ls { which, limit } => list(session, "alerts", which, limit).await,
        AlertVerb::History { which, limit } => list(session, "alerts/history", which, Some(limit)).await,
        AlertVerb::Rules => rules(session).await,
        AlertVerb::Set(wanted) => set(session, wanted).await,
        AlertVerb::Rm { rule, host } => {
            let query = match host {
                Some(host) => {
                    let host: Host = session.client.get(&format!("hosts/{host}"), &[]).await?;
                    format!("?host={}", host.id)
                }
                None => String::new(),
            };
            session.client.order(Method::DELETE, &format!("alert-rules/{rule}{query}")).await?;
            print::say(format_args!("rule {rule} is removed"));
            Ok(())
        }
        AlertVerb::Silence { host, rule, time, reason } => {
            let wanted = NewAlertSilence { host, rule, reason, for_s: time.as_secs() };
            let silence: AlertSilence = session.client.post("alert-silences", &wanted).await?;
            let ends = print::age(silence.until_ms, clock::now_ms());
            print::say(format_args!("silence {} ends {ends}; `muster alert unsilence {0}` ends it now", silence.id));
            session.printer.data(&[silence])
        }
        AlertVerb::Silences => silences(session).await,
        AlertVerb::Unsilence { id } => {
            session.client.order(Method::DELETE, &format!("alert-silences/{id}")).await?;
            print::say(format_args!("silence {id} is ended"));
            Ok(())
        }
    }
}

/// Largest number of alerts that the console lists at once.
const ALERTS_MAX: usize = 1_000;

async fn list(session: &CliSession, path: &str, which: AlertFilterOptions, limit: Option<u32>) -> Result<(), Failure> {
    let query: Vec<(&str, String)> = [
        which.host.map(|host| ("host", host)),
        which.select.map(|select| ("select", select.to_string())),
        which.rule.map(|rule| ("rule", rule.to_string())),
        Some(("sort", which.sort)),
        Some(("limit", limit.map_or_else(|| ALERTS_MAX.to_string(), |limit| limit.to_string()))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let alerts: Vec<Alert> = session.client.get(path, &query).await?;
    let now_ms = clock::now_ms();
    let names = HostNames::new(alerts.iter().map(|one| (one.host, one.hostname.as_str())));
    let row = |one: &Alert| {
        vec![
            one.alert.severity.as_str().to_owned(),
            names.show(one.host, &one.hostname),
            one.alert.rule.to_string(),
            print::age(one.begun_ms(), now_ms),
            standing(one, now_ms),
            format!("{:#}", one.alert.diagnostic),
        ]
    };
    let header = ["SEVERITY", "HOST", "RULE", "SINCE", "STATE", "WHAT"];
    session.printer.list(&alerts, &header, row, "no alerts")?;
    match limit {
        Some(limit) => print::say_if_limited(alerts.len(), limit),
        None if alerts.len() >= ALERTS_MAX => {
            print::say(format_args!("{ALERTS_MAX} are listed, as many as may be; --host and --rule pick others"));
        }
        None => {}
    }
    Ok(())
}

fn standing(one: &Alert, now_ms: Millis) -> String {
    let ended = one.ended_ms.map(|ended_ms| print::age(ended_ms, now_ms)).unwrap_or_default();
    match (one.standing, &one.silence) {
        (AlertStanding::Raised, None) => "active".to_owned(),
        (AlertStanding::Raised, Some(silence)) => format!("silenced: {}", silence.reason),
        (AlertStanding::Cleared, _) => format!("cleared {ended}"),
        (AlertStanding::Gone, _) => format!("over {ended}"),
    }
}

async fn rules(session: &CliSession) -> Result<(), Failure> {
    let set: Vec<AlertRule> = session.client.get("alert-rules", &[]).await?;
    let hosts = hosts_of(session, set.iter().map(|one| one.host)).await?;
    let names = HostNames::new(hosts.iter().map(|host| (host.id, host.hostname.as_str())));
    let hostname = |one: &AlertRule| whom(&hosts, &names, one.host);
    let row = |name: &Name, whom: String, from: &str, rule: &Rule| {
        vec![name.to_string(), whom, from.to_owned(), rule.severity.as_str().to_owned(), words::rule(rule)]
    };
    let is_replaced = |name: &Name| set.iter().any(|one| one.name == *name && one.host.is_none());
    let own = defaults::rules();
    let own = own.iter().filter(|(name, _)| !is_replaced(name));
    let rows = set.iter().map(|one| row(&one.name, hostname(one), "console", &one.rule));
    let rows = rows.chain(own.map(|(name, rule)| row(name, "all".to_owned(), "agent", rule)));
    session.printer.table(&set, &["RULE", "HOSTS", "FROM", "SEVERITY", "RAISED"], rows)
}

async fn set(session: &CliSession, wanted: RuleOptions) -> Result<(), Failure> {
    let (name, host) = (wanted.rule.clone(), wanted.host.clone());
    let of_host: Option<Host> = match &host {
        Some(host) => Some(session.client.get(&format!("hosts/{host}"), &[]).await?),
        None => None,
    };
    let rules: Vec<AlertRule> = session.client.get("alert-rules", &[]).await?;
    let of = |id| rules.iter().find(|one| one.name == name && one.host == id).map(|one| one.rule.clone());
    let own = of_host.as_ref().and_then(|host| of(Some(host.id)));
    let before = own.or_else(|| of(None)).or_else(|| defaults::rules().remove(&name));
    let rule = wanted.of(before)?;
    let host = of_host.map(|host| host.id.to_string());
    let rule: AlertRule = session.client.post("alert-rules", &NewAlertRule { name, host, rule }).await?;
    print::say(format_args!("rule {}: {}", rule.name, words::rule(&rule.rule)));
    session.printer.data(&[rule])
}

impl RuleOptions {
    /// The resulting rule.
    fn of(self, before: Option<Rule>) -> Result<Rule, Failure> {
        let missing = |what: &str| {
            Failure::new(FailureKind::Usage, format!("there is no rule {} yet, so it needs {what}", self.rule))
                .hint(format!("muster alert set {} --metric disk_used --above 80%", self.rule))
        };
        let metric = self.metric.or(before.as_ref().map(|rule| rule.metric)).ok_or_else(|| missing("--metric"))?;
        // The levels of another metric are meaningless.
        let before = before.filter(|rule| rule.metric == metric);
        let flag = (metric.measure() == muster_topics::catalogue::Measure::Flag).then_some(0.0);
        let threshold = self.above.or(before.as_ref().map(|rule| rule.threshold)).or(flag);
        let threshold = threshold.ok_or_else(|| missing("--above"))?;
        let mut rule = Rule {
            metric,
            of: self.of.or(before.as_ref().and_then(|rule| rule.of.clone())),
            threshold,
            clear: self.clear.or(before.as_ref().and_then(|rule| rule.clear)),
            for_ms: match self.time {
                Some(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
                None => before.as_ref().map_or(0, |rule| rule.for_ms),
            },
            severity: self.severity.map(Into::into).or(before.map(|rule| rule.severity)).unwrap_or_default(),
            disabled: self.off,
        };
        // The earlier clear level may not fit the new threshold.
        if self.clear.is_none() && rule.check().is_err() {
            rule.clear = None;
        }
        Ok(rule)
    }
}

/// All hosts, if an item of the list applies to a single one.
async fn hosts_of(session: &CliSession, mut of: impl Iterator<Item = Option<HostId>>) -> Result<Vec<Host>, Failure> {
    if of.any(|host| host.is_some()) { session.client.get("hosts", &[]).await } else { Ok(Vec::new()) }
}

/// The hosts that something applies to: all, or one by its name. A removed host is only known by its id.
fn whom(hosts: &[Host], names: &HostNames<'_>, host: Option<HostId>) -> String {
    let Some(id) = host else { return "all".to_owned() };
    hosts.iter().find(|host| host.id == id).map_or_else(|| id.to_string(), |host| names.show(id, &host.hostname))
}

async fn silences(session: &CliSession) -> Result<(), Failure> {
    let silences: Vec<AlertSilence> = session.client.get("alert-silences", &[]).await?;
    let hosts = hosts_of(session, silences.iter().map(|one| one.host)).await?;
    let names = HostNames::new(hosts.iter().map(|host| (host.id, host.hostname.as_str())));
    let now_ms = clock::now_ms();
    let row = |silence: &AlertSilence| {
        vec![
            silence.id.to_string(),
            whom(&hosts, &names, silence.host),
            silence.rule.as_ref().map_or_else(|| "all".to_owned(), ToString::to_string),
            print::age(silence.until_ms, now_ms),
            silence.operator.to_string(),
            silence.reason.clone(),
        ]
    };
    session.printer.list(&silences, &["ID", "HOST", "RULE", "ENDS", "BY", "REASON"], row, "no silences")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alert_levels_parse() {
        for (text, wanted) in [
            ("90%", Some(0.9)),
            ("80 %", Some(0.8)),
            ("0.5", Some(0.5)),
            ("512MiB", Some(536_870_912.0)),
            ("1.5GiB", Some(1_610_612_736.0)),
            ("30s", Some(30.0)),
            ("-1", Some(-1.0)),
            ("", None),
            ("%", None),
            ("NaN%", None),
            ("inf", None),
            ("much", None),
        ] {
            assert_eq!(words::level(text).ok(), wanted, "{text}");
        }
    }

    fn set(arguments: &str) -> RuleOptions {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            set: RuleOptions,
        }
        let arguments = ["set"].into_iter().chain(arguments.split(' '));
        <Line as clap::Parser>::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}")).set
    }

    #[test]
    fn unset_options_keep_the_rule() {
        let disk = defaults::rules().remove(&"disk".parse::<Name>().unwrap()).unwrap();
        let of = |line: &str, before: Option<&Rule>| set(line).of(before.cloned());
        let rule = of("disk --above 95%", Some(&disk)).unwrap();
        assert_eq!((rule.threshold, rule.clear, rule.for_ms), (0.95, Some(0.85), 300_000));
        let rule = of("disk --above 80% --for 90s --severity critical", Some(&disk)).unwrap();
        assert_eq!((rule.clear, rule.for_ms, rule.severity), (None, 90_000, Severity::Critical));
        let rule = of("disk --off", Some(&disk)).unwrap();
        assert_eq!((rule.disabled, rule.check()), (true, Ok(())));
        assert_eq!(of("disk", Some(&rule)).unwrap(), disk, "and on again");
        let rule = of("disk --metric unit_memory --of shop/till --above 1GiB", Some(&disk)).unwrap();
        assert_eq!((rule.for_ms, rule.clear, rule.check()), (0, None, Ok(())));
        assert!(of("x --metric unit_broken", None).is_ok());
        for line in ["x", "x --above 5%", "x --metric cpu_busy"] {
            assert!(of(line, None).is_err(), "{line}");
        }
    }
}
