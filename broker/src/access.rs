//! Permissions of a client: its identity, checked against the table of topics of `muster-topics`.
//!
//! **Invariant: only [`ClientAccess`] makes a [`CheckedFilter`], and every publication is checked by it first.** What the exchange
//! gets was therefore validated and permitted.

use std::{fmt, sync::Arc};

use muster_topics::{
    role::{self, Action, Identity},
    topic::Prefix,
};

use crate::{
    codec::Reason,
    limits::BrokerLimits,
    stats::Refused,
    topic_text::{self, TopicForm},
};

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, miette::Diagnostic)]
pub(crate) enum AccessRefusal {
    /// An invalid topic: with a wildcard, too long, and the like.
    #[error("the topic is not valid")]
    Topic,
    /// An invalid filter: with a misplaced wildcard, too long, and the like.
    #[error("the filter is not valid")]
    Filter,
    /// The table of topics does not permit it.
    #[error("this identity has no permission for this topic")]
    Denied,
    /// A shared subscription, which is not supported: muster does not need to distribute messages among hosts.
    #[error("shared subscriptions are not supported")]
    Shared,
    /// A retained message that would exceed its publisher's or the total limit.
    #[error("a limit on retained messages is reached")]
    #[diagnostic(help("a host may retain 512 messages; `clients_max` and `memory_max_bytes` decide how many all may"))]
    Retained,
    /// Too many subscriptions.
    #[error("a limit on subscriptions is reached")]
    #[diagnostic(help("a session may have 64; `identity_clients_max` decides how many its identity may"))]
    Subscriptions,
}

impl AccessRefusal {
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Topic => Reason::TopicNameInvalid,
            Self::Filter => Reason::TopicFilterInvalid,
            Self::Denied => Reason::NotAuthorized,
            Self::Shared => Reason::SharedSubscriptionsNotSupported,
            Self::Retained | Self::Subscriptions => Reason::QuotaExceeded,
        }
    }
}

impl AccessRefusal {
    /// Returns the kind that a refused publish or last will is counted as.
    pub(crate) fn publish_kind(self) -> Refused {
        match self {
            Self::Topic | Self::Filter | Self::Shared | Self::Subscriptions => Refused::Topic,
            Self::Denied => Refused::Publish,
            Self::Retained => Refused::Retained,
        }
    }

    /// Returns the kind that a refused subscribe is counted as.
    pub(crate) fn subscribe_kind(self) -> Refused {
        match self {
            Self::Topic | Self::Filter | Self::Retained => Refused::Filter,
            Self::Denied => Refused::Subscribe,
            Self::Shared => Refused::Shared,
            Self::Subscriptions => Refused::Subscriptions,
        }
    }
}

/// The rules for topics that apply to all clients.
#[derive(Clone, Debug)]
pub(crate) struct AccessRules {
    prefix: Prefix,
    form: TopicForm,
}

impl AccessRules {
    pub(crate) fn new(prefix: Prefix, limits: &BrokerLimits) -> Arc<Self> {
        let form = TopicForm { max_bytes: limits.topic_max_bytes, max_levels: limits.topic_levels_max };
        Arc::new(Self { prefix, form })
    }
}

/// One client's permissions.
#[derive(Clone, Debug)]
pub(crate) struct ClientAccess {
    identity: Identity,
    rules: Arc<AccessRules>,
}

/// A valid filter that its subscriber may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CheckedFilter(Arc<str>);

impl CheckedFilter {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text, to be shared.
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl fmt::Display for CheckedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ClientAccess {
    pub(crate) fn new(identity: Identity, rules: Arc<AccessRules>) -> Self {
        Self { identity, rules }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it may publish to `topic`, or leave a last will there.
    pub(crate) fn publish(&self, topic: &str) -> Result<(), AccessRefusal> {
        if !self.rules.form.is_topic(topic) {
            return Err(AccessRefusal::Topic);
        }
        self.may(Action::Publish, topic)
    }

    /// A filter to subscribe to.
    pub(crate) fn subscribe(&self, filter: &str) -> Result<CheckedFilter, AccessRefusal> {
        if !self.rules.form.is_filter(filter) {
            return Err(AccessRefusal::Filter);
        }
        if topic_text::is_shared(filter) {
            return Err(AccessRefusal::Shared);
        }
        self.may(Action::Subscribe, filter)?;
        Ok(CheckedFilter(filter.into()))
    }

    /// Whether a message on `topic` may be delivered. A permitted filter only matches permitted topics, so this has an
    /// effect only if that reasoning is wrong somewhere.
    pub(crate) fn receive(&self, topic: &str) -> Result<(), AccessRefusal> {
        self.may(Action::Subscribe, topic)
    }

    fn may(&self, action: Action, full: &str) -> Result<(), AccessRefusal> {
        let permitted = if topic_text::is_system(full) {
            action == Action::Subscribe && role::SYSTEM_READERS.contains(&self.identity.role())
        } else {
            self.rules.prefix.strip(full).is_some_and(|below| self.identity.may(action, below))
        };
        if permitted { Ok(()) } else { Err(AccessRefusal::Denied) }
    }
}

/// Whether `identity` may use `client_id`.
///
/// A host's client id is `<host>-<instance>`, any other the common name or anything that begins with it and a `-`.
/// Sessions are stored by identity *and* client id, so `console-a`, which may use `console-a-b`, still cannot take over
/// a session of the identity `console-a-b`.
pub(crate) fn owns(identity: &Identity, client_id: &str) -> bool {
    let common_name = identity.to_string();
    let Some(rest) = client_id.strip_prefix(&common_name) else { return false };
    let instance = rest.strip_prefix('-').is_some_and(topic_text::is_instance);
    match identity {
        Identity::Host(_) => instance,
        Identity::Console(_) | Identity::Operator(_) | Identity::Observer(_) => rest.is_empty() || instance,
    }
}

#[cfg(test)]
impl ClientAccess {
    /// With the default prefix and limits.
    pub(crate) fn of(common_name: &str) -> Self {
        Self::new(common_name.parse().unwrap(), AccessRules::new(Prefix::default(), &BrokerLimits::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
    const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

    #[test]
    fn publish_permissions_follow_the_table() {
        use AccessRefusal::{Denied, Topic};
        for (who, topic, expected) in [
            (HOST, format!("muster/s/00/h/{HOST}/presence"), Ok(())),
            (HOST, format!("muster/s/00/h/{OTHER}/presence"), Err(Denied)),
            (HOST, format!("muster/s/00/h/{HOST}/cmd"), Err(Denied)),
            (HOST, format!("s/00/h/{HOST}/presence"), Err(Denied)),
            (HOST, format!("other/s/00/h/{HOST}/presence"), Err(Denied)),
            (HOST, format!("muster/s/00/h/{HOST}/unit/+/b"), Err(Topic)),
            (HOST, "é/x".to_owned(), Err(Denied)),
            (HOST, "$SYS/x".to_owned(), Err(Denied)),
            (HOST, String::new(), Err(Topic)),
            ("console-main", format!("muster/s/00/h/{HOST}/cmd"), Ok(())),
            ("operator-anna", format!("muster/s/00/h/{HOST}/cmd"), Err(Denied)),
            ("operator-anna", "$SYS/broker/uptime".to_owned(), Err(Denied)),
        ] {
            assert_eq!(ClientAccess::of(who).publish(&topic), expected, "{who} {topic}");
        }
    }

    #[test]
    fn subscribe_permissions_follow_the_table() {
        use AccessRefusal::{Denied, Filter, Shared};
        for (who, filter, expected) in [
            (HOST, format!("muster/s/00/h/{HOST}/cmd"), Ok(())),
            (HOST, "muster/s/00/cmd/group/+".to_owned(), Ok(())),
            (HOST, format!("muster/s/00/h/{OTHER}/cmd"), Err(Denied)),
            (HOST, "muster/#".to_owned(), Err(Denied)),
            (HOST, "$SYS/#".to_owned(), Err(Denied)),
            ("console-main", "muster/#".to_owned(), Ok(())),
            ("console-main", "muster/s/+/h/+/presence".to_owned(), Ok(())),
            ("console-main", "#".to_owned(), Err(Denied)),
            ("console-main", "+/s/+/h/+/presence".to_owned(), Err(Denied)),
            ("console-main", "$SYS/#".to_owned(), Err(Denied)),
            ("operator-anna", "$SYS/#".to_owned(), Ok(())),
            ("observer-bridge", "$SYS/#".to_owned(), Err(Denied)),
            ("operator-anna", "$SYSTEM/#".to_owned(), Err(Denied)),
            ("console-main", "$share/g/muster/#".to_owned(), Err(Shared)),
            ("console-main", "muster/a#b".to_owned(), Err(Filter)),
            ("console-main", "muster/#/b".to_owned(), Err(Filter)),
            ("console-main", "muster/a+".to_owned(), Err(Filter)),
        ] {
            assert_eq!(ClientAccess::of(who).subscribe(&filter).map(drop), expected, "{who} {filter}");
        }
    }

    #[test]
    fn delivery_permissions_follow_the_table() {
        let topic = format!("muster/s/00/h/{HOST}/cmd");
        assert_eq!(ClientAccess::of(HOST).receive(&topic), Ok(()));
        assert_eq!(ClientAccess::of(OTHER).receive(&topic), Err(AccessRefusal::Denied));
        assert_eq!(ClientAccess::of("console-main").receive(&topic), Ok(()));
        assert_eq!(ClientAccess::of("console-main").receive("$SYS/broker/uptime"), Err(AccessRefusal::Denied));
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
