//! Words that people bring with them from other programs, and what is said here instead.

use std::ffi::OsString;

use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Words that are said otherwise, as verb or option, and how.
pub(crate) const OTHERWISE: &[(&str, &str)] = &[
    ("abandon", "cancel"),
    ("abort", "cancel"),
    ("add", "create"),
    ("bundle", "--out"),
    ("dashboards", "dashboard"),
    ("data", "--data-dir"),
    ("days", "--for"),
    ("delete", "rm"),
    ("describe", "show"),
    ("disable", "--enabled no"),
    ("enable", "--enabled yes"),
    ("end", "revoke, or cancel"),
    ("flavour", "--language"),
    ("force", "--yes, or --replace"),
    ("from", "--since"),
    ("get", "show"),
    ("info", "show"),
    ("inspect", "show"),
    ("issued", "certificates"),
    ("key", "create-key"),
    ("kill", "stop"),
    ("lines", "--limit"),
    ("list", "ls"),
    ("make", "create"),
    ("new", "create"),
    ("note", "--reason"),
    ("off", "--enabled no"),
    ("output", "--out: -o, --output is the format of what is printed"),
    ("overwrite", "--replace"),
    ("put", "create"),
    ("range", "--since and --until"),
    ("remove", "rm"),
    ("replaces", "--replace"),
    ("rules", "rule ls"),
    ("silences", "silence ls"),
    ("start", "run"),
    ("status", "show"),
    ("take", "create"),
    ("ttl", "--for"),
    ("unsilence", "silence rm"),
    ("update", "set"),
];

/// Suggests the word that is said here for a verb that is not, if its noun has that.
pub(crate) fn suggest(mut error: Error, program: &Command, words: &[OsString]) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return error };
    let before = words.iter().skip(1).take_while(|word| word.as_os_str() != wrong.as_str());
    let noun = before.fold(program, |command, word| command.find_subcommand(word).unwrap_or(command));
    let instead = OTHERWISE.iter().filter(|(word, _)| *word == wrong).map(|(_, instead)| *instead);
    let known: Vec<String> = instead.filter(|verb| noun.find_subcommand(verb).is_some()).map(str::to_owned).collect();
    if !known.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(known));
    }
    error
}
