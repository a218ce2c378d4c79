//! `muster --help` by task: which group each verb is in, and how the groups are shown.

use clap::{Command, builder::StyledStr};

/// A group of verbs.
pub(crate) struct VerbGroup {
    /// What they are for.
    pub(crate) title: &'static str,
    /// Their names, the most used first.
    pub(crate) verbs: &'static [&'static str],
}

/// All verbs, by task. A build shows those that it has.
pub(crate) const GROUPS: &[VerbGroup] = &[
    VerbGroup {
        title: "Run things",
        verbs: &[
            "exec",
            "apply",
            "unit",
            "yuno",
            "container",
            "deployment",
            "plan",
            "rollout",
            "logs",
            "ps",
            "command",
        ],
    },
    VerbGroup { title: "Watch", verbs: &["status", "top", "alert", "silence", "rule", "metric", "dashboard"] },
    VerbGroup { title: "Configure", verbs: &["config", "artifact", "secret", "var", "realm", "snapshot"] },
    VerbGroup { title: "Fleet", verbs: &["host", "token", "agent"] },
    VerbGroup { title: "People and access", verbs: &["login", "context", "authority"] },
    VerbGroup { title: "This installation", verbs: &["up", "doctor", "backup", "console", "broker"] },
];

/// The verbs that few need, which `muster help --all` has.
pub(crate) const RARE: VerbGroup = VerbGroup {
    title: "Rarely needed",
    verbs: &["clock", "render", "simulate", "ycommand", "completions", "man", "help"],
};

/// What stands below the groups.
const MORE: &str = "\
Most nouns have the verbs `ls` and `show`. Things are made with `create`, `set` or `apply`, and
ended with `rm`, `revoke` or `cancel`. `muster help NOUN` lists the verbs of a noun, and
`muster help --all` the nouns that are rarely needed.";

/// The grammar with a help that has the groups; with the rarely needed ones, if all are wanted.
pub(super) fn with_groups(command: Command, all: bool) -> Command {
    let header = *command.get_styles().get_header();
    let heading = |title: &str| format!("{header}{title}:{header:#}");
    let mut groups = String::new();
    for group in GROUPS.iter().chain(all.then_some(&RARE)) {
        let lines = lines(&command, group);
        if !lines.is_empty() {
            groups.push_str(&format!("{}\n{}\n\n", heading(group.title), lines.join("\n")));
        }
    }
    let more = if all { String::new() } else { format!("{MORE}\n\n") };
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{more}{}\n{{options}}{{after-help}}",
        heading("Everywhere")
    );
    command.help_template(StyledStr::from(template))
}

/// The lines of a group: its verbs, each with what it does.
pub(crate) fn lines(command: &Command, group: &VerbGroup) -> Vec<String> {
    let all = || GROUPS.iter().chain([&RARE]).flat_map(|group| group.verbs);
    let width = all().filter(|name| command.find_subcommand(name).is_some()).map(|name| name.len()).max().unwrap_or(0);
    let line = |name: &&str| {
        let about = command.find_subcommand(name)?.get_about()?.to_string();
        Some(format!("  {name:width$}  {about}"))
    };
    group.verbs.iter().filter_map(line).collect()
}
