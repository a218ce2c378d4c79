//! Permissions: who may publish and read what, made from [the table of topics](TopicKind::row). The embedded broker's
//! permission check and the configuration of every other broker come from these rules.
//!
//! A client is identified by the common name of its certificate. A host's is its [`HostId`]; the others
//! carry their role as a prefix (`console-main`, `operator-anna`), which no UUID can have.
//!
//! The rules permit any slot above a host's own id, because a broker cannot compute it; a party that reads a topic refuses
//! a host below another slot than its own ([`crate::topic::TopicError::Slot`]).

use std::{fmt, str::FromStr, sync::LazyLock};

use uuid::Uuid;

use crate::{
    name::{HostId, Name},
    topic::{HostReads, TopicKind, TopicRow},
};

/// The identity of a client of the bus, which decides what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The agent of a host.
    Host(HostId),
    /// A console.
    Console(Name),
    /// A person's or a program's MQTT client that may read everything.
    Operator(Name),
    /// The same for read-only use, such as a bridge to a database.
    Observer(Name),
}

/// The kinds of identities that [`rules`] distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// See [`Identity::Host`].
    Host,
    /// See [`Identity::Console`].
    Console,
    /// See [`Identity::Operator`].
    Operator,
    /// See [`Identity::Observer`].
    Observer,
}

/// An action on a topic or a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Publish to a topic, its last will included.
    Publish,
    /// Subscribe to a filter, and receive matching messages.
    Subscribe,
}

/// What a role may do with the topics that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The role.
    pub role: Role,
    /// The action.
    pub action: Action,
    /// An MQTT filter below the prefix, in which the level `%u` stands for the client's own id: the host's UUID, or the
    /// name after the role's prefix.
    pub pattern: String,
}

/// Returns everything that is permitted, as [the table of topics](TopicKind::row) says. Anything else is denied.
#[must_use]
pub fn rules() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
        use Action::{Publish, Subscribe};
        let rows = || TopicKind::ALL.into_iter().map(TopicKind::row);
        let rule = |role, action, row: TopicRow| Rule { role, action, pattern: row.pattern(role) };
        let published = |role| rows().filter(move |row| row.publisher == role).map(move |row| rule(role, Publish, row));
        let read = rows().filter(|row| row.hosts != HostReads::No).map(|row| rule(Role::Host, Subscribe, row));
        let all = [Role::Console, Role::Operator, Role::Observer];
        let all = all.map(|role| Rule { role, action: Subscribe, pattern: "#".to_owned() });
        published(Role::Host).chain(read).chain(published(Role::Console)).chain(all).collect()
    });
    &RULES
}

/// The roles that may read the broker's own topics below `$SYS`. These are outside of every prefix, so [`rules`] cannot
/// express them.
pub const SYSTEM_READERS: &[Role] = &[Role::Operator];

/// Returns the owner of a topic: the one identity that may publish to it; `None` if several may, or none. `topic` is
/// below the prefix.
#[must_use]
pub fn owner(topic: &str) -> Option<Identity> {
    let mut owner = None;
    for rule in rules().iter().filter(|rule| rule.action == Action::Publish) {
        let id = match publisher_id(&rule.pattern, topic) {
            None => continue,
            Some(None) => return None,
            Some(Some(id)) => id,
        };
        let found = match rule.role {
            Role::Host => id.parse().ok().map(Identity::Host),
            Role::Console => id.parse().ok().map(Identity::Console),
            Role::Operator => id.parse().ok().map(Identity::Operator),
            Role::Observer => id.parse().ok().map(Identity::Observer),
        };
        // An invalid id cannot publish, and two owners are as good as none.
        let found = found.filter(|found| found.may(Action::Publish, topic));
        if owner.is_some() && found.is_some() && owner != found {
            return None;
        }
        owner = owner.or(found);
    }
    owner
}

/// Returns the id that `topic` has in place of `%u` in `pattern`, if it matches; `None` inside if the pattern has none.
fn publisher_id<'a>(pattern: &str, topic: &'a str) -> Option<Option<&'a str>> {
    let mut levels = topic.split('/');
    let mut id = None;
    for level in pattern.split('/') {
        let found = levels.next()?;
        match level {
            "#" => return Some(id),
            "+" => (),
            "%u" => id = Some(found),
            literal if literal == found => (),
            _ => return None,
        }
    }
    levels.next().is_none().then_some(id)
}

impl Identity {
    /// Returns the filters, below the prefix, of all topics that only this identity may publish.
    pub fn owned(&self) -> impl Iterator<Item = String> {
        let common_name = self.to_string();
        let id = match self {
            Self::Host(_) => common_name,
            Self::Console(name) | Self::Operator(name) | Self::Observer(name) => name.to_string(),
        };
        let role = self.role();
        let own = move |rule: &&Rule| {
            rule.role == role && rule.action == Action::Publish && rule.pattern.split('/').any(|level| level == "%u")
        };
        rules().iter().filter(own).map(move |rule| rule.pattern.replace("%u", &id))
    }

    /// Returns the role of this identity.
    #[must_use]
    pub fn role(&self) -> Role {
        match self {
            Self::Host(_) => Role::Host,
            Self::Console(_) => Role::Console,
            Self::Operator(_) => Role::Operator,
            Self::Observer(_) => Role::Observer,
        }
    }

    /// Whether this client may publish to `topic`, or subscribe to the filter `topic` (every matching topic is then
    /// permitted). `topic` is below the prefix.
    #[must_use]
    pub fn may(&self, action: Action, topic: &str) -> bool {
        let mut buffer = Uuid::encode_buffer();
        let id = match self {
            Self::Host(host) => host.0.hyphenated().encode_lower(&mut buffer),
            Self::Console(name) | Self::Operator(name) | Self::Observer(name) => name.as_str(),
        };
        permits(self.role(), action, id, topic)
    }
}

/// [`Identity::may`] for frequent use: for a client of this role whose own id (`%u` in [`rules`]) is `id`. It allocates
/// nothing.
#[must_use]
pub fn permits(role: Role, action: Action, id: &str, topic: &str) -> bool {
    rules()
        .iter()
        .filter(|rule| rule.role == role && rule.action == action)
        .any(|rule| covers(&rule.pattern, id, topic))
}

/// Whether every topic that matches `filter` (a topic matches itself) also matches `pattern`.
fn covers(pattern: &str, id: &str, filter: &str) -> bool {
    let mut wanted = filter.split('/');
    for level in pattern.split('/') {
        let Some(asked) = wanted.next() else { return false };
        let covered = match level {
            "#" => return true,
            "+" => asked != "#",
            "%u" => asked == id,
            literal => asked == literal,
        };
        if !covered {
            return false;
        }
    }
    wanted.next().is_none()
}

/// A common name that is not of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("common name {0:?} is neither a host's id nor console-NAME, operator-NAME or observer-NAME")]
pub struct IdentityError(String);

impl FromStr for Identity {
    type Err = IdentityError;

    /// Parses a certificate's common name.
    fn from_str(common_name: &str) -> Result<Self, IdentityError> {
        let refuse = || IdentityError(common_name.chars().take(200).collect());
        if let Ok(host) = common_name.parse() {
            return Ok(Self::Host(host));
        }
        let (role, name) = common_name.split_once('-').ok_or_else(refuse)?;
        let name = name.parse().map_err(|_| refuse())?;
        match role {
            "console" => Ok(Self::Console(name)),
            "operator" => Ok(Self::Operator(name)),
            "observer" => Ok(Self::Observer(name)),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Identity {
    /// Formats the common name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Console(name) => write!(f, "console-{name}"),
            Self::Operator(name) => write!(f, "operator-{name}"),
            Self::Observer(name) => write!(f, "observer-{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::{Filter, HostTopic, Topic};
    use proptest::prelude::*;

    const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
    const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

    #[track_caller]
    fn check(common_name: &str, action: Action, topic: &str, permitted: bool) {
        let identity: Identity = common_name.parse().unwrap();
        assert_eq!(identity.may(action, topic), permitted, "{common_name} {action:?} {topic}");
    }

    #[test]
    fn host_publishes_only_its_own_topics() {
        use Action::{Publish, Subscribe};
        for (action, topic, permitted) in [
            (Publish, format!("s/00/h/{HOST}/presence"), true),
            (Publish, format!("s/00/h/{HOST}/unit/default/hello"), true),
            (Publish, format!("s/00/h/{HOST}/cmd"), false),
            (Publish, format!("s/00/h/{HOST}/ack"), false),
            (Publish, format!("s/00/h/{HOST}/admission/answer"), false),
            (Publish, format!("s/00/h/{HOST}"), false),
            (Publish, format!("s/00/h/{OTHER}/presence"), false),
            (Publish, "s/00/cmd/all".to_owned(), false),
            (Subscribe, format!("s/00/h/{HOST}/cmd"), true),
            (Subscribe, "s/00/cmd/group/+".to_owned(), true),
            (Subscribe, "s/00/cmd/all".to_owned(), true),
            (Subscribe, "s/00/cmd/#".to_owned(), false),
            (Subscribe, format!("s/00/h/{HOST}/#"), false),
            (Subscribe, format!("s/00/h/{HOST}/outcome"), false),
            (Subscribe, format!("s/00/h/{OTHER}/cmd"), false),
            (Subscribe, "s/+/h/+/cmd".to_owned(), false),
            (Subscribe, "s/00/h/%u/cmd".to_owned(), false),
            (Subscribe, "#".to_owned(), false),
            (Subscribe, "+/+/+/+/cmd".to_owned(), false),
            (Subscribe, format!("s/+/h/{HOST}/cmd"), true),
            (Subscribe, "cmd/all".to_owned(), false),
            (Publish, format!("h/{HOST}/presence"), false),
        ] {
            check(HOST, action, &topic, permitted);
        }
    }

    #[test]
    fn console_and_observer_permissions() {
        use Action::{Publish, Subscribe};
        for (who, action, topic, permitted) in [
            ("console-main", Publish, format!("s/00/h/{HOST}/cmd"), true),
            ("console-main", Publish, format!("s/00/h/{HOST}/outcome"), false),
            ("console-main", Publish, "console/main/presence".to_owned(), true),
            ("console-main", Publish, "console/other/presence".to_owned(), false),
            ("console-main", Subscribe, "s/+/h/+/outcome".to_owned(), true),
            ("operator-anna", Subscribe, "#".to_owned(), true),
            ("operator-anna", Publish, format!("s/00/h/{HOST}/cmd"), false),
            ("observer-bridge", Subscribe, format!("s/00/h/{HOST}/#"), true),
            ("observer-bridge", Publish, "s/00/cmd/all".to_owned(), false),
        ] {
            check(who, action, &topic, permitted);
        }
    }

    #[test]
    fn topic_belongs_to_its_only_publisher() {
        for (topic, expected) in [
            (format!("s/00/h/{HOST}/presence"), Some(HOST)),
            (format!("s/00/h/{HOST}/unit/default/hello"), Some(HOST)),
            (format!("s/00/h/{HOST}/alert/a"), Some(HOST)),
            ("console/main/presence".to_owned(), Some("console-main")),
            // Any console may publish it.
            (format!("s/00/h/{HOST}/desired"), None),
            ("s/00/cmd/all".to_owned(), None),
            // No client may publish it.
            (format!("s/00/h/{}/presence", HOST.to_uppercase()), None),
            ("s/00/h/nobody/presence".to_owned(), None),
            (format!("s/00/h/{HOST}/unit/default"), None),
            (String::new(), None),
        ] {
            assert_eq!(owner(&topic), expected.map(|name| name.parse().unwrap()), "{topic}");
        }
        let host: Identity = HOST.parse().unwrap();
        assert!(host.owned().any(|filter| filter == format!("s/+/h/{HOST}/unit/+/+")));
        let console: Identity = "console-main".parse().unwrap();
        assert_eq!(console.owned().collect::<Vec<_>>(), ["console/main/presence"]);
    }

    #[test]
    fn every_party_may_subscribe_to_what_it_needs() {
        let host = HOST.parse().unwrap();
        for filter in Filter::of_agent(host, &["site".parse().unwrap()]) {
            assert!(Identity::Host(host).may(Action::Subscribe, &filter.to_string()), "{filter}");
        }
        for filter in Filter::of_console() {
            assert!(Identity::Console(Name::default_realm()).may(Action::Subscribe, &filter.to_string()), "{filter}");
        }
        let will = Topic::Host(host, HostTopic::Presence).to_string();
        assert!(Identity::Host(host).may(Action::Publish, &will));
    }

    #[test]
    fn unknown_common_name_has_no_identity() {
        for text in ["", "console", "console-", "root", "host-a", "operator-A", "console-a/b", "console-+", "Console-a"]
        {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
    }

    /// MQTT's own rule, level by level: whether `topic` matches `filter`.
    fn matches(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            (["#"], _) => true,
            ([], []) => true,
            (["+", filter @ ..], [_, topic @ ..]) => matches(filter, topic),
            ([level, filter @ ..], [asked, topic @ ..]) => level == asked && matches(filter, topic),
            _ => false,
        }
    }

    /// Whether the table permits a concrete topic, computed without [`covers`]: the pattern becomes a filter of this
    /// client's own, and MQTT's rule decides.
    fn permits_plainly(identity: &Identity, action: Action, topic: &str) -> bool {
        let common_name = identity.to_string();
        let id = match identity {
            Identity::Host(_) => common_name.as_str(),
            _ => common_name.split_once('-').unwrap().1,
        };
        let topic: Vec<&str> = topic.split('/').collect();
        rules().iter().any(|rule| {
            let own = rule.pattern.replace("%u", id);
            rule.role == identity.role()
                && rule.action == action
                && matches(&own.split('/').collect::<Vec<_>>(), &topic)
        })
    }

    /// Identities and topics that match often: few ids, so that a topic is often the client's own.
    fn identities() -> impl Strategy<Value = Identity> {
        let host = prop::sample::select(vec![HOST, OTHER]).prop_map(str::to_owned);
        let named = "(console|operator|observer)-(main|a|h|0e2c1a4e)";
        prop_oneof![host, named].prop_map(|common_name| common_name.parse().unwrap())
    }

    fn topics() -> impl Strategy<Value = String> {
        let of_table =
            (prop::sample::select(rules()), prop::sample::select(vec![HOST, OTHER, "main", "a"]), "[a-z0-9]{0,3}")
                .prop_map(|(rule, id, level)| rule.pattern.replace("%u", id).replace(['+', '#'], &level));
        let random = "(s/00/h|s/00/cmd|s|h|console|%u|)?(/(main|all|group|presence|cmd|unit|a||0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52)){0,4}";
        let longer = (of_table.clone(), "/[a-z]{0,2}").prop_map(|(topic, more)| topic + &more);
        prop_oneof![4 => of_table, 2 => random, 1 => longer]
    }

    proptest! {
        /// The [`owner`] may publish, and no other identity may.
        #[test]
        fn owner_is_the_only_publisher(identity in identities(), topic in topics()) {
            if identity.may(Action::Publish, &topic) {
                let others = !matches!(owner(&topic), Some(found) if found == identity);
                let shared = Identity::Console("zz".parse().unwrap()).may(Action::Publish, &topic);
                prop_assert_eq!(others, shared, "{} {}", identity, topic);
            } else {
                prop_assert!(owner(&topic) != Some(identity));
            }
        }

        /// [`Identity::may`] agrees with the table by MQTT's own rule.
        #[test]
        fn permission_equals_the_table(identity in identities(), publish: bool, topic in topics()) {
            let action = if publish { Action::Publish } else { Action::Subscribe };
            prop_assert_eq!(identity.may(action, &topic), permits_plainly(&identity, action, &topic), "{} {:?} {}", identity, action, topic);
        }

        /// A permitted filter matches no topic that is not permitted.
        #[test]
        fn permitted_filter_matches_only_permitted_topics(
            identity in identities(),
            topic in topics(),
            wild in prop::collection::vec(0..7usize, 0..3),
            cut in prop::option::of(0..7usize),
        ) {
            let mut levels: Vec<&str> = topic.split('/').collect();
            for index in wild {
                if let Some(level) = levels.get_mut(index) {
                    *level = "+";
                }
            }
            if let Some(cut) = cut.filter(|cut| *cut <= levels.len()) {
                levels.truncate(cut);
                levels.push("#");
            }
            let filter = levels.join("/");
            if identity.may(Action::Subscribe, &filter) {
                prop_assert!(permits_plainly(&identity, Action::Subscribe, &topic), "{} has {} and so {}", identity, filter, topic);
            }
        }

        /// A filter is covered only if each topic that it matches is.
        #[test]
        fn covering_filter_matches_all_topics(pattern in "[ab+]{1}(/[ab+]){0,3}(/#)?", filter in "[ab+]{1}(/[ab+]){0,3}(/#)?", topic in "[ab](/[ab]){0,4}") {
            let split = |text: &'static str| text.split('/').collect::<Vec<_>>();
            let (p, f, t): (&'static str, &'static str, &'static str) = (pattern.leak(), filter.leak(), topic.leak());
            if covers(p, "id", f) && matches(&split(f), &split(t)) {
                prop_assert!(matches(&split(p), &split(t)), "{} covers {} but not {}", p, f, t);
            }
        }
    }
}
