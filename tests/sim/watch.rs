//! The protocol's promises as invariants: each is checked at every step at which it can break.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    Millis,
    command::Command,
    name::{CommandId, HostId},
    outcome::{Outcome, Status},
};
use serde_json::Value;

use super::{documents::IssuedDocuments, rollouts::RolloutTruth};

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// A command takes effect at most once on a machine.
    AtMostOnce,
    /// What has expired, as far as a host can know, is never begun.
    NotExpired,
    /// What was issued before a host's store was made is never begun.
    NotBeforeStore,
    /// What the console's key has not signed has no effect.
    NotForged,
    /// A command has one terminal outcome, and that stays.
    OneOutcome,
    /// `lost` is what nobody can know.
    LostIsUnknown,
    /// A host forgets an answer only when the console has it.
    NoOutcomeLost,
    /// What the console holds of a host is what that host once told, as a whole.
    DeltaToBase,
    /// A working host's presence topic shows it.
    OldWill,
    /// Of two agents of one host at most one works, and a newcomer does not end the other's work.
    Twin,
    /// A request to tell everything is good once.
    RefreshOnce,
    /// There are five seconds between two heartbeats.
    Throttle,
    /// The console sends nothing that has expired.
    SentInTime,
    /// A host takes no document that is older than the one that it has.
    LatestDocument,
    /// A unit goes only if a document names it.
    NamedRemoval,
    /// No more hosts are in the middle of a change than may be, but for those that were given up.
    InFlight,
    /// No more hosts are unavailable than may be, by what is true of them.
    Budget,
    /// A question is answered by one permit, and a host begins with its last one.
    OnePermit,
    /// A wave in which no host is verified is not followed by another.
    WaveOfSuccess,
    /// A host has one last word on a version.
    OneHostOutcome,
    /// Once all is quiet, a rollout has ended, and every host has an outcome.
    RolloutEnds,
    /// Once all is quiet, every host has its document.
    Desired,
    /// Once all is quiet, every command is answered that could be.
    Answered,
    /// Once all is quiet, the console shows every host as it is.
    Shown,
    /// Once all is quiet, it is quiet.
    Silence,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) promise: Promise,
    pub(super) what: String,
}

/// Times between heartbeats, less what timers' grain takes away.
const GAP_MS: Millis = 5_000;

#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) broken: Option<Broken>,
    effects: BTreeMap<(usize, CommandId), u32>,
    outcomes: BTreeMap<(CommandId, HostId), Outcome>,
    told: BTreeMap<(HostId, u64, u64), Vec<Value>>,
    refreshed: BTreeSet<(usize, u32, Millis)>,
    pub(super) documents: IssuedDocuments,
    pub(super) rollout: RolloutTruth,
    /// How much was said once all was quiet.
    pub(super) beats: u32,
    pub(super) refreshes: u32,
    /// What was traced last, if it is.
    pub(super) trace: Option<Vec<String>>,
}

impl Watch {
    /// Notes what happened, if somebody wants to know.
    pub(super) fn note(&mut self, now_ms: Millis, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.3} {}", now_ms as f64 / 1000.0, what()));
        }
    }

    /// Notes the first promise that is broken.
    pub(super) fn check(&mut self, promise: Promise, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(Broken { promise, what: what() });
        }
    }

    /// A command takes effect on a machine.
    pub(super) fn effect(&mut self, machine: usize, command: &Command, genuine: bool, known: KnownThen) {
        let id = command.id;
        let count = self.effects.entry((machine, id)).or_default();
        *count += 1;
        let count = *count;
        self.check(Promise::AtMostOnce, count == 1, || format!("{id} took effect {count} times on machine {machine}"));
        self.check(Promise::NotForged, genuine, || format!("{id} was forged and took effect on machine {machine}"));
        let late_ms = known.now_ms.saturating_sub(command.expires_ms);
        self.check(Promise::NotExpired, late_ms <= 0, || format!("{id} took effect {late_ms} ms after it expired"));
        let early_ms = known.created_ms.saturating_sub(command.issued_ms);
        self.check(Promise::NotBeforeStore, early_ms <= 0, || {
            format!("{id} took effect on machine {machine}, whose store was made {early_ms} ms after it was issued")
        });
    }

    /// Whether a command has taken effect anywhere.
    pub(super) fn took_effect(&self, id: CommandId) -> bool {
        self.effects.keys().any(|(_, command)| *command == id)
    }

    /// The console has an outcome of a command.
    pub(super) fn outcome(&mut self, id: CommandId, host: HostId, outcome: Outcome) {
        let first = self.outcomes.entry((id, host)).or_insert_with(|| outcome.clone()).clone();
        self.check(Promise::OneOutcome, first == outcome, || format!("{id}: {first:?} became {outcome:?}"));
    }

    /// A host forgets an answer.
    pub(super) fn forgets(&mut self, id: CommandId, host: HostId, ordered: bool) {
        let has = self.outcomes.contains_key(&(id, host));
        self.check(Promise::NoOutcomeLost, has || !ordered, || format!("{host} forgot its answer to {id}"));
    }

    /// A host ends a command.
    pub(super) fn ends(&mut self, id: CommandId, status: &Status, known: Option<&Status>) {
        let unknown = *status != Status::Lost || known.is_none();
        self.check(Promise::LostIsUnknown, unknown, || format!("{id} ends as lost, and was {known:?}"));
    }

    /// A host tells its state.
    pub(super) fn tells(&mut self, host: HostId, epoch: u64, seq: u64, state: Value) {
        let told = self.told.entry((host, epoch, seq)).or_default();
        if !told.contains(&state) {
            told.push(state);
        }
    }

    /// Whether a heartbeat was told before.
    pub(super) fn has_told(&self, host: HostId, epoch: u64, seq: u64) -> bool {
        self.told.contains_key(&(host, epoch, seq))
    }

    /// The console holds a state.
    pub(super) fn holds(&mut self, host: HostId, epoch: u64, seq: u64, state: &Value) {
        let told = self.told.get(&(host, epoch, seq)).is_some_and(|told| told.contains(state));
        self.check(Promise::DeltaToBase, told, || {
            format!("what is held of {host} as of {epoch}.{seq} is not what it told: {state}")
        });
    }

    /// A heartbeat goes out so long after the last one.
    pub(super) fn beat(&mut self, machine: usize, after_ms: Option<Millis>) {
        self.beats += 1;
        let late = after_ms.is_none_or(|after_ms| after_ms >= GAP_MS);
        self.check(Promise::Throttle, late, || {
            format!("machine {machine} told its state {} ms after it last did", after_ms.unwrap_or_default())
        });
    }

    /// A life of an agent takes a request for everything.
    pub(super) fn refreshes(&mut self, machine: usize, life: u32, issued_ms: Millis) {
        self.refreshes += 1;
        let new = self.refreshed.insert((machine, life, issued_ms));
        self.check(Promise::RefreshOnce, new, || format!("machine {machine} took the refresh of {issued_ms} again"));
    }
}

/// What a host could know when a command took effect.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownThen {
    /// The latest witness of the time.
    pub(super) now_ms: Millis,
    /// When its store was made.
    pub(super) created_ms: Millis,
}
