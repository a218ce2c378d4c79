//! Labels that the console gives this host. They override the agent's own labels of the same name, and decide its groups.

use muster_base::clock;
use muster_topics::label::{HOST_LABELS_MAX, HostLabels};

use super::{
    main_loop::AgentLoop,
    store::{
        StoreError,
        label::{ConsoleLabels, set_given},
    },
};

impl AgentLoop {
    /// Sets the console's labels. Labels that are not newer than the present ones change nothing, however often they
    /// are repeated.
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
        self.time.observe(told.issued_ms, clock::now_ms());
        let given = ConsoleLabels { generation: told.generation, labels: told.labels };
        set_given(&self.store, &given).await?;
        tracing::info!(generation = given.generation, labels = given.labels.len(), "new labels from the console");
        self.host_snapshot.give_labels(given);
        // Groups go first, so that readers of the heartbeat can already reach this host by its groups.
        self.groups.send_replace(self.host_snapshot.groups());
        self.publisher.beats.hasten();
        self.observe_units();
        Ok(())
    }
}
