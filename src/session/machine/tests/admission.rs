//! Questions of a host about deployments, and the console's answers.

use std::collections::BTreeSet;

use muster_topics::{
    admission::{AdmissionAnswer, AdmissionReport, AdmissionStage, AdmissionVerdict, ChangeOutcome},
    desired::DeploymentName,
};
use proptest::prelude::*;

use super::*;

const ASKS: AdmissionStage = AdmissionStage::Asks;
const BEGUN: AdmissionStage = AdmissionStage::Begun { permit: 1 };

fn ended(permit: Option<u64>) -> AdmissionStage {
    AdmissionStage::Ended { permit, outcome: ChangeOutcome::Verified, changed: true, diagnostic: None }
}

fn name() -> DeploymentName {
    "shop/till".parse().unwrap()
}

fn statement(version: u32, stage: AdmissionStage) -> AdmissionStatement {
    AdmissionStatement { version, digest: Digest::of(&version.to_be_bytes()), stage, noted: None }
}

fn granted(permit: u64) -> AdmissionVerdict {
    AdmissionVerdict::Granted { permit, begin_within_ms: 60_000 }
}

fn wait(again_ms: u64) -> AdmissionVerdict {
    AdmissionVerdict::Wait { reason: "one host at a time".to_owned(), again_ms }
}

fn reports(effects: &[TestEffect]) -> Vec<AdmissionReport> {
    let report = |effect: &TestEffect| match effect {
        Effect::Publish(publication) if publication.topic == HostTopic::Admission => {
            assert!(!publication.retain);
            Some(serde_json::from_slice(&publication.payload).unwrap())
        }
        _ => None,
    };
    effects.iter().filter_map(report).collect()
}

fn waits(effects: &[TestEffect]) -> Vec<String> {
    let reason = |effect: &TestEffect| match effect {
        Effect::AdmissionWaits(deployment, 1, reason) if *deployment == name() => Some(reason.cause.clone()),
        _ => None,
    };
    effects.iter().filter_map(reason).collect()
}

fn rejected(effects: &[TestEffect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::Rejected(..))))
}

impl Bench {
    /// Sets what the host says, and returns what it publishes.
    fn says(&mut self, statement: Option<AdmissionStatement>) -> Vec<AdmissionReport> {
        let statements = statement.into_iter().map(|statement| (name(), statement)).collect();
        self.session.set_admissions(statements, self.life_ms);
        reports(&self.handle(Input::Time))
    }

    fn after(&mut self, by_ms: Millis) -> Vec<AdmissionReport> {
        self.life_ms += by_ms;
        reports(&self.handle(Input::Time))
    }

    fn answer_to(&mut self, to: Numbered, verdict: AdmissionVerdict) -> Vec<TestEffect> {
        self.send(self.verdict(to, verdict))
    }

    fn verdict(&self, to: Numbered, verdict: AdmissionVerdict) -> AdmissionAnswer {
        let (host, issued_ms) = (self.session.me().host, NOW_MS + self.life_ms);
        AdmissionAnswer { v: V1, host, issued_ms, deployment: name(), version: 1, to, verdict }
    }

    fn send(&mut self, answer: AdmissionAnswer) -> Vec<TestEffect> {
        self.handle(Input::Message(CommandSource::Own, SignedMessage::AdmissionAnswer(answer).into(), Some(5)))
    }

    /// How often something of a deployment was stored.
    fn changes(&self) -> usize {
        self.stored.iter().filter(|stored| *stored == "Admission").count()
    }
}

#[test]
fn question_is_repeated_with_new_numbers_until_it_is_granted() {
    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    assert_eq!(first, Numbered { epoch: 7, seq: 1 });
    assert_eq!(bench.says(Some(statement(1, ASKS))), [], "it is said already");
    assert_eq!(bench.after(1_000), []);
    let second = bench.after(10_000).remove(0).number;
    assert!(second > first);

    bench.says = Some(statement(1, BEGUN));
    let effects = bench.answer_to(second, granted(1));
    let begun = reports(&effects);
    assert_eq!((begun[0].stage.clone(), acknowledged(&effects), bench.changes()), (BEGUN, vec![5], 1));
    assert_eq!(bench.after(10_000).len(), 1, "it is repeated");
    let last = bench.after(20_000).remove(0).number;
    bench.answer_to(last, AdmissionVerdict::Noted);
    assert_eq!((bench.after(1_000_000), bench.changes()), (vec![], 1));

    let end = bench.says(Some(statement(1, ended(Some(1))))).remove(0).number;
    bench.says = Some(AdmissionStatement { noted: Some(end), ..statement(1, ended(Some(1))) });
    bench.answer_to(end, AdmissionVerdict::Noted);
    bench.answer_to(end, AdmissionVerdict::Noted);
    assert_eq!((bench.after(1_000_000), bench.changes()), (vec![], 2), "it is noted once");
}

#[test]
fn only_an_answer_to_the_last_question_counts() {
    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    let second = bench.after(10_000).remove(0).number;
    for to in [first, Numbered { epoch: 6, ..second }, Numbered { seq: 99, ..second }] {
        let effects = bench.answer_to(to, granted(1));
        assert!(rejected(&effects) && acknowledged(&effects) == [5], "{to:?}");
    }
    let answer = bench.verdict(second, granted(1));
    let host = HostId(Uuid::from_u128(9));
    for other in [
        AdmissionAnswer { host, ..answer.clone() },
        AdmissionAnswer { version: 2, ..answer.clone() },
        AdmissionAnswer { deployment: "shop/bar".parse().unwrap(), ..answer.clone() },
        AdmissionAnswer { issued_ms: answer.issued_ms - 60_001, ..answer.clone() },
        AdmissionAnswer { verdict: AdmissionVerdict::Noted, ..answer.clone() },
        AdmissionAnswer { verdict: AdmissionVerdict::Retry, ..answer.clone() },
    ] {
        assert!(rejected(&bench.send(other.clone())), "{other:?}");
    }
    assert_eq!(bench.changes(), 0);
    // Of another version nothing is granted.
    bench.says(Some(statement(2, ASKS)));
    assert!(rejected(&bench.send(answer)));
    // Nor of one that the host asks for no more.
    let third = bench.says(Some(statement(1, ASKS))).remove(0).number;
    bench.says(None);
    assert!(rejected(&bench.answer_to(third, granted(1))));
    assert_eq!(bench.changes(), 0);
}

#[test]
fn host_that_waits_asks_again_when_it_is_told_to_and_takes_a_grant_before() {
    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    assert_eq!(waits(&bench.answer_to(first, wait(600_000))), ["one host at a time"]);
    assert_eq!(bench.after(400_000), []);
    let second = bench.after(300_000).remove(0).number;
    // Neither without a pause, nor never again.
    bench.answer_to(second, wait(0));
    assert_eq!(bench.after(500), []);
    let third = bench.after(1_000).remove(0).number;
    bench.answer_to(third, wait(u64::MAX));
    let due_ms = bench.session.admission.next_ms().unwrap() - bench.life_ms;
    assert!((1..5_400_000).contains(&due_ms), "{due_ms}");
    bench.says = Some(statement(1, BEGUN));
    assert_eq!(reports(&bench.answer_to(third, granted(1)))[0].stage, BEGUN);
    // It has begun: nothing is granted twice.
    assert!(rejected(&bench.answer_to(third, granted(1))));
    assert_eq!(bench.changes(), 1);
}

#[test]
fn new_connection_repeats_what_is_open() {
    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    bench.answer_to(first, wait(600_000));
    bench.handle(Input::Disconnected);
    assert_eq!(bench.after(1_000_000), [], "not without a connection");
    let effects = bench.connect();
    let again = reports(&effects).remove(0).number;
    assert!(again > first);
    bench.says = Some(statement(1, BEGUN));
    let begun = reports(&bench.answer_to(again, granted(1))).remove(0).number;
    bench.answer_to(begun, AdmissionVerdict::Noted);
    bench.handle(Input::Disconnected);
    assert_eq!(reports(&bench.connect()), []);
}

#[test]
fn grant_that_cannot_be_stored_is_judged_again() {
    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    bench.is_broken = true;
    assert_eq!(acknowledged(&bench.answer_to(first, granted(1))), [0; 0]);
    bench.is_broken = false;
    // It asks again before the store is tried again: what was granted is void.
    let second = bench.says(Some(statement(1, ASKS)));
    assert_eq!((second, bench.changes()), (vec![], 1));
    bench.says = Some(statement(1, BEGUN));
    bench.life_ms += 3_000;
    let effects = bench.handle(Input::Time);
    assert_eq!((acknowledged(&effects), reports(&effects)[0].stage.clone()), (vec![5], BEGUN));

    let mut bench = Bench::working();
    let first = bench.says(Some(statement(1, ASKS))).remove(0).number;
    bench.is_broken = true;
    bench.answer_to(first, granted(1));
    bench.handle(Input::Disconnected);
    (bench.is_broken, bench.life_ms) = (false, 3_000);
    bench.connect();
    assert!(rejected(&bench.answer_to(first, granted(1))));
    assert_eq!(bench.changes(), 1, "the failed one");
}

#[test]
fn noted_end_is_not_said_again_and_can_be_retried_after_a_restart() {
    let mut bench = Bench::working();
    let number = Numbered { epoch: 3, seq: 8 };
    let noted = AdmissionStatement { noted: Some(number), ..statement(1, ended(None)) };
    assert_eq!(bench.says(Some(noted)), []);
    assert_eq!(bench.after(1_000_000), []);
    assert!(rejected(&bench.answer_to(Numbered { epoch: 3, seq: 7 }, AdmissionVerdict::Retry)));
    bench.says = None;
    bench.answer_to(number, AdmissionVerdict::Retry);
    assert_eq!(bench.changes(), 1);
    assert!(rejected(&bench.answer_to(number, AdmissionVerdict::Retry)));
    assert_eq!(bench.says(Some(statement(1, ASKS))).len(), 1);
}

#[test]
fn later_end_replaces_an_earlier_one() {
    let mut bench = Bench::working();
    let refused =
        AdmissionStage::Ended { permit: None, outcome: ChangeOutcome::Refused, changed: false, diagnostic: None };
    let first = bench.says(Some(statement(1, refused))).remove(0).number;
    bench.says(Some(statement(1, ended(None))));
    assert!(rejected(&bench.answer_to(first, AdmissionVerdict::Noted)));
    assert_eq!(bench.changes(), 0);
}

proptest! {
    /// Whatever is answered, in whatever order and to whatever message: a version is begun once for each question that was
    /// the last one, and never with a permit for an earlier one.
    #[test]
    fn host_begins_once_for_the_question_that_was_granted(
        steps in prop::collection::vec((0..7u8, 0..4u64, 0..40_000i64), 1..60)
    ) {
        let mut bench = Bench::working();
        bench.says = Some(statement(1, BEGUN));
        let mut said = bench.says(Some(statement(1, ASKS)));
        let (mut has_begun, mut numbers) = (false, BTreeSet::new());
        for (step, back, by_ms) in steps {
            let last = said.last().unwrap();
            let (number, stage) = (last.number, last.stage.clone());
            let to = Numbered { seq: number.seq.saturating_sub(back), ..number };
            let before = bench.changes();
            let effects = match step {
                0 | 1 => bench.answer_to(to, granted(1)),
                2 => bench.answer_to(to, wait(by_ms.unsigned_abs())),
                3 => bench.answer_to(to, AdmissionVerdict::Noted),
                4 => { bench.handle(Input::Disconnected); bench.connect() }
                5 => { bench.is_broken = !bench.is_broken; Vec::new() }
                _ => { bench.life_ms += by_ms; bench.handle(Input::Time) }
            };
            said.extend(reports(&effects));
            if bench.changes() > before && !bench.is_broken {
                prop_assert!(!has_begun, "begun twice");
                has_begun = true;
            }
            if step < 2 && stage == ASKS && back > 0 {
                prop_assert!(rejected(&effects) || !bench.session.held.is_empty() || !bench.session.is_sole());
            }
            // After it has begun it does not ask.
            prop_assert!(!has_begun || said.last().unwrap().stage == BEGUN || !bench.session.is_sole());
        }
        for report in &said {
            prop_assert!(numbers.insert((report.number.epoch, report.number.seq)), "a number twice");
        }
        let begun = said.iter().position(|report| report.stage == BEGUN).unwrap_or(said.len());
        prop_assert!(said[begun..].iter().all(|report| report.stage == BEGUN));
    }
}
