//! Retained messages, in memory.
//!
//! The broker is never the database: every party publishes its retained topics again when it connects. A durable store
//! would be a convenience for third parties; it comes in behind the three methods of [`Retained`], which is all that the
//! rest knows of it.
//!
//! **Invariant: a topic's retained message is the last that was published with the flag, or none.** What does not fit is
//! forgotten, old value included: an old truth is worse than none.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

use crate::{access::Filter, limits::Limits, message::Message, text};

/// What became of a message that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// It was empty: the topic has no retained message any more.
    Cleared,
    /// A limit is reached.
    Full,
}

/// The retained messages.
#[derive(Debug)]
pub(crate) struct Retained {
    /// Bodies by topic, as [`Message::into_parts`] gives them.
    messages: BTreeMap<Bytes, Bytes>,
    bytes: usize,
    max: usize,
    max_bytes: usize,
}

impl Retained {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { messages: BTreeMap::new(), bytes: 0, max: limits.retained_max, max_bytes: limits.retained_max_bytes }
    }

    /// Keeps a message whose retain flag is set, or clears its topic if it is empty.
    pub(crate) fn keep(&mut self, message: &Message) -> Kept {
        let (topic, body) = message.clone().into_parts();
        if let Some(old) = self.messages.remove(&topic) {
            self.bytes -= topic.len() + old.len();
        }
        if message.payload().is_empty() {
            return Kept::Cleared;
        }
        if self.messages.len() >= self.max || self.bytes + message.len() > self.max_bytes {
            return Kept::Full;
        }
        self.bytes += message.len();
        self.messages.insert(topic, body);
        Kept::Yes
    }

    /// Every message whose topic matches `filter`.
    pub(crate) fn matching(&self, filter: &Filter) -> Vec<Message> {
        let prefix = text::literal_prefix(filter.as_str());
        let from = Bound::Included(prefix.as_bytes());
        let mut found = Vec::new();
        for (topic, body) in self.messages.range::<[u8], _>((from, Bound::Unbounded)) {
            if !topic.starts_with(prefix.as_bytes()) {
                break;
            }
            found.extend(
                Message::from_parts(topic.clone(), body.clone(), true)
                    .filter(|message| text::matches(filter.as_str(), message.topic())),
            );
        }
        found
    }

    /// How many messages there are, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.messages.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{access::Access, message::QoS};
    use muster_topics::topic::Prefix;
    use proptest::prelude::*;

    fn message(topic: &str, payload: &str) -> Message {
        Message::new(topic, payload.as_bytes(), QoS::AtLeastOnce, true)
    }

    fn filter(text: &str) -> Filter {
        Access::new("console-main".parse().unwrap(), Prefix::default()).subscribe(text).unwrap()
    }

    fn retained(max: usize, max_bytes: usize) -> Retained {
        Retained::new(&Limits { retained_max: max, retained_max_bytes: max_bytes, ..Limits::default() })
    }

    #[track_caller]
    fn check(retained: &Retained, text: &str, expected: &[&str]) {
        let found = retained.matching(&filter(text));
        assert_eq!(found.iter().map(Message::topic).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn filters_find_what_matches() {
        let mut retained = retained(100, 10_000);
        for topic in ["muster/a", "muster/a/b", "muster/a/c", "muster/ab", "muster/b/b", "muster/a-b"] {
            assert_eq!(retained.keep(&message(topic, "x")), Kept::Yes);
        }
        check(&retained, "muster/a", &["muster/a"]);
        check(&retained, "muster/a/#", &["muster/a", "muster/a/b", "muster/a/c"]);
        check(&retained, "muster/+/b", &["muster/a/b", "muster/b/b"]);
        check(&retained, "muster/a/+", &["muster/a/b", "muster/a/c"]);
        check(&retained, "muster/z", &[]);
        assert_eq!(retained.matching(&filter("muster/#")).len(), 6);
    }

    #[test]
    fn the_last_one_counts_and_an_empty_one_clears() {
        let mut retained = retained(100, 10_000);
        assert_eq!(retained.keep(&message("muster/a", "1")), Kept::Yes);
        assert_eq!(retained.keep(&message("muster/a", "2")), Kept::Yes);
        assert_eq!(retained.matching(&filter("muster/a"))[0].payload(), b"2");
        assert_eq!(retained.keep(&message("muster/a", "")), Kept::Cleared);
        assert_eq!(retained.keep(&message("muster/a", "")), Kept::Cleared);
        check(&retained, "muster/#", &[]);
        assert_eq!(retained.size(), (0, 0));
    }

    #[test]
    fn what_does_not_fit_leaves_nothing_stale() {
        let mut retained = retained(2, 40);
        assert_eq!(retained.keep(&message("muster/a", "1")), Kept::Yes);
        assert_eq!(retained.keep(&message("muster/b", "1")), Kept::Yes);
        assert_eq!(retained.keep(&message("muster/c", "1")), Kept::Full);
        assert_eq!(retained.keep(&message("muster/b", &"2".repeat(40))), Kept::Full);
        check(&retained, "muster/#", &["muster/a"]);
        assert_eq!(retained.keep(&message("muster/c", "1")), Kept::Yes);
    }

    proptest! {
        /// Bytes are counted exactly, and the range over topics finds what a look at each would.
        #[test]
        fn against_a_plain_list(steps in proptest::collection::vec(("muster(/[ab]){1,3}", "[xy]{0,3}"), 0..40), wanted in "muster(/[ab+]){1,3}(/#)?") {
            let mut retained = retained(10, 100);
            for (topic, payload) in &steps {
                retained.keep(&message(topic, payload));
            }
            let all = retained.matching(&filter("muster/#"));
            prop_assert_eq!(retained.size(), (all.len(), all.iter().map(Message::len).sum::<usize>()));
            let expected: Vec<_> = all.into_iter().filter(|message| text::matches(&wanted, message.topic())).collect();
            prop_assert_eq!(retained.matching(&filter(&wanted)), expected);
        }
    }
}
