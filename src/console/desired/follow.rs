//! Progress of a deployment, as it is followed: first the state on each host, then each change. A [`PageChange`] only triggers
//! the next look, so no change is missed or told twice.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use muster_api::{DeploymentEvent, DeploymentHost, DeploymentState, NamedHost};
use muster_topics::{desired::DeploymentName, name::HostId};
use tokio::sync::broadcast;

use crate::{
    page_change::{PageChange, change_or_time},
    state::Console,
};

/// Without notifications it is looked this often: notifications are dropped if there are too many.
const LOOK: Duration = Duration::from_secs(10);

/// Follows one deployment.
pub(crate) struct DeploymentFollower {
    console: Console,
    name: DeploymentName,
    news: broadcast::Receiver<PageChange>,
    told: HashMap<HostId, DeploymentHost>,
    waiting: VecDeque<DeploymentEvent>,
    is_first: bool,
    ended: bool,
}

impl DeploymentFollower {
    pub(crate) fn new(console: Console, name: DeploymentName) -> Self {
        // The subscription begins before the first look, so nothing is missed in between.
        let news = console.changes();
        Self { console, name, news, told: HashMap::new(), waiting: VecDeque::new(), is_first: true, ended: false }
    }

    /// Returns the next event; `None` after the end, or once the console stops.
    pub(crate) async fn next(&mut self) -> Option<DeploymentEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if !std::mem::take(&mut self.is_first) {
                let name = &self.name;
                let concerns = |change: &PageChange| match change {
                    PageChange::Deployment(of) | PageChange::Rollout(of) => of == name,
                    other => matches!(other, PageChange::Host(_) | PageChange::Unit(..)),
                };
                change_or_time(&self.console, &mut self.news, LOOK, concerns).await?;
            }
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Option<()> {
        let hosts = match self.console.deployment_hosts(&self.name).await {
            Ok(hosts) => hosts,
            Err(error) if error.status == 404 => Vec::new(),
            Err(error) => {
                tracing::debug!(deployment = %self.name, %error, "following a deployment failed");
                return None;
            }
        };
        let gone: Vec<HostId> =
            self.told.keys().filter(|host| !hosts.iter().any(|one| one.host == **host)).copied().collect();
        for host in gone {
            if let Some(DeploymentHost { host, hostname, .. }) = self.told.remove(&host) {
                self.waiting.push_back(DeploymentEvent::Gone(NamedHost { host, hostname }));
            }
        }
        // Of a rollout that has ended, nobody who waits is admitted without more.
        let goes_on = self.console.shared.hosts.rollouts.goes_on(&self.name);
        let is_under_way = |state: DeploymentState| match state {
            DeploymentState::Waiting => goes_on,
            other => other.is_under_way(),
        };
        let is_over = !hosts.iter().any(|one| is_under_way(one.state));
        for host in hosts {
            if self.told.get(&host.host) != Some(&host) {
                self.told.insert(host.host, host.clone());
                self.waiting.push_back(DeploymentEvent::Host(host));
            }
        }
        if is_over {
            self.waiting.push_back(DeploymentEvent::End);
            self.ended = true;
        }
        Some(())
    }
}
