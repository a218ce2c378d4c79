//! Events of a host: tasks that have ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1,
    task::{TaskRecord, TaskState},
};

/// The most tasks in one message.
pub const EVENT_TASKS_MAX: usize = 32;

/// The most characters of each text of a task in a message.
pub const EVENT_TEXT_MAX_CHARS: usize = 500;

/// Payload of `s/<slot>/h/<host>/event`: tasks that have changed something, have failed, or were interrupted, and so may have changed
/// something. Repeated until acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostEvent {
    /// Version of this payload.
    pub v: V1,
    /// When it was made, by the agent's clock.
    pub at_ms: Millis,
    /// The tasks, the oldest first: at most [`EVENT_TASKS_MAX`], with texts of at most [`EVENT_TEXT_MAX_CHARS`].
    pub tasks: Vec<TaskRecord>,
}

impl TaskRecord {
    /// Whether its end is an event: it has changed something, has failed, or was interrupted.
    #[must_use]
    pub fn is_event(&self) -> bool {
        self.ended_ms.is_some() && !matches!(self.state, TaskState::Running | TaskState::Unchanged)
    }

    /// Returns it with texts of the length of an event.
    #[must_use]
    pub fn in_short(self) -> Self {
        let cut = |text: String| text.chars().take(EVENT_TEXT_MAX_CHARS).collect::<String>();
        Self { about: cut(self.about), diagnostic: self.diagnostic.map(|told| told.map(cut)), ..self }
    }

    /// Returns the key of its acknowledgement.
    #[must_use]
    pub fn key(&self) -> TaskAck {
        TaskAck { number: self.number, began_ms: self.began_ms }
    }
}

/// A task whose end is stored. The number alone would be another task of a host that has lost its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskAck {
    /// The task's number.
    pub number: u64,
    /// When it began.
    pub began_ms: Millis,
}
