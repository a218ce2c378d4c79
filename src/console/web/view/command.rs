//! One command: its progress host by host, updated live.

use std::sync::Arc;

use maud::{Markup, html};
use muster_api::{Command, CommandHost, CommandState, host_names::HostNames, summary::Summary};
use muster_topics::argv;
use muster_topics::{
    command::{Exec, Keep, Target, Verb},
    name::{CommandId, HostId},
    outcome::{Status, Stream},
};

use super::{
    commands::{summary, url, what},
    elements::{self, ago, bytes, count, state, written},
    frame::{PageFrame, PageView, PageWatch, Section},
    problem,
    region::region,
};
use crate::web::command_progress::CommandProgress;

/// Up to this many hosts show their output on the command's own page; beyond it, each has a page.
pub(in crate::web) const OUTPUTS_MAX: usize = 8;
/// How much of a stream is shown: its end. The whole can be downloaded.
pub(in crate::web) const TAIL_BYTES: usize = 64 * 1024;
/// Hosts on one page of a command for many.
const PAGE_LINES: usize = 100;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct CommandView {
    /// The command, with the hosts that are shown.
    pub(in crate::web) command: Command,
    /// The progress on all hosts.
    pub(in crate::web) course: Arc<CommandProgress>,
    /// One host of several.
    pub(in crate::web) only: Option<HostId>,
    /// The output of the hosts that show it.
    pub(in crate::web) outputs: Vec<(HostId, ShownOutput, ShownOutput)>,
    /// The page of the hosts, from 1.
    pub(in crate::web) page: usize,
}

/// The visible part of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownOutput {
    /// Its end, as text.
    pub(in crate::web) tail: String,
    /// Its whole length.
    pub(in crate::web) whole_bytes: usize,
}

impl ShownOutput {
    /// Returns the end of a stream. Invalid UTF-8 becomes replacement characters.
    pub(in crate::web) fn of(whole: &[u8]) -> Self {
        let from = whole.len().saturating_sub(TAIL_BYTES);
        let mut tail = &whole[from..];
        if from > 0 {
            // It begins at a line, and not within a character.
            let line = tail.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            tail = &tail[if line < tail.len() { line } else { 0 }..];
        }
        Self { tail: String::from_utf8_lossy(tail).into_owned(), whole_bytes: whole.len() }
    }
}

/// Returns which hosts are shown: the requested one, all if there are few, or a page of them; and whether with their
/// output.
pub(in crate::web) fn shown(course: &CommandProgress, only: Option<HostId>, page: usize) -> (&[HostId], bool) {
    let hosts = &course.hosts[..];
    match only {
        Some(only) => {
            (hosts.iter().position(|host| *host == only).map_or(&[][..], |place| &hosts[place..=place]), true)
        }
        None if hosts.len() <= OUTPUTS_MAX => (hosts, true),
        None => (hosts.chunks(PAGE_LINES).nth(page.clamp(1, pages(course)) - 1).unwrap_or_default(), false),
    }
}

/// Returns the number of pages.
fn pages(course: &CommandProgress) -> usize {
    course.hosts.len().div_ceil(PAGE_LINES).max(1)
}

impl PageView for CommandView {
    fn title(&self) -> String {
        what(&self.command.verb)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Commands)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch { command: Some(self.command.id), host: None })
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let again = matches!(self.command.verb, Verb::Exec(_)).then(|| format!("/run?again={}", self.command.id));
        html! {
            div.head {
                h1 { "Command" }
                @if let Some(again) = again { a.button href=(again) { "Run again" } }
            }
            (full_text(&self.command.verb))
            (region(&self.url(), "progress", &["command"], self.progress(frame)))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "progress").then(|| self.progress(frame))
    }
}

impl CommandView {
    fn url(&self) -> String {
        let base = url(self.command.id);
        match self.only {
            Some(host) => format!("{base}?host={host}"),
            None if self.page > 1 => format!("{base}?page={}", self.page),
            None => base,
        }
    }

    fn progress(&self, frame: &PageFrame) -> Markup {
        html! {
            (self.facts(frame))
            @if self.only.is_some() {
                p { a href=(url(self.command.id)) { "← " (count(self.course.tally.hosts, "host", "hosts")) } }
            }
            @if self.outputs.is_empty() { (self.table(frame)) } @else {
                @for (host, stdout, stderr) in &self.outputs {
                    @if let Some(line) = self.command.hosts.iter().find(|line| line.host == *host) {
                        (self.host(line, stdout, stderr, frame))
                    }
                }
            }
        }
    }

    fn facts(&self, frame: &PageFrame) -> Markup {
        let (command, open) = (&self.command, self.course.open);
        html! {
            dl.facts {
                div { dt { "State" } dd { (summary(&self.course.tally)) } }
                @if let Some(target) = render_target(command.target.as_ref()) { div { dt { "For" } dd { (target) } } }
                div { dt { "Ordered" } dd { (ago(command.issued_ms, frame.now_ms)) " by " (command.operator) } }
                @if open { div { dt { "Expires" } dd { (elements::due(command.expires_ms, frame.now_ms)) } } }
                div { dt { "Id" } dd { code { (command.id) } } }
            }
            @if self.course.tally.hosts > 1 && !open { (by_name(&self.course.summary)) }
        }
    }

    fn host(&self, line: &CommandHost, stdout: &ShownOutput, stderr: &ShownOutput, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.command.hosts.iter().map(|line| (line.host, line.hostname.as_str())));
        html! {
            section.output {
                h2 { a href=(elements::host_url(line.host)) { (names.show(line.host, &line.hostname)) } " " (outcome(line, frame)) }
                @if let Some(reason) = elements::reason(line) { (problem::why(&reason)) }
                @if line.state() == CommandState::Waiting {
                    p.note {
                        "It is sent as soon as the host is online and can take it, until it expires "
                        (ago(self.command.expires_ms, frame.now_ms)) "."
                    }
                }
                (steps(line, self.command.verb.execs()))
                (stream(self.command.id, line, Stream::Stdout, stdout))
                (stream(self.command.id, line, Stream::Stderr, stderr))
                @if stdout.whole_bytes + stderr.whole_bytes == 0 {
                    p.note { @if is_open(line) { "No output yet." } @else { "No output." } }
                }
            }
        }
    }

    fn table(&self, frame: &PageFrame) -> Markup {
        let pages = pages(&self.course);
        let page = self.page.clamp(1, pages);
        let base = url(self.command.id);
        let names = HostNames::new(self.command.hosts.iter().map(|line| (line.host, line.hostname.as_str())));
        html! {
            table.cards {
                caption.visually-hidden { "Outcome for each host" }
                thead { tr { th scope="col" { "Host" } th scope="col" { "State" } th scope="col" { "Output" } } }
                tbody {
                    @for line in &self.command.hosts {
                        tr {
                            th scope="row" { a href={ (base) "?host=" (line.host) } { (names.show(line.host, &line.hostname)) } }
                            td data-label="State" { (outcome(line, frame)) }
                            td data-label="Output" {
                                @match elements::reason(line) {
                                    Some(reason) => (problem::why(&reason)),
                                    None => code.line { (first_line(line)) },
                                }
                            }
                        }
                    }
                }
            }
            @if pages > 1 {
                nav.pages aria-label="Pages of hosts" {
                    @if page > 1 { a href={ (base) "?page=" (page - 1) } rel="prev" { "← previous" } } " "
                    span { "page " (page) " of " (pages) }
                    " " @if page < pages { a href={ (base) "?page=" (page + 1) } rel="next" { "next →" } }
                }
            }
        }
    }
}

/// Renders the target, if it was not a list.
fn render_target(target: Option<&Target>) -> Option<Markup> {
    match target? {
        Target::Hosts(_) => None,
        Target::All => Some(html! { "every host" }),
        Target::Group(label) => Some(html! { "hosts with the label " code { (label) } }),
        Target::Select(select) => Some(html! { "hosts selected by " code { (select) } }),
    }
}

/// The most names of one class in the summary; the table has all of them.
const NAMED_MAX: usize = 50;

/// Renders the summary of a finished command: the number of hosts of each class, and the names of those that did not do
/// it.
fn by_name(summary: &Summary) -> Markup {
    html! {
        p #summary { (summary.counts()) }
        @if summary.others().next().is_some() {
            dl.facts {
                @for (class, names) in summary.others() {
                    div {
                        dt { (class.words()) }
                        dd {
                            (names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", "))
                            @if names.len() > NAMED_MAX { " and " (elements::grouped((names.len() - NAMED_MAX) as u64)) " more" }
                        }
                    }
                }
            }
        }
    }
}

/// Whether something may still change.
pub(in crate::web) fn is_open(line: &CommandHost) -> bool {
    !line.is_over()
}

/// Renders the complete request: for a program each argument is distinguishable.
fn full_text(verb: &Verb) -> Markup {
    html! {
        @match verb {
            Verb::Exec(exec) => {
                pre.command tabindex="0" { code { (argv::join(&exec.shown())) } }
                p.note {
                    "up to " (elements::span(exec.timeout_ms))
                    @if let Some(unit) = &exec.container { ", in the container " code { (unit) } }
                    @if let Some(user) = &exec.user { ", as user " code { (user) } }
                    @if let Some(cwd) = &exec.cwd { ", in " code { (cwd) } }
                    @if !exec.env.is_empty() { ", with " (names(exec.env.keys())) }
                    @if exec.stdin.is_some() { ", with standard input" }
                    @for (word, keep) in [("stdout", exec.stdout), ("stderr", exec.stderr)] {
                        @match keep {
                            Keep::Stream => {}
                            Keep::Capture => { ", " (word) " at the end" }
                            Keep::Drop => { ", " (word) " dropped" }
                        }
                    }
                }
            }
            Verb::Batch(batch) => {
                ol.steps {
                    @for exec in &batch.steps {
                        li {
                            pre.command tabindex="0" { code { (argv::join(&exec.shown())) } }
                            @if let Some(unit) = &exec.container { p.note { "in the container " code { (unit) } } }
                        }
                    }
                }
                @if batch.keep_going { p.note { "continues after a failed step" } }
            }
            other => pre.command { code { (what(other)) } },
        }
    }
}

/// Renders names of variables; their values are secret.
fn names<'a>(names: impl Iterator<Item = &'a String>) -> Markup {
    html! { @for (index, name) in names.enumerate() { @if index > 0 { ", " } code { (name) } } }
}

/// Renders a state, with how long it took or since when.
fn outcome(line: &CommandHost, frame: &PageFrame) -> Markup {
    let (tone, words) = elements::progress(line);
    html! {
        (state(tone, &words))
        @if let Some(since_ms) = line.away_since_ms() { " " span.age { "away since " (ago(since_ms, frame.now_ms)) } }
        @if let Some(reason) = line.reason() { " " span.age { (reason) } }
        @if let Some(outcome) = line.outcome() {
            " "
            span.age title=(written(outcome.at_ms)) {
                @if let Some(started_ms) = outcome.value.started_ms {
                    "took " (elements::took(outcome.value.finished_ms.saturating_sub(started_ms))) ", "
                }
                (ago(outcome.at_ms, frame.now_ms))
            }
        }
    }
}

/// Renders the results of a batch's steps.
fn steps(line: &CommandHost, asked: &[Exec]) -> Markup {
    let Some(Status::Batch { steps }) = line.status() else {
        return html! {};
    };
    html! {
        ol.steps {
            @for (index, exec) in asked.iter().enumerate() {
                li {
                    code { (argv::join(&exec.shown())) } " "
                    @match steps.get(index) {
                        Some(step) => {
                            @let (tone, words) = elements::outcome_words(&step.status);
                            (state(tone, &words))
                            @if let Some(started_ms) = step.started_ms {
                                " " span.age { "took " (elements::took(step.finished_ms.saturating_sub(started_ms))) }
                            }
                        }
                        None => span.age { "not started" },
                    }
                }
            }
        }
    }
}

fn stream(command: CommandId, line: &CommandHost, stream: Stream, shown: &ShownOutput) -> Markup {
    let word = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let output = line.outcome().map(|outcome| match stream {
        Stream::Stdout => &outcome.value.stdout,
        Stream::Stderr => &outcome.value.stderr,
    });
    let dropped = output.map_or(0, |output| output.dropped_bytes);
    // The rest in the outcome follows what was sent before, if that is stored.
    let gone = output.map_or(0, |output| output.sent_bytes.saturating_sub(shown.whole_bytes as u64));
    let file = format!("{}/host/{}/{word}", url(command), line.host);
    html! {
        @if shown.whole_bytes > 0 {
            h3 {
                (word) " "
                span.age { (bytes(shown.whole_bytes as u64)) ", " a href=(file) download { "download" } }
            }
            @if shown.whole_bytes > shown.tail.len() { p.note { "The last part:" } }
            pre.terminal id={ (word) "-" (line.host) } role="region" tabindex="0" aria-label={ (word) " of " (line.hostname) } { (shown.tail) }
        }
        @if dropped > 0 {
            p.note { (bytes(dropped)) " of " (word) " more were dropped: over the command's limit (--output-max, --stderr-max)." }
        }
        @if gone > 0 {
            p.note {
                (bytes(gone)) " of " (word) " are not stored: the console limits how much output it keeps "
                "(command_output_max_bytes in its configuration)."
            }
        }
    }
}

/// Returns the first line of the output in an outcome; nothing if there is none.
fn first_line(line: &CommandHost) -> String {
    const MAX_CHARS: usize = 120;
    let said = line.outcome().and_then(|outcome| {
        let outcome = &outcome.value;
        let rest = [&outcome.stdout, &outcome.stderr].into_iter().find_map(|output| output.rest.as_ref())?;
        let bytes = rest.to_bytes().ok()?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MAX_CHARS)]).into_owned();
        text.lines().find(|line| !line.trim().is_empty()).map(|line| line.chars().take(MAX_CHARS).collect())
    });
    said.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_of_long_output_begins_at_a_line() {
        assert_eq!(ShownOutput::of(b"short"), ShownOutput { tail: "short".to_owned(), whole_bytes: 5 });
        let long = "äöü line\n".repeat(TAIL_BYTES / 4);
        let shown = ShownOutput::of(long.as_bytes());
        assert!(shown.tail.starts_with("äöü line\n") && shown.tail.len() <= TAIL_BYTES, "{:?}", &shown.tail[..40]);
        assert_eq!(shown.whole_bytes, long.len());
        let one_line = vec![b'x'; TAIL_BYTES + 7];
        assert_eq!(ShownOutput::of(&one_line).tail.len(), TAIL_BYTES);
        let ends_with_line = [vec![b'x'; TAIL_BYTES + 7], vec![b'\n']].concat();
        assert_eq!(ShownOutput::of(&ends_with_line).tail.len(), TAIL_BYTES);
        assert_eq!(ShownOutput::of(b"\xff\xfe").tail, "\u{fffd}\u{fffd}");
    }
}
