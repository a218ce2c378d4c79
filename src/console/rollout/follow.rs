//! Progress of a rollout, as it is followed: the rollout as it is, and again after each change.

use std::time::Duration;

use muster_api::{RolloutDetail, RolloutEvent};
use muster_topics::desired::DeploymentName;
use tokio::sync::broadcast;

use crate::{
    page_change::{PageChange, change_or_time},
    state::Console,
};

/// Without notifications it is looked this often: hosts that come and go change why they wait.
const LOOK: Duration = Duration::from_secs(5);

/// Follows the rollout of a deployment.
pub(crate) struct RolloutFollower {
    console: Console,
    name: DeploymentName,
    news: broadcast::Receiver<PageChange>,
    told: Option<RolloutDetail>,
    is_first: bool,
    ended: bool,
}

impl RolloutFollower {
    pub(crate) fn new(console: Console, name: DeploymentName) -> Self {
        // The subscription begins before the first look, so nothing is missed in between.
        let news = console.changes();
        Self { console, name, news, told: None, is_first: true, ended: false }
    }

    /// Returns the next event; `None` after the end, or once the console stops.
    pub(crate) async fn next(&mut self) -> Option<RolloutEvent> {
        loop {
            if self.ended {
                return None;
            }
            if self.told.as_ref().is_some_and(|told| told.rollout.phase.is_end()) {
                self.ended = true;
                return Some(RolloutEvent::End);
            }
            if !std::mem::take(&mut self.is_first) {
                let name = &self.name;
                let concerns = |change: &PageChange| matches!(change, PageChange::Rollout(of) | PageChange::Deployment(of) if of == name);
                change_or_time(&self.console, &mut self.news, LOOK, concerns).await?;
            }
            let detail = match self.console.rollout(&self.name, None).await {
                Ok(detail) => detail,
                Err(error) if error.status == 404 => {
                    self.ended = true;
                    return Some(RolloutEvent::End);
                }
                Err(error) => {
                    tracing::debug!(deployment = %self.name, %error, "following a rollout failed");
                    return None;
                }
            };
            if self.told.as_ref() != Some(&detail) {
                self.told = Some(detail.clone());
                return Some(RolloutEvent::Rollout(Box::new(detail)));
            }
        }
    }
}
