//! How a running yuno gets changes of its configs, or of a file outside.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most files outside that a unit may have watched: each is read every 30 s.
pub const ON_CHANGE_MAX: usize = 16;

/// How a change is brought to a process that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reload {
    /// It is ended, and started anew.
    #[default]
    Restart,
    /// It is sent a signal, and reads its files again by itself.
    Signal,
    /// It is asked on its channel to read its files again (`reload`), and answers. One that cannot, or refuses, is
    /// ended and started anew.
    Channel,
}

impl Reload {
    /// Whether it is a restart.
    #[must_use]
    pub fn is_restart(&self) -> bool {
        *self == Self::Restart
    }
}

/// A file outside of a unit, such as a certificate that somebody else renews.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnChange {
    /// The file, by its absolute path.
    pub path: String,
    /// What is done when its content is another. (Whether it was merely written anew does not matter.)
    pub action: Reload,
}
