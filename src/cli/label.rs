//! `muster host label`: labels that operators give hosts, for `--select`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use clap::Args;
use muster_api::{HostLabel, LabelHosts, LabelOrigin, LabelledHost, NewTarget};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    command::TARGET_HOSTS_MAX,
    name::{LabelValue, Name},
    select::HostSelect,
};

use super::{host_lookup, policy::parse_label, print, session::CliSession};
use muster_api::host_names::HostNames;

/// Which labels of which hosts.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A host is in the group of each label that it has (`muster exec --select label.canary`), whatever \
                    the value. Labels that are set here replace those of the same name in the agent's own \
                    configuration, which are in force again once these are removed. An offline host learns of \
                    them when it is online again."
)]
pub struct LabelArgs {
    /// Hosts, and labels: NAME=VALUE sets one, NAME- removes it
    ///
    /// Hosts are given by id or hostname. Without a label to change, labels are listed.
    #[arg(value_name = "HOST|NAME=VALUE|NAME-")]
    pub words: Vec<String>,
    /// Hosts that this selects
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "all")]
    pub select: Option<HostSelect>,
    /// Every host
    #[arg(long)]
    pub all: bool,
    /// Replace what is there
    ///
    /// Without it, a label that has another value is refused.
    #[arg(long)]
    pub replace: bool,
    /// Do not ask first
    #[arg(short, long)]
    pub yes: bool,
    /// Wait so long until it is done
    ///
    /// Online hosts confirm their labels.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub timeout: humantime::Duration,
}

/// The parsed words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LabelChanges {
    hosts: Vec<String>,
    set: BTreeMap<Name, LabelValue>,
    remove: BTreeSet<Name>,
}

impl LabelChanges {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for word in words {
            if word.contains('=') {
                let (name, value) = parse_label(word)?;
                if parsed.set.insert(name.clone(), value).is_some() {
                    return Err(format!("label {name} is set twice"));
                }
            } else if let Some(name) = word.strip_suffix('-') {
                parsed.remove.insert(name.parse().map_err(|error| format!("{word}: {error}"))?);
            } else {
                parsed.hosts.push(word.clone());
            }
        }
        match parsed.set.keys().find(|name| parsed.remove.contains(*name)) {
            Some(both) => Err(format!("label {both} is both set and removed")),
            None => Ok(parsed),
        }
    }
}

/// Lists or changes labels.
///
/// # Errors
/// If there are no such hosts, if the user does not confirm, or if a label already has another value.
pub async fn run(label: LabelArgs, session: &CliSession) -> Result<(), Failure> {
    let LabelChanges { hosts, set, remove } =
        LabelChanges::parse(&label.words).map_err(|message| Failure::new(FailureKind::Usage, message))?;
    let named = !hosts.is_empty();
    let target = match &label.select {
        Some(_) if named => return Err(twice("--select")),
        None if label.all && named => return Err(twice("--all")),
        Some(select) => NewTarget::Select(select.clone()),
        None if label.all => NewTarget::All,
        None if named => NewTarget::Hosts(hosts),
        None => NewTarget::Hosts(vec![host_lookup::one(session, None).await?]),
    };
    let look = LabelHosts { target, set: BTreeMap::new(), remove: BTreeSet::new(), replace: false };
    if set.is_empty() && remove.is_empty() {
        return list(session, &ask(session, &look).await?);
    }
    if label.all && !label.yes {
        let hosts = ask(session, &look).await?.len();
        let what = format!("change labels of all {hosts} hosts");
        if hosts > 1 && !print::confirm(&format!("{what}?")) {
            return Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation")).hint("pass --yes"));
        }
    }
    let wanted = LabelHosts { set, remove, replace: label.replace, ..look };
    let hosts = confirmed(session, ask(session, &wanted).await?, label.timeout.into()).await?;
    session.printer.data(&hosts)?;
    tell(&hosts, &wanted);
    Ok(())
}

fn twice(option: &str) -> Failure {
    Failure::new(FailureKind::Usage, format!("hosts are named, and {option} says which as well"))
        .hint("say one of both")
}

async fn ask(session: &CliSession, wanted: &LabelHosts) -> Result<Vec<LabelledHost>, Failure> {
    session.client.post("host-labels", wanted).await
}

/// Waits until the online hosts have confirmed their labels: only then does a broadcast to a group reach them.
async fn confirmed(
    session: &CliSession,
    mut hosts: Vec<LabelledHost>,
    limit: Duration,
) -> Result<Vec<LabelledHost>, Failure> {
    let until = Instant::now() + limit;
    let is_open = |host: &LabelledHost| !host.confirmed && host.away_since_ms.is_none();
    while Instant::now() < until {
        let open: Vec<String> = hosts
            .iter()
            .filter(|host| is_open(host))
            .map(|host| host.host.to_string())
            .take(TARGET_HOSTS_MAX)
            .collect();
        if open.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let look = LabelHosts {
            target: NewTarget::Hosts(open),
            set: BTreeMap::new(),
            remove: BTreeSet::new(),
            replace: false,
        };
        let news: BTreeMap<_, _> = ask(session, &look).await?.into_iter().map(|host| (host.host, host)).collect();
        for host in &mut hosts {
            if let Some(now) = news.get(&host.host) {
                host.clone_from(now);
            }
        }
    }
    Ok(hosts)
}

/// Number of hosts that are reported one by one: one screen.
const TOLD_MAX: usize = 20;

/// Reports the result of a change.
fn tell(hosts: &[LabelledHost], wanted: &LabelHosts) {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    for host in hosts.iter().take(TOLD_MAX) {
        let name = names.show(host.host, &host.hostname);
        print::say(format_args!("{name}: {}{}", labels(&host.labels), standing(host)));
        for label in kept(&host.labels, &wanted.remove) {
            print::say(format_args!(
                "{name}: {}={} is of its agent's own configuration, and stays",
                label.name, label.value
            ));
        }
    }
    if let Some(more @ 1..) = hosts.len().checked_sub(TOLD_MAX) {
        print::say(format_args!("and {more} more"));
    }
}

/// Labels that were to be removed and still exist: they come from the host's own configuration.
fn kept<'a>(labels: &'a [HostLabel], removed: &BTreeSet<Name>) -> Vec<&'a HostLabel> {
    labels.iter().filter(|label| label.origin == LabelOrigin::Agent && removed.contains(&label.name)).collect()
}

/// Labels on one line.
pub(super) fn labels(labels: &[HostLabel]) -> String {
    let labels: Vec<String> = labels.iter().map(|label| format!("{}={}", label.name, label.value)).collect();
    if labels.is_empty() { "no labels".to_owned() } else { labels.join(" ") }
}

/// Why a host may not have confirmed its labels.
fn standing(host: &LabelledHost) -> &'static str {
    match (host.confirmed, host.away_since_ms) {
        (true, _) => "",
        (false, Some(_)) => " (it is away, and is told when it is back)",
        (false, None) => " (it has not confirmed this yet)",
    }
}

fn list(session: &CliSession, hosts: &[LabelledHost]) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    let rows = hosts.iter().flat_map(|host| {
        let name = names.show(host.host, &host.hostname);
        host.labels.iter().map(move |label| {
            let hides = label.hides.clone().unwrap_or_default();
            vec![name.clone(), label.name.to_string(), label.value.clone(), from(label, now_ms), hides]
        })
    });
    if hosts.iter().all(|host| host.labels.is_empty()) && session.printer.format == print::PrintFormat::Table {
        print::say("no labels; `muster host label HOST NAME=VALUE` sets one");
        return Ok(());
    }
    session.printer.table(&hosts, &["HOST", "LABEL", "VALUE", "FROM", "HIDES"], rows)
}

/// Where a label comes from: `console (anna, 5 min ago)`.
fn from(label: &HostLabel, now_ms: i64) -> String {
    match (&label.operator, label.set_ms) {
        (Some(operator), Some(set_ms)) => {
            format!("{} ({operator}, {})", label.origin.word(), print::age(set_ms, now_ms))
        }
        _ => label.origin.word().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(typed: &str) -> Result<LabelChanges, String> {
        LabelChanges::parse(&typed.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_hosts_or_changes() {
        let parsed = words("till-7 canary=yes 10.0.0.1 tier- site=north").unwrap();
        assert_eq!(parsed.hosts, ["till-7", "10.0.0.1"]);
        let set: Vec<String> = parsed.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(set, ["canary=yes", "site=north"]);
        assert_eq!(parsed.remove.iter().map(Name::as_str).collect::<Vec<_>>(), ["tier"]);
        for (typed, wrong) in [
            ("a x=1 x=2", "twice"),
            ("a x=1 x-", "both set and removed"),
            ("a x=", "label value"),
            ("a Ä=1", "name"),
            ("a Ä-", "name"),
        ] {
            let problem = words(typed).unwrap_err();
            assert!(problem.contains(wrong), "{typed}: {problem}");
        }
    }

    #[test]
    fn label_that_stays_after_its_removal_is_the_agents() {
        let label = |name: &str, origin| HostLabel {
            name: name.parse().unwrap(),
            value: "1".to_owned(),
            origin,
            hides: None,
            operator: None,
            set_ms: None,
        };
        let there = [label("site", LabelOrigin::Agent), label("tier", LabelOrigin::Console)];
        let removed = ["site", "tier", "gone"].map(|name| name.parse().unwrap()).into();
        assert_eq!(kept(&there, &removed).iter().map(|label| label.name.as_str()).collect::<Vec<_>>(), ["site"]);
        assert_eq!(labels(&there), "site=1 tier=1");
    }
}
