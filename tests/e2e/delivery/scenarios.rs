//! Promises that hold whatever process dies and whatever message is repeated.

use std::{collections::BTreeMap, thread, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::stage::{Party, Stage, UNIT, shell};
use crate::fleet::{Running, eventually};

fn is_long() -> bool {
    std::env::var_os("TESTS_LONG").is_some()
}

/// What a third party hears of outcomes.
pub(super) struct Told {
    listener: Running,
    topic: String,
}

impl Told {
    /// Begins to listen.
    pub(super) fn listen(stage: &Stage) -> Self {
        let topic = stage.topic("outcome");
        let mut listener = stage.bus.listen(&[&topic]);
        // It hears nothing that came before it did.
        listener.wait_for("a listener that hears", |printed| {
            stage.succeeds(&stage.exec("true"));
            printed.contains("done").then_some(())
        });
        Self { listener, topic }
    }

    /// However often an outcome came: it was always the same one.
    pub(super) fn each_command_had_one_outcome(self) {
        let mut outcomes: BTreeMap<String, Value> = BTreeMap::new();
        for line in self.listener.printed().lines() {
            let Some(payload) = line.strip_prefix(&self.topic) else { continue };
            let report: Value = serde_json::from_str(payload.trim_start()).unwrap();
            if report["kind"] == "done" {
                let (command, outcome) = (report["command"].as_str().unwrap(), &report["outcome"]);
                let first = outcomes.entry(command.to_owned()).or_insert_with(|| outcome.clone());
                assert_eq!(first, outcome, "{command} had two outcomes");
            }
        }
        assert!(outcomes.len() > 3, "{outcomes:?}");
    }
}

/// A command that is delivered again and again, while it runs and afterwards, is done once.
pub(super) fn delivered_often_done_once(stage: &mut Stage) {
    let id = stage.exec(&format!("{}; sleep 0.7; echo told", stage.note("often")));
    stage.wait_for_effect("often");
    let (topic, signed) = (stage.topic("cmd"), stage.signed(&id));
    stage.bus.publish(&topic, &signed, 10);
    let outcome = stage.outcome(&id);
    assert_eq!((&outcome["exit"]["code"], stage.stored_output(&id)), (&json!(0), "told\n".len()));
    stage.bus.publish(&topic, &signed, 10);
    // What is ordered after all of them is done after all of them.
    stage.succeeds(&stage.exec("true"));
    assert_eq!(stage.effects("often"), 1);
    assert_eq!(stage.outcome(&id), outcome);
    stage.lap("once");
}

/// One command has just been ordered, one runs, one has just ended: then somebody is killed.
pub(super) fn killed_at_several_instants(stage: &mut Stage) {
    let rounds = if is_long() { 10 } else { 1 };
    for round in 0..rounds {
        for victims in [&[Party::Agent][..], &[Party::Console], &[Party::Broker], &[Party::Console, Party::Agent]] {
            // What RabbitMQ takes to start is better spent once.
            if victims == [Party::Broker] && !is_long() && stage.bus.kind == super::Kind::RabbitMq {
                continue;
            }
            killed_in_the_midst(stage, victims, round);
        }
    }
    stage.lap("kills");
}

fn killed_in_the_midst(stage: &mut Stage, victims: &[Party], round: usize) {
    let name = |what: &str| format!("{what}-{}-{victims:?}", round).replace(['[', ']', ',', ' '], "");
    let (runs, ended, ordered) = (name("runs"), name("ended"), name("ordered"));
    let first = stage.exec(&format!("{}; sleep 1; echo told", stage.note(&runs)));
    stage.wait_for_effect(&runs);
    let second = stage.exec(&stage.note(&ended));
    stage.wait_for_effect(&ended);
    let third = stage.exec(&stage.note(&ordered));
    victims.iter().for_each(|victim| stage.kill(*victim));
    victims.iter().for_each(|victim| stage.start_party(*victim));
    for (id, effect) in [(first, runs), (second, ended), (third, ordered)] {
        let outcome = stage.outcome(&id);
        match (outcome["status"].as_str(), stage.effects(&effect)) {
            (Some("exited"), 1) => assert_eq!(outcome["exit"]["code"], 0, "{effect}: {outcome}"),
            // It is not known whether it was begun, and so it is not begun again.
            (Some("lost"), 0 | 1) if victims.contains(&Party::Agent) => {}
            (_, effects) => panic!("{effect}: done {effects} times: {outcome}"),
        }
    }
}

/// A broker that has forgotten everything is told everything again, also what happened meanwhile.
pub(super) fn the_broker_comes_back_empty(stage: &mut Stage) {
    let (presence, unit) = (stage.topic("presence"), stage.topic(&format!("unit/{UNIT}")));
    let pid = stage.wait_for_unit("running")["observed"]["pid"].as_i64().unwrap();
    stage.bus.wait_for_retained(&unit, "\"running\"");
    stage.kill(Party::Broker);
    kill(Pid::from_raw(pid as i32), Signal::SIGTERM).unwrap();
    let id = stage.exec(&stage.note("without-a-broker"));
    stage.start_party(Party::Broker);
    stage.succeeds(&id);
    assert_eq!(stage.effects("without-a-broker"), 1);
    let seen = stage.wait_for_unit("failed");
    assert_eq!(seen["observed"]["exit"]["signal"], 15, "{seen}");
    stage.wait_for_presence("online");
    stage.bus.wait_for_retained(&presence, "\"online\"");
    stage.bus.wait_for_retained(&unit, "\"failed\"");
    stage.lap("empty broker");
}

/// How many commands the console has out at a time for one host that has not answered them.
const WINDOW: i64 = 16;

/// A console that takes nothing while a host has answers gets them all later, and the host what waited behind them.
pub(super) fn many_outcomes_while_the_console_is_slow(stage: &mut Stage) {
    let (programs, edits) = if is_long() { (300, 700) } else { (60, 140) };
    // What the console has out at a time waits for the host with the broker, and the console hears nothing of its end.
    stage.signal(Party::Agent, Signal::SIGSTOP);
    let line = stage.note("many");
    let label = |n: usize| json!({ "unit_label": { "unit": UNIT, "labels": { "edit": n.to_string() } } });
    let ids: Vec<String> =
        (0..programs).map(|_| stage.exec(&line)).chain((0..edits).map(|n| stage.order(&label(n), 600_000))).collect();
    stage.signal(Party::Console, Signal::SIGSTOP);
    stage.signal(Party::Agent, Signal::SIGCONT);
    let journal = |what: &str| -> i64 { stage.query("agent/agent.db", &format!("SELECT count(*) FROM {what}")) };
    eventually("the end of what the host has", || {
        let (open, waiting) = (journal("journal WHERE finished_ms IS NULL"), journal("outbox"));
        if open == 0 && waiting >= WINDOW { Ok(()) } else { Err(format!("{open} are open, {waiting} outcomes wait")) }
    });
    let effects = stage.effects("many");
    assert!(
        effects < programs,
        "{effects} programs were run of {programs}: the host is given no more than it can take"
    );
    stage.signal(Party::Console, Signal::SIGCONT);
    let listed = ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
    let done = format!("SELECT count(*) FROM command_host WHERE state = 'done' AND command IN ({listed})");
    eventually("every outcome", || match stage.query::<i64>("console/console.db", &done) {
        count if count == (programs + edits) as i64 => Ok(()),
        count => Err(format!("{count} of {}", programs + edits)),
    });
    assert_eq!(stage.effects("many"), programs);
    for (place, id) in ids.iter().enumerate() {
        let outcome = stage.outcome(id);
        // Of edits of one thing, those that had not gone out made way for what came later.
        let made_way = place >= programs && place + 1 < ids.len() && outcome["code"] == "superseded";
        let good = outcome["exit"]["code"] == 0 || outcome["status"] == "applied" || made_way;
        assert!(good, "{id}: {outcome}");
    }
    eventually("an empty outbox", || match journal("outbox") {
        0 => Ok(()),
        waiting => Err(format!("{waiting} wait")),
    });
    stage.lap("many outcomes");
}

/// Who is asked for everything says everything.
pub(super) fn everything_is_told_anew_when_asked(stage: &mut Stage) {
    // The newest heartbeat, if it was a whole one.
    let whole = "SELECT coalesce(max(seq), 0) FROM heartbeat WHERE base_seq IS NULL";
    let newest: i64 = stage.query("console/console.db", "SELECT seq FROM heartbeat");
    stage.request("POST", &format!("/hosts/{}/refresh", stage.host), None);
    eventually("a whole heartbeat", || match stage.query::<i64>("console/console.db", whole) {
        seq if seq > newest => Ok(()),
        seq => Err(format!("{seq} after {newest}")),
    });
    stage.lap("refresh");
}

/// Killed, a host is known to be away; what is ordered meanwhile waits for it, unless that expires.
pub(super) fn gone_without_a_word_and_back(stage: &mut Stage) {
    stage.kill(Party::Agent);
    stage.wait_for_presence("offline");
    stage.bus.wait_for_retained(&stage.topic("presence"), "\"offline\"");
    let late = stage.order(&shell(&stage.note("too-late")), 1_000);
    let waiting = stage.exec(&stage.note("in-time"));
    assert_eq!(stage.progress(&waiting)["state"], "waiting");
    thread::sleep(Duration::from_millis(1_100));
    stage.start_party(Party::Agent);
    stage.succeeds(&waiting);
    stage.wait_for_presence("online");
    // The console sends no more what has expired. Somebody else may.
    stage.bus.publish(&stage.topic("cmd"), &stage.signed(&late), 3);
    let outcome = stage.outcome(&late);
    assert_eq!((&outcome["status"], &outcome["code"]), (&json!("refused"), &json!("expired")), "{outcome}");
    assert_eq!((stage.effects("in-time"), stage.effects("too-late")), (1, 0));
    stage.lap("away");
}

/// Who ends in order says so.
pub(super) fn gone_in_order(stage: &mut Stage) {
    stage.stop_agent();
    stage.wait_for_presence("stopped");
    stage.bus.wait_for_retained(&stage.topic("presence"), "\"stopped\"");
    stage.lap("stop");
}
