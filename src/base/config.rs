//! Configuration of the long-lived roles: a TOML file, overridden by `MUSTER_<ROLE>_…` variables,
//! validated as a whole before anything is opened.
//!
//! The known keys come from the JSON Schema of the configuration's type, so an unknown key is
//! refused with the nearest known one, and every key has its variable: `sample_ms` in `[metrics]`
//! of the agent is `MUSTER_AGENT_METRICS_SAMPLE_MS`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use self::shape::{KeyShape, insert, known_keys, variable_value, variables};
pub use self::{explain::explain, print::print};
use muster_rules::{mask::is_secret_key, unknown_keys::nearest};
use muster_topics::unit::MASK;

mod explain;
mod fields;
mod print;
mod shape;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read: {source}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value in it is of the wrong type.
    #[error("the configuration {path} is not valid: {message}")]
    Invalid {
        /// Its path.
        path: PathBuf,
        /// The position and the reason, without secrets.
        message: String,
    },
    /// A key is not known.
    #[error("the configuration {path}, line {line}: there is no key `{key}`")]
    UnknownKey {
        /// Its path.
        path: PathBuf,
        /// The line of the key, counted from 1.
        line: usize,
        /// The key, with the tables that contain it.
        key: String,
        /// The most similar known key.
        #[help]
        hint: String,
    },
    /// A variable of the environment is not known.
    #[error("there is no variable {name}")]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The most similar known variable.
        #[help]
        hint: String,
    },
    /// A variable's value cannot be used.
    #[error("the variable {name} is not valid: {message}")]
    Variable {
        /// Its name.
        name: String,
        /// The reason.
        message: String,
    },
}

/// Reads the configuration of `role`: its defaults, the file if there is one, and the variables of
/// the environment that begin with `MUSTER_<ROLE>_`.
///
/// # Errors
/// If a key or variable is not known, or if a value is invalid; the message names it and its position.
pub fn load<T>(
    role: &str,
    path: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError>
where
    T: DeserializeOwned + JsonSchema,
{
    let keys = known_keys(schemars::schema_for!(T).as_value());
    let mut table = toml::Table::new();
    if let Some(path) = path {
        table = read_file::<T>(path, &keys)?;
    }
    let prefix = format!("MUSTER_{}_", role.to_uppercase());
    let variables = variables(&prefix, &keys);
    for (name, text) in environment.into_iter().filter(|(name, _)| name.starts_with(&prefix)) {
        let Some((place, key)) = variables.get(&name) else {
            let hint = nearest(&name, variables.keys().map(String::as_str));
            return Err(ConfigError::UnknownVariable { name, hint });
        };
        insert(&mut table, place, variable_value(key, &text));
        check::<T>(&table).map_err(|message| {
            let message = if is_secret_key(&name) { message.replace(&text, MASK) } else { message };
            ConfigError::Variable { name, message }
        })?;
    }
    toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| ConfigError::Invalid {
        path: path.unwrap_or(Path::new("(none)")).to_owned(),
        message: error.to_string(),
    })
}

fn read_file<T: DeserializeOwned>(path: &Path, keys: &KeyShape) -> Result<toml::Table, ConfigError> {
    let invalid = |message: String| ConfigError::Invalid { path: path.to_owned(), message };
    let text = crate::files::read_text(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let document = DeTable::parse(&text).map_err(|error| invalid(explain(&text, &error)))?;
    if let Some((offset, key, hint)) = unknown_key(document.get_ref(), keys, "") {
        let line = text[..offset.min(text.len())].matches('\n').count() + 1;
        return Err(ConfigError::UnknownKey { path: path.to_owned(), line, key, hint });
    }
    // Parsed twice: here for error messages that show the line, below as a table that variables are merged into.
    toml::from_str::<T>(&text).map_err(|error| invalid(explain(&text, &error)))?;
    toml::from_str(&text).map_err(|error| invalid(explain(&text, &error)))
}

fn check<T: DeserializeOwned>(table: &toml::Table) -> Result<(), String> {
    let parsed: Result<T, _> = toml::Value::Table(table.clone()).try_into();
    parsed.map(drop).map_err(|error| error.to_string().trim_end().to_owned())
}

/// The first unknown key: its line, its full name, and a hint.
fn unknown_key(table: &DeTable<'_>, keys: &KeyShape, above: &str) -> Option<(usize, String, String)> {
    let KeyShape::Table(known) = keys else { return None };
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let full = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        match (known.get(name), value.get_ref()) {
            (None, _) => return Some((key.span().start, full, nearest(name, known.keys().map(String::as_str)))),
            (Some(deeper), DeValue::Table(inner)) => {
                if let Some(found) = unknown_key(inner, deeper, &full) {
                    return Some(found);
                }
            }
            (Some(_), _) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use muster_topics::diagnostic::Diagnostic;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Sample {
        data_dir: PathBuf,
        port: Option<u16>,
        token: Option<u16>,
        names: Vec<String>,
        labels: BTreeMap<String, String>,
        metrics: Metrics,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Metrics {
        sample_ms: u32,
    }

    fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Sample, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        fs::write(&path, text).unwrap();
        load("agent", Some(&path), variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[track_caller]
    fn refused(text: &str, variables: &[(&str, &str)], words: &[&str]) {
        let message = Diagnostic::of(&load_text(text, variables).unwrap_err()).to_string();
        for word in words {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
    }

    #[test]
    fn variables_override_the_file() {
        let text = "data_dir = \"/a\"\n[labels]\nshop = \"7\"\n[metrics]\nsample_ms = 5\n";
        let variables = [
            ("MUSTER_AGENT_METRICS_SAMPLE_MS", "9"),
            ("MUSTER_AGENT_PORT", "80"),
            ("MUSTER_AGENT_NAMES", "a, b"),
            ("MUSTER_LOG", "debug"),
            ("MUSTER_CONSOLE_X", "another role's"),
        ];
        let sample = load_text(text, &variables).unwrap();
        assert_eq!(sample.metrics.sample_ms, 9);
        assert_eq!(sample.port, Some(80));
        assert_eq!(sample.names, ["a", "b"]);
        assert_eq!(sample.labels["shop"], "7");
        assert_eq!(sample.data_dir, Path::new("/a"));
        let variables = [("MUSTER_AGENT_NAMES", "[\"x\"]"), ("MUSTER_AGENT_LABELS", "{shop = \"8\"}")];
        let sample = load_text(text, &variables).unwrap();
        assert_eq!((sample.names[0].as_str(), sample.labels["shop"].as_str()), ("x", "8"));
    }

    #[test]
    fn unknown_key_is_refused_with_similar_ones() {
        refused("\ndata_dri = \"/a\"\n", &[], &["line 2", "`data_dri`", "`data_dir`"]);
        refused("[metrics]\n\nsampel_ms = 5\n", &[], &["line 3", "`metrics.sampel_ms`", "`sample_ms`"]);
        refused("zzz = 1\n", &[], &["`zzz`", "known are", "`labels`"]);
        refused("", &[("MUSTER_AGENT_METRICS_SAMPEL_MS", "1")], &["MUSTER_AGENT_METRICS_SAMPLE_MS"]);
    }

    #[test]
    fn wrong_type_is_named() {
        refused("[metrics]\nsample_ms = \"often\"\n", &[], &["agent.toml", "line 2", "sample_ms", "often"]);
        refused("port = 99999\n", &[], &["line 1", "port"]);
        refused("[metrics\n", &[], &["line 1"]);
        refused("", &[("MUSTER_AGENT_METRICS_SAMPLE_MS", "often")], &["MUSTER_AGENT_METRICS_SAMPLE_MS", "often"]);
        refused("", &[("MUSTER_AGENT_TOKEN", "hunter2")], &["MUSTER_AGENT_TOKEN", "***", "expected"]);
    }

    #[test]
    fn missing_file_is_named() {
        let error = load::<Sample>("agent", Some(Path::new("/no/such/file.toml")), []).unwrap_err();
        assert!(error.to_string().contains("/no/such/file.toml"));
        assert_eq!(load::<Sample>("agent", None, []).unwrap(), Sample::default());
    }
}
