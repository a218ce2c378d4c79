//! Who may do what: the client's identity, against the role table of `muster-topics`.
//!
//! **Invariant: only [`Access`] makes a [`Message`] of what a client sends, and a [`Filter`] at all.** What the router
//! is given was therefore validated and permitted.

use std::fmt;

use muster_topics::{
    role::{Action, Identity},
    topic::Prefix,
};

use crate::{
    codec::Publication,
    message::{Message, QoS},
    text,
};

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A topic with a wildcard, a filter with one in the wrong place, and the like.
    #[error("it is not valid")]
    Invalid,
    /// The role table does not have it.
    #[error("this identity has no permission for it")]
    Denied,
}

/// One client's permissions.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    identity: Identity,
    prefix: Prefix,
}

/// A filter that is valid and that its subscriber may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Filter(String);

impl Filter {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Access {
    pub(crate) fn new(identity: Identity, prefix: Prefix) -> Self {
        Self { identity, prefix }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A message (or last will) to publish.
    pub(crate) fn publish(&self, publication: &Publication<'_>) -> Result<Message, Refusal> {
        if !text::is_topic(publication.topic) {
            return Err(Refusal::Invalid);
        }
        self.may(Action::Publish, publication.topic)?;
        Ok(Message::new(publication, 0, 0))
    }

    /// A filter to subscribe to.
    pub(crate) fn subscribe(&self, filter: &str) -> Result<Filter, Refusal> {
        if !text::is_filter(filter) {
            return Err(Refusal::Invalid);
        }
        self.may(Action::Subscribe, filter)?;
        Ok(Filter(filter.to_owned()))
    }

    /// Whether `message` may be delivered. A permitted filter only matches permitted topics, so this never bites
    /// unless that reasoning, or the router, is wrong somewhere.
    pub(crate) fn receive(&self, message: &Message) -> Result<(), Refusal> {
        self.may(Action::Subscribe, message.topic())
    }

    fn may(&self, action: Action, full: &str) -> Result<(), Refusal> {
        match self.prefix.strip(full) {
            Some(below) if self.identity.may(action, below) => Ok(()),
            _ => Err(Refusal::Denied),
        }
    }
}

/// Whether `identity` may call itself `client_id`.
///
/// A host is `<host>-<instance>`, everybody else the common name or anything that begins with it and a `-`. Sessions are
/// kept by identity *and* client id, so `console-a`, which may be called `console-a-b`, still cannot take over a session
/// of `console-a-b`.
pub(crate) fn owns(identity: &Identity, client_id: &str) -> bool {
    let common_name = identity.to_string();
    let Some(rest) = client_id.strip_prefix(&common_name) else { return false };
    let instance = rest.strip_prefix('-').is_some_and(text::is_instance);
    match identity {
        Identity::Host(_) => instance,
        Identity::Console(_) | Identity::Operator(_) | Identity::Observer(_) => rest.is_empty() || instance,
    }
}

/// The granted quality of service with which `message` goes to a subscription of `granted`.
pub(crate) fn lesser(message: &Message, granted: QoS) -> QoS {
    message.qos().min(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
    const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

    fn access(common_name: &str) -> Access {
        Access::new(common_name.parse().unwrap(), Prefix::default())
    }

    #[test]
    fn publishing() {
        use Refusal::{Denied, Invalid};
        for (who, topic, expected) in [
            (HOST, format!("muster/h/{HOST}/presence"), Ok(())),
            (HOST, format!("muster/h/{OTHER}/presence"), Err(Denied)),
            (HOST, format!("muster/h/{HOST}/cmd"), Err(Denied)),
            (HOST, format!("h/{HOST}/presence"), Err(Denied)),
            (HOST, format!("other/h/{HOST}/presence"), Err(Denied)),
            (HOST, format!("muster/h/{HOST}/unit/+/b"), Err(Invalid)),
            (HOST, "é/x".to_owned(), Err(Denied)),
            (HOST, "$SYS/x".to_owned(), Err(Denied)),
            (HOST, String::new(), Err(Invalid)),
            ("console-main", format!("muster/h/{HOST}/cmd"), Ok(())),
            ("operator-anna", format!("muster/h/{HOST}/cmd"), Err(Denied)),
        ] {
            let publication = Publication {
                topic: &topic,
                payload: b"x",
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: Default::default(),
                expiry_s: None,
                alias: None,
            };
            assert_eq!(access(who).publish(&publication).map(drop), expected, "{who} {topic}");
        }
    }

    #[test]
    fn subscribing() {
        use Refusal::{Denied, Invalid};
        for (who, filter, expected) in [
            (HOST, format!("muster/h/{HOST}/cmd"), Ok(())),
            (HOST, "muster/cmd/group/+".to_owned(), Ok(())),
            (HOST, format!("muster/h/{OTHER}/cmd"), Err(Denied)),
            (HOST, "muster/#".to_owned(), Err(Denied)),
            ("console-main", "muster/#".to_owned(), Ok(())),
            ("console-main", "muster/h/+/presence".to_owned(), Ok(())),
            ("console-main", "#".to_owned(), Err(Denied)),
            ("console-main", "+/h/+/presence".to_owned(), Err(Denied)),
            ("console-main", "$SYS/#".to_owned(), Err(Denied)),
            ("console-main", "$share/g/muster/#".to_owned(), Err(Denied)),
            ("console-main", "muster/a#b".to_owned(), Err(Invalid)),
            ("console-main", "muster/#/b".to_owned(), Err(Invalid)),
            ("console-main", "muster/a+".to_owned(), Err(Invalid)),
        ] {
            assert_eq!(access(who).subscribe(&filter).map(drop), expected, "{who} {filter}");
        }
    }

    #[test]
    fn receiving() {
        let message = Message::plain(&format!("muster/h/{HOST}/cmd"), "", false);
        assert_eq!(access(HOST).receive(&message), Ok(()));
        assert_eq!(access(OTHER).receive(&message), Err(Refusal::Denied));
        assert_eq!(access("console-main").receive(&message), Ok(()));
    }

    #[test]
    fn client_ids_belong_to_identities() {
        for (who, client_id, owned) in [
            (HOST, format!("{HOST}-1"), true),
            (HOST, format!("{HOST}-{OTHER}"), true),
            (HOST, HOST.to_owned(), false),
            (HOST, format!("{HOST}-"), false),
            (HOST, format!("{OTHER}-1"), false),
            (HOST, format!("{HOST}-a/b"), false),
            (HOST, format!("{HOST}-{}", "x".repeat(65)), false),
            (HOST, String::new(), false),
            ("console-main", "console-main".to_owned(), true),
            ("console-main", "console-main-7".to_owned(), true),
            ("console-main", "console-mainland".to_owned(), false),
            ("console-main", "console-other".to_owned(), false),
            ("operator-anna", "operator-anna-mosquitto_sub".to_owned(), true),
            ("operator-anna", "operator-anna-+".to_owned(), false),
        ] {
            assert_eq!(owns(&who.parse().unwrap(), &client_id), owned, "{who} {client_id}");
        }
    }
}
