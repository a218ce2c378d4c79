//! Labels that the console gives this host. They override the agent's own labels of the same name, and decide its groups.

use muster_session::signed::SignedText;
use std::collections::BTreeMap;

use muster_topics::name::{LabelValue, Name};

use super::{
    main_loop::AgentLoop,
    store::{
        StoreError,
        label::{ConsoleLabels, set_given},
    },
};

impl AgentLoop {
    /// Stores the console's labels, which are newer than the present ones, and uses them.
    pub(super) async fn set_host_labels(
        &mut self,
        number: u64,
        labels: &BTreeMap<Name, LabelValue>,
        signed: &SignedText,
    ) -> Result<(), StoreError> {
        let given = ConsoleLabels { generation: number, labels: labels.clone() };
        set_given(&self.store, &given, &signed.0).await?;
        tracing::info!(generation = given.generation, labels = given.labels.len(), "new labels from the console");
        self.host_snapshot.give_labels(given);
        // Groups go first, so that readers of the heartbeat can already reach this host by its groups.
        self.groups.send_replace(self.host_snapshot.groups());
        self.observe_units();
        self.follow_values().await;
        Ok(())
    }
}
