//! Asks Prometheus and this crate the same queries over the same data, and compares the answers.
//!
//! Modules: `data` (series generated from a seed, as text for Prometheus and as a [`Source`](muster_promql::Source)),
//! `oracle` (the real Prometheus on a free port), `grammar` (queries generated from a seed), `list` (hand-written
//! queries), `answer` (compares the answers).
//!
//! `MUSTER_SEED` and `MUSTER_QUERIES` choose other queries and their number; a failure prints both answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::allow_attributes,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test that cannot go on has failed"
)]

mod answer;
mod chance;
mod data;
mod grammar;
mod list;
mod oracle;

use std::{env, str::FromStr};

use muster_promql::{Error, ParsedQuery, QueryLimits};

use self::{
    answer::{Answer, Verdict},
    chance::Chance,
    data::Data,
    grammar::When,
    oracle::Oracle,
};

/// Made queries, if no other number is asked for: a minute's worth.
const QUERIES: usize = 4_000;
const SEED: u64 = 2_042;

fn asked<T: FromStr>(variable: &str, default: T) -> T {
    env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// What this crate answers.
fn ours(data: &Data, query: &str, when: When) -> Answer {
    let limits = QueryLimits::default();
    let answer = ParsedQuery::parse(query).and_then(|parsed| match when {
        When::At(at_ms) => parsed.instant(data, at_ms, &limits).map(|instant| answer::of_instant(instant, at_ms)),
        When::Range(range) => parsed.range(data, range, &limits).map(Answer::Matrix),
    });
    answer.unwrap_or_else(|error| match error {
        Error::Query { .. } | Error::Execution { .. } => Answer::Refused(error.to_string()),
        other => panic!("{query}: {other}"),
    })
}

/// Asks both, each query at one time and over ranges.
fn compare(oracle: &Oracle, data: &Data, queries: impl Iterator<Item = (String, Vec<When>)>) {
    let (mut same, mut both_refuse, mut ties) = (0, 0, 0);
    let mut different = Vec::new();
    for (query, times) in queries {
        for when in times {
            let theirs = oracle.ask(&query, when);
            let ours = ours(data, &query, when);
            match answer::compare(&query, when, &theirs, &ours) {
                Verdict::Same => same += 1,
                Verdict::BothRefuse => both_refuse += 1,
                Verdict::Tie => ties += 1,
                Verdict::Different(how) => different.push(format!("{query}\n  {when:?}\n  {how}")),
            }
        }
    }
    let all = same + both_refuse + ties + different.len();
    eprintln!(
        "{all} questions: {same} the same, {both_refuse} refused by both, {ties} the same but for which of equals, {} different",
        different.len()
    );
    let shown: Vec<&str> = different.iter().map(String::as_str).take(asked("MUSTER_SHOWN", 20)).collect();
    assert!(different.is_empty(), "{} different, such as\n{}", different.len(), shown.join("\n"));
    assert!(same > all / 2, "most queries are answered: {same} of {all}");
}

#[test]
fn answers_equal_prometheus() {
    let data = Data::new(1);
    let oracle = Oracle::start(&data);
    compare(&oracle, &data, list::QUERIES.iter().map(|query| ((*query).to_owned(), grammar::every_way())));
    let seed = asked("MUSTER_SEED", SEED);
    eprintln!("MUSTER_SEED={seed}");
    let mut chance = Chance::new(seed);
    let made = (0..asked("MUSTER_QUERIES", QUERIES)).map(|_| {
        let query = grammar::query(&mut chance);
        (query, vec![grammar::at(&mut chance), grammar::range(&mut chance)])
    });
    compare(&oracle, &data, made);
}
