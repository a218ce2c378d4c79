//! What has to be so once all is quiet.

use muster_api::CommandState;
use muster_topics::{
    Millis,
    name::{CommandId, HostId},
    presence::{Presence, PresenceState},
    topic::{HostTopic, Topic},
    unit::UnitReport,
};

use super::{
    CONVERGED_MS,
    machine::Machine,
    watch::Promise,
    wire::{Body, Message},
    world::World,
};

impl World {
    /// Everything that can be answered is, and the console shows what is. `quiet_ms` is when all was well again.
    pub(super) fn judge(&mut self, quiet_ms: Millis) {
        self.judge_rollout();
        for host in self.hosts.clone() {
            let machine = self.machines.iter().find(|machine| machine.host == host && !machine.is_gone);
            match machine.map(|machine| machine.index) {
                Some(index) => {
                    self.judge_commands(index, quiet_ms);
                    self.judge_state(index);
                    self.judge_document(index);
                }
                None => {
                    let row = self.console.ledger.presences.get(&host);
                    // Died with its broker, which kept `online` and spoke no last will: what comes then of the topic counts
                    // as an answer to the roll call, as long as nothing else comes.
                    let topic = Topic::Host(host, HostTopic::Presence);
                    let unsaid =
                        shown(self.broker.retained(&topic)).is_some_and(|shown| shown.state == PresenceState::Online);
                    let away = unsaid || row.is_none_or(|row| row.state != PresenceState::Online);
                    self.watch.check(Promise::Shown, away, || format!("{host} is dead, and shown as {row:?}"));
                }
            }
        }
    }

    fn judge_commands(&mut self, index: usize, quiet_ms: Millis) {
        let Self { machines, console, watch, ordered, wiped, console_ahead_ms, back, .. } = self;
        let machine = &machines[index];
        let host = machine.host;
        let waiting = machine.disk.read(|tables| tables.outbox.len());
        watch.check(Promise::Answered, waiting == 0, || format!("{waiting} answers of {host} are not acknowledged"));
        let asked: Vec<CommandId> = ordered.iter().filter(|(_, of)| *of == host).map(|(id, _)| *id).collect();
        // What its host had forgotten with its disk, or after days, nobody can tell any more, nor what went with a clone.
        let cloned = machines.iter().filter(|machine| machine.host == host).count() > 1;
        let lost = wiped.contains_key(&host) || cloned || back.is_some();
        for id in asked {
            let stands = console.stands(id, host);
            let Some(row) = console.ledger.commands.get(&id) else { continue };
            if stands == Some(CommandState::Done) {
                let ours = machine.disk.read(|tables| tables.journal.get(&id).and_then(|row| row.answer.clone()));
                let theirs = row.hosts.get(&host).and_then(|(_, outcome)| outcome.clone());
                // Of two that are one host, or were one after the other, each may have an answer; the first that came stays.
                let same = lost || ours.is_none() || ours.map(|ours| ours.2) == theirs.map(|theirs| theirs.status);
                watch.check(Promise::OneOutcome, same, || format!("{host} and the console differ about {id}"));
                continue;
            }
            let entered = machine.disk.read(|tables| tables.journal.contains_key(&id));
            watch.check(Promise::Answered, !entered || lost, || format!("{id} is with {host}, and {stands:?}"));
            // Or it had expired by the console's clock, which was ahead.
            let late = row.expires_ms < quiet_ms + CONVERGED_MS + *console_ahead_ms;
            watch.check(Promise::Answered, late || lost, || format!("{id} was not done by {host}, and is {stands:?}"));
            let missing = stands == Some(CommandState::Missing) || row.expires_ms + 60_000 > self.now_ms;
            watch.check(Promise::Answered, missing || lost, || format!("{id} has expired and is {stands:?} of {host}"));
        }
    }

    fn judge_state(&mut self, index: usize) {
        let Self { machines, console, watch, .. } = self;
        let machine = &machines[index];
        let host = machine.host;
        let works = machine.agent.as_ref().is_some_and(|agent| agent.is_sole());
        watch.check(Promise::Shown, works, || format!("machine {index} does not work"));
        let row = console.ledger.presences.get(&host);
        let online = row.is_some_and(|row| row.state == PresenceState::Online);
        watch.check(Promise::Shown, online, || format!("{host} is there, and shown as {row:?}"));
        let units = machine.units();
        let state = serde_json::to_value(machine.state(&units)).unwrap();
        let held = console.ledger.heartbeats.get(&host).map(|(held, _)| &held.state);
        watch.check(Promise::Shown, held == Some(&state), || format!("{host} is {state}, and shown as {held:?}"));
        self.judge_units(index, host);
        self.judge_topic(index);
    }

    fn judge_units(&mut self, index: usize, host: HostId) {
        let Self { machines, console, watch, .. } = self;
        let units = machines[index].units();
        let shown = console.ledger.units.iter().filter(|((of, _), _)| *of == host);
        let shown: Vec<(_, &UnitReport)> = shown.map(|((_, unit), row)| (unit, &row.report)).collect();
        let same = shown.len() == units.len()
            && shown.iter().all(|(unit, report)| {
                units.get(*unit).is_some_and(|unit| {
                    (&unit.desired, &unit.observed, &unit.owner) == (&report.desired, &report.observed, &report.owner)
                })
            });
        watch.check(Promise::Shown, same, || format!("{host} has the units {units:?}, and is shown with {shown:?}"));
    }

    /// The retained presence is the working agent's own.
    fn judge_topic(&mut self, index: usize) {
        let Machine { agent: Some(agent), .. } = &self.machines[index] else { return };
        let topic = agent.session.me().topic(HostTopic::Presence);
        let shown = shown(self.broker.retained(&topic));
        let own = shown
            .as_ref()
            .is_some_and(|shown| shown.instance == agent.session.me().instance && shown.state == PresenceState::Online);
        self.watch.check(Promise::OldWill, own, || format!("machine {index} works, and its topic shows {shown:?}"));
    }
}

/// The presence that a message carries.
fn shown(message: Option<&Message>) -> Option<Presence> {
    match &message?.body {
        Body::Bytes(bytes) => serde_json::from_slice(bytes).ok(),
        Body::Signed(_) => None,
    }
}
