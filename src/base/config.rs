//! Configuration of the long-lived roles: a TOML file, overridden by `MUSTER_<ROLE>_…` variables,
//! validated as a whole before anything is opened.
//!
//! The known keys come from the JSON Schema of the configuration's type, so an unknown key is
//! refused with the nearest known one, and every key has its variable: `sample_ms` in `[metrics]`
//! of the agent is `MUSTER_AGENT_METRICS_SAMPLE_MS`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub use self::{
    examine::{Examination, KeySource, examine},
    explain::explain,
    print::print,
    removed::{REMOVED, RemovedKey},
};

mod examine;
mod explain;
mod fields;
mod print;
mod removed;
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
    #[error("the configuration {path}, line {line}: unknown key `{key}`")]
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
    /// A key is not known any more.
    #[error("the configuration {path}, line {line}: `{key}` is gone")]
    RemovedKey {
        /// Its path.
        path: PathBuf,
        /// The line of the key, counted from 1.
        line: usize,
        /// The key, with the tables that contain it.
        key: String,
        /// What to do instead.
        #[help]
        hint: String,
    },
    /// A variable of the environment is not known any more.
    #[error("the variable {name} is gone")]
    RemovedVariable {
        /// Its name.
        name: String,
        /// What to do instead.
        #[help]
        hint: String,
    },
    /// A variable of the environment is not known.
    #[error("unknown variable {name}")]
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
    let Examination { config, problems, .. } = examine(role, path, environment);
    let unread = || ConfigError::Invalid {
        path: path.unwrap_or(Path::new("(none)")).to_owned(),
        message: "it cannot be read".to_owned(),
    };
    problems.into_iter().next().map_or_else(|| config.ok_or_else(unread), Err)
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
        outlets: Vec<Outlet>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Outlet {
        url: String,
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
    fn every_problem_is_found_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        fs::write(
            &path,
            "port = 99999\nnaems = []\n[labels]\nshop = 7\nsite = \"x\"\n[metrics]\nsample_ms = \"often\"\nsampel = 1\n\
             [[outlets]]\nurl = \"a\"\nkind = 1\n[[outlets]]\n",
        )
        .unwrap();
        let variables = [("MUSTER_AGENT_PORT", "x"), ("MUSTER_AGENT_PROT", "1"), ("MUSTER_AGENT_TOKEN", "7")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found: Examination<Sample> = examine("agent", Some(&path), variables);
        let told: Vec<String> = found.problems.iter().map(|problem| Diagnostic::of(problem).to_string()).collect();
        let wanted = [
            "line 1,",
            "line 2:",
            "line 4,",
            "line 7,",
            "line 8:",
            "line 11",
            "line 12",
            "MUSTER_AGENT_PORT",
            "MUSTER_AGENT_PROT",
        ];
        assert_eq!(told.len(), wanted.len(), "{told:#?}");
        for (words, told) in wanted.iter().zip(&told) {
            assert!(told.contains(words), "{words} is not in {told}");
        }
        let config = found.config.unwrap();
        assert_eq!((config.labels["site"].as_str(), config.token, config.port), ("x", Some(7), None));
        assert_eq!(found.keys["labels"], Some(KeySource::File { line: 3 }));
        assert_eq!(found.keys["token"], Some(KeySource::Variable { name: "MUSTER_AGENT_TOKEN".to_owned() }));
        assert_eq!(found.keys["metrics.sample_ms"], None);
        assert_eq!(found.keys.len(), 7, "{:?}", found.keys);
    }

    #[test]
    fn wrong_value_of_a_required_key_is_the_only_problem() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        fs::write(&path, "[[outlets]]\nurl = 7\n").unwrap();
        let found: Examination<Sample> = examine("agent", Some(&path), []);
        let told: Vec<String> = found.problems.iter().map(|problem| Diagnostic::of(problem).to_string()).collect();
        assert!(told.len() == 1 && told[0].contains("line 2") && !told[0].contains("missing"), "{told:#?}");
    }

    #[test]
    fn removed_key_says_what_to_do() {
        let removed = REMOVED.iter().find(|removed| removed.role == "agent" && removed.key.contains('.')).unwrap();
        let (table, key) = removed.key.split_once('.').unwrap();
        refused(&format!("[{table}]\n{key} = 1\n"), &[], &["line 2", removed.key, "is gone", &removed.hint()]);
        refused(&format!("[{table}]\nzzz = 1\n"), &[], &["line 2", "zzz", "`--print-config`"]);
        refused("", &[(&removed.variable(), "1")], &[&removed.variable(), "is gone", &removed.hint()]);
    }

    #[test]
    fn missing_file_is_named() {
        let error = load::<Sample>("agent", Some(Path::new("/no/such/file.toml")), []).unwrap_err();
        assert!(error.to_string().contains("/no/such/file.toml"));
        assert_eq!(load::<Sample>("agent", None, []).unwrap(), Sample::default());
    }
}
