//! The form that runs a command.

use maud::{Markup, html};
use muster_api::{Host, Problem, host_names::HostNames};
use muster_base::argv;
use muster_topics::{
    command::{BATCH_MAX, STDIN_MAX_BYTES},
    name::HostId,
    select::SELECT_MAX_BYTES,
};

use super::{
    elements::{self, count},
    frame::{PageFrame, PageView, Section},
    problem::notice,
};

/// The most hosts to tick; others are named.
pub(in crate::web) const TICKED_MAX: u32 = 50;

/// The target of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::web) enum RunTarget {
    /// Hosts that are ticked or named.
    #[default]
    These,
    /// Hosts that a selector matches.
    Picked,
    /// Every host.
    All,
}

/// What the text of the form is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::web) enum RunMode {
    /// One command.
    #[default]
    Once,
    /// Each line is a command, one after the other.
    Lines,
    /// A daemon: a unit.
    Daemon,
}

impl RunMode {
    /// Its name in forms.
    pub(in crate::web) fn word(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Lines => "lines",
            Self::Daemon => "daemon",
        }
    }
}

/// The values of the form, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::web) struct RunForm {
    /// The target.
    pub(in crate::web) aim: RunTarget,
    /// The selector.
    pub(in crate::web) select: String,
    /// Ticked hosts, by id.
    pub(in crate::web) ticked: Vec<String>,
    /// Named hosts.
    pub(in crate::web) named: String,
    /// Program and arguments, or a line for a shell.
    pub(in crate::web) command: String,
    /// Whether it is for a shell.
    pub(in crate::web) shell: bool,
    /// One command, several, or a daemon.
    pub(in crate::web) way: RunMode,
    /// Whether later commands run after one that failed.
    pub(in crate::web) keep_going: bool,
    /// The standard input.
    pub(in crate::web) stdin: String,
    /// Whether standard output is discarded.
    pub(in crate::web) no_stdout: bool,
    /// Whether standard error is discarded.
    pub(in crate::web) no_stderr: bool,
    /// Seconds.
    pub(in crate::web) timeout_s: String,
    /// Minutes.
    pub(in crate::web) expires_min: String,
    /// The user.
    pub(in crate::web) user: String,
    /// The working directory.
    pub(in crate::web) cwd: String,
    /// The container.
    pub(in crate::web) container: String,
}

impl Default for RunForm {
    fn default() -> Self {
        Self {
            aim: RunTarget::These,
            select: String::new(),
            ticked: Vec::new(),
            named: String::new(),
            command: String::new(),
            shell: false,
            way: RunMode::Once,
            keep_going: false,
            stdin: String::new(),
            no_stdout: false,
            no_stderr: false,
            timeout_s: "60".to_owned(),
            expires_min: "10".to_owned(),
            user: String::new(),
            cwd: String::new(),
            container: String::new(),
        }
    }
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct RunView {
    /// Hosts to tick: the first ones by name.
    pub(in crate::web) hosts: Vec<Host>,
    /// The number of hosts.
    pub(in crate::web) found: u64,
    /// The values of the form.
    pub(in crate::web) input: RunForm,
    /// Why the command was refused.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for RunView {
    fn title(&self) -> String {
        "Run a command".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Run)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Run a command" }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            @if self.found == 0 {
                (elements::empty("There are no hosts to run a command on.", "Let one join first:", "muster token create"))
            } @else {
                (frame.form("/run", html! {
                    div.run {
                        (self.what())
                        (self.targets(frame))
                        (self.options())
                        button.primary type="submit" { "Run" }
                    }
                }))
            }
        }
    }
}

impl RunView {
    fn what(&self) -> Markup {
        html! {
            div.field {
                label for="command" { "Command" }
                textarea #command name="command" rows="3" required autofocus spellcheck="false" autocapitalize="none"
                    autocomplete="off" aria-describedby="command-rule" placeholder="uname -a" { (self.input.command) }
                p #command-rule .note { (argv::RULE) }
                label.choice { input type="checkbox" name="shell" value="yes" checked[self.input.shell]; " as written, for " code { "/bin/sh -c" } }
                (self.ways())
            }
        }
    }

    fn ways(&self) -> Markup {
        let way = |way: RunMode, words: &str| {
            html! {
                label.choice { input type="radio" name="way" value=(way.word()) checked[self.input.way == way]; " " (words) }
            }
        };
        html! {
            fieldset {
                legend { "As" }
                (way(RunMode::Once, "one command"))
                (way(RunMode::Lines, &format!("a batch: each line is a command, up to {BATCH_MAX}, run in order; the time limit applies to each")))
                label.choice { input type="checkbox" name="keep_going" value="yes" checked[self.input.keep_going]; " in a batch, continue after a failed command" }
                (way(RunMode::Daemon, "a daemon: it keeps running without a time limit, as a unit that can be listed and stopped"))
            }
        }
    }

    fn targets(&self, frame: &PageFrame) -> Markup {
        let more = self.found > self.hosts.len() as u64 || !self.input.named.is_empty();
        let is = |aim| self.input.aim == aim;
        let names = HostNames::new(self.hosts.iter().map(|host| (host.id, host.hostname.as_str())));
        html! {
            fieldset.targets {
                legend { "On" }
                label.choice { input #these type="radio" name="target" value="these" checked[is(RunTarget::These)]; " these hosts" }
                ul.ticks {
                    @for host in &self.hosts {
                        li { (self.tick(host, &names, frame)) }
                    }
                }
                @if more {
                    div.field {
                        label for="named" { "Other hosts by name or id, separated by spaces" }
                        input #named type="text" name="named" value=(self.input.named) autocapitalize="none" spellcheck="false";
                    }
                }
                label.choice {
                    input #picked type="radio" name="target" value="picked" checked[is(RunTarget::Picked)];
                    " the hosts that this expression selects"
                }
                div.field {
                    label for="select" { "Expression" }
                    input #select type="text" name="select" value=(self.input.select) maxlength=(SELECT_MAX_BYTES)
                        aria-describedby="select-rule"
                        placeholder="label.site=north and not unit(phase=failed)"
                        autocapitalize="none" autocomplete="off" spellcheck="false";
                    p #select-rule .note {
                        "Of " code { "host" } ", " code { "realm" } ", " code { "label.NAME" } ", " code { "fact.cpus>=4" } ", "
                        code { "unit(role=web and phase=failed)" } " with " code { "and" } ", " code { "or" } ", "
                        code { "not" } "; " code { "muster --help" } " has all fields."
                    }
                }
                label.choice {
                    input #all type="radio" name="target" value="all" checked[is(RunTarget::All)];
                    " every host of the fleet (" (count(self.found, "host", "hosts")) ")"
                }
            }
        }
    }

    fn tick(&self, host: &Host, names: &HostNames<'_>, _: &PageFrame) -> Markup {
        let ticked = self.is_ticked(host.id);
        html! {
            label.choice {
                input type="checkbox" name="host" value=(host.id) checked[ticked];
                " " (names.show(host.id, &host.hostname)) " " (elements::presence(host.presence.as_ref()))
            }
        }
    }

    fn is_ticked(&self, host: HostId) -> bool {
        let id = host.to_string();
        // A single host is ticked.
        self.found == 1 || self.input.ticked.contains(&id)
    }

    fn options(&self) -> Markup {
        let RunForm { timeout_s, expires_min, user, cwd, container, stdin, no_stdout, no_stderr, .. } = &self.input;
        html! {
            div.options {
                div.field {
                    label for="timeout" { "Time limit (s)" }
                    input #timeout type="number" name="timeout_s" value=(timeout_s) min="1" max="604800" required inputmode="numeric";
                }
                div.field {
                    label for="expires" { "Wait for offline hosts (min)" }
                    input #expires type="number" name="expires_min" value=(expires_min) min="1" max="10080" required inputmode="numeric";
                }
                div.field {
                    label for="user" { "As user" }
                    input #user type="text" name="user" value=(user) placeholder="the agent's own" autocapitalize="none" autocomplete="off" spellcheck="false";
                }
                div.field {
                    label for="cwd" { "In folder" }
                    input #cwd type="text" name="cwd" value=(cwd) placeholder="/" autocapitalize="none" autocomplete="off" spellcheck="false";
                }
                div.field {
                    label for="container" { "In container" }
                    input #container type="text" name="container" value=(container) placeholder="none: on the host itself" autocapitalize="none" autocomplete="off" spellcheck="false";
                }
            }
            details open[!stdin.is_empty() || *no_stdout || *no_stderr] {
                summary { "Input and output" }
                div.field {
                    label for="stdin" { "Standard input" }
                    textarea #stdin name="stdin" rows="3" spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby="stdin-rule" { (stdin) }
                    p #stdin-rule .note { "Up to " (elements::bytes(STDIN_MAX_BYTES as u64)) ", and only for hosts by name: every host would read it." }
                }
                label.choice { input type="checkbox" name="no_stdout" value="yes" checked[*no_stdout]; " discard standard output" }
                label.choice { input type="checkbox" name="no_stderr" value="yes" checked[*no_stderr]; " discard standard error" }
            }
        }
    }
}
