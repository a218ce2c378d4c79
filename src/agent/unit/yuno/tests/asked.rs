//! Tests of questions to yunos on their channels, with the Python sample of the examples.

use muster_topics::{channel::Ability, outcome::RefusalCode};

use super::*;
use crate::unit::InstanceRequest;

const SAMPLE: &str = include_str!("../../../../../examples/yuno.py");

fn lines() -> Value {
    json!({"channel": "lines"})
}

fn play(unit: &UnitName) -> Verb {
    Verb::UnitPlay { unit: unit.clone(), run: false }
}

impl Host {
    async fn ask(&self, units: &[UnitName], ask: InstanceRequest, limit_ms: u64) -> Value {
        serde_json::from_slice(&self.units.ask(units, &ask, Duration::from_millis(limit_ms)).await.unwrap()).unwrap()
    }

    async fn command(&self, unit: &UnitName, name: &str, args: Value) -> Value {
        let args = args.as_object().unwrap().clone();
        let ask = InstanceRequest::Command { name: name.to_owned(), args };
        self.ask(std::slice::from_ref(unit), ask, 60_000).await[unit.as_str()].take()
    }

    /// Waits until its log has so many lines of a word.
    async fn await_request(&self, unit: &UnitName, word: &str, times: usize) {
        loop {
            let logs =
                String::from_utf8(self.units.log(unit, FollowFrom::Last(100), LogView::default()).await.unwrap().text)
                    .unwrap();
            if logs.lines().filter(|line| *line == word).count() >= times {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn yuno_plays_and_continues_after_restart() {
    let mut host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SAMPLE, lines())).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert_eq!(state.observed.instance().can, [Ability::Play, Ability::Command, Ability::Stats]);
    host.verb(&unit, &play(&unit)).await.unwrap();
    let playing = host.until_phase(&unit, Phase::Playing).await;
    host.await_request(&unit, "play", 1).await;
    // Another agent asks again, and nothing else has changed.
    host.restart_agent().await;
    host.await_request(&unit, "play", 2).await;
    let state = host.until_phase(&unit, Phase::Playing).await;
    assert_eq!(pid(&state), pid(&playing));
    // Another process plays as well, from its welcome on, and is asked all the same.
    kill(pid(&state), Signal::SIGKILL).unwrap();
    let state = host
        .until(&unit, |state| {
            state.observed.phase() == Phase::Playing
                && state.process.is_some_and(|(now, _)| now != pid(&playing).as_raw())
        })
        .await;
    host.await_request(&unit, "play", 3).await;
    host.verb(&unit, &Verb::UnitPause { unit: unit.clone() }).await.unwrap();
    let paused = host.until_phase(&unit, Phase::Running).await;
    assert_eq!(pid(&paused), pid(&state));
    host.await_request(&unit, "pause", 1).await;
    host.stop(&unit).await;
}

#[tokio::test]
async fn refused_play_is_reported() {
    let host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SAMPLE, lines())).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    assert_eq!(host.command(&unit, "refuse", json!({})).await, json!({"ok": null}));
    host.verb(&unit, &play(&unit)).await.unwrap();
    let refused = |state: &UnitState| {
        let error = state.observed.error.as_ref().map(|error| error.cause.as_str()).unwrap_or_default();
        error.contains("not_now") && state.observed.generation == state.desired.generation
    };
    let state = host.until(&unit, refused).await;
    assert_eq!((state.observed.phase(), state.desired.run), (Phase::Running, Run::Playing));
    // Another process knows nothing of that.
    kill(pid(&state), Signal::SIGKILL).unwrap();
    let state = host.until(&unit, |state| state.observed.phase() == Phase::Playing).await;
    assert_eq!(state.observed.error, None);
    host.stop(&unit).await;
}

#[tokio::test]
async fn yuno_without_channel_is_not_asked() {
    let host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    let refusal = host.verb(&unit, &play(&unit)).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unsupported);
    let answer = host.ask(std::slice::from_ref(&unit), InstanceRequest::Stats, 60_000).await;
    assert_eq!(answer[unit.as_str()]["error"]["code"], "unsupported");
    // If it was to play before it was changed so, that is told, and it runs.
    let playing = match host.apply(&unit, SAMPLE, lines()) {
        Verb::UnitApply { unit, spec, .. } => Verb::UnitApply { unit, spec, run: Some(Run::Playing) },
        other => other,
    };
    host.verb(&unit, &playing).await.unwrap();
    host.until_phase(&unit, Phase::Playing).await;
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert!(state.observed.error.as_ref().unwrap().cause.starts_with("unsupported"), "{state:?}");
    host.stop(&unit).await;
}

#[tokio::test]
async fn concurrent_questions_each_have_an_answer() {
    let host = Host::start().await;
    let names = ["default/hello", "default/deaf", "default/gone", "default/unheard"];
    let units: Vec<UnitName> = names.iter().map(|name| name.parse().unwrap()).collect();
    for unit in &units[..3] {
        host.verb(unit, &host.apply(unit, SAMPLE, lines())).await.unwrap();
    }
    for unit in &units[..3] {
        host.until_phase(unit, Phase::Running).await;
    }
    host.stop(&units[2]).await;
    let state = host.until_phase(&units[1], Phase::Running).await;
    kill(pid(&state), Signal::SIGSTOP).unwrap();
    let ask =
        InstanceRequest::Command { name: "echo".to_owned(), args: json!({"a": [1]}).as_object().unwrap().clone() };
    let answers = host.ask(&units, ask, 3_000).await;
    assert_eq!(answers[names[0]], json!({"ok": {"a": [1]}}));
    assert_eq!(answers[names[1]]["error"]["code"], "deadline");
    assert_eq!(answers[names[2]]["error"]["code"], "unit_unreachable");
    assert_eq!(answers[names[3]]["error"]["code"], "not_found");
    let long = host.command(&units[0], "echo", json!({"a": "x".repeat(64 * 1024)})).await;
    assert_eq!(long["error"]["code"], "invalid");
    let unknown = host.command(&units[0], "sing", json!({})).await;
    assert_eq!(unknown["error"]["code"], "unknown");
    // One that ends in between is told at once rather than at the deadline.
    let hang = InstanceRequest::Command { name: "hang".to_owned(), args: serde_json::Map::new() };
    let (answer, ()) = tokio::join!(host.ask(&units[..1], hang, 600_000), async {
        let state = host.units.states().borrow()[&units[0]].clone();
        tokio::time::sleep(Duration::from_millis(200)).await;
        kill(pid(&state), Signal::SIGKILL).unwrap();
    });
    assert_eq!(answer[names[0]]["error"]["code"], "unit_unreachable");
    for unit in &units[..2] {
        host.stop(unit).await;
    }
}
