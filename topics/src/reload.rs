//! How a running yuno gets changes of its configs, or of a file outside.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most watched files of a unit: each is read every 30 s.
pub const ON_CHANGE_MAX: usize = 16;

/// How a change is applied to a running process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reload {
    /// It is restarted.
    #[default]
    Restart,
    /// It is sent a signal, and reads its files again by itself.
    Signal,
    /// It is asked on its channel to read its files again (`reload`), and answers. If it cannot, or refuses, it is
    /// restarted.
    Channel,
}

impl Reload {
    /// Whether it is a restart.
    #[must_use]
    pub fn is_restart(&self) -> bool {
        *self == Self::Restart
    }
}

/// A watched file outside of the unit, such as a certificate that another program renews.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnChange {
    /// The absolute path of the file.
    pub path: String,
    /// What is done when its content changes. (Rewriting the same content does not count.)
    pub action: Reload,
}
