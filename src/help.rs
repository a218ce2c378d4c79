//! The grammar of the command line with the parts of its help that no verb has by itself: the examples of each verb, and what
//! holds for all verbs, which is said once, by `muster --help`. Manual pages and completions are made of it.
//!
//! - `examples`: all examples
//! - `groups`: the verbs by task
//! - `pages`: manual pages; `complete`: completions

pub(crate) mod complete;
mod examples;
pub(crate) mod groups;
pub(crate) mod other_words;
pub(crate) mod pages;
#[cfg(test)]
#[cfg(feature = "simulate")]
mod tests;

use clap::{Arg, Command, builder::StyledStr};

use self::examples::{EXAMPLES, Example};

/// How to begin, as the short help says it.
#[cfg(feature = "cli")]
pub(crate) const BEGIN: &str = "Begin with `muster up`, look with `muster status`; `muster --help` says more.";
/// The same of a build for hosts alone.
#[cfg(not(feature = "cli"))]
pub(crate) const BEGIN: &str = "Begin with `muster agent --join TOKEN`; `muster --help` says more.";

/// What `muster --help` says after the options of a build for hosts alone.
#[cfg(not(feature = "cli"))]
pub(crate) const EVERYWHERE: &str = "\
This is the agent alone. `muster token create` on the fleet's machine makes a token; with it, here:
  muster agent --join TOKEN
  muster agent install --now --join TOKEN

Exit codes: 0 done, 1 the work failed, 2 usage, 3 refused, 4 unreachable.";

/// What `muster --help` says after the options: what holds for all verbs.
#[cfg(feature = "cli")]
pub(crate) const EVERYWHERE: &str = "\
Begin with `muster up`: it makes a secured fleet of this one host. Then, in another terminal:
  muster status
  muster exec -- uname -a
  muster ps
Remove it all: `muster agent uninstall` on each host, and delete the folders of console and broker.

Exit codes: 0 done, 1 the work failed, 2 usage, 3 refused, 4 unreachable.

Selectors (--select): FIELD=VALUE and FIELD!=VALUE, where `*` in a value stands for any text and `?` for one character \
and \"quotes\" hold blanks; `and`, `or`, `not` and parentheses. Numbers (cpus, memory_bytes, labels that are numbers) and \
versions (kernel, agent_version) also compare with < <= > >=; 8G is 8 x 2^30.
Fields of a host:
  host        its id or hostname
  realm       a realm on it
  label.NAME  a label; alone, whether there is one
  fact.NAME   os, kernel, arch, cpus, cpu_model, memory_bytes or agent_version
Fields of a unit:
  host, id (REALM/NAME), realm, name, role, kind, phase, label.NAME,
  version (what runs), wanted.version
Hosts by their units: unit(EXPRESSION) selects the hosts that have a unit for which the expression holds. \
unit.phase=failed is short for unit(phase=failed), and unit=shop/till for unit(id=shop/till).

Times are such as 10s, 5m, 2h or 1d; sizes are such as 64K, 64M or 2G.";

/// What each verb's help ends with.
pub(crate) const SAID_ONCE: &str = "`muster --help` has what holds for all verbs: options, selectors, exit codes.";

/// The option of lists that are shown again and again.
const WATCH: &str = "watch";

/// The grammar for people, to whom `muster --help` alone shows the options of all verbs.
pub(crate) fn for_people(command: Command) -> Command {
    let globals: Vec<Arg> = command.get_arguments().filter(|option| option.is_global_set()).cloned().collect();
    let command = for_programs(
        command.mut_subcommands(|verb| globals.iter().fold(verb, |verb, option| verb.arg(option.clone().hide(true)))),
    );
    groups::with_groups(command, false)
}

/// Prints the help of a verb, or of all with `all`, as `muster VERB --help` does.
pub(crate) fn show(command: Command, all: bool, verb: &[String]) -> clap::Error {
    let mut command = for_people(command);
    if all {
        command = groups::with_groups(command, true);
    }
    let words = ["muster"].into_iter().chain(verb.iter().map(String::as_str)).chain(["--help"]);
    match command.try_get_matches_from_mut(words) {
        Err(error) => error,
        Ok(_) => command.error(clap::error::ErrorKind::UnknownArgument, "these are not the words of a verb"),
    }
}

/// Adds `-w` to each list.
fn with_watch(command: Command) -> Command {
    fn watched(verb: Command) -> Command {
        let watch = Arg::new(WATCH).short('w').long(WATCH).action(clap::ArgAction::SetTrue);
        verb.arg(watch.help("Show it again whenever it changes, until Ctrl-C"))
    }
    command.mut_subcommands(|verb| match verb.get_name() {
        "ps" | "status" => watched(verb),
        // Each host is asked for these by a command, which stays in the list of commands.
        "snapshot" => verb,
        _ => verb.mut_subcommands(|below| if below.get_name() == "ls" { watched(below) } else { below }),
    })
}

/// Whether a list is to be shown again and again.
#[cfg(feature = "cli")]
pub(crate) fn wants_watch(mut matches: &clap::ArgMatches) -> bool {
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    matches.try_get_one::<bool>(WATCH).ok().flatten().copied().unwrap_or(false)
}

/// The grammar for shells, which complete the options of all verbs at each.
pub(crate) fn for_programs(command: Command) -> Command {
    with_watch(command.mut_subcommands(|verb| {
        let path = verb.get_name().to_owned();
        with_examples(verb, &path)
    }))
}

/// Adds their examples to a verb and to those below it.
fn with_examples(verb: Command, path: &str) -> Command {
    let notes = verb.get_after_long_help().map(StyledStr::to_string);
    let examples = examples_of(path).map(text);
    let parts: Vec<String> = [examples, notes].into_iter().flatten().collect();
    let verb = verb.after_help(SAID_ONCE);
    let verb =
        if parts.is_empty() { verb } else { verb.after_long_help(format!("{}\n\n{SAID_ONCE}", parts.join("\n\n"))) };
    verb.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        with_examples(below, &path)
    })
}

/// The examples of a verb: those of the verb that it stands for, if it is an alias.
fn examples_of(path: &str) -> Option<&'static [Example]> {
    let stands_for = stands_for(path).unwrap_or_else(|| path.to_owned());
    EXAMPLES.iter().find(|(name, _)| *name == stands_for).map(|(_, examples)| *examples)
}

/// The verb of all units that a verb of units of one kind stands for, if it is one.
pub(crate) fn stands_for(path: &str) -> Option<String> {
    #[cfg(feature = "cli")]
    let stands_for = muster_cli::unit::alias_of(path);
    #[cfg(not(feature = "cli"))]
    let (stands_for, _) = (None, path);
    stands_for
}

/// Examples as text, one in each line.
fn text(examples: &[Example]) -> String {
    let width = examples.iter().filter(|(_, says)| !says.is_empty()).map(|(line, _)| line.len()).max().unwrap_or(0);
    let line = |(line, says): &Example| match *says {
        "" => format!("  {line}"),
        says => format!("  {line:width$}  # {says}"),
    };
    let title = if examples.len() == 1 { "Example:" } else { "Examples:" };
    [title.to_owned()].into_iter().chain(examples.iter().map(line)).collect::<Vec<_>>().join("\n")
}
