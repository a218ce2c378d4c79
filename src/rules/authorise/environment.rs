//! Environment variables that a command may not set on this host.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use muster_topics::{diagnostic::Diagnostic, outcome::RefusalCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::LocalPolicy;
use crate::CommandRefusal;

/// Variables that commands may not set unless the host's owner allows it, each with the reason: they make the program
/// run code of somebody else. Variables that only name folders to search (`PYTHONPATH`, `CLASSPATH`) are common and
/// allowed; an owner may add them.
pub const DANGEROUS: [(&str, &str); 12] = [
    (
        "LD_*",
        "every program's loader obeys it; LD_PRELOAD, LD_AUDIT and LD_LIBRARY_PATH put foreign code into programs",
    ),
    ("GLIBC_TUNABLES", "every program's loader reads it before anything else, and has been broken by it"),
    ("GCONV_PATH", "the C library loads its converters, which are code, from there"),
    ("BASH_ENV", "bash runs this file before any script"),
    ("BASH_FUNC_*", "bash takes functions from it, which replace programs"),
    ("BASHOPTS", "it changes what scripts mean to bash"),
    ("ENV", "sh runs this file when it is interactive"),
    ("PS4", "bash evaluates it for each line of a script that is traced"),
    ("SHELLOPTS", "it changes what scripts mean to bash, and makes it trace them"),
    ("JAVA_TOOL_OPTIONS", "every Java machine takes options from it, and so agents to load"),
    ("NODE_OPTIONS", "node takes options from it, and so modules to load"),
    ("PERL5OPT", "perl takes options from it, and so modules to load"),
];

/// The longest name in a policy, far longer than any in use.
const NAME_MAX_BYTES: usize = 255;

/// The name of a variable, or a prefix followed by `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variables(String);

impl Variables {
    /// Whether it matches a variable.
    #[must_use]
    pub fn include(&self, name: &str) -> bool {
        is_meant(&self.0, name)
    }
}

fn is_meant(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |beginning| name.starts_with(beginning))
}

impl FromStr for Variables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('*').unwrap_or(text);
        let fits = (1..=NAME_MAX_BYTES).contains(&text.len()) && !name.contains(['=', '\0', '*']);
        fits.then(|| Self(text.to_owned())).ok_or_else(|| {
            let text: String = text.chars().take(100).collect();
            format!("{text:?} is not a variable: use a name such as \"LD_PRELOAD\", or the beginning of names, such as \"LD_*\"")
        })
    }
}

impl fmt::Display for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Variables {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Variables {
    fn schema_name() -> Cow<'static, str> {
        "Variables".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The name of a variable, or the beginning of names with a `*` after it.",
            "type": "string",
            "pattern": "^[^=*]*[*]?$",
            "maxLength": NAME_MAX_BYTES,
            "examples": ["LD_PRELOAD", "LD_*"]
        })
    }
}

impl LocalPolicy {
    /// Returns the refusal if a command sets a variable that is denied here.
    #[must_use]
    pub fn forbids_environment(&self, env: &BTreeMap<String, String>) -> Option<CommandRefusal> {
        env.keys().find_map(|name| self.forbids_variable(name))
    }

    fn forbids_variable(&self, name: &str) -> Option<CommandRefusal> {
        let refuse = |message: Diagnostic| Some(CommandRefusal::new(RefusalCode::Denied, message));
        if self.deny_env.iter().any(|denied| denied.include(name)) {
            return refuse(format!("this host's own policy forbids commands to set {name:?}").into());
        }
        if self.allow_env.iter().any(|allowed| allowed.include(name)) {
            return None;
        }
        let (_, why) = DANGEROUS.iter().find(|(pattern, _)| is_meant(pattern, name))?;
        refuse(
            Diagnostic::new(format_args!("commands may not set {name:?} on this host: {why}"))
                .with_hint("the host's owner can allow it, with `allow_env` in the agent's policy"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: &str, allowed: &[&str], refused: &[&str]) {
        let policy: LocalPolicy = toml::from_str(policy).unwrap();
        let env = |name: &&str| [("HARMLESS".to_owned(), String::new()), ((*name).to_owned(), String::new())].into();
        for name in allowed {
            assert_eq!(policy.forbids_environment(&env(name)), None, "{name}");
        }
        for name in refused {
            let refusal = policy.forbids_environment(&env(name)).unwrap_or_else(|| panic!("{name} is allowed"));
            assert_eq!(refusal.code, RefusalCode::Denied);
            assert!(refusal.diagnostic.cause.contains(name), "{refusal:?}");
        }
    }

    #[test]
    fn variables_that_load_code_are_refused() {
        check(
            "",
            &["PATH", "LANG", "PYTHONPATH", "LDFLAGS", "ld_preload", "ENVIRONMENT", "BASH"],
            &[
                "LD_PRELOAD",
                "LD_LIBRARY_PATH",
                "LD_AUDIT",
                "LD_",
                "BASH_ENV",
                "ENV",
                "GLIBC_TUNABLES",
                "BASH_FUNC_ls%%",
            ],
        );
    }

    #[test]
    fn policy_adds_and_removes_variables() {
        check("deny_env = ['PYTHONPATH', 'AWS_*']", &["AWS"], &["PYTHONPATH", "AWS_KEY", "LD_PRELOAD"]);
        check("allow_env = ['LD_LIBRARY_PATH']", &["LD_LIBRARY_PATH"], &["LD_PRELOAD"]);
        check("allow_env = ['*']", &["LD_PRELOAD", "ENV"], &[]);
        check("allow_env = ['*']\ndeny_env = ['LD_AUDIT']", &["LD_PRELOAD"], &["LD_AUDIT"]);
        check("deny_env = ['*']", &[], &["HARMLESS"]);
    }

    #[test]
    fn denial_wins_over_permission() {
        let policy = |text: &str| toml::from_str::<LocalPolicy>(text).unwrap();
        let both = policy("allow_env = ['LD_*', 'ENV']").and(policy("deny_env = ['LD_PRELOAD']"));
        assert!(both.forbids_variable("LD_PRELOAD").is_some());
        assert!(both.forbids_variable("ENV").is_none() && both.forbids_variable("PS4").is_some());
    }

    #[test]
    fn invalid_variable_name_is_refused() {
        for wrong in ["", "A=B", "A*B", "**", "A\0"] {
            assert!(wrong.parse::<Variables>().is_err(), "{wrong:?}");
        }
        assert!(toml::from_str::<LocalPolicy>("deny_env = ['A=B']").is_err());
        assert_eq!("LD_*".parse::<Variables>().unwrap().to_string(), "LD_*");
        assert!(DANGEROUS.iter().all(|(pattern, _)| pattern.parse::<Variables>().is_ok()));
    }
}
