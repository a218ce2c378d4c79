//! What the console sends: commands, acknowledgements, requests and numbered documents.

use std::fmt::Debug;

use muster_rules::{
    authorise::{self, CommandSource, CommandVerdict, JudgeContext},
    backoff,
    receive::{self, AckEffect},
    time::SLACK_MS,
};
use muster_topics::{
    Millis,
    ack::Ack,
    command::{Command, Refresh, Verb},
    envelope::EnvelopeError,
    name::CommandId,
    numbered::NumberedDocument,
    outcome::Status,
};

use super::{LocalState, Session, Waiting};
use crate::{
    interface::{Effect, HostView, Moment, Notice},
    signed::{IncomingMessage, MessageScope, SignedMessage, SignedText},
    store::{Acknowledgement, StoreRequest, TimeBack},
};

impl<R: Debug, W: Debug> Session<R, W> {
    /// Handles a message on a topic of signed messages. If the store fails it is held and tried again: if it were
    /// dropped, it would never be acknowledged, and brokers stop sending to clients with too many unacknowledged
    /// messages.
    pub(super) fn take_message(
        &mut self,
        source: CommandSource,
        IncomingMessage { message, scope }: IncomingMessage,
        receipt: Option<R>,
        now: Moment,
        host: &impl HostView,
    ) {
        if let Some(scope) = scope {
            if let Some(why) = self.refuses(scope) {
                self.reject("message", why);
                return self.finish(receipt, now);
            }
            self.note_protocol(None);
            if scope.epoch > self.local.console_epoch {
                let waiting = Waiting::ConsoleEpoch(scope.epoch, source, Box::new(message), receipt);
                return self.ask(StoreRequest::ConsoleEpoch(scope.epoch), waiting);
            }
        }
        match message {
            SignedMessage::Command(command) => return self.take_command(source, command, receipt, now, host),
            SignedMessage::UnknownCommand(head, reason) => {
                let refusal = host.see(|host| authorise::not_understood(&head, source, host, &reason));
                if let Some(refusal) = refusal {
                    self.notice(Notice::Refused(head.id, refusal.diagnostic.clone()));
                    return self.answer(source, (head.id, head.expires_ms), refusal.into(), receipt);
                }
            }
            SignedMessage::Ack(ack) => return self.take_ack(ack, receipt, now),
            SignedMessage::Refresh(refresh) => self.take_refresh(&refresh, now),
            SignedMessage::Numbered(document, signed) => return self.take_numbered(document, signed, receipt, now),
            SignedMessage::UnknownKey(id) => {
                self.reject("message", EnvelopeError::UnknownKey(id).to_string());
                self.notice(Notice::UnknownKey);
            }
            SignedMessage::LaterProtocol(protocol) => {
                self.reject("message", EnvelopeError::LaterProtocol(protocol).to_string());
                self.note_protocol(Some(protocol));
            }
            SignedMessage::DesiredHead(head, signed) => return self.take_head(head, signed, receipt, now),
            SignedMessage::DocumentRequest(request) => self.take_document_request(&request, now),
            SignedMessage::AdmissionAnswer(answer) => return self.take_answer(answer, receipt, now),
            SignedMessage::Rejected(what, why) => self.reject(what, why),
        }
        self.finish(receipt, now);
    }

    /// Notes which later protocol the console speaks; `None` for one that this build knows.
    fn note_protocol(&mut self, later: Option<u32>) {
        if std::mem::replace(&mut self.later_protocol, later) != later {
            self.notice(Notice::ConsoleProtocol(later));
        }
    }

    /// Why a message is not taken, if it is for other hosts, or of a console that another one has followed.
    fn refuses(&self, scope: MessageScope) -> Option<String> {
        let (own, last) = (self.local.me.host.slot(), self.local.console_epoch);
        if scope.slot != own {
            return Some(format!("it is for hosts of slot {}, and this host has slot {own}", scope.slot));
        }
        let is_former = scope.epoch < last;
        is_former.then(|| {
            format!("it was signed in epoch {} of the console, and this host has accepted epoch {last}", scope.epoch)
        })
    }

    /// Ends the handling of a message. If it moved the time ahead of the clock, the console is asked for the time.
    pub(super) fn finish(&mut self, receipt: Option<R>, now: Moment) {
        self.acknowledge(receipt);
        self.local.time = self.local.time.at(now.life_ms);
        if self.local.time.ask(now.clock_ms) {
            self.publisher.request_heartbeat(now.life_ms);
        }
    }

    pub(super) fn take_command(
        &mut self,
        source: CommandSource,
        command: Command,
        receipt: Option<R>,
        now: Moment,
        host: &impl HostView,
    ) {
        let LocalState { policy, user, realms, created_ms, lost_ms, .. } = &self.local;
        let mut time = self.local.time;
        let verdict = host.see(|host| {
            let judge = JudgeContext {
                host,
                realms,
                policy,
                user,
                created_ms: *created_ms,
                lost_ms: *lost_ms,
                time: time.at(now.life_ms),
                clock_ms: now.clock_ms,
            };
            receive::command(command, source, &judge, &mut time)
        });
        self.local.time = time;
        let signed_ms = time.signed_ms();
        match verdict {
            CommandVerdict::NotMine => self.finish(receipt, now),
            CommandVerdict::Later(command) => {
                self.notice(Notice::Later(command.id));
                self.finish(receipt, now);
            }
            CommandVerdict::Refused(command, refusal) => {
                self.notice(Notice::Refused(command.id, refusal.diagnostic.clone()));
                self.answer(source, (command.id, command.expires_ms), refusal.into(), receipt);
            }
            CommandVerdict::Granted(command) => {
                let (request, cancelled) = match command.get().verb {
                    Verb::Cancel { command: which } => {
                        let which_expires_ms = receive::cancelled_expires_ms(command.get().issued_ms);
                        (StoreRequest::Cancel { command, which, which_expires_ms, signed_ms }, Some(which))
                    }
                    _ => (StoreRequest::Take { command, signed_ms }, None),
                };
                self.ask(request, Waiting::Command { source, receipt, cancelled });
            }
        }
    }

    /// Answers a command that is not executed.
    pub(super) fn answer(
        &mut self,
        source: CommandSource,
        (id, expires_ms): (CommandId, Millis),
        status: Status,
        receipt: Option<R>,
    ) {
        let signed_ms = self.local.time.signed_ms();
        let request = StoreRequest::Answer { id, expires_ms, status, signed_ms };
        self.ask(request, Waiting::Command { source, receipt, cancelled: None });
    }

    pub(super) fn take_ack(&mut self, ack: Ack, receipt: Option<R>, now: Moment) {
        let before_ms = self.local.time.signed_ms();
        let LocalState { me, time, kept_signed_ms, .. } = &mut self.local;
        let AckEffect::Forget { store } = receive::ack(&ack, me.host, time, *kept_signed_ms, now.clock_ms) else {
            self.reject("ack", "it is for another host");
            return self.finish(receipt, now);
        };
        if let Some(lives) = &ack.lives {
            self.take_lives(lives, now);
        }
        let is_fresh = ack.heartbeat.is_some_and(|heartbeat| self.publisher.beats.is_fresh(heartbeat, now.life_ms));
        if ack.issued_ms > before_ms || is_fresh {
            self.effects.push(Effect::ConsoleTime { issued_ms: ack.issued_ms, is_fresh });
        }
        let time_back = is_fresh.then(|| self.fresh_time(ack.issued_ms, now)).flatten();
        let signed_ms = store.then(|| self.local.time.signed_ms());
        if store || time_back.is_some() || !ack.metrics.is_empty() || !ack.alerts.is_empty() {
            let request = StoreRequest::Acknowledge(Acknowledgement { ack, signed_ms, time_back });
            return self.ask(request, Waiting::Acknowledged(receipt));
        }
        self.publisher.acknowledged(&ack);
        self.finish(receipt, now);
    }

    /// Handles a confirmation of the console's time: returns the earlier time to go back to.
    pub(super) fn fresh_time(&mut self, issued_ms: Millis, now: Moment) -> Option<TimeBack> {
        let LocalState { time, created_ms, kept_ms, .. } = &mut self.local;
        *time = time.at(now.life_ms);
        let ahead_ms = time.observe_fresh(issued_ms, now.clock_ms, *kept_ms);
        // A store cannot have been created after its agent was started.
        let is_made_ahead = *created_ms > issued_ms.saturating_add(SLACK_MS);
        let created_ms = if is_made_ahead { issued_ms - now.life_ms } else { *created_ms };
        let differs = ahead_ms.is_some() || is_made_ahead;
        differs.then(|| TimeBack { signed_ms: time.signed_ms(), created_ms, ahead_ms })
    }

    pub(super) fn take_refresh(&mut self, refresh: &Refresh, now: Moment) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.local.time, now.clock_ms);
        let Some(within_ms) = taken else { return };
        self.notice(Notice::Refresh(refresh.issued_ms));
        let due_ms = now.life_ms + backoff::share(within_ms, (now.random)());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    /// Handles a numbered document. One that is not newer than the present one changes nothing, however often it is
    /// repeated: an earlier set of keys that somebody kept brings no key back.
    pub(super) fn take_numbered(
        &mut self,
        document: NumberedDocument,
        signed: SignedText,
        receipt: Option<R>,
        now: Moment,
    ) {
        let (kind, number) = (document.content.kind(), document.number);
        if document.host != self.local.me.host {
            self.reject(kind.as_str(), "it is for another host");
        } else if let Err(problem) = document.content.check() {
            self.reject(kind.as_str(), problem);
        } else if number > self.local.number(kind) {
            self.local.time.observe(document.issued_ms, now.clock_ms);
            let waiting = Waiting::Numbered(kind, number, receipt);
            return self.ask(StoreRequest::Numbered(document, signed), waiting);
        }
        self.finish(receipt, now);
    }
}
