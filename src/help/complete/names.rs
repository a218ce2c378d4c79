//! Which arguments are completed by names of the fleet.

use std::ffi::{OsStr, OsString};

use clap::Arg;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use muster_cli::completion::{self, NamedThing};

/// An argument with the names that complete its value, if there are such.
pub(super) fn with_names_of(arg: Arg, path: &str) -> Arg {
    if let Some(words) = words(&arg) {
        return arg.add(ArgValueCandidates::new(move || words.iter().map(CompletionCandidate::new).collect()));
    }
    match named_thing(&arg, path) {
        Some(of) => arg.add(ArgValueCompleter::new(move |typed: &OsStr| names(of, typed))),
        None => arg,
    }
}

/// Words of which the types have the list.
fn words(arg: &Arg) -> Option<Vec<String>> {
    let is_named = |name: &str| value_name(arg).is_some_and(|value| value == name);
    if is_named("SIGNAL") {
        return Some(muster_topics::signal::Signal::all().map(|signal| signal.to_string()).collect());
    }
    (is_named("STATE") && arg.get_id() == "state")
        .then(|| muster_api::DeploymentState::ALL.iter().map(|state| state.word().to_owned()).collect())
}

fn value_name(arg: &Arg) -> Option<String> {
    let named = arg.get_value_names()?.first()?.to_string();
    Some(named)
}

/// What a value names, by what the help calls it and by its verb.
fn named_thing(arg: &Arg, path: &str) -> Option<NamedThing> {
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return None;
    }
    let named = value_name(arg)?.to_uppercase();
    let (noun, verb) = path.split_once(' ').unwrap_or((path, ""));
    Some(match (noun, verb, named.as_str()) {
        // These are of roles, which have no console to ask.
        ("agent" | "broker" | "console" | "doctor" | "up" | "simulate", ..) => return None,
        (_, _, "HOST" | "HOSTS" | "HOST|NAME=VALUE") => NamedThing::Host,
        (_, _, "UNIT" | "UNITS") => NamedThing::Unit,
        ("container", "clone", "FROM") => NamedThing::Unit,
        (_, _, "REALM") => NamedThing::Realm,
        (_, _, "DEPLOYMENT") => NamedThing::Deployment,
        (_, _, "ARTIFACT" | "ROLE@VERSION") => NamedThing::Artifact,
        (_, _, "CONFIG" | "ID@VERSION") => NamedThing::Config,
        ("config", "diff", "FROM" | "TO") => NamedThing::Config,
        ("secret", _, "NAME" | "SECRET") => NamedThing::Secret,
        ("var", _, "NAME" | "VAR") => NamedThing::Var,
        (_, _, "RULE") => NamedThing::Rule,
        ("silence", "rm", "ID") | (_, _, "SILENCE") => NamedThing::Silence,
        ("command", "show" | "cancel", "ID") | (_, _, "COMMAND") => NamedThing::Command,
        ("token", "revoke", "ID") => NamedThing::Token,
        ("login", "revoke", "ID") => NamedThing::SignIn,
        ("context", ..) => NamedThing::Context,
        _ if arg.get_id() == "context" => NamedThing::Context,
        _ => return None,
    })
}

fn names(of: NamedThing, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let context = given_context(std::env::args_os()).or_else(|| std::env::var("MUSTER_CONTEXT").ok());
    let named = completion::names(of, typed, context.as_deref()).into_iter();
    named.map(|(name, about)| CompletionCandidate::new(name).help(about.map(Into::into))).collect()
}

/// The context that the line which is completed names.
fn given_context(words: impl Iterator<Item = OsString>) -> Option<String> {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let mut after = words.iter().skip_while(|word| *word != "--").skip(1);
    while let Some(word) = after.next() {
        match word.strip_prefix("--context") {
            Some("") => return after.next().filter(|value| *value != "=").or_else(|| after.next()).cloned(),
            Some(value) => return value.strip_prefix('=').map(str::to_owned),
            None => {}
        }
    }
    None
}

#[cfg(test)]
#[cfg(feature = "simulate")]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{Cli, help};

    fn arg(path: &str, id: &str) -> Arg {
        let mut command = help::for_programs(Cli::command());
        command.build();
        let verb = path.split(' ').fold(&command, |command, name| command.find_subcommand(name).unwrap());
        verb.get_arguments().find(|arg| arg.get_id() == id).unwrap().clone()
    }

    #[test]
    fn values_are_completed_by_what_they_name() {
        for (path, id, wanted) in [
            ("exec", "hosts", Some(NamedThing::Host)),
            ("unit show", "unit", Some(NamedThing::Unit)),
            ("ps", "host", Some(NamedThing::Host)),
            ("logs", "units", Some(NamedThing::Unit)),
            ("realm show", "realm", Some(NamedThing::Realm)),
            ("deployment show", "deployment", Some(NamedThing::Deployment)),
            ("artifact show", "artifact", Some(NamedThing::Artifact)),
            ("config diff", "from", Some(NamedThing::Config)),
            ("secret rm", "name", Some(NamedThing::Secret)),
            ("command show", "id", Some(NamedThing::Command)),
            ("context use", "name", Some(NamedThing::Context)),
            ("exec", "context", Some(NamedThing::Context)),
            ("token create", "lifetime", None),
            ("broker render", "hosts", None),
        ] {
            assert_eq!(named_thing(&arg(path, id), path), wanted, "{path} {id}");
        }
    }

    #[test]
    fn context_of_the_line_is_found() {
        for (line, wanted) in [
            ("muster -- muster --context a host show", Some("a")),
            ("muster -- muster host show --context=b x", Some("b")),
            ("muster -- muster host --context = c", Some("c")),
            ("muster --context a -- muster host show", None),
        ] {
            assert_eq!(given_context(line.split(' ').map(OsString::from)).as_deref(), wanted, "{line}");
        }
    }
}
