//! The words of the command line: one word for one thing, over all verbs, options and arguments. `docs/contributing.md` says the
//! rule ("Words of the command line"); a new word is added here, with what it means.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::{
    Cli,
    help::{self, other_words::OTHERWISE},
};

/// Nouns, and the verbs that need none.
const NOUNS: &[&str] = &[
    "agent",
    "alert",
    "apply",
    "artifact",
    "authority",
    "backup",
    "broker",
    "clock",
    "command",
    "completions",
    "config",
    "console",
    "container",
    "context",
    "dashboard",
    "deployment",
    "doctor",
    "exec",
    "host",
    "login",
    "logs",
    "man",
    "metric",
    "plan",
    "ps",
    "realm",
    "render",
    "rollout",
    "rule",
    "secret",
    "silence",
    "simulate",
    "snapshot",
    "status",
    "token",
    "top",
    "unit",
    "up",
    "var",
    "ycommand",
    "yuno",
];

/// The verbs of nouns, and what each means with every noun.
const VERBS: &[(&str, &str)] = &[
    ("activate", "go to what a snapshot has"),
    ("adopt", "take over what something else made"),
    ("apply", "create and change what documents say"),
    ("cancel", "end what is under way"),
    ("clone", "create one like another"),
    ("command", "pass a command of its own on to a yuno"),
    ("confirm", "say that something is right, so that what waits for it continues"),
    ("cordon", "keep new deployments from hosts"),
    ("create", "make a new named thing; refused if there is one"),
    ("create-key", "make a new pair of keys"),
    ("deactivate", "undo `activate`"),
    ("detach", "take units out of their deployments"),
    ("diff", "show how two differ"),
    ("drain", "have hosts remove the units of their deployments"),
    ("exec", "run a program inside"),
    ("export", "write out what another program reads, or `apply`"),
    ("finish", "do the last step of what has several"),
    ("freeze", "stop the processes where they are"),
    ("gc", "remove all that nothing uses"),
    ("history", "list what was before, the newest first"),
    ("hold", "pause reconciliation"),
    ("init", "make what a role needs before it first starts"),
    ("install", "set up a role as a service of its host"),
    ("issue", "make a credential for somebody else; `revoke` ends it"),
    ("label", "list or change labels"),
    ("logs", "print what was logged"),
    ("ls", "list things of a kind"),
    ("password", "print what a password becomes in a file"),
    ("pause", "have what is under way wait"),
    ("play", "undo `pause` of a yuno"),
    ("promote", "approve the next wave"),
    ("query", "evaluate an expression"),
    ("quota", "set the limits of units"),
    ("refresh", "ask for the whole state again"),
    ("release", "count a host as available again"),
    ("render", "write what a template, or a table, becomes"),
    ("restart", "end and start again"),
    ("restore", "bring back from a copy"),
    ("resume", "undo `pause` of a rollout"),
    ("retire", "stop for good, and keep the data"),
    ("retry", "have what failed try again"),
    ("revoke", "end a credential"),
    ("rm", "remove"),
    ("rollback", "go back to an earlier version"),
    ("rotate", "replace a key by a new one"),
    ("rotate-key", "replace the key of all, and encrypt all again"),
    ("run", "start what does not run"),
    ("schema", "print the schema of a document"),
    ("set", "give a name its value, or change what is there"),
    ("show", "show one thing"),
    ("signal", "send a signal"),
    ("stop", "end what runs"),
    ("sync", "show how far both sides are alike"),
    ("thaw", "undo `freeze`"),
    ("uncordon", "undo `cordon`"),
    ("unhold", "undo `hold`"),
    ("uninstall", "undo `install`"),
    ("upgrade", "take newer versions"),
    ("use", "choose the current one"),
    ("verify", "check a copy"),
    ("watch", "follow to the end"),
];

/// The parts of one thing, which a verb lists by the plural of the part.
const PARTS: &[&str] = &["certificates", "changes", "config", "endpoints", "hosts", "stats", "stores", "tasks"];

/// What options and arguments mean that mean more than one thing, and why they may.
const SEVERAL: &[(&str, &str, &[&str])] = &[
    (
        "--all",
        "hosts, or those of them that have the unit",
        &["Every host", "Every host of the fleet", "Every host that has such a unit"],
    ),
    (
        "--artifact",
        UNITS,
        &[
            "ARTIFACT: Artifact: ROLE@VERSION, ROLE for the newest, or a SHA-256",
            "ROLE@VERSION: Artifact for units of its role: ROLE@VERSION or a SHA-256",
        ],
    ),
    (
        "--config",
        "the file of a role is not the config of a unit",
        &[
            "CONFIG: Config: ID@VERSION, or ID for the newest",
            "FILE: Configuration of the role (TOML)",
            "ID@VERSION: Config for units that have it: ID@VERSION",
        ],
    ),
    ("--cpu", UNITS, &["CORES: Processors, such as 0.5", "CORES: Processors, such as 0.5, or `none`"]),
    ("--cwd", UNITS, &["DIR: Working directory", "FOLDER: Working directory", "FOLDER: Working directory inside"]),
    (
        "--disk",
        UNITS,
        &[
            "BYTES: Disk space beside its image, such as 2G",
            "BYTES: Disk space of a container beside its image, or `none`",
        ],
    ),
    (
        "--dry-run",
        "a line of Yuneta's stands for commands",
        &["Show the muster commands that it stands for", "Show what would be done, and do nothing"],
    ),
    (
        "--expires",
        UNITS,
        &[
            "TIME: Give up on a host that is offline for so long",
            "TIME: Give up on a host that is offline or busy for so long",
        ],
    ),
    ("--follow", UNITS, &["Follow the log until Ctrl-C", "Follow the log until the task has ended"]),
    (
        "--for",
        "the condition of a rule has to hold for so long; a log is followed for so long",
        &[
            "TIME: Follow for so long, an hour at most",
            "TIME: How long it lasts",
            "TIME: Raise the alert after the condition has held for so long",
        ],
    ),
    (
        "--host",
        "without a console to ask, a host is known by its id alone; of two hosts each has its own",
        &[
            "HOST: Host for units whose document names none",
            "HOST: Host of the first, by id or hostname",
            "HOST: Host, by id or hostname",
            "HOST: Host, by its id",
        ],
    ),
    (
        "--json",
        "a value that is JSON, or the arguments of a yuno's command",
        &["ARGS: Arguments as a JSON object", "Read the value as JSON: a number, true, a list, an object"],
    ),
    (
        "--label",
        "a label that hosts have, or that a unit gets",
        &["NAME=VALUE: Label of hosts", "NAME=VALUE: Label, by which selectors find it"],
    ),
    (
        "--listen",
        "`up` has an option for each port, another broker is given the whole address",
        &["ADDRESS: Address of this machine for other hosts", "ADDRESS:PORT: Address on which clients connect"],
    ),
    (
        "--memory",
        UNITS,
        &[
            "BYTES: Memory for it and its children, such as 64M",
            "BYTES: Memory for it and its children, such as 64M, or `none`",
        ],
    ),
    (
        "--no-wait",
        UNITS,
        &["Do not wait: end as soon as the console has stored it", "Print the command's id, and do not wait"],
    ),
    ("--out", "a file, or a folder", &["DIR: Folder to write into", "FILE: File to write"]),
    ("--pids", UNITS, &["COUNT: Processes and threads", "COUNT: Processes and threads, or `none`"]),
    (
        "--replace",
        "a token lets the host that it names be replaced",
        &["HOST: Let this host join again with another key", "Replace what is there"],
    ),
    (
        "--role",
        "the role of a certificate is not that of an artifact",
        &["ROLE: Role of the artifact", "ROLE: Role of the certificate"],
    ),
    (
        "--select",
        "hosts, or units",
        &[
            "EXPRESSION: Hosts for units whose document names none",
            "EXPRESSION: Hosts that this selects",
            "EXPRESSION: Hosts that this selects, such as 'label.tier=gold'",
            "EXPRESSION: Show units that this selects, such as 'realm=prod'",
            "EXPRESSION: Units that this selects",
            "EXPRESSION: Units that this selects, such as 'realm=prod and host=till-7'",
        ],
    ),
    (
        "--since",
        UNITS,
        &["TIME: Begin at this time", "TIME: Print lines since this time, or since so long ago, as 10m"],
    ),
    ("--sort", UNITS, &["ORDER: Order of the list", "ORDER: Order: host, unit, phase or since"]),
    (
        "--start-timeout",
        UNITS,
        &["TIME: Time within which --start and --ready must succeed", "TIME: Time within which it must be up"],
    ),
    (
        "--timeout",
        "a program is ended, or an answer no longer waited for",
        &[
            "TIME: End the program and its children after this time",
            "TIME: Wait so long for the answers",
            "TIME: Wait so long until it is done",
        ],
    ),
    ("--until", UNITS, &["TIME: End at this time", "TIME: Print lines up to this time"]),
    (
        "--user",
        UNITS,
        &[
            "USER: User inside, by name or number: USER or USER:GROUP",
            "USER: User that it runs as",
            "USER: User that it runs as, with all groups of that user",
        ],
    ),
    (
        "--version",
        "a deployment's versions are numbers",
        &["NUMBER: Number of a version", "VERSION: Version of the artifact"],
    ),
    (
        "ARTIFACT",
        "what is removed is said with its version",
        &["ROLE@VERSION", "ROLE@VERSION, ROLE for the newest, or a SHA-256"],
    ),
    ("CONFIG", "what is removed is said with its version", &["ID@VERSION", "ID@VERSION, or ID for the newest"]),
    (
        "FILE",
        "it is what the noun is made of",
        &[
            "Backup",
            "File of a template or of documents; `-` is standard input",
            "File with the document",
            "Files of documents, or folders of such; `-` is standard input",
            "Program, or script that begins with `#!`",
        ],
    ),
    (
        "FROM",
        "two of a kind are compared; one is made like another",
        &[
            "Container to clone: REALM/NAME or HOST:REALM/NAME",
            "ID@VERSION, or ID for the newest",
            "Number of one version",
        ],
    ),
    ("ID", "a config's id is given, others are made", &["Id, or the beginning of it", "Id: NAME or ROLE.NAME"]),
    (
        "NAME",
        "names of several kinds of things",
        &["Host's id, console-NAME, operator-NAME or observer-NAME", "Name", "Name of the container in its runtime"],
    ),
    (
        "TO",
        "two of a kind are compared; one is made like another",
        &[
            "Config to compare it with",
            "Name of the new one: REALM/NAME or HOST:REALM/NAME",
            "Number of the other version",
        ],
    ),
    (
        "UNIT",
        "a deployment's units have no host",
        &["Unit, REALM/NAME", "Unit: REALM/NAME or HOST:REALM/NAME", "Units: REALM/NAME or HOST:REALM/NAME"],
    ),
    ("WHAT", "a few words, which clap lists", &["Hosts or units", "What to replace"]),
];

/// Verbs that have a word of [`OTHERWISE`], or a second word, all the same, and why.
const EXCEPTED: &[(&str, &str, &str)] = &[
    ("container adopt", "start", PROBE),
    ("container create", "start", PROBE),
    ("container upgrade", "force", UNITS),
    ("status", "status", "the everyday verb is about the whole installation"),
    ("unit create container", "start", PROBE),
    ("unit create yuno", "lines", TALKS),
    ("unit create yuno", "start", PROBE),
    ("unit upgrade", "force", UNITS),
    ("yuno create", "lines", TALKS),
    ("yuno create", "start", PROBE),
    ("yuno upgrade", "force", UNITS),
];

/// Why a word of the verbs of units is excepted.
const UNITS: &str = "what it says depends on the kind of unit, or on the verb of units";

/// Why `--lines` is no `--limit`.
const TALKS: &str = "it is how a yuno talks, and no number of lines";

/// Why `--start` is no `run`.
const PROBE: &str = "it is a probe, of when a start is complete";

/// The kinds of units, which `unit create` takes as a further word.
const KINDS: &[&str] = &["container", "files", "packages", "yuno"];

/// Every verb, with its path: `host ls`.
fn verbs() -> Vec<(String, Command)> {
    fn walk(command: &Command, path: &str, verbs: &mut Vec<(String, Command)>) {
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let path = format!("{path} {}", verb.get_name()).trim().to_owned();
            walk(verb, &path, verbs);
            verbs.push((path, verb.clone()));
        }
    }
    let mut program = help::for_people(Cli::command());
    program.build();
    let mut verbs = Vec::new();
    walk(&program, "", &mut verbs);
    verbs
}

fn own_arguments(verb: &Command) -> impl Iterator<Item = &Arg> {
    verb.get_arguments().filter(|arg| {
        let is_claps = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_global_set() && !is_claps
    })
}

/// The name by which an argument is known: `--host`, or `HOST`.
fn name(arg: &Arg) -> String {
    let values = || arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>();
    arg.get_long().map_or_else(|| values().join(" "), |long| format!("--{long}"))
}

/// What an argument means: what its value is called, and the first line of its help without what is so of one verb alone: a
/// default, and whether it may be repeated.
fn meaning(arg: &Arg) -> String {
    let line = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let line = line.lines().next().unwrap_or_default();
    let (line, _) = line.split_once(" [default:").unwrap_or((line, ""));
    let line = line.strip_suffix("; repeatable").unwrap_or(line);
    let values: Vec<&str> = match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect(),
        false => Vec::new(),
    };
    values.into_iter().chain([line]).collect::<Vec<_>>().join(": ")
}

/// The meanings of each argument, each with the verbs that give it.
fn meanings() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let mut all: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (path, verb) in verbs() {
        for arg in own_arguments(&verb) {
            all.entry(name(arg)).or_default().entry(meaning(arg)).or_default().push(path.clone());
        }
    }
    all
}

#[test]
fn verbs_are_words_of_the_list() {
    let known: BTreeSet<&str> = VERBS.iter().map(|(verb, _)| *verb).chain(PARTS.iter().copied()).collect();
    let mut used = BTreeSet::new();
    let mut faults = Vec::new();
    for (path, _) in verbs() {
        match path.split_once(' ') {
            None if !NOUNS.contains(&path.as_str()) => faults.push(format!("{path}: no such noun")),
            Some((_, word)) if word.strip_prefix("create ").is_some_and(|kind| KINDS.contains(&kind)) => {}
            Some((_, word)) if !known.contains(word) => faults.push(format!("{path}: no such verb")),
            Some((_, word)) => drop(used.insert(word.to_owned())),
            None => {}
        }
    }
    faults
        .extend(known.iter().filter(|word| !used.contains(**word)).map(|word| format!("{word}: nothing is called so")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn verbs_of_the_list_have_one_meaning_each() {
    let mut by_meaning = BTreeMap::new();
    for (verb, meaning) in VERBS {
        if let Some(other) = by_meaning.insert(meaning, verb) {
            panic!("{verb} and {other} both mean: {meaning}");
        }
    }
    assert!(VERBS.is_sorted() && PARTS.is_sorted() && NOUNS.is_sorted() && OTHERWISE.is_sorted());
}

/// The words that should be said otherwise, each with its verb and what to say.
fn wrong_words() -> Vec<(String, String, &'static str)> {
    let otherwise: BTreeMap<&str, &'static str> = OTHERWISE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (path, verb) in verbs() {
        let last = path.rsplit(' ').next().unwrap_or_default();
        let words = own_arguments(&verb).filter_map(Arg::get_long).chain([last]);
        let said = words.filter_map(|word| Some((word.to_owned(), *otherwise.get(word)?)));
        let options = own_arguments(&verb).flat_map(|arg| arg.get_all_aliases().unwrap_or_default());
        let second = verb.get_visible_aliases().chain(options).map(|word| (word.to_owned(), "the one word for it"));
        wrong.extend(said.chain(second).map(|(word, say)| (path.clone(), word, say)));
    }
    wrong
}

#[test]
fn words_that_are_said_otherwise_are_refused() {
    let wrong = wrong_words();
    let is_excepted = |path: &str, word: &str| EXCEPTED.iter().any(|(verb, one, _)| *verb == path && *one == word);
    let refused = wrong.iter().filter(|(path, word, _)| !is_excepted(path, word));
    let mut faults: Vec<String> = refused.map(|(path, word, say)| format!("{path}, {word}: say {say}")).collect();
    let is_used = |verb: &str, one: &str| wrong.iter().any(|(path, word, _)| path == verb && word == one);
    let unused = EXCEPTED.iter().filter(|(verb, one, _)| !is_used(verb, one));
    faults.extend(unused.map(|(verb, one, _)| format!("{verb}, {one}: it is not said, and needs no exception")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn options_mean_the_same_with_every_verb() {
    let several: BTreeMap<&str, BTreeSet<&str>> =
        SEVERAL.iter().map(|(name, _, listed)| (*name, listed.iter().copied().collect())).collect();
    assert_eq!(several.len(), SEVERAL.len(), "an option has two rows");
    assert!(several.values().all(|listed| listed.len() > 1), "what means one thing needs no row");
    let all = meanings();
    let mut faults: Vec<String> = several
        .iter()
        .flat_map(|(name, listed)| {
            let is_used = |line: &&&str| all.get(*name).is_some_and(|found| found.contains_key(**line));
            listed.iter().filter(move |line| !is_used(line)).map(move |line| format!("{name}: nothing means {line:?}"))
        })
        .collect();
    for (name, found) in &all {
        let listed = several.get(name.as_str());
        let is_one = listed.is_none() && found.len() == 1;
        if !is_one && !found.keys().all(|line| listed.is_some_and(|listed| listed.contains(line.as_str()))) {
            let lines = found.iter().map(|(line, verbs)| format!("\n    {line:?} of {}", verbs.join(", ")));
            faults.push(format!("{name} has several meanings:{}", lines.collect::<String>()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn meaning_leaves_out_what_is_of_one_verb_alone() {
    let of = |help: &'static str| meaning(&Arg::new("host").long("host").value_name("HOST").help(help));
    assert_eq!(of("Host, by id or hostname; repeatable [default: all]"), "HOST: Host, by id or hostname");
    assert_eq!(of("Host, by id or hostname"), "HOST: Host, by id or hostname");
    assert_ne!(of("Host that it is for"), of("Host, by id or hostname"));
}
