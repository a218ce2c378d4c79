//! Labels that the console gives this host: they stand before its own of the same name, and make it a member of groups.

use muster_topics::label::{HOST_LABELS_MAX, HostLabels};

use super::{
    core::Agent,
    store::{
        StoreError,
        label::{GivenLabels, set_given},
    },
};
use crate::clock;

impl Agent {
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
        if told.generation <= self.portrait.label_generation().unwrap_or_default() {
            return Ok(());
        }
        self.time.saw(told.issued_ms, clock::now_ms());
        let given = GivenLabels { generation: told.generation, labels: told.labels };
        set_given(&self.store, &given).await?;
        tracing::info!(generation = given.generation, labels = given.labels.len(), "new labels from the console");
        self.portrait.give_labels(given);
        // First the groups, so that whoever reads of them in the heartbeat finds this host there.
        self.groups.send_replace(self.portrait.groups());
        self.voice.beats.hasten();
        self.observe_units();
        Ok(())
    }
}
