//! Alerts of deployments that wait for an operator: of a rollout, and of instances for which there is no host. One of each kind for
//! a deployment, in the store, so that outlets hear of them as of those of hosts. They end when the rollout goes on, ends, or is
//! replaced, and when each instance has a host.
//!
//! **Invariant: the store's alerts are compared with all deployments**, not changed one by one: what was missed, or happened while
//! the console was off, shows in the next comparison.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_base::clock::now_ms;
use muster_topics::{
    Millis,
    alert::{Alert, Severity},
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{Digest, Name, NameError},
};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    alert::own,
    page_change::PageChange,
    rollout::{HeldRollout, HeldWhy},
    state::ConsoleState,
    store::{
        self, StoreError,
        alert::{CONSOLE, MessageEffect},
    },
};

/// A rollout is paused.
pub(crate) const PAUSED: &str = "console-rollout-paused";
/// The next wave of a rollout waits for approval.
pub(crate) const WAITS: &str = "console-rollout-waits-for-approval";
/// Instances of a unit have no host.
pub(crate) const UNPLACED: &str = "console-instances-wait";

/// The rules, each with the page that shows what it is about.
const RULES: [(&str, &str); 3] = [(PAUSED, "/rollouts"), (WAITS, "/rollouts"), (UNPLACED, "/deployments")];

/// How long to wait after a change for others: a rollout changes many times a second.
const SETTLE: Duration = Duration::from_secs(1);
/// How often to compare without a change. Alerts of the console's own end when they are not repeated.
const REPEAT: Duration = Duration::from_secs(3_600);
/// How long to wait for the stored rollouts and the first placement, and after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// Keeps the alerts until the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut changes = shared.pages.changes.subscribe();
    let all = async {
        loop {
            match compare(&shared, now_ms()).await {
                Ok(true) => {}
                Ok(false) => {
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, hint = error.hint(), "alerts of deployments cannot be stored; retrying");
                    sleep(PAUSE).await;
                    continue;
                }
            }
            let changed = async {
                loop {
                    match changes.recv().await {
                        Ok(PageChange::Rollout(_) | PageChange::Deployment(_)) | Err(RecvError::Lagged(_)) => return,
                        Ok(_) => {}
                        Err(RecvError::Closed) => return std::future::pending().await,
                    }
                }
            };
            // Both ends are the same: a comparison.
            drop(timeout(REPEAT, changed).await);
            sleep(SETTLE).await;
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Raises and ends alerts as rollouts and instances are now. Returns whether both are known already.
async fn compare(shared: &ConsoleState, now: Millis) -> Result<bool, StoreError> {
    let (held, unplaced) = (shared.hosts.rollouts.held(), shared.hosts.desired.table().unplaced());
    let is_known = |rule: &Name| if rule.as_str() == UNPLACED { unplaced.is_some() } else { held.is_some() };
    let mut wanted: BTreeMap<Name, Alert> = BTreeMap::new();
    let of_rollouts = held.iter().flatten().map(|rollout| of_rollout(rollout, now));
    for alert in of_rollouts.chain(unplaced.iter().flatten().map(|deployment| of_instances(deployment, now))) {
        match alert {
            Ok(alert) => drop(wanted.insert(alert.id.clone(), alert)),
            Err(error) => tracing::error!(%error, "the name of an alert"),
        }
    }
    let raised = store::alert::raised_own(shared.store.read(), CONSOLE).await?;
    let raised = raised.into_iter().filter(|one| page(&one.rule).is_some() && is_known(&one.rule));
    let (mut ended, mut stands) = (Vec::new(), BTreeMap::new());
    for one in raised {
        match wanted.get(&one.id) {
            // A rollout that was paused again for something else is another occurrence.
            Some(alert) if alert.diagnostic == one.diagnostic => drop(stands.insert(one.id, one.at_ms)),
            _ => ended.push(one.id),
        }
    }
    let repeat_ms = Millis::try_from(REPEAT.as_millis()).unwrap_or(Millis::MAX);
    let is_fresh = |id: &Name| stands.get(id).is_some_and(|at_ms| (0..repeat_ms).contains(&now.saturating_sub(*at_ms)));
    wanted.retain(|id, _| !is_fresh(id));
    let is_all = held.is_some() && unplaced.is_some();
    if ended.is_empty() && wanted.is_empty() {
        return Ok(is_all);
    }
    let mut transaction = shared.store.begin().await?;
    for id in &ended {
        store::alert::clear_own(&mut transaction, CONSOLE, id, now).await?;
    }
    for alert in wanted.into_values() {
        let (id, Diagnostic { cause: message, hint, .. }) = (alert.id.clone(), alert.diagnostic.clone());
        if store::alert::put_own(&mut transaction, CONSOLE, alert, now).await? == MessageEffect::TooMany {
            tracing::warn!(alert = %id, message, hint, "an alert is left out: too many of the console are active");
        }
    }
    transaction.commit().await?;
    shared.changed(PageChange::Alert(None));
    Ok(is_all)
}

fn of_rollout(held: &HeldRollout, now: Millis) -> Result<Alert, NameError> {
    let HeldRollout { deployment, version, why } = held;
    let (rule, message) = match why {
        HeldWhy::Paused { reason } => {
            let cause = format!("the rollout of {deployment}, version {version}, is paused: {reason}");
            let hint = format!(
                "`muster rollout show {deployment}` shows which hosts have failed; `muster rollout resume {deployment}` continues it, and `muster rollout cancel {deployment}` ends it"
            );
            (PAUSED, Diagnostic::new(cause).with_hint(hint))
        }
        HeldWhy::Approval { wave } => {
            let cause = format!("wave {wave} of the rollout of {deployment}, version {version}, waits for approval");
            let hint = format!("`muster rollout promote {deployment}` approves it");
            (WAITS, Diagnostic::new(cause).with_hint(hint))
        }
    };
    alert(rule, deployment, &message, now)
}

/// How many wait, and why, changes with each host that comes or goes: that is no other occurrence.
fn of_instances(deployment: &DeploymentName, now: Millis) -> Result<Alert, NameError> {
    let hint = format!("`muster deployment show {deployment}` shows how many, and why no host can take them");
    let message =
        Diagnostic::new(format!("instances of {deployment} wait for a host with room for them")).with_hint(hint);
    alert(UNPLACED, deployment, &message, now)
}

fn alert(rule: &str, deployment: &DeploymentName, message: &Diagnostic, now: Millis) -> Result<Alert, NameError> {
    // A deployment's name may be too long for an id.
    let id = format!("{rule}-{}", Digest::of(deployment.as_str().as_bytes()).short()).parse()?;
    Ok(Alert { id, severity: Severity::Warning, ..own(rule, message, now)? })
}

/// The page that shows what an alert of this rule is about; `None` for alerts that are not about deployments.
pub(crate) fn page(rule: &Name) -> Option<&'static str> {
    RULES.iter().find(|(one, _)| *one == rule.as_str()).map(|(_, page)| *page)
}

#[cfg(test)]
mod tests {
    use muster_api::RolloutVersion;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fixture, admin};

    /// The active alerts of deployments: rules and messages.
    async fn active(fixture: &Fixture) -> Vec<(String, Diagnostic)> {
        assert!(compare(fixture.shared(), now_ms()).await.unwrap());
        let raised = store::alert::raised_own(fixture.shared().store.read(), CONSOLE).await.unwrap();
        let raised = raised.into_iter().filter(|alert| page(&alert.rule).is_some());
        raised.map(|alert| (alert.rule.to_string(), alert.diagnostic)).collect()
    }

    async fn ready(fixture: &Fixture) {
        while fixture.shared().hosts.rollouts.held().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn paused_rollouts_are_alerts_until_they_go_on() {
        let fixture = Fixture::new().await;
        fixture.asking_member("till-7").await;
        let names: Vec<DeploymentName> = ["default/till", "default/scanner"].map(|name| name.parse().unwrap()).into();
        for (name, unit) in names.iter().zip(["till", "scanner"]) {
            fixture.roll_out_container(name.as_str(), "host=*", unit, Some(json!({}))).await;
        }
        ready(&fixture).await;
        assert_eq!(active(&fixture).await, []);
        let version = RolloutVersion::default();
        for name in &names {
            fixture.console.pause_rollout(&admin(), name, version).await.unwrap();
        }
        let paused = active(&fixture).await;
        assert_eq!(paused.iter().map(|(rule, _)| rule.as_str()).collect::<Vec<_>>(), [PAUSED, PAUSED]);
        for name in &names {
            let cause = format!("the rollout of {name}, version 1, is paused: admin has paused it");
            let is_told = |told: &Diagnostic| {
                told.cause == cause && told.hint.as_ref().is_some_and(|hint| hint.starts_with("`muster rollout show"))
            };
            assert!(paused.iter().any(|(_, told)| is_told(told)), "{paused:?}");
        }
        assert_eq!(active(&fixture).await, paused, "each once");
        fixture.console.resume_rollout(&admin(), &names[0], version).await.unwrap();
        let left = active(&fixture).await;
        assert!(left.len() == 1 && left[0].1.cause.contains(names[1].as_str()), "{left:?}");
        fixture.console.cancel_rollout(&admin(), &names[1], Default::default()).await.unwrap();
        assert_eq!(active(&fixture).await, []);
        fixture.running.stop().await;
    }

    #[test]
    fn alert_of_any_deployment_has_a_valid_id() {
        let long = "r".repeat(63);
        let deployment: DeploymentName = format!("{long}/{long}").parse().unwrap();
        let whys = [HeldWhy::Paused { reason: "x".to_owned() }, HeldWhy::Approval { wave: 2 }];
        let of_rollouts =
            whys.map(|why| of_rollout(&HeldRollout { deployment: deployment.clone(), version: 4, why }, 5).unwrap());
        let rules = of_rollouts.into_iter().chain([of_instances(&deployment, 5).unwrap()]).map(|made| {
            assert!(made.id.as_str().starts_with(made.rule.as_str()) && made.severity == Severity::Warning);
            assert!(page(&made.rule).is_some());
            made.rule.to_string()
        });
        assert_eq!(rules.collect::<Vec<_>>(), RULES.map(|(rule, _)| rule));
    }
}
