//! Retained messages by topic, one level below the other.
//!
//! A tree rather than a sorted list, so that `+` in the middle of a filter costs what it finds: `h/+/presence` looks at
//! each host once and not at the hundreds of units and alerts that stand beside its presence. Branches that hold
//! nothing are taken away at once, and their place is given back.

use std::collections::HashMap;

use crate::message::Message;

/// Levels of a topic. Walks go as deep as a topic does, and none may reach the end of the stack; the limit for what
/// clients publish is far below.
pub(super) const LEVELS_MAX: usize = 1024;

/// A table that is less than this part full is made smaller.
const SHRINK_PART: usize = 8;

/// Tables up to this size are left alone.
const SMALL: usize = 64;

/// Messages by topic.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: Node,
    len: usize,
}

/// What begins with the same levels. Most nodes are leaves, so what only branches have stands apart.
#[derive(Debug, Default)]
struct Node {
    message: Option<Message>,
    children: Option<Box<Children>>,
}

type Children = HashMap<Box<str>, Node>;

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, topic: &str) -> Option<&Message> {
        let mut node = &self.root;
        for level in topic.split('/') {
            node = node.children.as_ref()?.get(level)?;
        }
        node.message.as_ref()
    }

    /// Puts a message in the place of its topic, and gives the one that stood there. The topic has at most
    /// [`LEVELS_MAX`] levels.
    pub(super) fn insert(&mut self, message: Message) -> Option<Message> {
        let mut node = &mut self.root;
        for level in message.topic().split('/').take(LEVELS_MAX) {
            node = node.children.get_or_insert_default().entry(level.into()).or_default();
        }
        let old = node.message.replace(message);
        self.len += usize::from(old.is_none());
        old
    }

    /// Takes the message of a topic out.
    pub(super) fn remove(&mut self, topic: &str) -> Option<Message> {
        let old = self.root.remove(&mut topic.split('/').take(LEVELS_MAX));
        self.len -= usize::from(old.is_some());
        old
    }

    /// Calls `visit` with each message whose topic matches `filter`.
    pub(super) fn visit<'a>(&'a self, filter: &str, visit: &mut impl FnMut(&'a Message)) {
        // A wildcard in the first level does not stand for topics that begin with `$`.
        let (first, rest) = filter.split_once('/').map_or((filter, None), |(first, rest)| (first, Some(rest)));
        if !matches!(first, "+" | "#") {
            self.root.visit(Some(filter), visit);
            return;
        }
        for (level, child) in self.root.children.iter().flat_map(|children| children.iter()) {
            match first {
                _ if level.starts_with('$') => {}
                "#" => child.visit_all(visit),
                _ => child.visit(rest, visit),
            }
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Message> {
        let mut all = Vec::with_capacity(self.len);
        self.root.visit_all(&mut |message| all.push(message.clone()));
        all
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.message.is_none() && self.children.is_none()
    }

    fn remove<'a>(&mut self, levels: &mut impl Iterator<Item = &'a str>) -> Option<Message> {
        let Some(level) = levels.next() else { return self.message.take() };
        let children = self.children.as_mut()?;
        let child = children.get_mut(level)?;
        let removed = child.remove(levels);
        if child.is_empty() {
            children.remove(level);
            if children.is_empty() {
                self.children = None;
            } else if children.capacity() > SMALL && children.len() < children.capacity() / SHRINK_PART {
                children.shrink_to_fit();
            }
        }
        removed
    }

    /// `filter` is what is left of it; none if this is where it ends.
    fn visit<'a>(&'a self, filter: Option<&str>, visit: &mut impl FnMut(&'a Message)) {
        let Some(filter) = filter else {
            self.message.iter().for_each(visit);
            return;
        };
        let (level, rest) = filter.split_once('/').map_or((filter, None), |(level, rest)| (level, Some(rest)));
        if level == "#" {
            // `a/#` matches `a` as well.
            self.visit_all(visit);
            return;
        }
        let Some(children) = &self.children else { return };
        if level == "+" {
            children.values().for_each(|child| child.visit(rest, visit));
        } else if let Some(child) = children.get(level) {
            child.visit(rest, visit);
        }
    }

    fn visit_all<'a>(&'a self, visit: &mut impl FnMut(&'a Message)) {
        self.message.iter().for_each(&mut *visit);
        for child in self.children.iter().flat_map(|children| children.values()) {
            child.visit_all(visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn found(tree: &Tree, filter: &str) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        tree.visit(filter, &mut |message| found.push((message.topic().to_owned(), message.payload().to_vec())));
        found.sort_unstable();
        found
    }

    /// MQTT's rule, level against level.
    fn matches(filter: &str, topic: &str) -> bool {
        !(topic.starts_with('$') && filter.starts_with(['+', '#'])) && text::matches(filter, topic)
    }

    proptest! {
        #[test]
        fn against_a_plain_map(
            steps in proptest::collection::vec(("[$]?[ab]{0,1}(/[ab]{0,1}){0,4}", "[xy]{0,2}"), 0..40),
            filters in proptest::collection::vec("[$]?[ab+]{0,1}(/[ab+]{0,1}){0,3}(/#)?|#", 1..6),
        ) {
            let (mut tree, mut map) = (Tree::default(), BTreeMap::new());
            for (topic, payload) in &steps {
                let old = if payload.is_empty() { tree.remove(topic) } else { tree.insert(Message::plain(topic, payload, true)) };
                let expected = if payload.is_empty() { map.remove(topic) } else { map.insert(topic.clone(), payload.clone().into_bytes()) };
                prop_assert_eq!(old.map(|message| message.payload().to_vec()), expected);
                prop_assert_eq!(tree.len(), map.len());
                prop_assert_eq!(tree.get(topic).map(Message::payload), map.get(topic).map(Vec::as_slice));
            }
            prop_assert_eq!(tree.all().len(), map.len());
            for filter in &filters {
                let expected: Vec<_> = map.iter().filter(|(topic, _)| matches(filter, topic)).map(|(topic, payload)| (topic.clone(), payload.clone())).collect();
                prop_assert_eq!(found(&tree, filter), expected, "{}", filter);
            }
            for topic in map.keys() {
                prop_assert!(tree.remove(topic).is_some());
            }
            prop_assert!(tree.root.is_empty() && tree.len() == 0, "nothing is left of it");
        }
    }

    #[test]
    fn the_deepest_topic_goes_in_and_out() {
        let topic = "/".repeat(LEVELS_MAX - 1);
        let mut tree = Tree::default();
        assert_eq!(tree.insert(Message::plain(&topic, "x", true)), None);
        assert_eq!(found(&tree, "#").len(), 1);
        assert_eq!(found(&tree, &format!("{topic}#")).len(), 1);
        assert_eq!(found(&tree, &format!("{}#", "+/".repeat(LEVELS_MAX - 1))).len(), 1);
        assert!(tree.remove(&topic).is_some());
        tree.insert(Message::plain(&topic, "x", true));
        drop(tree);
    }

    #[test]
    fn a_table_that_was_large_is_given_back() {
        let mut tree = Tree::default();
        let topic = |index: usize| format!("h/{index}");
        (0..10_000).for_each(|index| drop(tree.insert(Message::plain(&topic(index), "x", true))));
        (1..10_000).for_each(|index| drop(tree.remove(&topic(index))));
        let hosts = tree.root.children.as_ref().unwrap()["h"].children.as_ref().unwrap();
        assert!(hosts.capacity() < 100, "{}", hosts.capacity());
    }
}
