//! Documents of desired state.

use muster_topics::{
    desired::{BODY_MAX_BYTES, BODY_ON_TOPIC_MAX_BYTES, DesiredHead, DesiredMark, DocumentRequest},
    slot::Slot,
};

use super::*;
use crate::interface::desired_input;

const BODY: &[u8] = br#"{"v":1}"#;
const LATER: &[u8] = br#"{"v":1,"vars":{}}"#;

fn signer() -> Signer {
    Signer::from_pkcs8(&[&[48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32][..], &[7; 32]].concat()).unwrap()
}

fn slot() -> Slot {
    HostId(Uuid::from_u128(1)).slot()
}

fn head(generation: u64, body: &[u8]) -> DesiredHead {
    DesiredHead {
        v: V1,
        host: HostId(Uuid::from_u128(1)),
        mark: DesiredMark { epoch: 1, generation },
        issued_ms: NOW_MS,
        digest: Digest::of(body),
        size_bytes: body.len() as u64,
    }
}

impl Bench {
    /// A message on the document's topic.
    fn desired(&mut self, payload: &[u8], receipt: u32) -> Vec<TestEffect> {
        self.handle(desired_input(payload, &[signer().public_key().unwrap()], Some(receipt)))
    }

    fn head(&mut self, head: &DesiredHead, receipt: u32) -> Vec<TestEffect> {
        self.desired(&signer().sign(slot(), head).unwrap(), receipt)
    }

    fn later(&mut self, by_ms: Millis) -> Vec<TestEffect> {
        self.life_ms += by_ms;
        self.handle(Input::Time)
    }

    fn generation(&self) -> u64 {
        self.session.local.document.mark.generation
    }

    fn documents(&self) -> usize {
        self.stored.iter().filter(|stored| *stored == "Document").count()
    }
}

fn fetched(effects: &[TestEffect]) -> Vec<Digest> {
    let digest =
        |effect: &TestEffect| if let Effect::FetchDesired(digest) = effect { Some(digest.clone()) } else { None };
    effects.iter().filter_map(digest).collect()
}

fn refusals(effects: &[TestEffect]) -> Vec<String> {
    let message = |effect: &TestEffect| match effect {
        Effect::Notice(Notice::DocumentRefused(refusal)) => Some(refusal.diagnostic.cause.clone()),
        _ => None,
    };
    effects.iter().filter_map(message).collect()
}

#[test]
fn document_is_stored_once_its_body_has_come_and_acknowledged_then() {
    let mut bench = Bench::working();
    assert_eq!(acknowledged(&bench.head(&head(1, BODY), 5)), [5]);
    assert_eq!((bench.documents(), bench.generation()), (0, 0));
    // Another body is none of it, and an empty payload says nothing.
    assert_eq!(acknowledged(&bench.desired(LATER, 6)), [6]);
    assert_eq!(acknowledged(&bench.desired(b"", 7)), [7]);
    assert_eq!(bench.documents(), 0);
    bench.is_broken = true;
    assert_eq!(acknowledged(&bench.desired(BODY, 8)), [0; 0]);
    assert_eq!(bench.generation(), 0, "it is not stored");
    bench.is_broken = false;
    assert_eq!(acknowledged(&bench.later(10_000)), [8]);
    assert_eq!(bench.generation(), 1);
    // The same again changes nothing, nor does an earlier one.
    let known = bench.documents();
    bench.head(&head(1, BODY), 9);
    let effects = bench.head(&DesiredHead { mark: DesiredMark { epoch: 0, generation: 9 }, ..head(1, LATER) }, 10);
    assert_eq!(acknowledged(&effects), [10]);
    assert_eq!((bench.documents(), bench.generation()), (known, 1));
}

#[test]
fn body_that_comes_before_its_head_is_kept() {
    let mut bench = Bench::working();
    bench.desired(BODY, 5);
    bench.head(&head(1, BODY), 6);
    assert_eq!((bench.documents(), bench.generation()), (1, 1));
}

#[test]
fn only_the_sole_agent_takes_a_document() {
    let mut bench = Bench::new();
    bench.handle(Input::Connected { session: 1, since_ms: NOW_MS });
    bench.head(&head(1, BODY), 5);
    bench.desired(BODY, 6);
    assert_eq!(fetched(&bench.later(1_000)), []);
    assert_eq!(bench.documents(), 0);
    let own = bench.session.me().presence(1, PresenceState::Online, NOW_MS);
    bench.handle(Input::Presence(Some(own), Some(7)));
    assert_eq!((bench.documents(), bench.generation()), (1, 1));
}

#[test]
fn missed_body_is_fetched_until_it_is_there() {
    let mut bench = Bench::working();
    bench.head(&head(1, BODY), 5);
    assert_eq!(fetched(&bench.later(1_000)), [], "it may still come");
    assert_eq!(fetched(&bench.later(7_000)), [Digest::of(BODY)]);
    assert_eq!(fetched(&bench.later(60_000)), [], "one at a time");
    bench.handle(Input::DesiredFetched(Digest::of(BODY), None));
    let due_ms = bench.session.next_ms(bench.life_ms).unwrap();
    assert!(due_ms > bench.life_ms, "not at once");
    assert_eq!(fetched(&bench.later(5_000)), [Digest::of(BODY)]);
    // Bytes with another digest are no answer.
    bench.handle(Input::DesiredFetched(Digest::of(BODY), Some(LATER.to_vec())));
    assert_eq!(bench.documents(), 0);
    assert_eq!(fetched(&bench.later(400_000)), [Digest::of(BODY)]);
    bench.handle(Input::DesiredFetched(Digest::of(BODY), Some(BODY.to_vec())));
    assert_eq!((bench.documents(), bench.generation()), (1, 1));
    assert_eq!(fetched(&bench.later(400_000)), []);
}

#[test]
fn long_body_is_fetched_at_once() {
    let mut bench = Bench::working();
    let long = DesiredHead { size_bytes: BODY_ON_TOPIC_MAX_BYTES as u64 + 1, ..head(1, BODY) };
    bench.head(&long, 5);
    assert_eq!(fetched(&bench.later(0)), [Digest::of(BODY)]);
}

#[test]
fn later_head_replaces_a_pending_one() {
    let mut bench = Bench::working();
    bench.head(&head(1, BODY), 5);
    assert_eq!(fetched(&bench.later(8_000)), [Digest::of(BODY)]);
    bench.head(&head(2, LATER), 6);
    bench.head(&head(1, BODY), 7);
    bench.handle(Input::DesiredFetched(Digest::of(BODY), Some(BODY.to_vec())));
    assert_eq!(bench.documents(), 0);
    bench.desired(LATER, 8);
    assert_eq!((bench.documents(), bench.generation()), (1, 2));
}

#[test]
fn reconnection_keeps_what_is_pending() {
    let mut bench = Bench::working();
    bench.head(&head(1, BODY), 5);
    bench.handle(Input::Disconnected);
    assert_eq!(fetched(&bench.later(60_000)), []);
    bench.connect();
    bench.head(&head(1, BODY), 6);
    assert_eq!(fetched(&bench.later(0)), [Digest::of(BODY)]);
}

#[test]
fn second_document_of_one_number_is_refused_once() {
    let mut bench = Bench::working();
    bench.head(&head(1, BODY), 5);
    bench.desired(BODY, 6);
    let effects = bench.head(&head(1, LATER), 7);
    assert!(refusals(&effects)[0].contains("1.1"), "{effects:?}");
    assert_eq!(acknowledged(&effects), [7]);
    let effects = bench.head(&head(1, LATER), 8);
    assert_eq!((refusals(&effects).len(), acknowledged(&effects)), (0, vec![8]));
    assert_eq!(bench.stored, ["Document", "DocumentRefused"]);
    let long = DesiredHead { size_bytes: BODY_MAX_BYTES as u64 + 1, ..head(2, LATER) };
    assert_eq!(refusals(&bench.head(&long, 9)).len(), 1);
}

#[test]
fn body_that_is_not_understood_is_refused_and_not_tried_again() {
    for body in [&br#"{"v":1,"surprise":1}"#[..], b"{", b"\xff\xfe"] {
        let mut bench = Bench::working();
        bench.head(&head(1, body), 5);
        let effects = bench.desired(body, 6);
        assert_eq!((refusals(&effects).len(), acknowledged(&effects)), (1, vec![6]));
        assert_eq!((&bench.stored[..], bench.generation()), (&["DocumentRefused".to_owned()][..], 0));
        bench.head(&head(1, body), 7);
        assert_eq!(fetched(&bench.later(60_000)), []);
        // A later one replaces the refusal.
        bench.head(&head(2, BODY), 8);
        bench.desired(BODY, 9);
        assert_eq!((bench.generation(), bench.session.local.document.refused.clone()), (2, None));
    }
}

#[test]
fn forged_and_foreign_heads_change_nothing() {
    let mut bench = Bench::working();
    let foreign = DesiredHead { host: HostId(Uuid::from_u128(9)), ..head(1, BODY) };
    let stranger = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
    let mut cut = signer().sign(slot(), &head(1, BODY)).unwrap();
    cut.truncate(100);
    for payload in [
        signer().sign(slot(), &foreign).unwrap(),
        stranger.sign(slot(), &head(1, BODY)).unwrap(),
        cut,
        b"{}".to_vec(),
        vec![0; 70_000],
    ] {
        assert_eq!(acknowledged(&bench.desired(&payload, 5)), [5]);
    }
    bench.desired(BODY, 6);
    assert_eq!(fetched(&bench.later(60_000)), []);
    assert_eq!(bench.documents(), 0);
}

#[test]
fn stored_document_is_handed_in_on_request() {
    let mut bench = Bench::working();
    let ask = |bench: &mut Bench, host| {
        let request = SignedMessage::DocumentRequest(DocumentRequest { v: V1, host, issued_ms: NOW_MS }).into();
        let effects = bench.handle(Input::Message(CommandSource::Own, request, Some(5)));
        effects.iter().filter(|effect| matches!(effect, Effect::HandInDocument)).count()
    };
    let own = bench.session.me().host;
    assert_eq!(ask(&mut bench, own), 0, "there is none");
    bench.head(&head(1, BODY), 5);
    bench.desired(BODY, 6);
    assert_eq!(ask(&mut bench, HostId(Uuid::from_u128(9))), 0);
    assert_eq!(ask(&mut bench, own), 1);
    assert_eq!(ask(&mut bench, own), 0, "it is starting");
    bench.handle(Input::DocumentHandedIn);
    assert_eq!(ask(&mut bench, own), 1);
    // So are labels alone.
    let mut bench = Bench::working();
    let content = NumberedContent::HostLabels(Default::default());
    let labels = NumberedDocument { v: V1, host: own, issued_ms: NOW_MS, number: 7, content };
    let message = IncomingMessage::open(&signer().sign(slot(), &labels).unwrap(), &[signer().public_key().unwrap()]);
    bench.handle(Input::Message(CommandSource::Own, message, Some(6)));
    assert_eq!(ask(&mut bench, own), 1);
}
