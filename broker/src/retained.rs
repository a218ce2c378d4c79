//! stand-in
use crate::{limits::Limits, message::Message, text};
use std::collections::BTreeMap;
pub(crate) struct Retained(BTreeMap<String, Message>);
#[derive(PartialEq)]
pub(crate) enum Kept {
    Yes,
    Cleared,
    Full,
}
impl Retained {
    pub(crate) fn new(_: &Limits) -> Self {
        Self(BTreeMap::new())
    }
    pub(crate) fn keep(&mut self, message: &Message, _now_ms: u64) -> Kept {
        if message.payload().is_empty() {
            self.0.remove(message.topic());
            return Kept::Cleared;
        }
        self.0.insert(message.topic().to_owned(), message.clone());
        if false { Kept::Full } else { Kept::Yes }
    }
    pub(crate) fn matching(&self, filter: &str, _now_ms: u64) -> Vec<Message> {
        self.0.values().filter(|m| text::matches(filter, m.topic())).cloned().collect()
    }
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.0.len(), self.0.values().map(Message::len).sum())
    }
}
