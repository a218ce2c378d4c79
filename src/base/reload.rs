//! SIGHUP: each role reloads the settings that it can change while it runs, and reports those that need a restart. It never ends a role.

use muster_topics::diagnostic::Diagnostic;
use serde::Serialize;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, FailureContext};

/// The SIGHUPs that this process gets. From the moment on that there is one of these, none ends the process.
#[derive(Debug)]
pub struct HangUpSignals(Signal);

impl HangUpSignals {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> Result<Self, Failure> {
        signal(SignalKind::hangup()).trying("handling SIGHUP").map(Self)
    }

    /// Waits for the next one; nothing is lost if it is not waited for to the end.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // There will be no more.
            std::future::pending::<()>().await;
        }
    }
}

/// The keys, first level only, in which two configurations differ; those in `taken` left out.
#[must_use]
pub fn other_changes<T: Serialize>(before: &T, after: &T, taken: &[&str]) -> Vec<String> {
    let fields = |config: &T| match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (before, after) = (fields(before), fields(after));
    let mut changed: Vec<_> = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))).collect();
    changed.retain(|key| !taken.contains(&key.as_str()) && before.get(*key) != after.get(*key));
    changed.into_iter().cloned().collect()
}

/// Says how a role's configuration was taken, in the log.
pub fn log(role: &str, taken: Result<Vec<String>, Failure>) {
    match taken {
        Ok(others) if others.is_empty() => tracing::info!(role, "the configuration is reloaded"),
        Ok(others) => {
            let others = others.join(", ");
            tracing::warn!(role, "the configuration is reloaded; these changes need a restart: {others}");
        }
        Err(failure) => {
            let Diagnostic { cause, hint, .. } = failure.diagnostic.unwrap_or_default();
            tracing::error!(
                role,
                consequence = "the configuration is unchanged",
                hint,
                "the configuration cannot be reloaded: {cause}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Config {
        listen: &'static str,
        users: Option<&'static str>,
        days: u32,
    }

    #[test]
    fn changes_that_need_a_restart_are_named() {
        let before = Config { listen: "a", users: None, days: 1 };
        for (after, expected) in [
            (Config { listen: "a", users: None, days: 1 }, &[][..]),
            (Config { listen: "b", users: None, days: 2 }, &["listen"][..]),
            (Config { listen: "a", users: Some("x"), days: 1 }, &["users"][..]),
        ] {
            assert_eq!(other_changes(&before, &after, &["days"]), expected);
        }
    }
}
