//! The ledger: commands, newest first.

use maud::{Markup, html};
use muster_base::argv;
use muster_topics::{
    command::Verb,
    name::{CommandId, UnitName},
};

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
                (empty("Nothing has been ordered yet.", "Run a program on a host, and its outcome is kept here:",
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

fn names(units: &[UnitName]) -> String {
    units.iter().map(UnitName::as_str).collect::<Vec<_>>().join(", ")
}

/// Describes what a command does, on one line.
pub(in crate::web) fn what(verb: &Verb) -> String {
    let text = match verb {
        Verb::Batch(batch) => format!("batch of {} steps", batch.steps.len()),
        Verb::Exec(exec) => {
            let inside = exec.container.as_ref().map(|unit| format!("in {unit}: ")).unwrap_or_default();
            inside + &argv::join(&exec.shown()).replace('\n', "⏎")
        }
        Verb::UnitApply { unit, .. } => format!("change {unit}"),
        Verb::UnitsApply(set) => {
            let units = set.units.iter().map(|wish| wish.unit.clone()).collect::<Vec<_>>();
            format!("{} {}", if set.check { "check" } else { "change" }, names(&units))
        }
        Verb::UnitRun { unit } => format!("start {unit}"),
        Verb::UnitStop { unit } => format!("stop {unit}"),
        Verb::UnitRestart { unit } => format!("restart {unit}"),
        Verb::UnitHold { unit, .. } => format!("hold {unit}"),
        Verb::UnitUnhold { unit } => format!("unhold {unit}"),
        Verb::UnitRetire { unit, .. } => format!("retire {unit}"),
        Verb::UnitLabel { unit, .. } => format!("label {unit}"),
        Verb::UnitUpgrade { unit, .. } => format!("upgrade {unit}"),
        Verb::UnitFreeze { unit } => format!("freeze {unit}"),
        Verb::UnitThaw { unit } => format!("thaw {unit}"),
        Verb::UnitSignal { unit, signal } => format!("send {signal} to {unit}"),
        Verb::UnitRm { unit } => format!("forget {unit}"),
        Verb::UnitPlay { unit, .. } => format!("play {unit}"),
        Verb::UnitPause { unit } => format!("pause {unit}"),
        Verb::UnitCommand(forward) => format!("{} to {}", forward.name, names(&forward.units)),
        Verb::UnitStats { units, .. } => format!("stats of {}", names(units)),
        Verb::UnitFollow { unit, .. } => format!("follow the log of {unit}"),
        Verb::Cancel { command } => format!("cancel {command}"),
        Verb::UnitLogs { unit, lines, .. } => format!("last {lines} lines of the log of {unit}"),
        Verb::UnitConfig { unit } => format!("effective config of {unit}"),
        Verb::RealmSet { realm } => format!("set realm {realm}"),
        Verb::RealmRm { realm } => format!("forget realm {realm}"),
        Verb::SnapshotTake { snapshot } => format!("take snapshot {snapshot}"),
        Verb::SnapshotLs => "list snapshots".to_owned(),
        Verb::SnapshotDiff { snapshot } => format!("compare with snapshot {snapshot}"),
        Verb::SnapshotActivate { snapshot } => format!("activate snapshot {snapshot}"),
        Verb::SnapshotDeactivate { snapshot } => format!("deactivate snapshot {snapshot}"),
        Verb::SnapshotRm { snapshot } => format!("remove snapshot {snapshot}"),
    };
    match text.char_indices().nth(WHAT_MAX_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn hosts(tally: &HostCounts) -> Markup {
    html! {
        @match (&tally.first, tally.hosts) {
            (None, _) => "none",
            (Some(one), 1) => (one),
            (Some(first), hosts) => { (first) " and " (count(hosts - 1, "other", "others")) }
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
