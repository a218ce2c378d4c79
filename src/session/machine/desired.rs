//! The host's document: its head, then its body, then the store.
//!
//! **Invariant: a body is parsed only if a head that was verified has its digest**, wherever it came from.
//!
//! **Invariant: a document is reported once it is stored**, and never before.

use std::fmt::Debug;

use muster_fault::planted;
use muster_rules::{
    backoff::{ExponentialGrowth, jittered},
    desired::{
        body::shortened,
        head::{self, HeadVerdict, KnownDocument},
        host_body,
    },
};
use muster_topics::{
    Millis,
    desired::{BODY_ON_TOPIC_MAX_BYTES, DesiredHead, DesiredMark, DocumentRefusal, DocumentRequest},
    diagnostic::Diagnostic,
    name::Digest,
    numbered::NumberedKind,
};

use super::{Session, Waiting};
use crate::{
    interface::{Effect, Moment, Notice},
    signed::SignedText,
    store::{NewDocument, StoreRequest},
};

/// How long to wait for a body on the topic. It follows its head at once; a host that has missed it was away, and many come
/// back together.
const BODY_WAIT_MS: Millis = 5_000;

/// Delays before a body is fetched again.
const FETCH_AGAIN: ExponentialGrowth = ExponentialGrowth { first_ms: 2_000, max_ms: 300_000 };

/// Heads and bodies on their way.
#[derive(Debug, Default)]
pub(super) struct DesiredInbox {
    pending: Option<PendingDocument>,
    /// A body that came before its head, or when it could not be stored.
    early: Option<(Digest, Vec<u8>)>,
    /// The body that is being fetched.
    fetching: Option<Digest>,
    /// Whether the stored document is being handed in.
    pub(super) is_handing_in: bool,
}

/// A document whose body is wanted.
#[derive(Debug)]
struct PendingDocument {
    head: DesiredHead,
    signed: SignedText,
    /// When its body is fetched.
    fetch_ms: Millis,
    /// How often that has failed.
    attempts: u32,
}

impl DesiredInbox {
    /// When a body is to be fetched.
    pub(super) fn fetch_ms(&self) -> Option<Millis> {
        self.pending.as_ref().filter(|_| self.fetching.is_none()).map(|pending| pending.fetch_ms)
    }

    fn wants(&self, digest: &Digest) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.head.digest == *digest)
    }

    fn take_early(&mut self) -> Option<Vec<u8>> {
        let is_wanted = self.early.as_ref().is_some_and(|(digest, _)| self.wants(digest));
        self.early.take_if(|_| is_wanted).map(|(_, bytes)| bytes)
    }
}

impl<R: Debug, W: Debug> Session<R, W> {
    /// Handles the head of a document.
    pub(super) fn take_head(&mut self, head: DesiredHead, signed: SignedText, receipt: Option<R>, now: Moment) {
        let mark = head.mark;
        match head::judge(&head, self.local.me.host, &self.local.document) {
            HeadVerdict::Foreign => self.reject("desired_head", "it is for another host"),
            HeadVerdict::Unnumbered => self.reject("desired_head", "it has no number"),
            HeadVerdict::Older => self.notice(Notice::OlderDocument(mark)),
            HeadVerdict::Known | HeadVerdict::RefusedBefore => {}
            HeadVerdict::Refused(message) => return self.refuse_document(mark, head.digest, message, receipt),
            HeadVerdict::Wanted => {
                self.local.time.observe(head.issued_ms, now.clock_ms);
                self.want(head, signed, now);
                if let Some(bytes) = self.desired.take_early() {
                    return self.take_wanted(bytes, receipt, now);
                }
            }
        }
        self.finish(receipt, now);
    }

    /// Waits for the body of a document, instead of that of an earlier one.
    fn want(&mut self, head: DesiredHead, signed: SignedText, now: Moment) {
        match &self.desired.pending {
            // It is repeated with each connection.
            Some(pending) if pending.head == head => return,
            Some(pending) if pending.head.mark >= head.mark => return self.notice(Notice::OlderDocument(head.mark)),
            _ => {}
        }
        let is_on_topic = head.size_bytes <= BODY_ON_TOPIC_MAX_BYTES as u64;
        let wait_ms = if is_on_topic { jittered(BODY_WAIT_MS, (now.random)()) } else { 0 };
        self.desired.pending = Some(PendingDocument { head, signed, fetch_ms: now.life_ms + wait_ms, attempts: 0 });
    }

    /// Handles a message on the document's topic that is not signed: a body, or nothing, if the topic was cleared.
    pub(super) fn take_body(&mut self, bytes: Vec<u8>, receipt: Option<R>, now: Moment) {
        if bytes.is_empty() {
            return self.acknowledge(receipt);
        }
        let digest = Digest::of(&bytes);
        if self.desired.wants(&digest) && self.may_store_document() {
            return self.take_wanted(bytes, receipt, now);
        }
        if self.local.document.digest.as_ref() != Some(&digest) {
            self.desired.early = Some((digest, bytes));
        }
        // The head stays on the topic, and has the body fetched if this one is lost.
        self.acknowledge(receipt);
    }

    /// Handles the result of a fetch.
    pub(super) fn body_fetched(&mut self, digest: &Digest, bytes: Option<Vec<u8>>, now: Moment) {
        self.desired.fetching = None;
        if !self.desired.wants(digest) {
            return;
        }
        match bytes.filter(|bytes| Digest::of(bytes) == *digest) {
            Some(bytes) if self.may_store_document() => self.take_wanted(bytes, None, now),
            Some(bytes) => self.desired.early = Some((digest.clone(), bytes)),
            None => {
                if let Some(pending) = &mut self.desired.pending {
                    pending.fetch_ms = now.life_ms + FETCH_AGAIN.jittered_ms(pending.attempts, (now.random)());
                    pending.attempts = pending.attempts.saturating_add(1);
                }
            }
        }
    }

    /// Only the sole agent of a host takes documents, and earlier messages that wait for the store go first.
    fn may_store_document(&self) -> bool {
        self.is_sole() && self.held.is_empty()
    }

    /// Has the body fetched, if it has not come.
    pub(super) fn fetch_if_due(&mut self, now: Moment) {
        if !self.may_store_document() || self.waiting.is_some() {
            return;
        }
        if let Some(bytes) = self.desired.take_early() {
            return self.take_wanted(bytes, None, now);
        }
        if let Some(pending) = self.desired.pending.as_ref().filter(|pending| now.life_ms >= pending.fetch_ms)
            && self.desired.fetching.is_none()
        {
            let digest = pending.head.digest.clone();
            self.desired.fetching = Some(digest.clone());
            self.effects.push(Effect::FetchDesired(digest));
        }
    }

    /// Reads the body of the pending document, and has it stored.
    fn take_wanted(&mut self, bytes: Vec<u8>, receipt: Option<R>, now: Moment) {
        let Some(PendingDocument { head, signed, .. }) = self.desired.pending.take() else {
            return self.finish(receipt, now);
        };
        let (mark, digest) = (head.mark, head.digest.clone());
        match host_body::read(&bytes) {
            Ok(_) if planted!(ForgetDocument) => {
                self.local.document = KnownDocument { mark, digest: Some(digest), refused: None };
                self.finish(receipt, now);
            }
            Ok(body) => {
                let document = Box::new(NewDocument { head, signed, bytes, body });
                self.ask(StoreRequest::Document(document), Waiting::Document(mark, digest, receipt));
            }
            Err(message) => self.refuse_document(mark, digest, message.into(), receipt),
        }
    }

    fn refuse_document(&mut self, mark: DesiredMark, digest: Digest, reason: Diagnostic, receipt: Option<R>) {
        let refusal = DocumentRefusal { mark, diagnostic: shortened(reason) };
        self.notice(Notice::DocumentRefused(refusal.clone()));
        let waiting = Waiting::DocumentRefused(mark, digest.clone(), receipt);
        self.ask(StoreRequest::DocumentRefused(refusal, digest), waiting);
    }

    /// Handles a request for what is stored of the console. Those that come while it is handed in are answered with it.
    pub(super) fn take_document_request(&mut self, request: &DocumentRequest, now: Moment) {
        if request.host != self.local.me.host {
            return self.reject("document_request", "it is for another host");
        }
        self.local.time.observe(request.issued_ms, now.clock_ms);
        let has_any = self.local.document.digest.is_some() || self.local.number(NumberedKind::HostLabels) > 0;
        if has_any && !self.desired.is_handing_in {
            self.desired.is_handing_in = true;
            self.effects.push(Effect::HandInDocument);
        }
    }
}
