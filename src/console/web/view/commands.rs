//! The ledger: commands, newest first.

use maud::{Markup, html};
use muster_topics::{command::Verb, name::CommandId};

use super::{
    elements::{self, ago, count, empty, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
};
use crate::web::{command_progress::HostCounts, ledger::ListedCommand};

/// The number of commands in a list.
pub(in crate::web) const LISTED: u32 = 50;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct CommandsView {
    /// The newest ones.
    pub(in crate::web) commands: Vec<ListedCommand>,
}

impl PageView for CommandsView {
    fn title(&self) -> String {
        "Commands".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Commands)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            div.head {
                h1 { "Commands" }
                a.button href="/run" { "Run a command" }
            }
            (region("/commands", "commands", &["command"], self.list(frame)))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "commands").then(|| self.list(frame))
    }
}

impl CommandsView {
    fn list(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.commands.is_empty() {
                (empty("No commands yet.", "Run a program on a host; its outcome is listed here:",
                       "muster exec --all -- uname -a"))
            } @else {
                (table(&self.commands, frame))
                @if self.commands.len() >= LISTED as usize {
                    p.note { "The newest " (LISTED) " are shown; older ones: " code { "muster command ls" } }
                }
            }
        }
    }
}

/// The URL of a command's page.
pub(in crate::web) fn url(id: CommandId) -> String {
    format!("/command/{id}")
}

/// Renders a table of commands.
pub(in crate::web) fn table(commands: &[ListedCommand], frame: &PageFrame) -> Markup {
    html! {
        table.cards {
            caption.visually-hidden { "Commands" }
            thead {
                tr { th scope="col" { "Command" } th scope="col" { "State" } th scope="col" { "Hosts" } th scope="col" { "By" }
                     th scope="col" { "Ordered" } }
            }
            tbody {
                @for ListedCommand { command, tally } in commands {
                    tr {
                        th scope="row" { a href=(url(command.id)) { code.line { (what(&command.verb)) } } }
                        td data-label="State" { (summary(tally)) }
                        td data-label="Hosts" { (hosts(tally)) }
                        td data-label="By" { (command.operator) }
                        td data-label="Ordered" { (ago(command.issued_ms, frame.now_ms)) }
                    }
                }
            }
        }
    }
}

/// The longest text of a command in a list, in characters: styles cut longer ones anyway, and a command may have 64
/// KiB.
const WHAT_MAX_CHARS: usize = 200;

/// Describes what a command does, on one line.
pub(in crate::web) fn what(verb: &Verb) -> String {
    let text = verb.sentence();
    match text.char_indices().nth(WHAT_MAX_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn hosts(tally: &HostCounts) -> Markup {
    html! {
        @match (&tally.only, tally.hosts) {
            (_, 0) => "none",
            (Some(hostname), _) => (hostname),
            (None, hosts) => (count(hosts, "host", "hosts")),
        }
    }
}

/// Renders the progress on all hosts: one state for each kind, those that need attention first.
pub(in crate::web) fn summary(tally: &HostCounts) -> Markup {
    let (kinds, alone) = (&tally.kinds, tally.hosts == 1);
    html! {
        span.summary {
            @for ((tone, word), number) in kinds.iter().take(SUMMARY_MAX) {
                @if alone { (state(*tone, word)) } @else { (state(*tone, &format!("{} {word}", elements::grouped(*number)))) }
                " "
            }
            @if kinds.len() > SUMMARY_MAX { "…" }
        }
    }
}

/// The most kinds of progress in a summary: beyond these (many exit codes), the command's own page has more.
const SUMMARY_MAX: usize = 5;
