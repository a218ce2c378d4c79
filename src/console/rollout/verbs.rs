//! What operators do with rollouts, and what a version does by itself that goes back.

use muster_api::{CancelRollout, ReleaseHost, RollBack, Rollout, RolloutHost, RolloutVersion};
use muster_rules::rollout::state::RolloutPhase;
use muster_topics::count::counted;
use muster_topics::{Millis, desired::DeploymentName, name::Name};

use super::{
    table::{RolloutEntry, RolloutTable},
    write,
};
use crate::{
    desired::no_earlier_version, dispatch, error::Error, page_change::PageChange, state::Console, store::StoreError,
};

pub(super) fn unknown(name: &DeploymentName) -> Error {
    Error::not_found("unknown_rollout", format!("deployment {name} has no rollout"))
        .hint("a deployment whose document has `rollout` has one for each version; `muster rollout ls` lists them")
}

impl Console {
    /// Has no further host begin.
    pub async fn pause_rollout(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RolloutVersion,
    ) -> Result<Rollout, Error> {
        self.change_rollout(Some(operator), name, wanted.version, |table, now| {
            let entry = open(table, name, "be paused")?;
            if !entry.state.pause(format!("{operator} has paused it"), now) {
                return Err(refused(name, &entry.state.phase, "be paused"));
            }
            Ok("paused".to_owned())
        })
        .await
    }

    /// Has hosts begin again.
    pub async fn resume_rollout(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RolloutVersion,
    ) -> Result<Rollout, Error> {
        self.change_rollout(Some(operator), name, wanted.version, |table, now| {
            let entry = table.rollouts.get_mut(name).ok_or_else(|| unknown(name))?;
            if !entry.state.resume(now) {
                return Err(refused(name, &entry.state.phase, "be resumed"));
            }
            Ok("resumed".to_owned())
        })
        .await
    }

    /// Approves the next wave.
    pub async fn promote_rollout(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RolloutVersion,
    ) -> Result<Rollout, Error> {
        self.change_rollout(Some(operator), name, wanted.version, |table, _| {
            let entry = open(table, name, "be approved")?;
            let wave = entry.state.wave + 1;
            if !entry.state.promote() {
                return Err(refused(name, &entry.state.phase, "be approved: no further wave waits"));
            }
            Ok(format!("wave {wave} is approved"))
        })
        .await
    }

    /// Has hosts try again that have failed.
    pub async fn retry_rollout(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RolloutVersion,
    ) -> Result<Rollout, Error> {
        self.change_rollout(Some(operator), name, wanted.version, |table, now| {
            let entry = table.rollouts.get_mut(name).ok_or_else(|| unknown(name))?;
            let hosts = entry.state.retry(None, now);
            if hosts.is_empty() {
                return Err(refused(name, &entry.state.phase, "be retried: no failed host can retry"));
            }
            entry.retried.retain(|host, _| !hosts.contains(host));
            Ok(format!("retries {}", counted(hosts.len(), "host")))
        })
        .await
    }

    /// Ends a rollout: hosts stay as they are, or go back.
    pub async fn cancel_rollout(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: CancelRollout,
    ) -> Result<Rollout, Error> {
        if !wanted.rollback {
            return self
                .change_rollout(Some(operator), name, wanted.version, |table, _| {
                    let entry = open(table, name, "be cancelled")?;
                    entry.state.cancel();
                    Ok("cancelled".to_owned())
                })
                .await;
        }
        let version = {
            let mut table = self.shared.hosts.rollouts.table();
            let entry = open(&mut table, name, "be rolled back")?;
            check_version(name, entry, wanted.version)?;
            entry.state.version
        };
        self.shared.check_operator(operator).await?;
        self.roll_back_rollout(operator, name, version).await?;
        self.rollout_summary(name)
    }

    /// Counts a host as available again.
    pub async fn release_host(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: ReleaseHost,
    ) -> Result<RolloutHost, Error> {
        let target = muster_api::NewTarget::Hosts(vec![wanted.host.clone()]);
        let found = dispatch::target_hosts(&self.shared, &target).await?;
        let (host, hostname) = found.into_iter().next().ok_or_else(|| unknown(name))?;
        self.change_rollout(Some(operator), name, None, |table, _| {
            let entry = table.rollouts.get_mut(name).ok_or_else(|| unknown(name))?;
            if !entry.state.hosts.contains_key(&host) {
                let message = format!("{hostname} is not in the rollout of {name}");
                return Err(Error::conflict("not_carried", message));
            }
            if !entry.state.release(host) {
                let message = format!("{hostname} is available in {name}, or is changing");
                return Err(Error::conflict("not_unavailable", message)
                    .hint(format!("`muster rollout hosts {name}` shows its state")));
            }
            Ok(format!("{hostname} counts as available"))
        })
        .await?;
        self.rollout_host(name, host).await
    }

    /// Changes the rollout of the present version, and stores that. Without an operator it is the console itself.
    async fn change_rollout(
        &self,
        operator: Option<&Name>,
        name: &DeploymentName,
        version: Option<u32>,
        change: impl FnOnce(&mut RolloutTable, Millis) -> Result<String, Error>,
    ) -> Result<Rollout, Error> {
        let shared = &self.shared;
        if let Some(operator) = operator {
            shared.check_operator(operator).await?;
        }
        let changing = shared.hosts.desired.lock_changes().await;
        let now = shared.time.now();
        let changes = {
            let mut table = shared.hosts.rollouts.table();
            let (number, text) = table.try_change(name, |table| {
                let entry = table.rollouts.get(name).ok_or_else(|| unknown(name))?;
                check_version(name, entry, version)?;
                let number = entry.state.version;
                Ok::<_, Error>((number, change(table, now)?))
            })?;
            if let Some(entry) = table.rollouts.get_mut(name) {
                // It is decided anew, and whoever waits is told why.
                entry.again_ms = None;
                entry.answered.clear();
                if entry.state.phase.is_end() {
                    entry.ended_ms.get_or_insert(now);
                } else {
                    entry.ended_ms = None;
                }
            }
            let by = operator.map_or("the console", Name::as_str);
            tracing::info!(operator = by, deployment = %name, version = number, change = text, "a rollout is changed");
            table.step(name, number, operator, text, now);
            table.changes()?
        };
        let mut transaction = shared.store.begin().await?;
        write(&mut transaction, &changes).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        shared.hosts.rollouts.commit(&changes);
        self.set_gates().await?;
        drop(changing);
        shared.changed(PageChange::Rollout(name.clone()));
        self.rollout_summary(name)
    }

    /// Has hosts go back from a version, for it has failed. Without a version to go back to, or if that cannot be made, the
    /// rollout is paused.
    pub(super) async fn roll_back_by_itself(
        &self,
        name: &DeploymentName,
        version: u32,
        reason: &str,
    ) -> Result<(), Error> {
        let Some(operator) = self.applied_by(name, version) else { return Ok(()) };
        let why = match self.roll_back_rollout(&operator, name, version).await {
            Ok(()) => {
                tracing::warn!(deployment = %name, version, reason, "a version is rolled back automatically");
                return Ok(());
            }
            Err(error) if error.status >= 500 => return Err(error),
            Err(error) => error.problem.diagnostic.cause,
        };
        let paused = self.change_rollout(None, name, Some(version), |table, now| {
            let entry = open(table, name, "be paused")?;
            let reason = format!("{reason}; it cannot be rolled back: {why}");
            entry.failure = None;
            entry.state.pause(reason.clone(), now);
            Ok(format!("it is paused: {reason}"))
        });
        match paused.await {
            // It has ended, or another version has taken its place.
            Err(error) if error.status == 409 || error.status == 404 => Ok(()),
            other => other.map(drop),
        }
    }

    async fn roll_back_rollout(&self, operator: &Name, name: &DeploymentName, version: u32) -> Result<(), Error> {
        let to =
            self.shared.hosts.rollouts.goes_back_to(name, version).ok_or_else(|| no_earlier_version(name, version))?;
        self.roll_back_from(operator, name, version, RollBack { to: Some(to), dry_run: false }).await?;
        Ok(())
    }
}

impl super::Rollouts {
    /// Returns the version that the present one would go back to: the last one that all hosts were to have, or the one before.
    pub(super) fn goes_back_to(&self, name: &DeploymentName, version: u32) -> Option<u32> {
        let table = self.table();
        let entry = table.rollouts.get(name).filter(|entry| entry.state.version == version)?;
        goes_back_to(entry)
    }
}

pub(super) fn goes_back_to(entry: &RolloutEntry) -> Option<u32> {
    entry.state.fallback.or_else(|| Some(entry.state.version.saturating_sub(1)).filter(|number| *number > 0))
}

/// Returns the rollout, if it has not ended.
fn open<'a>(table: &'a mut RolloutTable, name: &DeploymentName, what: &str) -> Result<&'a mut RolloutEntry, Error> {
    let entry = table.rollouts.get_mut(name).ok_or_else(|| unknown(name))?;
    match entry.state.phase.is_end() {
        true => Err(refused(name, &entry.state.phase, what)),
        false => Ok(entry),
    }
}

fn refused(name: &DeploymentName, phase: &RolloutPhase, what: &str) -> Error {
    Error::conflict(
        "rollout_phase",
        format!("the rollout of {name} cannot {what}: it is {}", phase.word().replace('_', " ")),
    )
    .hint(match phase.is_end() {
        true => format!("`muster deployment apply` or `muster deployment rollback {name}` begins another one"),
        false => format!("`muster rollout show {name}` shows what it waits for"),
    })
}

fn check_version(name: &DeploymentName, entry: &RolloutEntry, version: Option<u32>) -> Result<(), Error> {
    let present = entry.state.version;
    match version {
        Some(version) if version != present => {
            let message = format!("version {version} of {name} is not the present one, which is {present}");
            Err(Error::conflict("not_present", message).consequence("nothing was changed"))
        }
        _ => Ok(()),
    }
}
