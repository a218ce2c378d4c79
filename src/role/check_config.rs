//! `--check-config` of the roles: reads file and environment to their end, looks at the files that keys name, and says all that is
//! wrong, and where each key has its value from. Nothing is made, opened for connections or changed.

use std::{collections::BTreeMap, env, net::SocketAddr, path::PathBuf};

use muster_base::{
    clock::now_ms,
    config::{self, ConfigError, Examination, KeySource},
    failure::{Failure, FailureKind},
    role_args::RoleArgs,
};
use muster_doctor::config_files::{self, FileProblem, NamedFile};
use muster_topics::diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

/// What is to be said of a configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConfigReport {
    /// The role.
    role: &'static str,
    /// The file, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Everything that is wrong, or good to know.
    problems: Vec<ReportedProblem>,
    /// Every key, by its path.
    keys: BTreeMap<String, ReportedKey>,
}

/// A problem.
#[derive(Clone, Debug, Serialize)]
struct ReportedProblem {
    /// Whether the role works all the same.
    is_warning: bool,
    /// The key whose file or folder it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(flatten)]
    told: Diagnostic,
}

/// A key.
#[derive(Clone, Debug, Serialize)]
struct ReportedKey {
    /// Its value; nothing if it has none. Secrets are `***`.
    value: Json,
    /// Where that is from.
    source: ReportedSource,
}

/// Where a value is from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ReportedSource {
    /// Nowhere: it is what the program says.
    Default,
    /// The line of the file.
    Line(usize),
    /// The variable of the environment.
    Variable(String),
    /// The option.
    Option(&'static str),
}

/// What is known of a role's configuration beside its type.
#[derive(Debug, Default)]
pub(crate) struct RoleRules {
    /// What does not work although each value is of its type.
    pub(crate) problems: Vec<Diagnostic>,
    /// What keys name.
    pub(crate) files: Vec<NamedFile>,
    /// Where it listens, with the keys.
    pub(crate) listeners: Vec<(&'static str, SocketAddr)>,
}

/// Examines a role's configuration. `adjust` sets what options say, and names their keys.
pub(crate) fn examine<T>(
    role: &'static str,
    args: &RoleArgs,
    adjust: impl FnOnce(&mut T) -> Vec<(&'static str, &'static str)>,
    rules: impl FnOnce(&T) -> RoleRules,
) -> ConfigReport
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    let environment =
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let found: Examination<T> = config::examine(role, args.config.as_deref(), environment);
    let Examination { config, problems, keys } = found;
    let mut config = config.unwrap_or_default();
    let options = adjust(&mut config);
    let mut report = ConfigReport {
        role,
        file: args.config.clone(),
        problems: problems.iter().map(|problem: &ConfigError| wrong(Diagnostic::of(problem))).collect(),
        keys: BTreeMap::new(),
    };
    let RoleRules { problems, files, listeners } = rules(&config);
    report.problems.extend(problems.into_iter().map(wrong));
    report.problems.extend(same_addresses(&listeners).into_iter().map(wrong));
    let of_files = files.iter().flat_map(|file| config_files::examine(file, now_ms()));
    report.problems.extend(of_files.map(|FileProblem { key, is_warning, told }| ReportedProblem {
        is_warning,
        key: Some(key),
        told,
    }));
    let values = serde_json::to_value(&config).unwrap_or_default();
    for (key, source) in keys {
        let value = key.split('.').try_fold(&values, |at, name| at.get(name)).cloned().unwrap_or_default();
        let option = options.iter().find(|(named, _)| *named == key);
        let source = match (option, source) {
            (Some((_, option)), _) => ReportedSource::Option(option),
            (None, Some(KeySource::File { line })) => ReportedSource::Line(line),
            (None, Some(KeySource::Variable { name })) => ReportedSource::Variable(name),
            (None, None) => ReportedSource::Default,
        };
        report.keys.insert(key, ReportedKey { value, source });
    }
    report
}

fn wrong(told: Diagnostic) -> ReportedProblem {
    ReportedProblem { is_warning: false, key: None, told }
}

/// Says which addresses are named twice. Port 0 is another one each time.
fn same_addresses(listeners: &[(&'static str, SocketAddr)]) -> Vec<Diagnostic> {
    let named = listeners.iter().enumerate().filter(|(_, (_, address))| address.port() != 0);
    let twice = named.filter_map(|(place, (key, address))| {
        let (before, _) = listeners[..place].iter().find(|(_, other)| other == address)?;
        let why = format!("`{before}` and `{key}` are both {address}");
        Some(Diagnostic::new(why).with_hint("give each a port of its own; port 0 takes a free one"))
    });
    twice.collect()
}

impl ConfigReport {
    /// Every key with its value and where that is from; then what is wrong, and a line that sums it up.
    pub(crate) fn text(&self) -> String {
        let width = self.keys.keys().map(String::len).max().unwrap_or_default();
        let mut text = String::new();
        for (key, ReportedKey { value, source }) in &self.keys {
            let value = match value {
                Json::Null => "-".to_owned(),
                value => value.to_string(),
            };
            let source = match source {
                ReportedSource::Default => "default".to_owned(),
                ReportedSource::Line(line) => format!("line {line}"),
                ReportedSource::Variable(name) => name.clone(),
                ReportedSource::Option(option) => (*option).to_owned(),
            };
            text += &format!("{key:<width$}  {value}  ({source})\n");
        }
        text.push('\n');
        for ReportedProblem { is_warning, key, told } in &self.problems {
            let verdict = if *is_warning { "warning" } else { "problem" };
            let key = key.as_ref().map(|key| format!("`{key}`: ")).unwrap_or_default();
            let finding = Diagnostic { hint: None, ..told.clone() };
            text += &format!("{verdict}  {key}{finding:#}\n");
            if let Some(hint) = &told.hint {
                text += &format!("         -> {hint}\n");
            }
        }
        let count = |wanted: bool| self.problems.iter().filter(|problem| problem.is_warning == wanted).count();
        let plural =
            |count: usize, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
        text += &match (count(false), count(true)) {
            (0, 0) => "no problems".to_owned(),
            (problems, warnings) => format!("{}, {}", plural(problems, "problem"), plural(warnings, "warning")),
        };
        text
    }

    /// Nothing if the role would start with it; else a failure that has been printed already.
    ///
    /// # Errors
    /// If something is wrong.
    pub(crate) fn outcome(&self) -> Result<(), Failure> {
        match self.problems.iter().all(|problem| problem.is_warning) {
            true => Ok(()),
            false => Err(Failure::silent(FailureKind::Usage)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_address_is_named_once() {
        let of = |ports: &[u16]| -> Vec<Diagnostic> {
            let keys = ["a", "b", "c"].iter().zip(ports);
            let listeners: Vec<_> = keys.map(|(key, port)| (*key, SocketAddr::from(([127, 0, 0, 1], *port)))).collect();
            same_addresses(&listeners)
        };
        assert_eq!(of(&[0, 0, 1]), []);
        let twice = of(&[7, 1, 7]);
        assert!(twice.len() == 1 && twice[0].cause.contains("`a` and `c`"), "{twice:?}");
    }
}
