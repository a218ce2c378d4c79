//! Performs what the session asks for, on the tables of a [`disk`](crate::disk), and pretends to execute commands.

use std::rc::Rc;

use muster_base::clock;
use muster_rules::{
    CommandRefusal,
    authorise::Authorised,
    presence::{self, StoreLife},
    receive::{self, ResumedCommand},
};
use muster_session::{
    interface::{Effect, Input, Notice},
    reconnect::ConnectionEnd,
    running::CommandStage,
    store::{Acknowledgement, CommandTaken, NewDocument, StoreReply, StoreRequest},
};
use muster_topics::{
    Millis,
    command::{Command, Verb},
    name::{CommandId, Digest, UnitName},
    outcome::{RefusalCode, Status},
    unit::{Exit, Run},
};

use super::{Agent, Link, TWINS_MAX_MS, Write};
use crate::{
    disk::{Crash, Tables},
    machine::{Machine, Program},
    random::{between, permille},
    watch::Promise,
    wire::{Body, Message, Packet},
    world::{Around, Event, Who},
};

impl Agent {
    /// Performs an effect; returns what follows.
    pub(super) fn perform(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        effect: Effect<(), Write>,
    ) -> Result<Option<Input<(), Write>>, Crash> {
        match effect {
            Effect::Publish(publication) => {
                let topic = self.session.me().topic(publication.topic);
                let message = Message::new(topic, Body::bytes(publication.payload));
                self.queue.push(Packet::Publish { message, retain: publication.retain });
            }
            Effect::Store(request) => {
                return self.store(machine, around, request).map(|reply| Some(Input::Stored(reply)));
            }
            Effect::Start(command) => {
                self.begin(machine, around, command.get());
                return Ok(Some(Input::Begun(command.get().id)));
            }
            Effect::Cancel(which) => {
                if let Some(program) = machine.programs.get_mut(&which).filter(|program| program.over.is_none()) {
                    // It ends a moment later.
                    program.ends_ms = around.now_ms;
                    program.over = Some(Status::Cancelled);
                    around.after(20, Event::ProgramEnds(machine.index, which));
                }
            }
            Effect::FetchDesired(digest) => {
                around.after(between(5, 3_000), Event::Fetch(machine.index, self.life, digest));
            }
            Effect::Withdraw => self.withdraw(machine, around),
            Effect::Disconnect => self.queue.push(Packet::Disconnect),
            Effect::Notice(notice) => self.note(machine, around, &notice),
            // Brokers forget unacknowledged messages of clean sessions, so nothing depends on that here.
            Effect::HandInDocument
            | Effect::AdmissionWaits(..)
            | Effect::Acknowledge(())
            | Effect::Stopped
            | Effect::TwinSeen
            | Effect::ConsoleTime { .. } => {}
        }
        Ok(None)
    }

    fn withdraw(&mut self, machine: &Machine, around: &mut Around<'_>) {
        around.note(|| format!("machine {} withdraws", machine.index));
        // Of two that begin while they cannot hear one another, one leaves soon.
        let worked_ms = self.sole_since_ms.map_or(0, |since_ms| around.now_ms - since_ms);
        around.watch.check(Promise::Twin, worked_ms < TWINS_MAX_MS, || {
            format!("machine {} worked for {worked_ms} ms and withdrew", machine.index)
        });
        self.queue.push(Packet::Disconnect);
        let packets = self.take_packets();
        if let Link::Up(conn) = self.link {
            around.send.extend(packets.into_iter().map(|packet| (conn, packet)));
        }
        self.down();
        let wait_ms = self.schedule.wait_ms(ConnectionEnd::Withdrawn, None, muster_base::chance::random());
        around.after(wait_ms, Event::Connect(Who::Machine(machine.index), self.life));
    }

    fn note(&mut self, machine: &Machine, around: &mut Around<'_>, notice: &Notice) {
        match notice {
            Notice::Refused(id, reason) => {
                around.note(|| format!("machine {} refuses {id}: {reason}", machine.index));
            }
            Notice::Refresh(issued_ms) => {
                self.pending_ms = self.pending_ms.max(self.session.time().signed_ms());
                around.watch.refreshes(machine.index, self.life, *issued_ms);
            }
            notice => around.note(|| format!("machine {}: {notice:?}", machine.index)),
        }
    }

    fn store(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        request: StoreRequest<Write>,
    ) -> Result<StoreReply<Write>, Crash> {
        let now_ms = clock::now_ms();
        Ok(match request {
            StoreRequest::Take { command, signed_ms } => {
                StoreReply::Command(self.take(machine, around, command, signed_ms)?)
            }
            StoreRequest::Answer { id, expires_ms, status, signed_ms } => {
                StoreReply::Command(answer(machine, id, expires_ms, status, signed_ms)?)
            }
            StoreRequest::Cancel { command, which, which_expires_ms, signed_ms } => {
                let command = command.into_inner();
                let id = command.id;
                let keys = machine.disk.write(|tx| {
                    let expires_ms = command.expires_ms;
                    if !tx.insert(id, Some(Rc::new(command)), expires_ms, signed_ms) {
                        return None;
                    }
                    let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it began");
                    let is_new = tx.insert(which, None, which_expires_ms, signed_ms);
                    let refused = is_new.then(|| tx.finish(which, refusal.into(), now_ms)).flatten();
                    Some(refused.into_iter().chain(tx.finish(id, Status::Completed, now_ms)).collect())
                })?;
                StoreReply::Command(match keys {
                    Some(keys) => CommandTaken::Answered { keys, is_change: false },
                    None => repeated(machine, id)?,
                })
            }
            StoreRequest::Acknowledge(acknowledgement) => {
                self.acknowledge(machine, around, &acknowledgement)?;
                StoreReply::Acknowledged(acknowledgement)
            }
            StoreRequest::Record(writes) => {
                for (id, status) in &writes {
                    let exit = Status::exited(Exit::Code(0));
                    let known = machine.programs.get(id).map(|program| program.over.clone().unwrap_or(exit));
                    around.watch.ends(*id, status, known.as_ref());
                }
                let ended = writes.iter().map(|(id, _)| *id).collect();
                let keys = machine.disk.write(|tx| {
                    writes.into_iter().filter_map(|(id, status)| tx.finish(id, status, now_ms)).collect()
                })?;
                for id in &ended {
                    machine.programs.remove(id);
                }
                StoreReply::Recorded { keys, ended }
            }
            StoreRequest::Works { .. } => {
                around.note(|| format!("machine {} works", machine.index));
                self.sole_since_ms = Some(around.now_ms);
                self.exempt = true;
                self.observe(machine);
                let own = StoreLife { instance: self.session.me().instance, is_newcomer: false };
                let lives = presence::lines(std::iter::once(&own).chain(&self.former), &machine.place());
                machine.disk.write(|tx| tx.tables.instances = lives)?;
                StoreReply::Done
            }
            StoreRequest::NoteOlderDisk { epoch, lost_ms, .. } => {
                machine.disk.write(|tx| tx.note_older_disk(epoch, lost_ms))?;
                StoreReply::Done
            }
            StoreRequest::Prune { signed_ms } => {
                machine.disk.write(|tx| tx.prune(signed_ms))?;
                StoreReply::Done
            }
            StoreRequest::Document(document) => {
                self.store_document(machine, around, &document)?;
                StoreReply::Done
            }
            StoreRequest::Read(read) => machine.disk.read_outbox(read),
            StoreRequest::Admission(change) => {
                let done = machine.disk.write(|tx| tx.tables.answer_admission(&change));
                machine.tell_truth(around);
                let statement = done?;
                around.note(|| format!("machine {} takes an answer: {change:?}", machine.index));
                machine.go_on(around);
                StoreReply::Admission(statement)
            }
            // The simulated console sends none of them.
            StoreRequest::Numbered(..) | StoreRequest::DocumentRefused(..) | StoreRequest::ConsoleEpoch(_) => {
                StoreReply::Done
            }
        })
    }

    /// Stores a document, and all that follows from it, in one transaction.
    fn store_document(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        document: &NewDocument,
    ) -> Result<(), Crash> {
        let NewDocument { head, body, .. } = document;
        let before = machine.disk.read(|tables| tables.document.mark);
        let mut removed = Vec::new();
        let done = machine.disk.write(|tx| {
            removed = tx.tables.apply_document(head, body);
            tx.tables.follow_rollout(&body.body);
        });
        // It has taken effect whether or not the agent lives to see it.
        if machine.disk.read(|tables| tables.document.mark) != before {
            around.watch.stores(machine.host, before, head, &removed);
        }
        done?;
        around.note(|| format!("machine {} has document {}, and removes {removed:?}", machine.index, head.mark));
        for unit in machine.disk.read(|tables| tables.owners.keys().cloned().chain(removed).collect::<Vec<_>>()) {
            around.after(between(1, 3_000), Event::Reconciled(machine.index, unit));
        }
        let statements = machine.disk.read(|tables| tables.admission.statements());
        self.session.set_admissions(statements, self.now_ms(around));
        self.observe(machine);
        Ok(())
    }

    fn acknowledge(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        acknowledgement: &Acknowledgement,
    ) -> Result<(), Crash> {
        let Acknowledgement { ack, signed_ms, time_back } = acknowledgement;
        if let Some(time_back) = time_back {
            machine.disk.write(|tx| tx.put_time_back(*time_back))?;
            self.created_ms = time_back.created_ms;
            self.puts_back(time_back.signed_ms);
        }
        let Some(signed_ms) = signed_ms else { return Ok(()) };
        for key in &ack.reports {
            if machine.disk.read(|tables| tables.outbox.contains_key(key)) {
                let ordered = around.ordered.contains(&(key.command, machine.host));
                around.watch.forgets(key.command, machine.host, ordered);
            }
        }
        machine.disk.write(|tx| tx.acknowledge(&ack.reports, *signed_ms))
    }

    /// Journals a command; a change of desired state takes effect in the same transaction.
    fn take(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        authorised: Authorised<Command>,
        signed_ms: Millis,
    ) -> Result<CommandTaken, Crash> {
        let command = authorised.get();
        let (id, expires_ms) = (command.id, command.expires_ms);
        match command.verb.clone() {
            Verb::UnitRun { unit } => self.edit(machine, around, command, signed_ms, (unit, Some(Run::Running))),
            Verb::UnitStop { unit } => self.edit(machine, around, command, signed_ms, (unit, Some(Run::Stopped))),
            Verb::UnitRm { unit } => self.edit(machine, around, command, signed_ms, (unit, None)),
            Verb::Exec(_) | Verb::UnitCommand(_) => {
                let kept = Rc::new(command.clone());
                if machine.disk.write(|tx| tx.insert(id, Some(kept), expires_ms, signed_ms))? {
                    return Ok(CommandTaken::Entered(authorised));
                }
                repeated(machine, id)
            }
            _ => {
                let refusal = CommandRefusal::new(RefusalCode::Unsupported, "no simulated host does this");
                answer(machine, id, expires_ms, refusal.into(), signed_ms)
            }
        }
    }

    /// A program, or a unit's own command, begins.
    fn begin(&mut self, machine: &mut Machine, around: &mut Around<'_>, command: &Command) {
        let (genuine, known) = self.known(command);
        around.watch.effect(machine.index, command, genuine, known);
        let lasts_ms = if permille(700) { between(1, 900) } else { between(1_000, 90_000) };
        around.note(|| format!("machine {} begins {} for {lasts_ms} ms", machine.index, command.id));
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

    /// Desired state is edited: the effect and the answer are one transaction.
    fn edit(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: &Command,
        signed_ms: Millis,
        (unit, run): (UnitName, Option<Run>),
    ) -> Result<CommandTaken, Crash> {
        let (id, now_ms) = (command.id, clock::now_ms());
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
        let Some(key) = done? else { return repeated(machine, id) };
        let (genuine, known) = self.known(command);
        around.watch.effect(machine.index, command, genuine, known);
        around.note(|| format!("machine {} edits {unit} by {id}", machine.index));
        around.after(between(1, 3_000), Event::Reconciled(machine.index, unit));
        self.observe(machine);
        Ok(CommandTaken::Answered { keys: key.into_iter().collect(), is_change: true })
    }

    /// What an earlier life left unfinished.
    pub(super) fn resume(&mut self, machine: &mut Machine, around: &mut Around<'_>) -> Result<(), Crash> {
        let unfinished = |tables: &Tables| {
            let open = tables.journal.iter().filter(|(_, row)| row.answer.is_none());
            open.map(|(id, row)| (*id, row.command.clone())).collect::<Vec<_>>()
        };
        for (id, command) in machine.disk.read(unfinished) {
            let input = match (receive::resume(command.as_ref().map(|command| &command.verb), false), command) {
                (ResumedCommand::Anew, Some(command)) => {
                    self.begin(machine, around, &command);
                    Input::Resumed(id, CommandStage::Running)
                }
                (ResumedCommand::LookedUp, _) => match machine.programs.get(&id).map(|program| program.over.clone()) {
                    Some(Some(status)) => Input::Writes(vec![(id, status)]),
                    // Its shim will tell.
                    Some(None) => Input::Resumed(id, CommandStage::Running),
                    None => Input::Writes(vec![(id, Status::Lost)]),
                },
                _ => Input::Writes(vec![(id, Status::Lost)]),
            };
            self.run(machine, around, input)?;
        }
        Ok(())
    }
}

fn answer(
    machine: &Machine,
    id: CommandId,
    expires_ms: Millis,
    status: Status,
    signed_ms: Millis,
) -> Result<CommandTaken, Crash> {
    let now_ms = clock::now_ms();
    let done =
        machine.disk.write(|tx| tx.insert(id, None, expires_ms, signed_ms).then(|| tx.finish(id, status, now_ms)))?;
    let Some(key) = done else { return repeated(machine, id) };
    Ok(CommandTaken::Answered { keys: key.into_iter().collect(), is_change: false })
}

fn repeated(machine: &Machine, id: CommandId) -> Result<CommandTaken, Crash> {
    Ok(CommandTaken::Repeated(id, machine.disk.write(|tx| tx.answer_again(id))?))
}
