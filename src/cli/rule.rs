//! `muster rule`: the rules by which alerts are raised.

use clap::{Args, Subcommand, ValueEnum};
use muster_api::{AlertRule, Host, NewAlertRule, host_names::HostNames};
use muster_base::failure::{Failure, FailureKind};
use muster_rules::alert::{defaults, words};
use muster_topics::{
    alert::{Metric, Rule, Severity},
    name::Name,
};
use reqwest::Method;

use super::{
    alert::{hosts_of, whom},
    options::YesOrNo,
    print,
    session::CliSession,
};

/// Verbs on rules of alerts.
#[derive(Subcommand, Clone, Debug)]
pub enum RuleVerb {
    /// List rules of alerts
    ///
    /// These are the rules that are set on the console, and the built-in ones of agents.
    Ls,
    /// Set a rule of alerts, for all hosts or for one
    #[command(
        after_long_help = "A rule replaces a built-in rule of the same name, and a rule for one host that for all. What \
                    is not given stays as it is in the rule before, or in the built-in one."
    )]
    Set(RuleOptions),
    /// Remove a rule that was set on the console
    ///
    /// A built-in rule of the same name is in force again.
    Rm {
        /// Name of the rule
        rule: Name,
        /// Host, by id or hostname [default: all hosts]
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
}

/// A rule, or what is to change of one.
#[derive(Args, Clone, Debug)]
pub struct RuleOptions {
    /// Name of the rule
    rule: Name,
    /// Host, by id or hostname [default: all hosts]
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
    #[arg(long, value_parser = words::level, value_name = "LEVEL", allow_negative_numbers = true)]
    level: Option<f64>,
    /// Clear the alert at this level [default: that of --level]
    #[arg(long, value_parser = words::level, value_name = "LEVEL", allow_negative_numbers = true)]
    clear: Option<f64>,
    /// Raise the alert after the condition has held for so long
    #[arg(long = "for", value_name = "TIME")]
    time: Option<humantime::Duration>,
    /// Severity
    #[arg(long, value_enum)]
    severity: Option<HowBad>,
    /// Whether it is enabled
    ///
    /// If not, it raises no alerts.
    #[arg(long, value_name = "YES|NO", hide_possible_values = true)]
    enabled: Option<YesOrNo>,
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
        format!("unknown metric; use one of {}", known.join(", "))
    })
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: RuleVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        RuleVerb::Ls => list(session).await,
        RuleVerb::Set(wanted) => set(session, wanted).await,
        RuleVerb::Rm { rule, host } => {
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
    }
}

async fn list(session: &CliSession) -> Result<(), Failure> {
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
                .hint(format!("muster rule set {} --metric disk_used --level 80%", self.rule))
        };
        let metric = self.metric.or(before.as_ref().map(|rule| rule.metric)).ok_or_else(|| missing("--metric"))?;
        let disabled = before.as_ref().is_some_and(|rule| rule.disabled);
        // The levels of another metric are meaningless.
        let before = before.filter(|rule| rule.metric == metric);
        let flag = (metric.measure() == muster_topics::catalogue::Measure::Flag).then_some(0.0);
        let threshold = self.level.or(before.as_ref().map(|rule| rule.threshold)).or(flag);
        let threshold = threshold.ok_or_else(|| missing("--level"))?;
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
            disabled: self.enabled.map_or(disabled, |enabled| !enabled.is_yes()),
        };
        // The earlier clear level may not fit the new threshold.
        if self.clear.is_none() && rule.check().is_err() {
            rule.clear = None;
        }
        Ok(rule)
    }
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
        let rule = of("disk --level 95%", Some(&disk)).unwrap();
        assert_eq!((rule.threshold, rule.clear, rule.for_ms), (0.95, Some(0.85), 300_000));
        let rule = of("disk --level 80% --for 90s --severity critical", Some(&disk)).unwrap();
        assert_eq!((rule.clear, rule.for_ms, rule.severity), (None, 90_000, Severity::Critical));
        let rule = of("disk --enabled no", Some(&disk)).unwrap();
        assert_eq!((rule.disabled, rule.check()), (true, Ok(())));
        assert_eq!(of("disk", Some(&rule)).unwrap(), rule);
        assert_eq!(of("disk --enabled yes", Some(&rule)).unwrap(), disk);
        let rule = of("disk --metric unit_memory --of shop/till --level 1GiB", Some(&disk)).unwrap();
        assert_eq!((rule.for_ms, rule.clear, rule.check()), (0, None, Ok(())));
        assert!(of("x --metric unit_broken", None).is_ok());
        for line in ["x", "x --level 5%", "x --metric cpu_busy"] {
            assert!(of(line, None).is_err(), "{line}");
        }
    }
}
