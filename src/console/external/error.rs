//! Errors of external stores.

use std::{io, path::PathBuf};

use muster_topics::name::Name;

use super::super::config::MetricStoreConfig;

/// Why a store elsewhere cannot be fed.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    /// Its configuration cannot be used.
    #[error("metric_stores, {store}: {key}: {reason}\nhint: {hint}")]
    Setting {
        /// Which store.
        store: Name,
        /// Which of its keys.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// The folder of its queue cannot be used.
    #[error(
        "metric_stores, {store}: its queue in {path} cannot be used: {source}\nhint: make the folder writable for this user"
    )]
    Folder {
        /// Which store.
        store: Name,
        /// Which folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl ExternalError {
    pub(super) fn new(config: &MetricStoreConfig, key: &'static str, reason: String, hint: &str) -> Self {
        Self::Setting { store: config.name.clone(), key, reason, hint: hint.to_owned() }
    }
}
