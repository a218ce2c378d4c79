//! Labels that the console gives this host. They override the agent's own labels of the same name, and decide its groups.

use muster_base::clock;
use muster_topics::label::{HOST_LABELS_MAX, HostLabels};

use super::{
    core::AgentLoop,
    store::{
        StoreError,
        label::{ConsoleLabels, set_given},
    },
};

impl AgentLoop {
    /// The console's labels. What is not newer than what is there changes nothing, however often somebody repeats it.
    pub(super) async fn host_labels(&mut self, told: HostLabels) -> Result<(), StoreError> {
        if told.host != self.me.host {
            self.reject("host_labels", "they are for another host");
            return Ok(());
        }
        if told.labels.len() > HOST_LABELS_MAX {
            self.reject("host_labels", "they are more than a host may have");
            return Ok(());
        }
        if told.generation <= self.host_snapshot.label_generation().unwrap_or_default() {
            return Ok(());
        }
        self.time.saw(told.issued_ms, clock::now_ms());
        let given = ConsoleLabels { generation: told.generation, labels: told.labels };
        set_given(&self.store, &given).await?;
        tracing::info!(generation = given.generation, labels = given.labels.len(), "new labels from the console");
        self.host_snapshot.give_labels(given);
        // First the groups, so that whoever reads of them in the heartbeat finds this host there.
        self.groups.send_replace(self.host_snapshot.groups());
        self.publisher.beats.hasten();
        self.observe_units();
        Ok(())
    }
}
