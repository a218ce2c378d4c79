//! The tasks of a unit, with the log of one: what its host has answered, and a form that asks again.

use maud::{Markup, html};
use muster_api::Command;
use muster_topics::{
    command::Verb,
    task::{TaskLogText, TaskRecord, TaskState, UnitTasks},
};

use super::{
    command::is_open,
    elements::{self, Tone, ago, state},
    frame::PageFrame,
    problem,
};

/// How long after an answer a page that follows asks again.
const FOLLOW: &str = "load delay:2s";

/// What its host has answered about its tasks.
#[derive(Clone, Debug, Default)]
pub(in crate::web) struct ShownTasks {
    /// The question whose answer is shown, or waited for.
    pub(in crate::web) asked: Option<Command>,
    /// The answer; that of the question before, while the host is asked again.
    pub(in crate::web) answer: Option<UnitTasks>,
}

impl ShownTasks {
    /// The number of the task whose log was asked for.
    fn number(&self) -> Option<u64> {
        match self.asked.as_ref()?.verb {
            Verb::UnitTasks { log, .. } => log,
            _ => None,
        }
    }

    fn is_waiting(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.hosts.iter().any(is_open))
    }

    /// Whether what is shown goes on.
    fn is_running(&self) -> bool {
        let Some(answer) = &self.answer else { return false };
        match &answer.log {
            Some(log) => !log.is_over,
            None => answer.tasks.iter().any(|task| task.state == TaskState::Running),
        }
    }

    /// Renders the form that asks for the tasks, which does not depend on the unit's state.
    pub(super) fn form(frame: &PageFrame, url: &str) -> Markup {
        frame.form(&format!("{url}/tasks"), html! { button type="submit" { "Show its tasks" } })
    }

    /// Renders the answer.
    pub(super) fn region(&self, frame: &PageFrame, url: &str) -> Markup {
        html! {
            @match &self.answer {
                None if self.asked.is_none() => p.note { "The tasks stay on the host; the last ones are fetched on request." },
                None if self.is_waiting() => p.note { "Asking the host…" },
                None => {
                    @for line in self.asked.iter().flat_map(|asked| &asked.hosts) {
                        @if let Some(reason) = elements::reason(line) { (problem::why(&reason)) }
                    }
                    p.note { "The host returned no tasks." }
                }
                Some(answer) => {
                    @for owed in &answer.owed { p.note { "Owed: " (owed) } }
                    @if answer.tasks.is_empty() { p.note { "It has no tasks yet." } }
                    @else { (table(&answer.tasks, frame, url)) }
                    @if let (Some(log), Some(number)) = (&answer.log, self.number()) { (log_of(log, number)) }
                    @if self.is_running() { (self.again(frame, url)) }
                }
            }
        }
    }

    /// Renders the form that asks again, by itself with scripts.
    fn again(&self, frame: &PageFrame, url: &str) -> Markup {
        let before = self.asked.as_ref().map(|asked| asked.id.to_string()).unwrap_or_default();
        // While the host is asked, the next answer comes with an event.
        let trigger = if self.is_waiting() { "submit" } else { FOLLOW };
        html! {
            form method="post" action={ (url) "/tasks" } hx-post={ (url) "/tasks" } hx-trigger={ (trigger) ", submit" }
                hx-target="#tasks" hx-select="#tasks" hx-swap="outerHTML" {
                input type="hidden" name="csrf" value=(frame.token);
                input type="hidden" name="before" value=(before);
                @if let Some(number) = self.number() { input type="hidden" name="log" value=(number); }
                div.row { span.note { "It continues." } button type="submit" { "Ask again" } }
            }
        }
    }
}

fn table(tasks: &[TaskRecord], frame: &PageFrame, url: &str) -> Markup {
    html! {
        table.cards {
            caption.visually-hidden { "Tasks of the unit, the newest first" }
            thead { tr {
                th scope="col" { "Task" } th scope="col" { "State" } th scope="col" { "Took" } th scope="col" { "Began" }
                th scope="col" { "About" } th scope="col" { "Log" }
            } }
            tbody {
                @for task in tasks {
                    tr {
                        th scope="row" { (task.number) " " (task.action.as_str()) }
                        td data-label="State" { (shown_state(task.state)) }
                        td data-label="Took" { @if let Some(ended_ms) = task.ended_ms { (elements::took(ended_ms - task.began_ms)) } }
                        td data-label="Began" { (ago(task.began_ms, frame.now_ms)) }
                        td data-label="About" {
                            (task.about)
                            @if let Some(told) = &task.diagnostic {
                                @if task.state == TaskState::Failed { (problem::why(told)) } @else { div.note { (format!("{told:#}")) } }
                            }
                            div.note { "revision " code { (task.revision.short()) } }
                        }
                        td data-label="Log" {
                            (frame.form(&format!("{url}/tasks"), html! {
                                button type="submit" name="log" value=(task.number) aria-label={ "Show the log of task " (task.number) } { "Show" }
                            }))
                        }
                    }
                }
            }
        }
    }
}

fn log_of(log: &TaskLogText, number: u64) -> Markup {
    html! {
        h3 { "Log of task " (number) }
        @if log.text.is_empty() { p.note { "It has no output" @if !log.is_over { " yet" } "." } }
        @else { pre #task-log .terminal role="region" tabindex="0" aria-label={ "Log of task " (number) } { (log.text) } }
    }
}

fn shown_state(of: TaskState) -> Markup {
    let tone = match of {
        TaskState::Running => Tone::Busy,
        TaskState::Changed => Tone::Good,
        TaskState::Unchanged => Tone::Idle,
        TaskState::Failed | TaskState::Interrupted => Tone::Bad,
    };
    state(tone, of.as_str())
}
