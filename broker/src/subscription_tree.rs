//! Subscriptions, found by topic.
//!
//! Almost all filters of a fleet are plain topics (a host's commands, its acknowledgements), which have a map of
//! their own; those with wildcards, a handful, are in a tree by level.

use std::{collections::HashMap, sync::Arc};

/// Subscribers by filter.
#[derive(Debug)]
pub(crate) struct SubscriberTree<S> {
    plain: HashMap<Arc<str>, Vec<S>>,
    wild: SubscriberNode<S>,
    len: usize,
}

#[derive(Debug)]
struct SubscriberNode<S> {
    children: HashMap<Box<str>, SubscriberNode<S>>,
    /// Below `+`.
    any: Option<Box<SubscriberNode<S>>>,
    /// Subscribers of the filter that ends here.
    here: Vec<S>,
    /// Subscribers of the filter that ends in `#` here.
    rest: Vec<S>,
}

impl<S> Default for SubscriberNode<S> {
    fn default() -> Self {
        Self { children: HashMap::new(), any: None, here: Vec::new(), rest: Vec::new() }
    }
}

impl<S> Default for SubscriberTree<S> {
    fn default() -> Self {
        Self { plain: HashMap::new(), wild: SubscriberNode::default(), len: 0 }
    }
}

impl<S> SubscriberTree<S> {
    /// Returns the number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a subscriber, or replaces the one for which `is_same` holds. Returns whether there was one.
    pub(crate) fn insert(&mut self, filter: &Arc<str>, subscriber: S, is_same: impl Fn(&S) -> bool) -> bool {
        let subscribers = if is_wild(filter) {
            self.wild.at(filter)
        } else {
            self.plain.entry(Arc::clone(filter)).or_insert_with(|| Vec::with_capacity(1))
        };
        if let Some(old) = subscribers.iter_mut().find(|old| is_same(old)) {
            *old = subscriber;
            return true;
        }
        subscribers.push(subscriber);
        self.len += 1;
        false
    }

    /// Removes the subscriber of `filter` for which `is_same` holds.
    pub(crate) fn remove(&mut self, filter: &str, is_same: impl Fn(&S) -> bool) {
        let removed = if is_wild(filter) {
            self.wild.remove(&mut filter.split('/'), &is_same)
        } else {
            let Some(subscribers) = self.plain.get_mut(filter) else { return };
            let removed = take_out(subscribers, &is_same);
            if subscribers.is_empty() {
                self.plain.remove(filter);
            }
            removed
        };
        self.len -= usize::from(removed);
    }

    /// Calls `visit` with every subscriber of a filter that `topic` matches.
    pub(crate) fn visit(&self, topic: &str, visit: &mut impl FnMut(&S)) {
        if let Some(subscribers) = self.plain.get(topic) {
            subscribers.iter().for_each(&mut *visit);
        }
        // Topics that begin with `$` match no wildcard in the first level.
        if topic.starts_with('$') {
            let (first, rest) = topic.split_once('/').map_or((topic, None), |(first, rest)| (first, Some(rest)));
            if let Some(child) = self.wild.children.get(first) {
                child.visit(rest, visit);
            }
        } else {
            self.wild.visit(Some(topic), visit);
        }
    }
}

impl<S> SubscriberNode<S> {
    /// Returns the list of a filter's subscribers.
    fn at(&mut self, filter: &str) -> &mut Vec<S> {
        let mut node = self;
        for level in filter.split('/') {
            node = match level {
                "#" => return &mut node.rest,
                "+" => node.any.get_or_insert_default(),
                _ => node.children.entry(level.into()).or_default(),
            };
        }
        &mut node.here
    }

    fn remove<'a>(&mut self, levels: &mut impl Iterator<Item = &'a str>, is_same: &impl Fn(&S) -> bool) -> bool {
        match levels.next() {
            None => take_out(&mut self.here, is_same),
            Some("#") => take_out(&mut self.rest, is_same),
            Some("+") => {
                let Some(any) = &mut self.any else { return false };
                let removed = any.remove(levels, is_same);
                if any.is_empty() {
                    self.any = None;
                }
                removed
            }
            Some(level) => {
                let Some(child) = self.children.get_mut(level) else { return false };
                let removed = child.remove(levels, is_same);
                if child.is_empty() {
                    self.children.remove(level);
                }
                removed
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.here.is_empty() && self.rest.is_empty()
    }

    /// `topic` is what is left of it; `None` at its end.
    fn visit(&self, topic: Option<&str>, visit: &mut impl FnMut(&S)) {
        // `a/#` matches `a` as well.
        self.rest.iter().for_each(&mut *visit);
        let Some(topic) = topic else {
            self.here.iter().for_each(visit);
            return;
        };
        let (level, rest) = topic.split_once('/').map_or((topic, None), |(level, rest)| (level, Some(rest)));
        if let Some(any) = &self.any {
            any.visit(rest, visit);
        }
        if let Some(child) = self.children.get(level) {
            child.visit(rest, visit);
        }
    }
}

fn is_wild(filter: &str) -> bool {
    filter.contains(['+', '#'])
}

fn take_out<S>(subscribers: &mut Vec<S>, is_same: &impl Fn(&S) -> bool) -> bool {
    let Some(position) = subscribers.iter().position(is_same) else { return false };
    subscribers.remove(position);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic_text;
    use proptest::prelude::*;

    fn found(tree: &SubscriberTree<u32>, topic: &str) -> Vec<u32> {
        let mut found = Vec::new();
        tree.visit(topic, &mut |subscriber| found.push(*subscriber));
        found.sort_unstable();
        found
    }

    #[test]
    fn an_empty_tree_holds_nothing() {
        let mut tree = SubscriberTree::default();
        for (number, filter) in ["a/b", "a/+", "a/#", "+/b/#", "#"].iter().enumerate() {
            assert!(!tree.insert(&(*filter).into(), number, |old| *old == number));
            assert!(tree.insert(&(*filter).into(), number, |old| *old == number));
        }
        assert_eq!(tree.len(), 5);
        for (number, filter) in ["a/b", "a/+", "a/#", "+/b/#", "#"].iter().enumerate() {
            tree.remove(filter, |old| *old == number);
            tree.remove(filter, |old| *old == number);
        }
        assert!(tree.len() == 0 && tree.plain.is_empty() && tree.wild.is_empty());
    }

    proptest! {
        /// The tree finds the same as a check of each filter.
        #[test]
        fn against_a_plain_list(
            filters in proptest::collection::vec("[$]?[ab+]{1}(/[ab+]{0,1}){0,3}(/#)?", 0..12),
            gone in proptest::collection::vec(0_usize..12, 0..6),
            topic in "[$]?[ab]{1}(/[ab]{0,1}){0,4}",
        ) {
            let mut tree = SubscriberTree::default();
            for (number, filter) in (0_u32..).zip(&filters) {
                tree.insert(&filter.as_str().into(), number, |old| *old == number);
            }
            for index in &gone {
                if let Some(filter) = filters.get(*index) {
                    tree.remove(filter, |old| *old as usize == *index);
                }
            }
            let left = || (0_u32..).zip(&filters).filter(|(number, _)| !gone.contains(&(*number as usize)));
            prop_assert_eq!(tree.len(), left().count());
            let expected: Vec<_> = left().filter(|(_, filter)| topic_text::matches(filter, &topic)).map(|(number, _)| number).collect();
            prop_assert_eq!(found(&tree, &topic), expected);
        }
    }
}
