//! Handles commands from the message to the end, as `src/agent/command_handler.rs` and `program_queue.rs` do, and pretends to execute
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use muster_agent::store::journal::RepeatedCommand;
use muster_base::{chance, clock};
use muster_rules::{
    CommandRefusal,
    authorise::{CommandSource, CommandVerdict as Judgement, JudgeContext},
    backoff,
    receive::{self, AckEffect, ResumedCommand},
    time::{AHEAD_MAX_MS, BUILD_MS},
};
use muster_topics::{
    Millis,
    ack::{Ack, ReportAck},
    command::{Command, Refresh, Verb},
    name::{CommandId, Digest, UnitName},
    outcome::{RefusalCode, Status},
    select,
    topic::Topic,
    unit::{Exit, Run},
};

use super::{Agent, Running};
use crate::{
    disk::{Crash, Tables},
    machine::{Machine, Program},
    random::{between, permille},
    watch::{KnownThen, Promise},
    wire::{Body, Message, Order, Signed},
    world::{Around, Event},
};

/// What the watch has to know of a command that is done.
#[derive(Clone, Copy, Debug)]
struct Doing {
    genuine: bool,
    known: KnownThen,
}

impl Agent {
    /// A message on a topic of signed ones.
    pub(super) fn order(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        message: &Message,
    ) -> Result<(), Crash> {
        let Body::Signed(signed) = &message.body else { return Ok(()) };
        let channel = match &message.topic {
            Topic::CommandAll | Topic::CommandGroup(_) => CommandSource::Broadcast,
            _ => CommandSource::Own,
        };
        let Some(order) = around.seal.open(signed) else { return Ok(()) };
        let heard_ms = self.heard_ms;
        match order {
            Order::Command(command) => {
                self.hears(command.issued_ms);
                self.command(machine, around, command, channel, (heard_ms, signed))?;
            }
            Order::Ack(ack) => {
                if ack.host == self.me.host {
                    self.hears(ack.issued_ms);
                }
                self.ack(machine, around, &ack)?;
            }
            Order::Refresh(refresh) => self.refresh(around, machine.index, &refresh),
        }
        Ok(())
    }

    /// The watch's own idea of what time it is.
    fn hears(&mut self, issued_ms: Millis) {
        let clock_ms = clock::now_ms();
        if clock_ms < BUILD_MS || issued_ms <= clock_ms.max(self.heard_ms).max(BUILD_MS) + AHEAD_MAX_MS {
            self.heard_ms = self.heard_ms.max(issued_ms);
        }
    }

    fn ack(&mut self, machine: &mut Machine, around: &mut Around<'_>, ack: &Ack) -> Result<(), Crash> {
        let taken = receive::ack(ack, self.me.host, &mut self.time, self.kept_signed_ms, clock::now_ms());
        let AckEffect::Forget { store } = taken else { return Ok(()) };
        let signed_ms = self.time.signed_ms();
        if store {
            for key in &ack.reports {
                if machine.disk.read(|tables| tables.outbox.contains_key(key)) {
                    let ordered = around.ordered.contains(&(key.command, machine.host));
                    around.watch.forgets(key.command, machine.host, ordered);
                }
            }
            machine.disk.write(|tx| tx.acknowledge(&ack.reports, signed_ms))?;
            self.kept_signed_ms = signed_ms;
        }
        self.publisher.acknowledged(ack);
        Ok(())
    }

    fn refresh(&mut self, around: &mut Around<'_>, machine: usize, refresh: &Refresh) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.time, clock::now_ms());
        self.heard_ms = self.heard_ms.max(self.time.signed_ms());
        let Some(within_ms) = taken else { return };
        around.watch.refreshes(machine, self.life, refresh.issued_ms);
        let due_ms = self.now_ms(around) + backoff::share(within_ms, chance::random());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    fn command(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: Command,
        channel: CommandSource,
        (heard_ms, signed): (Millis, &Signed),
    ) -> Result<(), Crash> {
        let realms = BTreeSet::from(["default".parse().unwrap()]);
        let clock_ms = clock::now_ms();
        let (facts, labels) = (None, BTreeMap::new());
        let (hostname, agent_version) = ("", "");
        let seen = select::Host {
            host: self.me.host,
            hostname,
            agent_version,
            facts,
            labels: &labels,
            realms: &[],
            units: &[],
        };
        let judge = JudgeContext {
            host: &seen,
            realms: &realms,
            policy: &self.policy,
            user: "root",
            created_ms: self.created_ms,
            lost_ms: None,
            time: self.time,
            clock_ms,
        };
        let known = KnownThen { now_ms: clock_ms.max(heard_ms).max(BUILD_MS), created_ms: self.created_ms };
        match receive::command(command, channel, &judge, &mut self.time) {
            Judgement::NotMine | Judgement::Later(_) => Ok(()),
            Judgement::Refused(command, refusal) => {
                around.note(|| format!("machine {} refuses {}: {}", machine.index, command.id, refusal.message));
                self.answer_now(machine, around, command.id, command.expires_ms, refusal.into())
            }
            Judgement::Granted(command) => {
                let doing = Doing { genuine: !signed.forged, known };
                self.granted(machine, around, command.into_inner(), doing)
            }
        }
    }

    fn granted(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: Command,
        doing: Doing,
    ) -> Result<(), Crash> {
        let (id, signed_ms) = (command.id, self.time.signed_ms());
        match command.verb.clone() {
            Verb::Cancel { command: which } => self.cancel(machine, around, &command, which),
            Verb::UnitRun { unit } => self.edit(machine, around, &command, doing, (unit, Some(Run::Running))),
            Verb::UnitStop { unit } => self.edit(machine, around, &command, doing, (unit, Some(Run::Stopped))),
            Verb::UnitRm { unit } => self.edit(machine, around, &command, doing, (unit, None)),
            Verb::Exec(_) | Verb::UnitCommand(_) => {
                let kept = Rc::new(command.clone());
                let new = machine.disk.write(|tx| tx.insert(id, Some(kept), command.expires_ms, signed_ms))?;
                if !new {
                    return self.repeated(machine, around, id);
                }
                self.begin(machine, around, &command, Some(doing));
                Ok(())
            }
            _ => {
                let refusal = CommandRefusal::new(RefusalCode::Unsupported, "no simulated host does this");
                self.answer_now(machine, around, id, command.expires_ms, refusal.into())
            }
        }
    }

    /// A program, or a unit's own command, begins.
    fn begin(&mut self, machine: &mut Machine, around: &mut Around<'_>, command: &Command, doing: Option<Doing>) {
        let known = KnownThen { now_ms: Millis::MIN, created_ms: self.created_ms };
        let Doing { genuine, known } = doing.unwrap_or(Doing { genuine: true, known });
        around.watch.effect(machine.index, command, genuine, known);
        let lasts_ms = if permille(700) { between(1, 900) } else { between(1_000, 90_000) };
        around.note(|| format!("machine {} begins {} for {lasts_ms} ms", machine.index, command.id));
        self.running.insert(command.id, Running { since_ms: self.now_ms(around), told: false });
        match &command.verb {
            Verb::Exec(_) => {
                let ends_ms = around.now_ms + lasts_ms;
                machine.programs.insert(command.id, Program { ends_ms, over: None });
                around.after(lasts_ms, Event::ProgramEnds(machine.index, command.id));
            }
            // What a unit was asked it forgets with the agent that asked.
            _ => around.after(lasts_ms, Event::Answered(machine.index, self.life, command.id)),
        }
    }

    fn cancel(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: &Command,
        which: CommandId,
    ) -> Result<(), Crash> {
        let (id, signed_ms, now_ms) = (command.id, self.time.signed_ms(), clock::now_ms());
        let expires_ms = receive::cancelled_expires_ms(command.issued_ms);
        let done = machine.disk.write(|tx| {
            if !tx.insert(id, Some(Rc::new(command.clone())), command.expires_ms, signed_ms) {
                return None;
            }
            let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it could be begun");
            let refused =
                tx.insert(which, None, expires_ms, signed_ms).then(|| tx.finish(which, refusal.into(), now_ms));
            Some((refused.flatten(), tx.finish(id, Status::Completed, now_ms)))
        })?;
        let Some((refused, key)) = done else { return self.repeated(machine, around, id) };
        if let Some(program) = machine.programs.get_mut(&which).filter(|program| program.over.is_none()) {
            // It ends a moment later.
            program.ends_ms = around.now_ms;
            program.over = Some(Status::Cancelled);
            around.after(20, Event::ProgramEnds(machine.index, which));
        }
        self.queue_up(around, refused);
        self.queue_up(around, key);
        Ok(())
    }

    /// Desired state is edited: the effect and the answer are one transaction.
    fn edit(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: &Command,
        doing: Doing,
        (unit, run): (UnitName, Option<Run>),
    ) -> Result<(), Crash> {
        let (id, signed_ms, now_ms) = (command.id, self.time.signed_ms(), clock::now_ms());
        let kept = Rc::new(command.clone());
        let done = machine.disk.write(|tx| {
            if !tx.insert(id, Some(kept), command.expires_ms, signed_ms) {
                return None;
            }
            tx.tables.edits.push(id);
            let generation = tx.tables.units.get(&unit).map_or(0, |(generation, _)| *generation) + 1;
            let status = match run {
                Some(run) => {
                    tx.tables.units.insert(unit.clone(), (generation, run));
                    Status::Applied { generation, revision: Digest::of(b""), hold: None }
                }
                None => {
                    tx.tables.units.remove(&unit);
                    Status::Completed
                }
            };
            Some(tx.finish(id, status, now_ms))
        });
        // It has taken effect whether or not the agent lives to see it.
        let effects = machine.disk.read(|tables| tables.edits.iter().filter(|edit| **edit == id).count());
        around.watch.check(Promise::AtMostOnce, effects <= 1, || format!("{id} edited {effects} times"));
        let Some(key) = done? else { return self.repeated(machine, around, id) };
        around.watch.effect(machine.index, command, doing.genuine, doing.known);
        around.note(|| format!("machine {} edits {unit} by {id}", machine.index));
        around.after(between(1, 3_000), Event::Reconciled(machine.index, unit));
        self.publisher.beats.hasten();
        self.observe(machine);
        self.queue_up(around, key);
        Ok(())
    }

    fn answer_now(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        id: CommandId,
        expires_ms: Millis,
        status: Status,
    ) -> Result<(), Crash> {
        let (signed_ms, now_ms) = (self.time.signed_ms(), clock::now_ms());
        let done = machine
            .disk
            .write(|tx| tx.insert(id, None, expires_ms, signed_ms).then(|| tx.finish(id, status, now_ms)))?;
        let Some(key) = done else { return self.repeated(machine, around, id) };
        self.queue_up(around, key);
        Ok(())
    }

    fn repeated(&mut self, machine: &mut Machine, around: &mut Around<'_>, id: CommandId) -> Result<(), Crash> {
        match machine.disk.write(|tx| tx.answer_again(id, clock::now_ms()))? {
            Some(RepeatedCommand::Answered(key)) => self.queue_up(around, Some(key)),
            Some(RepeatedCommand::Unfinished) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.told = false;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn queue_up(&mut self, around: &Around<'_>, key: Option<ReportAck>) {
        let now_ms = self.now_ms(around);
        if let Some(key) = key {
            self.publisher.queue(key, now_ms);
        }
    }

    /// What an earlier life left unfinished.
    pub(super) fn resume(&mut self, machine: &mut Machine, around: &mut Around<'_>) -> Result<(), Crash> {
        let unfinished = |tables: &Tables| {
            let open = tables.journal.iter().filter(|(_, row)| row.answer.is_none());
            open.map(|(id, row)| (*id, row.command.clone())).collect::<Vec<_>>()
        };
        for (id, command) in machine.disk.read(unfinished) {
            match (receive::resume(command.as_ref().map(|command| &command.verb), false), command) {
                (ResumedCommand::Anew, Some(command)) => self.begin(machine, around, &command, None),
                (ResumedCommand::LookedUp, _) => {
                    self.running.insert(id, Running { since_ms: self.now_ms(around), told: false });
                    match machine.programs.get(&id).map(|program| program.over.clone()) {
                        Some(Some(status)) => self.ended(machine, around, id, status)?,
                        // Its shim will tell.
                        Some(None) => {}
                        None => self.ended(machine, around, id, Status::Lost)?,
                    }
                }
                _ => self.ended(machine, around, id, Status::Lost)?,
            }
        }
        Ok(())
    }

    /// A command has come to its end.
    pub(super) fn ended(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        id: CommandId,
        status: Status,
    ) -> Result<(), Crash> {
        let exit = Status::exited(Exit::Code(0));
        let known = machine.programs.get(&id).map(|program| program.over.clone().unwrap_or(exit));
        around.watch.ends(id, &status, known.as_ref());
        let key = machine.disk.write(|tx| tx.finish(id, status, clock::now_ms()))?;
        self.queue_up(around, key);
        self.running.remove(&id);
        machine.programs.remove(&id);
        Ok(())
    }
}
