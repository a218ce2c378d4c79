//! Follows a deployment until every host is where it should be, or cannot get there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::Args;
use muster_api::{
    DeploymentDetail, DeploymentEvent, DeploymentHost, DeploymentState, HostCordon, host_names::HostNames,
};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{desired::DeploymentName, name::HostId};
use tokio::time::Instant;

use super::path;
use crate::{client::EventStream, command_follower::named, print, session::CliSession};

/// How long to follow a deployment.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FollowOptions {
    /// Do not wait: end as soon as the console has stored it
    #[arg(long, conflicts_with = "wait_offline")]
    pub(crate) no_wait: bool,
    /// Wait so long until it is done [default: 5m]
    ///
    /// All online hosts are done then. A rollout is followed until it has ended, if no time is given.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<humantime::Duration>,
    /// Wait for offline hosts too
    ///
    /// Without it they are named, and get it when they are online again.
    #[arg(long)]
    pub(crate) wait_offline: bool,
}

/// How long hosts that are online are waited for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);

/// Number of hosts that are reported one by one: one screen.
const TOLD_MAX: usize = 20;

/// How long a host that puts off what it is to remove may be silent before it is left to do that later.
const PUT_OFF: Duration = Duration::from_secs(10);

/// Least time between two lines of progress of many hosts.
const PACE: Duration = Duration::from_secs(1);

/// Which hosts are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowGoal {
    /// Those that are online, and that do not put off what they are to remove.
    Online,
    /// All.
    All,
}

impl FollowGoal {
    /// Whether something is still to happen on a host that is waited for.
    fn awaits(self, host: &DeploymentHost) -> bool {
        match (self, host.state) {
            // Its own policy says when it removes what it is to remove, and that may be a day.
            (Self::Online, DeploymentState::Removing) => host.reason.is_none(),
            (Self::Online, DeploymentState::Away) => false,
            (_, state) => state.is_under_way(),
        }
    }
}

/// Whether a host in this state is not as desired, and nothing more is expected to happen by itself.
fn is_stuck(state: DeploymentState) -> bool {
    !state.is_under_way() && !matches!(state, DeploymentState::Verified | DeploymentState::Orphan)
}

/// The hosts of a deployment, as followed.
#[derive(Clone, Debug)]
pub(super) struct FollowedHosts {
    deployment: DeploymentName,
    hosts: BTreeMap<HostId, DeploymentHost>,
    goal: FollowGoal,
    /// Hosts that an operator keeps from carrying it.
    cordoned: BTreeSet<HostId>,
    /// Whether time was over before all that are waited for were done.
    pub(super) timed_out: bool,
}

impl FollowedHosts {
    fn new(deployment: DeploymentName, hosts: Vec<DeploymentHost>, goal: FollowGoal) -> Self {
        let hosts = hosts.into_iter().map(|host| (host.host, host)).collect();
        Self { deployment, hosts, goal, cordoned: BTreeSet::new(), timed_out: false }
    }

    fn take(&mut self, event: &DeploymentEvent) {
        match event {
            DeploymentEvent::Host(host) => drop(self.hosts.insert(host.host, host.clone())),
            DeploymentEvent::Gone(host) => drop(self.hosts.remove(&host.host)),
            DeploymentEvent::End => {}
        }
    }

    fn is_done(&self) -> bool {
        !self.hosts.values().any(|host| self.goal.awaits(host))
    }

    /// Whether nothing is left but what hosts may still remove soon.
    fn is_put_off(&self) -> bool {
        self.is_done() && self.hosts.values().any(|host| host.state == DeploymentState::Removing)
    }

    /// The number of hosts in each state.
    #[must_use]
    pub(super) fn counts(&self) -> BTreeMap<DeploymentState, u64> {
        let mut counts = BTreeMap::new();
        for host in self.hosts.values() {
            *counts.entry(host.state).or_default() += 1;
        }
        counts
    }

    /// Hosts that are not as desired yet.
    #[must_use]
    pub(super) fn left(&self) -> Vec<&DeploymentHost> {
        self.hosts.values().filter(|host| host.state != DeploymentState::Verified).collect()
    }

    /// Says how far it is, and which hosts do it later.
    pub(super) fn tell(&self) {
        if !self.hosts.is_empty() {
            print::say(format_args!("{}: {}", self.deployment, states(&self.counts())));
        }
        let now_ms = clock::now_ms();
        let of = |state: DeploymentState, words: &dyn Fn(&DeploymentHost) -> String| -> Vec<String> {
            let names = self.names();
            let found =
                self.hosts.values().filter(|host| host.state == state && !(self.timed_out && self.goal.awaits(host)));
            found.map(|host| format!("{}{}", names.show(host.host, &host.hostname), words(host))).collect()
        };
        let since = |host: &DeploymentHost| match host.away_since_ms {
            Some(at_ms) => format!(" (since {})", print::age(at_ms, now_ms)),
            None => String::new(),
        };
        let away = of(DeploymentState::Away, &since);
        if !away.is_empty() {
            let (is, when) = if away.len() == 1 { ("is", "it is") } else { ("are", "they are") };
            print::say(format_args!("{} {is} away: this waits until {when} back", named(&away)));
        }
        let names = self.names();
        let cordoned = self.hosts.values().filter(|host| self.cordoned.contains(&host.host));
        let cordoned: Vec<String> = cordoned.map(|host| names.show(host.host, &host.hostname)).collect();
        if !cordoned.is_empty() {
            print::say(format_args!(
                "cordoned, and so without it: {}; `muster host uncordon` opens hosts",
                named(&cordoned)
            ));
        }
        let later = of(DeploymentState::Removing, &|host| because(host));
        if !later.is_empty() {
            print::say(format_args!("removed later, as the host's own policy says: {}", named(&later)));
        }
    }

    /// The result of a verb that has followed it.
    ///
    /// # Errors
    /// If a host is not as desired that is waited for.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        let names = self.names();
        let mut wrong: Vec<&DeploymentHost> =
            self.hosts.values().filter(|host| is_stuck(host.state) && !self.cordoned.contains(&host.host)).collect();
        wrong.sort_by_key(|host| (host.state, &host.hostname));
        let open: Vec<&DeploymentHost> =
            self.hosts.values().filter(|host| self.timed_out && self.goal.awaits(host)).collect();
        if wrong.is_empty() && open.is_empty() {
            return Ok(());
        }
        let of = self.hosts.len();
        let name = &self.deployment;
        let line = |host: &&DeploymentHost| {
            let shown = names.show(host.host, &host.hostname);
            format!("\n  {shown}: {}{}", host.state.word(), because(host))
        };
        let list: String = wrong.iter().chain(&open).take(TOLD_MAX).map(line).collect();
        let count = wrong.len() + open.len();
        let more = if count > TOLD_MAX { format!("\n  and {} more", count - TOLD_MAX) } else { String::new() };
        let (is, not) =
            (if count == 1 { "is" } else { "are" }, if wrong.is_empty() { "not there yet" } else { "not as desired" });
        let message = format!("{count} of {of} hosts of {name} {is} {not}:{list}{more}");
        let hint = match wrong.first().map(|host| host.state) {
            None => format!("it continues; `muster deployment watch {name}` follows it"),
            Some(DeploymentState::Conflict) => {
                "remove the unit from one of both deployments, or select other hosts".to_owned()
            }
            Some(DeploymentState::Unconfirmed) => {
                "`muster deployment confirm --dry-run` shows what these hosts have that the console does not know"
                    .to_owned()
            }
            Some(DeploymentState::Cannot) => {
                "`muster host show HOST` shows what a host can do; add what it lacks, or select other hosts".to_owned()
            }
            Some(DeploymentState::Held) => "`muster unit unhold` ends a hold".to_owned(),
            Some(_) => format!(
                "`muster unit show HOST:UNIT` shows more of a unit; `muster deployment rollback {name}` \
                 rolls back to the version before"
            ),
        };
        Err(Failure::new(FailureKind::Failed, message).hint(hint))
    }

    fn names(&self) -> HostNames<'_> {
        HostNames::new(self.hosts.values().map(|host| (host.host, host.hostname.as_str())))
    }
}

fn because(host: &DeploymentHost) -> String {
    host.reason.as_ref().map(|why| format!(": {why:#}")).unwrap_or_default()
}

/// `11 verified, 1 away`.
#[must_use]
pub(super) fn states(counts: &BTreeMap<DeploymentState, u64>) -> String {
    let words: Vec<String> = counts.iter().rev().map(|(state, count)| format!("{count} {}", state.word())).collect();
    if words.is_empty() { "no hosts".to_owned() } else { words.join(", ") }
}

/// Reports what changes, host by host or in numbers.
struct ProgressTeller {
    told: BTreeMap<HostId, DeploymentState>,
    counts: BTreeMap<DeploymentState, u64>,
    at: Option<Instant>,
    named: BTreeSet<HostId>,
}

impl ProgressTeller {
    fn new(begin: &FollowedHosts) -> Self {
        let told = begin.hosts.values().map(|host| (host.host, host.state)).collect();
        Self { told, counts: BTreeMap::new(), at: None, named: BTreeSet::new() }
    }

    fn tell(&mut self, now: &FollowedHosts, event: &DeploymentEvent) {
        let name = &now.deployment;
        match event {
            DeploymentEvent::Host(host) if self.told.insert(host.host, host.state) != Some(host.state) => {
                // Of many, only those with problems are named.
                let is_named = now.hosts.len() <= TOLD_MAX
                    || is_stuck(host.state) && self.named.len() < TOLD_MAX && self.named.insert(host.host);
                if is_named {
                    let shown = now.names().show(host.host, &host.hostname);
                    print::say(format_args!("{name} on {shown}: {}{}", host.state.word(), because(host)));
                }
            }
            DeploymentEvent::Gone(host) if self.told.remove(&host.host).is_some() && now.hosts.len() < TOLD_MAX => {
                print::say(format_args!("{name} on {}: removed", host.hostname));
            }
            _ => {}
        }
        let is_due = self.at.is_none_or(|at| at.elapsed() >= PACE);
        if now.hosts.len() > TOLD_MAX && is_due {
            let counts = now.counts();
            if counts != self.counts {
                print::say(format_args!("{name}: {} …", states(&counts)));
                (self.counts, self.at) = (counts, Some(Instant::now()));
            }
        }
    }
}

/// Follows a deployment until all hosts that are waited for are done, or until `limit`.
///
/// # Errors
/// If the console cannot be reached.
pub(super) async fn follow(
    session: &CliSession,
    deployment: &DeploymentName,
    goal: FollowGoal,
    limit: Option<Duration>,
    each: impl Fn(&DeploymentEvent) -> Result<(), Failure>,
) -> Result<FollowedHosts, Failure> {
    let goes_on = |failure: Failure| match failure.kind {
        FailureKind::Unreachable => {
            failure.hint(format!("it continues; `muster deployment watch {deployment}` follows it"))
        }
        _ => failure,
    };
    let until = limit.map(|limit| Instant::now() + limit);
    // The events begin before the list, so that none is missed.
    let mut events: EventStream<DeploymentEvent> =
        session.client.events(&format!("{}/events", path(deployment))).await.map_err(goes_on)?;
    let detail: DeploymentDetail = session.client.get(&path(deployment), &[]).await.map_err(goes_on)?;
    let mut followed = FollowedHosts::new(deployment.clone(), detail.on_hosts, goal);
    let mut teller = ProgressTeller::new(&followed);
    while goal == FollowGoal::All || !followed.is_done() || followed.is_put_off() {
        let patience = (goal == FollowGoal::Online && followed.is_put_off()).then(|| Instant::now() + PUT_OFF);
        let next = match until.into_iter().chain(patience).min() {
            None => Ok(events.next().await),
            // Safe to cancel: unread events stay in the stream.
            Some(end) => tokio::time::timeout_at(end, events.next()).await,
        };
        let Ok(event) = next else {
            followed.timed_out = !followed.is_done();
            break;
        };
        let Some(event) = event.map_err(goes_on)? else {
            let ended = Failure::new(FailureKind::Unreachable, "the console ended the connection");
            return Err(goes_on(ended));
        };
        each(&event)?;
        followed.take(&event);
        teller.tell(&followed, &event);
        if event == DeploymentEvent::End {
            break;
        }
    }
    if followed.hosts.values().any(|host| host.state == DeploymentState::Conflict) {
        let cordons: Vec<HostCordon> = session.client.get("host-cordons", &[]).await.map_err(goes_on)?;
        let is_without =
            |host: &HostId| followed.hosts.get(host).is_some_and(|host| host.state == DeploymentState::Conflict);
        followed.cordoned = cordons.into_iter().map(|cordon| cordon.host).filter(is_without).collect();
    }
    Ok(followed)
}

#[cfg(test)]
mod tests {
    use muster_topics::diagnostic::Diagnostic;

    use super::*;

    fn host(digit: u8, state: DeploymentState, reason: Option<&str>) -> DeploymentHost {
        DeploymentHost {
            host: HostId(uuid::Uuid::from_bytes([digit; 16])),
            hostname: format!("till-{digit}"),
            state,
            reason: reason.map(Diagnostic::new),
            wanted: Some(2),
            version: 1,
            instances: Vec::new(),
            away_since_ms: None,
        }
    }

    fn followed(goal: FollowGoal, hosts: &[DeploymentHost]) -> FollowedHosts {
        FollowedHosts::new("shop/till".parse().unwrap(), hosts.to_vec(), goal)
    }

    #[test]
    fn hosts_that_do_it_later_are_not_waited_for() {
        use DeploymentState::{Away, Changing, Failed, Pending, Removing, Verified};
        for (state, reason, online, all) in [
            (Verified, None, false, false),
            (Failed, Some("why"), false, false),
            (Pending, None, true, true),
            (Changing, Some("downloads"), true, true),
            (Away, None, false, true),
            (Removing, None, true, true),
            (Removing, Some("its policy"), false, true),
        ] {
            let put_off = followed(FollowGoal::Online, &[host(1, Verified, None), host(2, state, reason)]).is_put_off();
            assert_eq!(put_off, state == Removing && reason.is_some());
            let hosts = [host(1, Verified, None), host(2, state, reason)];
            let waits = [FollowGoal::Online, FollowGoal::All].map(|goal| !followed(goal, &hosts).is_done());
            assert_eq!(waits, [online, all], "{state:?} {reason:?}");
        }
    }

    #[test]
    fn verdict_names_hosts_that_are_not_as_desired() {
        use DeploymentState::{Away, Changing, Conflict, Failed, Verified};
        let fine = followed(FollowGoal::Online, &[host(1, Verified, None), host(2, Away, None)]);
        assert!(fine.verdict().is_ok());
        let mut cordoned = followed(FollowGoal::Online, &[host(1, Verified, None), host(2, Conflict, None)]);
        assert!(cordoned.verdict().is_err());
        cordoned.cordoned = [host(2, Conflict, None).host].into();
        assert!(cordoned.verdict().is_ok());
        let failed = followed(FollowGoal::Online, &[host(1, Verified, None), host(2, Failed, Some("no memory"))]);
        let failure = failed.verdict().unwrap_err();
        assert_eq!(failure.cause(), Some("1 of 2 hosts of shop/till is not as desired:\n  till-2: failed: no memory"));
        assert!(failure.given_hint().unwrap().contains("rollback shop/till"));
        let both = followed(FollowGoal::Online, &[host(1, Conflict, None), host(2, Failed, None)]);
        assert!(both.verdict().unwrap_err().cause().unwrap().contains("\n  till-2: failed\n  till-1: conflict"));
        let mut slow = followed(FollowGoal::Online, &[host(1, Changing, None), host(2, Away, None)]);
        slow.timed_out = true;
        let failure = slow.verdict().unwrap_err();
        assert_eq!(failure.cause(), Some("1 of 2 hosts of shop/till is not there yet:\n  till-1: changing"));
    }

    #[test]
    fn events_change_hosts() {
        use DeploymentState::{Removing, Verified};
        let mut all = followed(FollowGoal::Online, &[host(1, Removing, None), host(2, Removing, None)]);
        let gone = muster_api::NamedHost { host: host(1, Removing, None).host, hostname: "till-1".to_owned() };
        all.take(&DeploymentEvent::Gone(gone));
        all.take(&DeploymentEvent::Host(host(2, Verified, None)));
        assert!(all.is_done());
        assert_eq!(states(&all.counts()), "1 verified");
        assert_eq!(states(&BTreeMap::new()), "no hosts");
    }
}
