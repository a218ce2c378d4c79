//! Hosts whose agents speak a later protocol than this console: nothing is taken of them, for what they say may mean something
//! else than it would here.

use std::collections::HashMap;

use muster_topics::{
    PROTOCOL,
    name::HostId,
    presence::PresenceProtocol,
    topic::{HostTopic, Topic},
};

use super::error::FaultyMessage;

/// The most hosts that are remembered; beyond it all are forgotten, and are known again by their next presence.
const HOSTS_MAX: usize = 100_000;

/// The hosts whose last presence named a later protocol, with that.
#[derive(Debug, Default)]
pub(super) struct NewerHosts(HashMap<HostId, u32>);

impl NewerHosts {
    /// Checks a message, before anything else of it is read.
    ///
    /// # Errors
    /// If its host speaks a later protocol.
    pub(super) fn check(&mut self, topic: &Topic, payload: &[u8]) -> Result<(), FaultyMessage> {
        let Topic::Host(host, topic) = topic else { return Ok(()) };
        if *topic == HostTopic::Presence
            && let Ok(PresenceProtocol { protocol }) = serde_json::from_slice(payload)
        {
            if protocol <= PROTOCOL {
                self.0.remove(host);
            } else {
                if self.0.len() >= HOSTS_MAX {
                    self.0.clear();
                }
                self.0.insert(*host, protocol);
            }
        }
        self.0.get(host).map_or(Ok(()), |protocol| Err(FaultyMessage::Protocol(*protocol)))
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::diagnostic::Diagnostic;

    use super::*;

    #[test]
    fn nothing_is_taken_of_a_host_with_a_later_protocol_until_it_speaks_this_one() {
        let (host, other) = (HostId::random(), HostId::random());
        let mut newer = NewerHosts::default();
        let presence = |protocol: u32| format!(r#"{{"v":1,"protocol":{protocol},"more":1}}"#);
        let mut check = |host, topic, payload: &str| {
            let checked = newer.check(&Topic::Host(host, topic), payload.as_bytes());
            checked.err().map(|fault| Diagnostic::of(&fault)).unwrap_or_default()
        };
        let nothing = Diagnostic::default();
        assert_eq!(check(host, HostTopic::Heartbeat, "{}"), nothing);
        let why = check(host, HostTopic::Presence, &presence(PROTOCOL + 1));
        assert!(why.cause.contains(&format!("protocol {}", PROTOCOL + 1)) && why.hint.is_some(), "{why}");
        assert_eq!(check(host, HostTopic::Heartbeat, "{}"), why);
        assert_eq!(check(other, HostTopic::Heartbeat, "{}"), nothing);
        // What is no presence changes nothing.
        assert_eq!(check(host, HostTopic::Presence, ""), why);
        assert_eq!(check(host, HostTopic::Presence, &presence(PROTOCOL)), nothing);
        assert_eq!(check(host, HostTopic::Heartbeat, "{}"), nothing);
    }
}
