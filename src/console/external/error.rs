//! Errors of external stores.

use std::{io, path::PathBuf};

use muster_sqlite::room;
use muster_topics::name::Name;

use super::super::config::MetricStoreConfig;

/// Why an external store cannot be used.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ExternalError {
    /// Its configuration cannot be used.
    #[error("metric_stores, {store}: {key}: {reason}")]
    Setting {
        /// The store.
        store: Name,
        /// The key.
        key: &'static str,
        /// The problem.
        reason: String,
        /// The hint.
        #[help]
        hint: String,
    },
    /// The folder of its queue cannot be used.
    #[error("metric_stores, {store}: its queue in {path} cannot be used: {source}")]
    #[diagnostic(help("{}", room::hint_or(source, "make the folder writable for this user")))]
    Folder {
        /// The store.
        store: Name,
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl ExternalError {
    pub(super) fn new(config: &MetricStoreConfig, key: &'static str, reason: String, hint: &str) -> Self {
        Self::Setting { store: config.name.clone(), key, reason, hint: hint.to_owned() }
    }
}
