//! What holds of the help of every verb and option, by walking the grammar.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory, error::ErrorKind};

use muster_base::argv::{self, ArgvError};

use super::{groups::*, pages::manual, *};
use crate::Cli;

/// The most columns of the first line of the help of a verb or an option.
const FIRST_LINE_MAX: usize = 70;

/// The most columns of a line of examples: what `max_term_width` leaves.
const LINE_MAX: usize = 120;

/// The words that a verb's help may begin with. A new one is added here, if it is an imperative.
const IMPERATIVES: &[&str] = &[
    "Add", "Adopt", "Approve", "Ask", "Back", "Bring", "Cancel", "Change", "Check", "Confirm", "Count", "Create",
    "Encrypt", "Evaluate", "Export", "Follow", "Freeze", "Go", "Have", "Hold", "Install", "Issue", "Keep", "Leave",
    "Let", "List", "Load", "Manage", "Pause", "Print", "Query", "Remove", "Replace", "Restart", "Restore", "Retire",
    "Revoke", "Run", "Save", "Send", "Set", "Show", "Sign", "Silence", "Simulate", "Start", "Stop", "Store", "Take",
    "Thaw", "Try", "Undo", "Unhold", "Upgrade", "Use", "Write", "Finish", "Apply", "Make",
];

/// Every verb, with its path: `host ls`.
fn verbs() -> Vec<(String, Command)> {
    fn walk(command: &Command, path: &str, verbs: &mut Vec<(String, Command)>) {
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set()) {
            let path = format!("{path} {}", verb.get_name()).trim().to_owned();
            walk(verb, &path, verbs);
            verbs.push((path, verb.clone()));
        }
    }
    let mut command = for_people(Cli::command());
    command.build();
    let mut verbs = Vec::new();
    walk(&command, "", &mut verbs);
    verbs
}

fn first_line(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

fn check_first_line(what: &str, line: &str, faults: &mut Vec<String>) {
    if line.is_empty() {
        faults.push(format!("{what}: no help"));
    }
    if line.chars().count() > FIRST_LINE_MAX {
        faults.push(format!("{what}: {} columns: {line}", line.chars().count()));
    }
    if line.ends_with('.') {
        faults.push(format!("{what}: ends with a full stop: {line}"));
    }
}

fn own_options(verb: &Command) -> impl Iterator<Item = &Arg> {
    verb.get_arguments().filter(|option| !option.is_global_set() && !option.is_hide_set())
}

#[test]
fn first_lines_are_short_and_imperative() {
    let mut faults = Vec::new();
    for (path, verb) in verbs() {
        let line = first_line(verb.get_about());
        check_first_line(&path, &line, &mut faults);
        let word = line.split([' ', ',']).next().unwrap_or_default();
        if !IMPERATIVES.contains(&word) {
            faults.push(format!("{path}: begins with {word:?}, which is no imperative that is known here: {line}"));
        }
        for option in own_options(&verb) {
            let line = first_line(option.get_help());
            check_first_line(&format!("{path} {}", option.get_id()), &line, &mut faults);
        }
    }
    for option in Cli::command().get_arguments() {
        check_first_line(option.get_id().as_str(), &first_line(option.get_help()), &mut faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_leaf_verb_has_examples_or_needs_none() {
    let verbs = verbs();
    let known: BTreeSet<&str> = verbs.iter().map(|(path, _)| path.as_str()).collect();
    let with: BTreeSet<&str> = EXAMPLES.iter().map(|(path, _)| *path).collect();
    let without: BTreeSet<&str> = examples::NEED_NONE.iter().copied().collect();
    assert_eq!(with.len(), EXAMPLES.len(), "a verb has two rows");
    assert_eq!(with.union(&without).filter(|path| !known.contains(*path)).count(), 0, "there is no such verb");
    assert_eq!(with.intersection(&without).collect::<Vec<_>>(), Vec::<&&str>::new());
    let leaves = verbs.iter().filter(|(_, verb)| !verb.has_subcommands()).map(|(path, _)| path.as_str());
    let leaves = leaves.filter(|path| stands_for(path).is_none());
    let silent: Vec<&str> = leaves.filter(|path| !with.contains(path) && !without.contains(path)).collect();
    assert!(silent.is_empty(), "neither examples nor an entry among those that need none: {silent:?}");
}

/// The commands of a line of a shell that are muster's.
fn commands(line: &str) -> Result<Vec<Vec<String>>, ArgvError> {
    let words = argv::split(line)?;
    let commands = words.split(|word| word == "|" || word == "&&");
    let own = commands.map(|words| words.split(|word| word == ">" || word == ">>").next().unwrap_or_default().to_vec());
    Ok(own.filter(|words: &Vec<String>| words.first().is_some_and(|word| word == "muster")).collect())
}

#[test]
fn examples_parse() {
    let token = muster_topics::join::JoinToken {
        url: "https://192.0.2.5:7443".to_owned(),
        authority: muster_topics::name::Digest::of(b""),
        secret: "00".repeat(32),
    };
    let (mut faults, mut parsed) = (Vec::new(), 0);
    for (path, examples) in EXAMPLES {
        for (line, _) in *examples {
            for mut words in commands(line).unwrap() {
                words.iter_mut().filter(|word| *word == "TOKEN").for_each(|word| *word = token.to_string());
                parsed += 1;
                if let Err(error) = for_people(Cli::command()).try_get_matches_from(words) {
                    faults.push(format!("{path}: {line}: {error}"));
                }
            }
        }
        let verb = format!("muster {path}");
        let of_verb = examples.iter().any(|(line, _)| line.starts_with(&verb));
        assert!(of_verb, "{path}: no example is of this verb");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(parsed >= EXAMPLES.len());
}

#[test]
fn wrong_example_is_found() {
    let [words] = &commands("muster host ls --no-such > x").unwrap()[..] else { panic!() };
    let error = for_people(Cli::command()).try_get_matches_from(words).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownArgument);
}

#[test]
fn examples_fit() {
    for (path, examples) in EXAMPLES {
        for line in text(examples).lines() {
            assert!(line.chars().count() <= LINE_MAX, "{path}: {line}");
        }
    }
}

#[test]
fn what_holds_everywhere_is_said_once() {
    let mut command = for_people(Cli::command());
    command.build();
    let whole = command.clone().render_long_help().to_string();
    for said in ["--context", "--proxy", "--log-format", "Exit codes:", "Selectors (--select)"] {
        assert!(whole.contains(said), "{said}");
    }
    for (path, mut verb) in verbs() {
        for text in [verb.render_help().to_string(), verb.render_long_help().to_string()] {
            for said in ["--context", "--proxy", "--log-format", "Exit codes:", "Selectors (--select)"] {
                assert!(!text.contains(said), "{path}: {said}");
            }
            assert!(text.contains("`muster --help` has what holds for all verbs"), "{path}");
        }
    }
}

#[test]
fn short_help_is_shorter_and_leaves_out_examples() {
    for (path, mut verb) in verbs() {
        let (short, long) = (verb.render_help().to_string(), verb.render_long_help().to_string());
        assert!(!short.contains("Example"), "{path}");
        assert!(short.lines().count() <= long.lines().count(), "{path}");
        assert_eq!(long.contains("Example"), examples_of(&path).is_some(), "{path}");
    }
}

#[test]
fn options_of_all_verbs_work_at_each() {
    for line in ["muster host ls -o json --context a --proxy http://x", "muster --output yaml host ls --log info"] {
        let matches = for_people(Cli::command()).try_get_matches_from(line.split(' ')).unwrap();
        let program = <Cli as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        assert_ne!(program.options.output, muster_cli::print::PrintFormat::Table, "{line}");
    }
}

#[test]
fn manual_has_a_page_for_each_verb() {
    let pages = manual(Cli::command());
    let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), pages.len());
    assert!(names.contains("muster.1"));
    for (path, _) in verbs() {
        assert!(names.contains(format!("muster-{}.1", path.replace(' ', "-")).as_str()), "{path}: {names:?}");
    }
    let (_, page) = pages.iter().find(|(name, _)| name == "muster-host-label.1").unwrap();
    let page = String::from_utf8_lossy(page);
    assert!(page.contains("muster host label till\\-7 tier=iron \\-\\-replace"), "{page}");
}

#[test]
fn every_verb_is_in_one_group() {
    let command = Cli::command();
    let known: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
    let mut grouped = BTreeSet::new();
    for name in GROUPS.iter().chain([&RARE]).flat_map(|group| group.verbs) {
        assert!(known.contains(name), "{name}: there is no such verb");
        assert!(grouped.insert(*name), "{name}: is in two groups");
    }
    assert_eq!(known.difference(&grouped).collect::<Vec<_>>(), Vec::<&&str>::new(), "verbs that are in no group");
}

#[test]
fn lines_of_groups_fit_and_rare_verbs_are_listed_on_request() {
    let command = Cli::command();
    let rare: BTreeSet<&str> = RARE.verbs.iter().copied().collect();
    for (all, error) in [(false, show(Cli::command(), false, &[])), (true, show(Cli::command(), true, &[]))] {
        let text = error.to_string();
        for group in GROUPS.iter().chain([&RARE]) {
            for line in lines(&command, group) {
                assert!(line.chars().count() <= 72, "{} columns: {line}", line.chars().count());
                let verb = line.trim().split(' ').next().unwrap();
                let is_shown = text.lines().any(|shown| shown == line);
                assert_eq!(is_shown, all || !rare.contains(verb), "{verb}:\n{text}");
            }
        }
    }
    assert_eq!(show(Cli::command(), false, &["nothing".to_owned()]).kind(), ErrorKind::InvalidSubcommand);
    for line in ["muster help host ls", "muster host ls --help", "muster host help ls"] {
        let shown = crate::parse(line.split(' ')).unwrap_err();
        assert_eq!(shown.kind(), ErrorKind::DisplayHelp, "{line}");
        assert!(shown.to_string().contains("Usage: muster host ls [OPTIONS]"), "{line}: {shown}");
    }
}

#[test]
fn word_of_another_program_is_answered_with_ours() {
    for (line, tip) in [
        ("muster host list", "'ls'"),
        ("muster artifact add x", "'create'"),
        ("muster unit start a/b", "'run'"),
        ("muster --utc rollout abort a/b", "'cancel'"),
        ("muster up list", ""),
        ("muster host remove x", "'rm'"),
    ] {
        let error = crate::parse(line.split(' ')).unwrap_err();
        assert!(error.to_string().contains(tip), "{line}: {error}");
    }
}

#[test]
fn lists_are_watched_and_nothing_else() {
    for (line, wanted) in [
        ("muster host ls -w", Some(true)),
        ("muster ps --watch", Some(true)),
        ("muster status", Some(false)),
        ("muster unit ls", Some(false)),
        ("muster host show -w", None),
        ("muster snapshot ls -w", None),
        ("muster exec -w -- true", None),
    ] {
        let parsed = crate::parse(line.split(' ')).ok().map(|program| program.options.watch);
        assert_eq!(parsed, wanted, "{line}");
    }
}
