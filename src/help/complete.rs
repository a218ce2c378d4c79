//! What shells complete: verbs and options, of the grammar; names of hosts, units and so on, of the console.
//!
//! A shell's script is small: it asks this program at each press of the key, by the variable [`VARIABLE`].

#[cfg(feature = "cli")]
mod names;

use clap::{Arg, Command};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCandidates, CompletionCandidate},
    env::Shells,
};

#[cfg(feature = "cli")]
use self::names::with_names_of;

/// The variable by which a shell's script asks for completions, with the shell's name.
const VARIABLE: &str = "MUSTER_COMPLETE";

/// Values of options that take one of a few words, and tell so in their help alone.
const WORDS: &[(&str, &[&str])] = &[
    ("drift", &["correct", "report"]),
    ("network", &["bridge", "host", "none"]),
    ("reload", &["restart", "signal", "channel"]),
    ("restart", &["always", "on-failure", "never"]),
    ("runtime", &["podman", "lxc"]),
];

/// Answers a shell that asks for completions; tells whether one did. Whatever fails is no completion, and no message.
pub(crate) fn answered(grammar: impl Fn() -> Command) -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|shell| shell.is_empty()) {
        return false;
    }
    let folder = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(|| with_names(super::for_programs(grammar()))).var(VARIABLE);
    asked.try_complete(std::env::args_os(), folder.as_deref()).unwrap_or(true)
}

/// The script that has a shell ask `program`; `None` for a shell that is not known.
pub(crate) fn script(shell: &str, program: &str) -> Option<Vec<u8>> {
    let shells = Shells::builtins();
    let mut script = Vec::new();
    // Writing to memory does not fail.
    shells.completer(shell)?.write_registration(VARIABLE, "muster", "muster", program, &mut script).ok()?;
    Some(script)
}

/// The grammar with completions of values.
pub(super) fn with_names(command: Command) -> Command {
    below(command, "")
}

fn below(command: Command, path: &str) -> Command {
    let path = path.to_owned();
    let command = command.mut_args(|arg| completed(arg, &path));
    command.mut_subcommands(|verb| {
        let path = format!("{path} {}", verb.get_name()).trim().to_owned();
        below(verb, &path)
    })
}

/// An argument with what completes its value, if something does.
fn completed(arg: Arg, path: &str) -> Arg {
    let words = WORDS.iter().find(|(id, _)| arg.get_id() == *id && arg.get_action().takes_values());
    if let Some((_, words)) = words.filter(|_| arg.get_possible_values().is_empty()) {
        return arg.add(ArgValueCandidates::new(|| words.iter().map(CompletionCandidate::new).collect()));
    }
    with_names_of(arg, path)
}

/// An agent alone knows no names.
#[cfg(not(feature = "cli"))]
fn with_names_of(arg: Arg, _: &str) -> Arg {
    arg
}

#[cfg(test)]
#[cfg(feature = "simulate")]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn words_that_are_completed_are_accepted() {
        fn check(command: &Command, seen: &mut std::collections::BTreeSet<String>) {
            for arg in command.get_arguments() {
                let words = WORDS.iter().find(|(id, _)| arg.get_id() == *id && arg.get_possible_values().is_empty());
                for word in words.into_iter().flat_map(|(_, words)| *words) {
                    seen.insert(arg.get_id().to_string());
                    let line = ["muster".to_owned(), format!("--{}={word}", arg.get_long().unwrap())];
                    let alone = Command::new("muster").arg(arg.clone().required(false).conflicts_with_all([""; 0]));
                    assert!(alone.try_get_matches_from(line).is_ok(), "{} {word}", command.get_name());
                }
            }
            command.get_subcommands().for_each(|below| check(below, seen));
        }
        let (mut command, mut seen) = (super::super::for_programs(Cli::command()), std::collections::BTreeSet::new());
        command.build();
        check(&command, &mut seen);
        assert_eq!(seen.len(), WORDS.len(), "{seen:?}");
    }

    #[test]
    fn scripts_are_small() {
        for shell in ["bash", "zsh", "fish"] {
            let script = script(shell, "muster").unwrap();
            assert!(script.len() < 4_096, "{shell}: {} bytes", script.len());
            assert!(String::from_utf8(script).unwrap().contains("MUSTER_COMPLETE"), "{shell}");
        }
        assert_eq!(script("ksh", "muster"), None);
    }
}
