//! Retained messages in a tree by topic level.
//!
//! A tree rather than a sorted list, so that `+` in the middle of a filter costs only its matches: `h/+/presence` visits
//! each host once and not the hundreds of units and alerts beside its presence. Empty
//! branches are removed and freed at once.
//!
//! **Invariant: the tree is ordered**, so that a walk can stop anywhere and resume later,
//! whatever has changed meanwhile: a message that was there all the time is visited once.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use crate::message::BrokerMessage;

/// The most levels of a topic. Recursion is as deep as a topic, and must not overflow the stack; the limit for clients
/// is far lower.
pub(super) const LEVELS_MAX: usize = 1024;

/// Up to this many children are in a list, which takes half the memory of a table. Most nodes have a handful.
const FEW: usize = 32;

/// Messages by topic.
#[derive(Debug, Default)]
pub(super) struct RetainedTree {
    root: RetainedNode,
    len: usize,
}

/// A node: what begins with the same levels. Most nodes are leaves, so data of inner nodes is separate.
#[derive(Debug, Default)]
struct RetainedNode {
    message: Option<BrokerMessage>,
    children: Option<Box<Children>>,
}

/// Children by level, in order. They are in `few` or in `many`.
#[derive(Debug, Default)]
struct Children {
    few: Vec<(Box<str>, RetainedNode)>,
    many: BTreeMap<Box<str>, RetainedNode>,
}

impl Children {
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    fn find(&self, level: &str) -> Result<usize, usize> {
        self.few.binary_search_by(|(name, _)| (**name).cmp(level))
    }

    fn get(&self, level: &str) -> Option<&RetainedNode> {
        match self.find(level) {
            Ok(index) => self.few.get(index).map(|(_, node)| node),
            Err(_) => self.many.get(level),
        }
    }

    fn get_mut(&mut self, level: &str) -> Option<&mut RetainedNode> {
        match self.find(level) {
            Ok(index) => self.few.get_mut(index).map(|(_, node)| node),
            Err(_) => self.many.get_mut(level),
        }
    }

    /// Returns the child of this level, created if needed.
    fn place(&mut self, level: &str) -> &mut RetainedNode {
        let place = match self.find(level) {
            Ok(index) => Some(index),
            Err(index) if self.many.is_empty() && self.few.len() < FEW => {
                self.few.insert(index, (level.into(), RetainedNode::default()));
                Some(index)
            }
            Err(_) => {
                self.many.extend(std::mem::take(&mut self.few));
                None
            }
        };
        match place.and_then(|index| self.few.get_mut(index)) {
            Some((_, node)) => node,
            None => self.many.entry(level.into()).or_default(),
        }
    }

    fn remove(&mut self, level: &str) {
        match self.find(level) {
            Ok(index) => drop(self.few.remove(index)),
            Err(_) => drop(self.many.remove(level)),
        }
        // Half of the limit, so that it does not switch back and forth.
        if !self.many.is_empty() && self.many.len() <= FEW / 2 {
            self.few = std::mem::take(&mut self.many).into_iter().collect();
        }
    }

    /// Iterates over children from this level on, or all.
    fn from<'a>(&'a self, level: Option<&str>) -> impl Iterator<Item = (&'a str, &'a RetainedNode)> {
        let index = level.map_or(0, |level| self.find(level).unwrap_or_else(|index| index));
        let few = self.few.iter().skip(index).map(|(name, node)| (&**name, node));
        let start = level.map_or(Bound::Unbounded, Bound::Included);
        few.chain(self.many.range::<str, _>((start, Bound::Unbounded)).map(|(name, node)| (&**name, node)))
    }
}

/// Where a walk stopped: this node's own message was visited, those below it were not. `None` for a node that was not
/// visited.
type WalkMark<'a> = Option<Option<&'a str>>;

/// Where a walk stops for now: the levels of the node, the last one first.
type WalkPosition<'a> = ControlFlow<Vec<&'a str>>;

/// The visitor of a walk, and its limit.
struct WalkLimits<V> {
    /// Nodes that may still be visited.
    steps: usize,
    /// Returns whether the walk stops after this message.
    visit: V,
}

impl<'a, V: FnMut(&'a BrokerMessage) -> ControlFlow<()>> WalkLimits<V> {
    /// Visits a node; `matches` is whether its message matches.
    fn meet(&mut self, node: &'a RetainedNode, matches: bool) -> WalkPosition<'a> {
        let message = node.message.as_ref().filter(|_| matches);
        self.steps = self.steps.saturating_sub(1);
        if message.is_some_and(|message| (self.visit)(message).is_break()) || self.steps == 0 {
            return ControlFlow::Break(Vec::new());
        }
        ControlFlow::Continue(())
    }
}

impl RetainedTree {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, topic: &str) -> Option<&BrokerMessage> {
        let mut node = &self.root;
        for level in topic.split('/') {
            node = node.children.as_ref()?.get(level)?;
        }
        node.message.as_ref()
    }

    /// Inserts a message at its topic, and returns the previous one. The topic has at most [`LEVELS_MAX`] levels.
    pub(super) fn insert(&mut self, message: BrokerMessage) -> Option<BrokerMessage> {
        let mut node = &mut self.root;
        for level in message.topic().split('/').take(LEVELS_MAX) {
            node = node.children.get_or_insert_default().place(level);
        }
        let old = node.message.replace(message);
        self.len += usize::from(old.is_none());
        old
    }

    /// Removes the message of a topic.
    pub(super) fn remove(&mut self, topic: &str) -> Option<BrokerMessage> {
        let old = self.root.remove(&mut topic.split('/').take(LEVELS_MAX));
        self.len -= usize::from(old.is_some());
        old
    }

    /// Calls `visit` with each message whose topic matches `filter`, in order, from after `after` on, until it breaks
    /// or `steps` nodes were visited. Returns where it stopped, if there is more; the unused number is left in `steps`.
    pub(super) fn walk<'a>(
        &'a self,
        filter: &str,
        after: Option<&str>,
        steps: &mut usize,
        visit: impl FnMut(&'a BrokerMessage) -> ControlFlow<()>,
    ) -> Option<String> {
        let mut walk = WalkLimits { steps: (*steps).max(1), visit };
        let stopped = self.root.branches(filter, Some(after), true, &mut walk);
        *steps = walk.steps;
        stopped.break_value().map(|mut levels| {
            levels.reverse();
            levels.join("/")
        })
    }

    /// Calls `visit` with each message whose topic matches `filter`.
    pub(super) fn visit<'a>(&'a self, filter: &str, visit: &mut impl FnMut(&'a BrokerMessage)) {
        let mut steps = usize::MAX;
        self.walk(filter, None, &mut steps, |message| {
            visit(message);
            ControlFlow::Continue(())
        });
    }

    /// Returns all messages.
    pub(super) fn all(&self) -> Vec<BrokerMessage> {
        let mut all = Vec::with_capacity(self.len);
        self.root.visit_all(&mut |message| all.push(message.clone()));
        all
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('/').map_or((text, None), |(level, rest)| (level, Some(rest)))
}

impl RetainedNode {
    fn is_empty(&self) -> bool {
        self.message.is_none() && self.children.is_none()
    }

    fn remove<'a>(&mut self, levels: &mut impl Iterator<Item = &'a str>) -> Option<BrokerMessage> {
        let Some(level) = levels.next() else { return self.message.take() };
        let children = self.children.as_mut()?;
        let child = children.get_mut(level)?;
        let removed = child.remove(levels);
        if child.is_empty() {
            children.remove(level);
            if children.is_empty() {
                self.children = None;
            }
        }
        removed
    }

    /// `filter` is what is left of it; `None` at its end.
    fn walk<'a, V>(&'a self, filter: Option<&str>, after: WalkMark<'_>, walk: &mut WalkLimits<V>) -> WalkPosition<'a>
    where
        V: FnMut(&'a BrokerMessage) -> ControlFlow<()>,
    {
        if after.is_none() {
            // `a/#` matches `a` as well.
            walk.meet(self, filter.is_none_or(|filter| filter == "#"))?;
        }
        match filter {
            Some(filter) => self.branches(filter, Some(after.flatten()), false, walk),
            None => ControlFlow::Continue(()),
        }
    }

    /// Walks the nodes below this one, from after `after` on.
    fn branches<'a, V>(
        &'a self,
        filter: &str,
        after: WalkMark<'_>,
        is_root: bool,
        walk: &mut WalkLimits<V>,
    ) -> WalkPosition<'a>
    where
        V: FnMut(&'a BrokerMessage) -> ControlFlow<()>,
    {
        let Some(children) = &self.children else { return ControlFlow::Continue(()) };
        let (reached, deeper) = after.flatten().map(split).unzip();
        let (level, rest) = split(filter);
        let rest = if level == "#" { Some("#") } else { rest };
        let go = |walk: &mut WalkLimits<V>, name: &'a str, child: &'a Self| {
            let after = if reached == Some(name) { deeper } else { None };
            child.walk(rest, after, walk).map_break(|mut levels| {
                levels.push(name);
                levels
            })
        };
        if matches!(level, "+" | "#") {
            for (name, child) in children.from(reached) {
                // A wildcard in the first level does not match topics that begin with `$`.
                if !(is_root && name.starts_with('$')) {
                    go(walk, name, child)?;
                }
            }
        } else if reached.is_none_or(|reached| reached <= level)
            && let Some((name, child)) = children.from(Some(level)).next()
            && name == level
        {
            go(walk, name, child)?;
        }
        ControlFlow::Continue(())
    }

    fn visit_all<'a>(&'a self, visit: &mut impl FnMut(&'a BrokerMessage)) {
        self.message.iter().for_each(&mut *visit);
        for (_, child) in self.children.iter().flat_map(|children| children.from(None)) {
            child.visit_all(visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic_text;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn found(tree: &RetainedTree, filter: &str) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        tree.visit(filter, &mut |message| found.push((message.topic().to_owned(), message.payload().to_vec())));
        found.sort_unstable();
        found
    }

    /// MQTT's matching rule, level by level.
    fn matches(filter: &str, topic: &str) -> bool {
        !(topic.starts_with('$') && filter.starts_with(['+', '#'])) && topic_text::matches(filter, topic)
    }

    proptest! {
        #[test]
        fn against_a_plain_map(
            steps in proptest::collection::vec(("[$]?[ab]{0,1}(/[ab]{0,1}){0,4}", "[xy]{0,2}"), 0..40),
            filters in proptest::collection::vec("[$]?[ab+]{0,1}(/[ab+]{0,1}){0,3}(/#)?|#", 1..6),
        ) {
            let (mut tree, mut map) = (RetainedTree::default(), BTreeMap::new());
            for (topic, payload) in &steps {
                let old = if payload.is_empty() { tree.remove(topic) } else { tree.insert(BrokerMessage::plain(topic, payload, true)) };
                let expected = if payload.is_empty() { map.remove(topic) } else { map.insert(topic.clone(), payload.clone().into_bytes()) };
                prop_assert_eq!(old.map(|message| message.payload().to_vec()), expected);
                prop_assert_eq!(tree.len(), map.len());
                prop_assert_eq!(tree.get(topic).map(BrokerMessage::payload), map.get(topic).map(Vec::as_slice));
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
        let mut tree = RetainedTree::default();
        assert_eq!(tree.insert(BrokerMessage::plain(&topic, "x", true)), None);
        assert_eq!(found(&tree, "#").len(), 1);
        assert_eq!(found(&tree, &format!("{topic}#")).len(), 1);
        assert_eq!(found(&tree, &format!("{}#", "+/".repeat(LEVELS_MAX - 1))).len(), 1);
        assert!(tree.remove(&topic).is_some());
        tree.insert(BrokerMessage::plain(&topic, "x", true));
        drop(tree);
    }

    proptest! {
        /// A walk that stops and continues visits everything once, in order, whatever is added and removed meanwhile.
        #[test]
        fn a_walk_goes_on_from_where_it_stopped(
            topics in proptest::collection::btree_set("[$]?[ab]{0,1}(/[abc-]{0,2}){0,4}", 0..40),
            others in proptest::collection::vec("[ab]{0,1}(/[abc-]{0,2}){0,4}", 0..40),
            filter in "[$]?[ab+]{0,1}(/[ab+]{0,1}){0,3}(/#)?|#",
            steps in 1_usize..6,
        ) {
            let mut tree = RetainedTree::default();
            for topic in &topics {
                tree.insert(BrokerMessage::plain(topic, "stays", true));
            }
            let (mut after, mut met) = (None, Vec::new());
            for round in 0.. {
                prop_assert!(round < 1000, "it does not end");
                let mut left = steps;
                let next = tree.walk(&filter, after.as_deref(), &mut left, |message| {
                    met.push(message.topic().to_owned());
                    ControlFlow::Continue(())
                });
                // Another message is added and removed at each stop.
                if let Some(other) = others.get(round % 40).filter(|other| !topics.contains(*other))
                    && tree.remove(other).is_none()
                {
                    tree.insert(BrokerMessage::plain(other, "goes", true));
                }
                let Some(next) = next else { break };
                prop_assert!(after.as_ref() != Some(&next), "it stands still");
                after = Some(next);
            }
            let unique: std::collections::BTreeSet<_> = met.iter().collect();
            prop_assert_eq!(unique.len(), met.len(), "met twice: {:?}", &met);
            let mut stayed: Vec<_> = met.into_iter().filter(|topic| topics.contains(topic)).collect();
            stayed.sort_unstable();
            let expected: Vec<_> = topics.iter().filter(|topic| matches(&filter, topic)).cloned().collect();
            prop_assert_eq!(stayed, expected);
        }
    }

    #[test]
    fn a_walk_stops_where_it_is_told() {
        let mut tree = RetainedTree::default();
        for topic in ["a", "a/b", "a/c", "b/c", "$x/c"] {
            tree.insert(BrokerMessage::plain(topic, "x", true));
        }
        for (after, expected) in [
            (None, Some("a")),
            (Some("a"), Some("a/b")),
            (Some("a/b"), Some("a/c")),
            (Some("a/bb"), Some("a/c")),
            (Some("a/c"), Some("b/c")),
            (Some("b/c"), None),
        ] {
            let mut steps = usize::MAX;
            let stopped = tree.walk("#", after, &mut steps, |_| ControlFlow::Break(()));
            assert_eq!(stopped.as_deref(), expected, "{after:?}");
        }
        let mut steps = 2;
        assert_eq!(tree.walk("+/c", None, &mut steps, |_| ControlFlow::Continue(())).as_deref(), Some("a/c"));
        assert_eq!(steps, 0);
    }

    #[test]
    fn a_table_that_was_large_is_given_back() {
        let mut tree = RetainedTree::default();
        let topic = |index: usize| format!("h/{index}");
        (0..10_000).for_each(|index| drop(tree.insert(BrokerMessage::plain(&topic(index), "x", true))));
        (1..10_000).for_each(|index| drop(tree.remove(&topic(index))));
        let hosts = tree.root.children.as_ref().unwrap().get("h").unwrap().children.as_ref().unwrap();
        assert!(hosts.many.is_empty() && hosts.few.capacity() <= FEW, "{}", hosts.few.capacity());
        assert_eq!(found(&tree, "h/+").len(), 1);
    }
}
