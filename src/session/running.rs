//! Commands under way, and which of them are reported as `accepted` or `running` because they take long.

use std::collections::BTreeMap;

use muster_topics::{
    Millis, V1,
    name::CommandId,
    outcome::{Content, Report},
};

/// The statuses `accepted` and `running` are reported only for a command that takes longer than this.
const QUIET_MS: Millis = 1_000;

/// Commands under way, by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningCommands(BTreeMap<CommandId, RunningCommand>);

#[derive(Clone, Copy, Debug)]
struct RunningCommand {
    since_ms: Millis,
    stage: CommandStage,
    reported: Option<CommandStage>,
}

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandStage {
    /// It waits, or is being started.
    Accepted,
    /// It runs.
    Running,
}

impl RunningCommands {
    /// Adds a command.
    pub(crate) fn add(&mut self, id: CommandId, stage: CommandStage, now_ms: Millis) {
        self.0.entry(id).or_insert(RunningCommand { since_ms: now_ms, stage, reported: None });
    }

    /// Handles that a command runs.
    pub(crate) fn begun(&mut self, id: CommandId) {
        if let Some(running) = self.0.get_mut(&id) {
            running.stage = CommandStage::Running;
        }
    }

    /// Removes a command that has ended.
    pub(crate) fn remove(&mut self, id: CommandId) {
        self.0.remove(&id);
    }

    /// Makes the status of a command due again, because its sender asked.
    pub(crate) fn report_again(&mut self, id: CommandId) {
        if let Some(running) = self.0.get_mut(&id) {
            running.reported = None;
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// When the next command counts as slow.
    pub(crate) fn next_ms(&self) -> Option<Millis> {
        self.0.values().filter(|running| running.is_news()).map(|running| running.since_ms + QUIET_MS).min()
    }

    /// Returns the reports that are due.
    pub(crate) fn take_reports(&mut self, now_ms: Millis, at_ms: Millis) -> Vec<Report> {
        let slow = |running: &RunningCommand| running.is_news() && now_ms >= running.since_ms + QUIET_MS;
        let due = self.0.iter_mut().filter(|(_, running)| slow(running));
        due.map(|(id, running)| {
            running.reported = Some(running.stage);
            let content = match running.stage {
                CommandStage::Accepted => Content::Accepted,
                CommandStage::Running => Content::Running,
            };
            Report { v: V1, command: *id, seq: 0, at_ms, content }
        })
        .collect()
    }
}

impl RunningCommand {
    fn is_news(self: &RunningCommand) -> bool {
        self.reported < Some(self.stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_commands_are_reported_once_for_each_stage() {
        let (mut running, id) = (RunningCommands::default(), CommandId::new());
        running.add(id, CommandStage::Accepted, 0);
        assert_eq!((running.take_reports(QUIET_MS - 1, 0).len(), running.next_ms()), (0, Some(QUIET_MS)));
        let contents = |running: &mut RunningCommands| {
            running.take_reports(QUIET_MS, 0).into_iter().map(|report| report.content).collect::<Vec<_>>()
        };
        assert_eq!(contents(&mut running), [Content::Accepted]);
        assert_eq!((contents(&mut running), running.next_ms()), (vec![], None));
        running.begun(id);
        assert_eq!(contents(&mut running), [Content::Running]);
        running.report_again(id);
        assert_eq!(contents(&mut running), [Content::Running]);
        running.remove(id);
        assert_eq!((running.len(), running.next_ms()), (0, None));
    }
}
