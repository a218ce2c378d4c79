//! The last will of a client.

use crate::{clock::unix_ms, message::BrokerMessage, state::BrokerState};

/// A last will.
#[derive(Clone, Debug)]
pub(crate) struct LastWill {
    /// As the client sent it, without expiry: that counts from when it is published.
    pub(crate) message: BrokerMessage,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) delay_s: u32,
}

impl LastWill {
    /// Publishes it, and waits until it has been distributed. One that cannot be retained is sent to present
    /// subscribers all the same.
    pub(crate) async fn publish(self, shared: &BrokerState) {
        shared.counters.received.add(1);
        let message = match self.expiry_s {
            Some(expiry_s) => self.message.expiring(unix_ms().saturating_add(u64::from(expiry_s) * 1000)),
            None => self.message,
        };
        // An error means that the broker stops.
        let refused = shared.hub.publish(vec![message]).await.await.unwrap_or_default();
        if !refused.is_empty() {
            let passing = refused.iter().map(|refused| refused.message.passing()).collect();
            let _ = shared.hub.publish(passing).await.await;
        }
    }
}
