//! The store's answers, and what follows from them.

use std::fmt::Debug;

use muster_rules::{authorise::CommandSource, desired::head::KnownDocument};
use muster_topics::{
    Millis, V1,
    ack::ReportAck,
    name::CommandId,
    outcome::{Content, Report},
};

use super::{HeldWork, Session, Waiting};
use crate::{
    interface::{Effect, Moment, Notice},
    running::CommandStage,
    signed::SignedMessage,
    store::{Acknowledgement, CommandTaken, OutboxRead, RepeatedCommand, StoreReply, StoreRequest},
};

/// The delay before failed writes are tried again.
const STORE_RETRY_MS: Millis = 2_000;
/// The delay before publishing after the store could not be read.
const READ_RETRY_MS: Millis = 1_000;

impl<R: Debug, W: Debug> Session<R, W> {
    /// Handles the store's answer.
    pub(super) fn stored(&mut self, reply: StoreReply<W>, now: Moment) {
        let Some(waiting) = self.waiting.take() else { return };
        match (reply, waiting) {
            (StoreReply::Failed(request), waiting) => self.store_failed(request, waiting, now),
            (StoreReply::Command(taken), Waiting::Command { receipt, cancelled, .. }) => {
                self.command_taken(taken, cancelled, now);
                self.finish(receipt, now);
            }
            (
                StoreReply::Acknowledged(Acknowledgement { ack, signed_ms, time_back }),
                Waiting::Acknowledged(receipt),
            ) => {
                if let Some(time_back) = time_back {
                    self.local.kept_signed_ms = time_back.signed_ms;
                    self.local.created_ms = time_back.created_ms;
                    self.notice(Notice::WentBack(time_back));
                }
                if let Some(signed_ms) = signed_ms {
                    self.local.kept_signed_ms = signed_ms;
                }
                self.publisher.acknowledged(&ack);
                self.finish(receipt, now);
            }
            (StoreReply::Done, Waiting::Numbered(kind, number, receipt)) => {
                self.local.numbers.insert(kind, number);
                self.publisher.beats.hasten();
                self.finish(receipt, now);
            }
            (StoreReply::Done, Waiting::ConsoleEpoch(epoch, source, message, receipt)) => {
                self.local.console_epoch = epoch;
                self.notice(Notice::ConsoleEpoch(epoch));
                // Before all that came later.
                self.held.push_front(HeldWork::Message(source, (*message).into(), receipt));
            }
            (StoreReply::Done, Waiting::Document(mark, digest, receipt)) => {
                self.local.document = KnownDocument { mark, digest: Some(digest), refused: None };
                self.publisher.beats.hasten();
                self.finish(receipt, now);
            }
            (StoreReply::Done, Waiting::DocumentRefused(mark, digest, receipt)) => {
                self.local.document.refused = Some((mark, digest));
                self.publisher.beats.hasten();
                self.finish(receipt, now);
            }
            (StoreReply::Admission(statement), Waiting::Admission(answer, receipt)) => {
                self.admission.set(answer.deployment, statement, now.life_ms);
                self.finish(receipt, now);
            }
            (StoreReply::Deferred, Waiting::Document(_, _, receipt) | Waiting::Admission(_, receipt)) => {
                self.finish(receipt, now);
            }
            (StoreReply::Recorded { keys, ended }, Waiting::Recorded) => {
                self.writes_ms = None;
                keys.into_iter().for_each(|key| self.queue(key, now));
                ended.into_iter().for_each(|id| self.running.remove(id));
            }
            (StoreReply::Done, Waiting::Works) => {
                self.has_worked = true;
                self.publisher.connected(now.life_ms);
                self.admission.connected(now.life_ms);
            }
            (StoreReply::Reports(keys), Waiting::Read(_)) => self.publisher.reports_read(keys, now.life_ms),
            (StoreReply::Report(payload), Waiting::Read(OutboxRead::Report(key))) => {
                if let Some(publication) = self.publisher.report_read(key, payload, now) {
                    self.publish(publication);
                }
            }
            (StoreReply::Batches(rows), Waiting::Read(_)) => {
                for publication in self.publisher.batches_read(rows, self.room, now) {
                    self.publish(publication);
                }
            }
            (StoreReply::TaskEnds(tasks), Waiting::Read(_)) => {
                if let Some(publication) = self.publisher.task_ends_read(tasks, now) {
                    self.publish(publication);
                }
            }
            // Nothing depends on it, or the driver answers another question.
            (_, _) => {}
        }
    }

    pub(super) fn command_taken(&mut self, taken: CommandTaken, cancelled: Option<CommandId>, now: Moment) {
        match taken {
            CommandTaken::Entered(command) => {
                self.running.add(command.get().id, CommandStage::Accepted, now.life_ms);
                self.effects.push(Effect::Start(command));
            }
            CommandTaken::Answered { keys, is_change } => {
                self.effects.extend(cancelled.map(Effect::Cancel));
                keys.into_iter().for_each(|key| self.queue(key, now));
                if is_change {
                    self.publisher.beats.hasten();
                }
            }
            CommandTaken::Repeated(id, known) => {
                self.notice(Notice::Repeated(id));
                match known {
                    Some(RepeatedCommand::Answered(key)) => self.queue(key, now),
                    // Its sender gets the present status.
                    Some(RepeatedCommand::Unfinished) => self.running.report_again(id),
                    None => {}
                }
            }
            CommandTaken::Busy(id) => {
                self.notice(Notice::Busy(id));
                let report = Report { v: V1, command: id, seq: 0, at_ms: now.clock_ms, content: Content::Busy };
                self.publisher.note(report);
            }
            CommandTaken::NoRoom => {
                self.reject(
                    "command",
                    "the journal is full (`journal_max_bytes`); the command is stored once it has room",
                );
            }
        }
    }

    pub(super) fn queue(&mut self, key: ReportAck, now: Moment) {
        self.publisher.queue(key, now.life_ms);
    }

    pub(super) fn store_failed(&mut self, request: StoreRequest<W>, waiting: Waiting<R>, now: Moment) {
        match (request, waiting) {
            (StoreRequest::Record(writes), _) => {
                // They come before later ones.
                let later = std::mem::replace(&mut self.writes, writes.into());
                self.writes.extend(later);
                self.writes_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
            (StoreRequest::Read(_), _) => self.blocked_until_ms = Some(now.life_ms + READ_RETRY_MS),
            (
                StoreRequest::Take { command, .. } | StoreRequest::Cancel { command, .. },
                Waiting::Command { source, receipt, .. },
            ) => {
                // It is judged again: it may expire meanwhile.
                let message = SignedMessage::Command(command.into_inner());
                self.held.push_front(HeldWork::Message(source, message.into(), receipt));
                self.held_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
            (StoreRequest::Admission(_), Waiting::Admission(answer, receipt)) => {
                // It is judged again: the host may have asked anew meanwhile, or the answer may be too old.
                let message = SignedMessage::AdmissionAnswer(*answer);
                self.held.push_front(HeldWork::Message(CommandSource::Own, message.into(), receipt));
                self.held_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
            (request, waiting) => {
                self.held.push_front(HeldWork::Request(request, waiting));
                self.held_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
        }
    }
}
