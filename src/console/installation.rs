//! The installation at a glance, for `muster status`: counted here, so that a fleet of any size is one small answer.

use std::collections::BTreeMap;

use muster_api::{BackupStatus, Deployment, DeploymentState, Installation, Rollout, RolloutPhase, UNFINISHED_MAX};
use muster_base::clock::now_ms;

use super::{
    error::Error,
    state::Console,
    store::{self, alert, host, unit_list},
};

impl Console {
    /// Returns what there is, what is under way, and what is wrong.
    pub async fn installation(&self) -> Result<Installation, Error> {
        let db = self.shared.store.read();
        let all = self.presences().await?;
        let revoked = host::revoked_presences(db).await?;
        let hosts_revoked = revoked.online + revoked.offline + revoked.stopped + revoked.never;
        let known = revoked.known(self.shared.hosts.link.lost_ms());
        let (_, units_troubled) = host::troubled_units(db, 0).await?;
        let deployments = self.deployments().await?;
        let (count, rollouts) = (deployments.len() as u64, self.rollouts().await?);
        let (deployments_unfinished, unfinished_deployments) = first(deployments.into_iter().filter(is_unfinished));
        let (rollouts_unfinished, unfinished_rollouts) = first(rollouts.into_iter().filter(needs_attention));
        Ok(Installation {
            status: self.status().await?,
            hosts_away: (all.offline + all.stopped).saturating_sub(known.offline + known.stopped),
            hosts_never: all.never.saturating_sub(known.never),
            hosts_revoked,
            units: unit_list::phases(db, &unit_list::UnitFilter::default()).await?.into_iter().collect(),
            units_troubled,
            deployments: count,
            deployments_unfinished,
            unfinished_deployments,
            rollouts_unfinished,
            unfinished_rollouts,
            alerts: alert::severities(db, now_ms()).await?.into_iter().collect::<BTreeMap<_, _>>(),
            backup: self.backup_status().await?,
            clock: self.clock(),
        })
    }

    async fn backup_status(&self) -> Result<BackupStatus, Error> {
        let config = self.shared.current();
        let last = store::backup::list(self.shared.store.read(), 1).await?;
        Ok(BackupStatus {
            is_possible: !config.backup.recipients.is_empty(),
            every_hours: config.backup.every_hours,
            last_ms: last.first().map(|backup| backup.taken_ms),
            failed: self.shared.backups.failed(),
        })
    }
}

/// The number of those that there are, and the first of them.
fn first<T>(all: impl Iterator<Item = T>) -> (u64, Vec<T>) {
    let mut all: Vec<T> = all.collect();
    let count = all.len() as u64;
    all.truncate(UNFINISHED_MAX);
    (count, all)
}

fn is_unfinished(deployment: &Deployment) -> bool {
    deployment.hosts.keys().any(|state| *state != DeploymentState::Verified)
}

fn needs_attention(rollout: &Rollout) -> bool {
    !rollout.phase.is_end() || matches!(rollout.phase, RolloutPhase::Failed { .. })
}

#[cfg(test)]
mod tests {
    use crate::testing::Fixture;

    use super::*;

    #[tokio::test]
    async fn empty_installation_has_nothing_that_is_unfinished() {
        let fixture = Fixture::new().await;
        let found = fixture.console.installation().await.unwrap();
        assert_eq!((found.status.hosts, found.hosts_away, found.hosts_never, found.hosts_revoked), (0, 0, 0, 0));
        assert!(found.units.is_empty());
        assert_eq!((found.deployments, found.deployments_unfinished, found.rollouts_unfinished), (0, 0, 0));
        assert_eq!((found.backup.is_possible, found.backup.last_ms), (false, None));
    }

    #[tokio::test]
    async fn revoked_hosts_are_counted_apart() {
        let fixture = Fixture::new().await;
        for hostname in ["one", "two", "three"] {
            fixture.member(hostname).await;
        }
        fixture.console.revoke_host(&"admin".parse().unwrap(), "two").await.unwrap();
        let found = fixture.console.installation().await.unwrap();
        assert_eq!((found.status.hosts, found.hosts_away, found.hosts_never, found.hosts_revoked), (3, 0, 2, 1));
    }

    #[test]
    fn many_unfinished_ones_are_counted_and_the_first_ones_named() {
        let (count, named) = first(0..UNFINISHED_MAX + 5);
        assert_eq!((count, named.len(), named[0]), (25, UNFINISHED_MAX, 0));
    }
}
