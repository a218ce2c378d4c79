use muster_api::{CommandState, HostConnection, NewCommand, NewTarget};
use muster_topics::{
    PAYLOAD_MAX_BYTES,
    ack::{HostLives, Numbered, ReportAck},
    diagnostic::Diagnostic,
    name::{CommandId, HostId},
    presence::Capability,
    topic::HostTopic,
    unit::UNITS_MAX,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    PageChange,
    host_share::ShareKind,
    link::MessageReceipt,
    store::{
        self,
        host::{self, presences},
    },
    testing::{Fixture, admin, exec, facts},
};

mod alerts;

fn message(host: HostId, topic: HostTopic, payload: &Value) -> Inbound {
    let payload = if payload.is_null() { Vec::new() } else { serde_json::to_vec(payload).unwrap() };
    Inbound { topic: Topic::Host(host, topic), payload, retained: false, receipt: MessageReceipt::none(), room: None }
}

async fn stored(fixture: &Fixture, batch: &[Inbound]) -> Effects {
    super::store(fixture.shared(), batch).await.unwrap()
}

fn presence(epoch: u64, session: u64, state: &str) -> Value {
    json!({
        "v": 1, "state": state, "instance": uuid::Uuid::nil(), "epoch": epoch, "session": session,
        "protocol": 1, "agent_version": "0.1.0", "capabilities": ["exec"], "since_ms": 1,
    })
}

fn heartbeat(epoch: u64, seq: u64, units: &Value) -> Value {
    json!({
        "v": 1, "epoch": epoch, "seq": seq, "at_ms": 1_000 * seq, "final": false, "kind": "full",
        "state": {
            "hostname": "renamed", "agent_version": "1", "facts": facts(), "interfaces": {}, "labels": {}, "realms": [],
            "units": units, "command_keys": {"ids": [], "authorities": []},
            "desired": {"mark": {"epoch": 0, "generation": 0}},
        },
    })
}

fn unit_report(epoch: u64, seq: u64, at_ms: i64, phase: &str) -> Value {
    let digest = muster_topics::name::Digest::of(b"artifact");
    json!({
        "v": 1, "epoch": epoch, "seq": seq, "at_ms": at_ms, "unit": "default/hello",
        "desired": {
            "generation": 1, "revision": digest, "run": "running",
            "spec": {"kind": "yuno", "artifact": {"sha256": digest, "size_bytes": 1, "role": "hello", "version": "1"}},
        },
        "observed": {"generation": 1, "phase": phase, "since_ms": 0, "attempts": 0, "retry_ms": (phase == "backoff").then_some(9)},
    })
}

fn unit_topic() -> HostTopic {
    HostTopic::Unit("default/hello".parse().unwrap())
}

#[tokio::test]
async fn presence_follows_the_order_of_sessions() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let states = [(1, 1, "online"), (1, 2, "online"), (1, 1, "offline"), (1, 2, "offline"), (1, 2, "online")];
    let batch: Vec<_> = states
        .map(|(epoch, session, state)| message(host, HostTopic::Presence, &presence(epoch, session, state)))
        .into();
    let effects = stored(&fixture, &batch).await;
    assert_eq!(effects.presences, [(host, true), (host, true), (host, false)]);
    let held = crate::store::host::list(fixture.shared().store.read(), Some(host)).await.unwrap().remove(0);
    let held = held.presence.unwrap();
    assert_eq!((held.state, held.epoch), (HostConnection::Offline, 1));
    assert_eq!(
        (held.capabilities, effects.capabilities),
        (Some(vec![Capability::Exec]), [(host, vec![Capability::Exec])].into())
    );
    // Nobody hears of it: there is no broker.
    let shown = fixture.console.host("h").await.unwrap().presence.unwrap();
    assert_eq!((Some(shown.since_ms), shown.state), (fixture.shared().hosts.link.lost_ms(), HostConnection::Unknown));
    let status = fixture.console.status().await.unwrap();
    assert_eq!((status.hosts, status.hosts_online, status.broker_connected), (1, 0, false));
}

#[tokio::test]
async fn revoked_host_is_not_commanded_and_ignored() {
    use muster_topics::outcome::{RefusalCode, Status};
    let fixture = Fixture::new().await;
    let (bad, good) = (fixture.member("bad").await.id, fixture.member("good").await.id);
    stored(&fixture, &[message(bad, HostTopic::Presence, &presence(1, 1, "online"))]).await;
    let (id, done) = (fixture.command(&[bad, good]).await.id, fixture.command(&[bad]).await.id);
    let outcome = |id: CommandId| {
        json!({
            "v": 1, "command": id, "seq": 1, "at_ms": 5, "kind": "done",
            "outcome": {"status": "exited", "exit": {"code": 0}, "finished_ms": 4},
        })
    };
    fixture.console.revoke_host(&admin(), "bad").await.unwrap();
    // What it owed is over, and for others nothing has changed.
    let shown = fixture.console.command(id).await.unwrap();
    let of = |host: HostId| shown.hosts.iter().find(|line| line.host == host).unwrap();
    assert!(matches!(
        &of(bad).outcome().unwrap().value.status,
        Status::Refused { code: RefusalCode::Revoked, diagnostic } if diagnostic.cause.contains("revoked")
    ));
    assert_eq!((of(bad).state(), of(good).state()), (CommandState::Done, CommandState::Waiting));
    // It goes on talking, for its broker has not heard of it.
    let said = [
        message(bad, HostTopic::Presence, &presence(2, 1, "online")),
        message(bad, HostTopic::Heartbeat, &heartbeat(2, 1, &json!({}))),
        message(bad, HostTopic::Outcome, &outcome(done)),
        message(bad, unit_topic(), &unit_report(2, 1, 1, "running")),
    ];
    let effects = stored(&fixture, &said).await;
    assert!(effects.acks.is_empty() && effects.presences.is_empty() && effects.refresh.is_empty(), "{effects:?}");
    let host = store::host::list(fixture.shared().store.read(), Some(bad)).await.unwrap().remove(0);
    assert_eq!(host.presence.unwrap().state, HostConnection::Offline);
    assert!(host.state.is_none() && fixture.console.units(None).await.unwrap().is_empty());
    // It is ordered nothing by name, and is none of all.
    let target = |target| NewCommand { target, expires_in_ms: None, verb: exec(&["true"]), copied_from: None };
    let refused = fixture.console.submit(&admin(), target(NewTarget::Hosts(vec!["bad".to_owned()]))).await.unwrap_err();
    assert_eq!((refused.status, refused.problem.code.as_str()), (409, "host_revoked"));
    assert_eq!(fixture.console.refresh(&admin(), "bad").await.unwrap_err().problem.code, "host_revoked");
    for wanted in [NewTarget::All, NewTarget::Select("host=bad or host=good".parse().unwrap())] {
        let hosts = fixture.console.submit(&admin(), target(wanted)).await.unwrap().hosts;
        assert_eq!(hosts.iter().map(|line| line.host).collect::<Vec<_>>(), [good]);
    }
    // Nobody knows whom the broker lets in, so what all hosts read is not used, until it is known to refuse this one.
    assert!(!fixture.shared().revocations_are_in_force().await.unwrap());
    let revoked = store::issued::revoked(fixture.shared().store.read(), now_ms()).await.unwrap();
    fixture.shared().revocation.told_broker.lock().unwrap().extend(revoked.into_iter().map(|one| one.serial));
    assert!(fixture.shared().revocations_are_in_force().await.unwrap());
    // Back with a new key, it tells what became of the command after all.
    let token = fixture.token_for(Some(bad)).await;
    let request = crate::testing::join_request(&token.secret, bad, "bad", &rcgen::KeyPair::generate().unwrap());
    let joined = fixture.client(None).post(fixture.hosts_url("/v1/join")).json(&request).send().await.unwrap();
    assert!(joined.status().is_success());
    stored(&fixture, &[message(bad, HostTopic::Outcome, &outcome(done))]).await;
    let shown = fixture.console.command(done).await.unwrap();
    assert!(matches!(shown.hosts[0].outcome().unwrap().value.status, Status::Exited(_)));
}

#[tokio::test]
async fn busy_is_no_outcome() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let id = fixture.command(&[host]).await.id;
    let busy = json!({"v": 1, "command": id, "seq": 0, "at_ms": 1, "kind": "busy"});
    let effects = stored(&fixture, &[message(host, HostTopic::Outcome, &busy)]).await;
    assert_eq!((effects.busy, effects.settled, effects.acks.len()), (vec![(id, host)], vec![], 0));
    assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Waiting);
}

#[tokio::test]
async fn host_missing_in_roll_call_is_offline() {
    let fixture = Fixture::new().await;
    let (here, away) = (fixture.member("here").await.id, fixture.member("away").await.id);
    let online = |host| message(host, HostTopic::Presence, &presence(1, 1, "online"));
    stored(&fixture, &[online(here), online(away)]).await;
    let beat = |host, epoch| message(host, HostTopic::Heartbeat, &heartbeat(epoch, 1, &json!({})));
    let kept = |host| Inbound { retained: true, ..online(host) };
    // What the broker had kept shows nothing, nor does what is left of another life.
    let shown = async |messages: &[Inbound]| stored(&fixture, messages).await.shown;
    assert_eq!(shown(&[kept(here), kept(away), beat(here, 1)]).await, [here].into());
    assert_eq!(shown(&[online(here)]).await, [here].into());
    let taken = async |hosts: &[HostId], now| {
        store::host::take_offline(fixture.shared().store.write(), hosts, now).await.unwrap()
    };
    assert_eq!(taken(&[away], now_ms()).await, [], "it has just come");
    let later = now_ms() + 60_000;
    assert_eq!(taken(&[away], later).await, [away]);
    assert_eq!(taken(&[away], later).await, []);

    // It was only slow: it is asked to show its presence, in the same session, and that counts.
    let effects = stored(&fixture, &[message(away, HostTopic::Heartbeat, &heartbeat(1, 1, &json!({})))]).await;
    assert!(effects.refresh.contains(&away) && !effects.refresh.contains(&here));
    assert_eq!(stored(&fixture, &[online(away), online(here)]).await.presences, [(away, true)]);
}

#[tokio::test]
async fn heartbeat_shows_host_without_presence_online() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let beat = |epoch, seq| message(host, HostTopic::Heartbeat, &heartbeat(epoch, seq, &json!({})));
    let shown = |epoch, session, state| message(host, HostTopic::Presence, &presence(epoch, session, state));
    assert_eq!(stored(&fixture, &[beat(1, 1)]).await.presences, [(host, true)]);
    let capabilities = async || {
        host::list(fixture.shared().store.read(), Some(host)).await.unwrap().remove(0).presence.unwrap().capabilities
    };
    assert_eq!(capabilities().await, None, "not known yet");
    assert_eq!(presences(fixture.shared().store.read()).await.unwrap().online, 1);
    // Whatever the topic of its presence says counts as later.
    assert_eq!(stored(&fixture, &[shown(1, 1, "online"), beat(1, 2)]).await.presences, [(host, true)]);
    assert_eq!(stored(&fixture, &[shown(1, 1, "offline")]).await.presences, [(host, false)]);
    // The next life, of which nothing but a heartbeat comes.
    assert_eq!(stored(&fixture, &[beat(2, 1)]).await.presences, [(host, true)]);
    assert_eq!(capabilities().await, Some(vec![Capability::Exec]), "as it said last");
    assert!(stored(&fixture, &[shown(1, 2, "offline")]).await.presences.is_empty(), "the will of the life before");
    assert_eq!(stored(&fixture, &[shown(2, 1, "stopped")]).await.presences, [(host, false)]);
    // The last one of a life shows nothing.
    let mut last = heartbeat(3, 1, &json!({}));
    last["final"] = json!(true);
    assert!(stored(&fixture, &[message(host, HostTopic::Heartbeat, &last)]).await.presences.is_empty());
}

#[tokio::test]
async fn hosts_of_one_batch_are_separate() {
    let fixture = Fixture::new().await;
    let mut hosts = Vec::new();
    for n in 0..70 {
        hosts.push(fixture.member(&format!("h{n}")).await.id);
    }
    let id = fixture.command(&hosts).await.id;
    let mut batch = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let mut beat = heartbeat(1, 1, &json!({}));
        beat["state"]["hostname"] = json!(format!("n{n}"));
        batch.push(message(*host, HostTopic::Heartbeat, &beat));
        batch.push(message(*host, HostTopic::Presence, &presence(1, 1, "online")));
        batch.push(message(*host, HostTopic::Outcome, &report(id, 1, done(n as i32 % 3))));
    }
    let effects = stored(&fixture, &batch).await;
    assert_eq!(effects.settled.len(), 70);
    let command = fixture.console.command(id).await.unwrap();
    for (n, host) in hosts.iter().enumerate() {
        let line = command.hosts.iter().find(|line| line.host == *host).unwrap();
        assert_eq!((line.hostname.clone(), line.state()), (format!("n{n}"), CommandState::Done));
        let status = &line.outcome().unwrap().value.status;
        assert_eq!(status.is_success(), n % 3 == 0, "{n}: {status:?}");
    }
    assert_eq!(presences(fixture.shared().store.read()).await.unwrap().online, 70);
    // There is no broker, so that nobody knows.
    let status = fixture.console.status().await.unwrap();
    assert_eq!((status.hosts_online, status.hosts_unknown), (0, 70));
}

#[tokio::test]
async fn heartbeat_with_the_whole_state_is_told_which_lives_were_heard_of() {
    let fixture = Fixture::new().await;
    let host = fixture.member("till-7").await.id;
    let lives = async |epoch, seq| {
        let beat = heartbeat(epoch, seq, &json!({}));
        let mut effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, &beat)]).await;
        effects.acks(host).lives.pop_first().map(|(_, lives)| lives)
    };
    let said = |asked_by, heard: &[u64]| Some(HostLives { asked_by, heard: heard.to_vec() });
    assert_eq!(lives(5, 1).await, said(5, &[5]));
    assert_eq!(lives(7, 1).await, said(7, &[7, 5]));
    // Each time that it asks, also if the answer was lost.
    assert_eq!(lives(7, 1).await, said(7, &[7, 5]));
    assert_eq!(lives(7, 2).await, said(7, &[7, 5]));
    // A life whose clock is behind is none that the console takes anything of; it hears why.
    assert_eq!(lives(6, 1).await, said(6, &[7, 5]));
    // A number that no agent has, and that cannot be signed, keeps the answer from nobody.
    assert_eq!(lives(1 << 60, 1).await, said(1 << 53, &[1 << 53, 7, 5]));
    // What has changed is no question.
    let mut delta = heartbeat(7, 3, &json!({}));
    (delta["kind"], delta["base_seq"], delta["patch"]) = (json!("delta"), json!(2), json!({}));
    let mut effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, &delta)]).await;
    assert!(effects.acks(host).lives.is_empty());
    fixture.running.stop().await;
}

#[tokio::test]
async fn a_heartbeat_is_stored_acknowledged_and_names_the_host() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let mut effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, &heartbeat(1, 1, &json!({})))]).await;
    assert_eq!(effects.acks(host).heartbeat, Some(Numbered { epoch: 1, seq: 1 }));
    let shown = fixture.console.host("renamed").await.unwrap();
    assert_eq!(shown.state.unwrap().value.hostname, "renamed");
    let gap =
        json!({"v": 1, "epoch": 1, "seq": 9, "at_ms": 9, "final": false, "kind": "delta", "base_seq": 8, "patch": {}});
    let mut effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, &gap)]).await;
    assert_eq!((effects.acks(host).heartbeat, effects.refresh.contains(&host)), (None, true));
    let delta = json!({"v": 1, "epoch": 1, "seq": 2, "at_ms": 9, "final": false, "kind": "delta", "base_seq": 1, "patch": {"hostname": "again"}});
    let mut effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, &delta)]).await;
    assert_eq!(effects.acks(host).heartbeat, Some(Numbered { epoch: 1, seq: 2 }));
    assert_eq!(fixture.console.host("again").await.unwrap().id, host);
}

#[tokio::test]
async fn units_are_updated_in_order_and_removed() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let unit = |epoch, seq, at_ms, phase| message(host, unit_topic(), &unit_report(epoch, seq, at_ms, phase));
    stored(&fixture, &[unit(1, 2, 500, "running"), unit(1, 1, 400, "starting")]).await;
    let units = fixture.console.units(Some(host)).await.unwrap();
    assert_eq!(units[0].observed.phase(), muster_topics::unit::Phase::Running);
    stored(&fixture, &[unit(2, 1, 600, "backoff")]).await;
    let one = fixture.console.unit(host, &"default/hello".parse().unwrap()).await.unwrap();
    assert_eq!(one.observed.phase(), muster_topics::unit::Phase::Backoff);
    let listed = json!({"default/hello": {"generation": 1, "run": "running", "phase": "backoff"}});
    stored(&fixture, &[message(host, HostTopic::Heartbeat, &heartbeat(2, 1, &listed))]).await;
    assert_eq!(fixture.console.units(None).await.unwrap().len(), 1);
    // Gone, and nobody was there to hear it: the next heartbeat does not list it.
    stored(&fixture, &[message(host, HostTopic::Heartbeat, &heartbeat(2, 2, &json!({})))]).await;
    assert_eq!(fixture.console.units(None).await.unwrap().len(), 0);
    // A unit that was made after a heartbeat is not gone because that does not list it.
    stored(
        &fixture,
        &[unit(2, 9, 5_000, "running"), message(host, HostTopic::Heartbeat, &heartbeat(2, 3, &json!({})))],
    )
    .await;
    assert_eq!(fixture.console.units(None).await.unwrap().len(), 1);
    stored(&fixture, &[message(host, unit_topic(), &Value::Null)]).await;
    assert_eq!(fixture.console.units(None).await.unwrap().len(), 0);
}

/// A report of a unit with this number, with an argument of this length.
fn padded(host: HostId, number: usize, padding: usize, phase: &str) -> Inbound {
    let name = format!("default/u{number}");
    let mut report = unit_report(1, if phase == "running" { 1 } else { 2 }, 1, phase);
    report["unit"] = name.clone().into();
    report["desired"]["spec"]["args"] = json!(["x".repeat(padding)]);
    message(host, HostTopic::Unit(name.parse().unwrap()), &report)
}

#[tokio::test]
async fn reports_beyond_the_share_of_a_host_are_left_out() {
    let fixture = Fixture::new().await;
    let (thief, large, other) =
        (fixture.member("thief").await.id, fixture.member("large").await.id, fixture.member("other").await.id);
    let shared = fixture.shared();
    // All alerts that a host may have leave room for what the console says of it.
    let mut db = shared.store.begin().await.unwrap();
    for number in 0..muster_topics::alert::ALERTS_MAX {
        let alert = crate::alert::own(&format!("a-{number}"), &Diagnostic::default(), 1).unwrap();
        store::alert::put(&mut db, thief, &alert, 1).await.unwrap();
    }
    db.commit().await.unwrap();
    let many: Vec<_> = (0..UNITS_MAX + 9).map(|number| padded(thief, number, 0, "running")).collect();
    let effects = stored(&fixture, &many).await;
    assert_eq!(effects.shares[&(thief, ShareKind::Units)].1, 9);
    effects.perform(shared, &mut RefreshRequests::default(), now_ms()).await;
    assert_eq!(fixture.console.units(Some(thief)).await.unwrap().len(), UNITS_MAX);
    assert_eq!(shared.hosts.shares.exceeded(ShareKind::Units), 9);
    let own = store::alert::raised_own(shared.store.read(), thief).await.unwrap();
    let rules: Vec<_> = own.iter().map(|alert| alert.rule.as_str()).collect();
    assert_eq!(rules, [ShareKind::Units.rule()]);
    // What is stored of it is updated, and other hosts have their own share.
    let effects = stored(&fixture, &[padded(thief, 0, 0, "backoff"), padded(other, 0, 0, "running")]).await;
    assert!(effects.shares.values().all(|(_, exceeded)| *exceeded == 0), "{:?}", effects.shares);
    let unit = fixture.console.unit(thief, &"default/u0".parse().unwrap()).await.unwrap();
    assert_eq!(unit.observed.phase(), muster_topics::unit::Phase::Backoff);
    assert_eq!(fixture.console.units(None).await.unwrap().len(), UNITS_MAX + 1);
    // Some long reports are as good as many.
    let long: Vec<_> = (0..UNITS_MAX).map(|number| padded(large, number, 60_000, "running")).collect();
    for _ in 0..2 {
        assert!(stored(&fixture, &long).await.shares[&(large, ShareKind::UnitReports)].1 > 0);
        let mut db = shared.store.begin().await.unwrap();
        let share = host::unit_share(&mut db, large, &"default/none".parse().unwrap()).await.unwrap();
        assert!((100..150).contains(&share.units) && share.bytes <= 8 * 1024 * 1024, "{share:?}");
    }
}

#[tokio::test]
async fn units_of_many_hosts_are_read_whole_and_in_order() {
    let fixture = Fixture::new().await;
    let mut db = fixture.shared().store.begin().await.unwrap();
    let mut wanted = Vec::new();
    for number in 0..100_u128 {
        let host = HostId(uuid::Uuid::from_u128(number + 1));
        let hostname = format!("h{}", number / 70);
        let insert = "INSERT INTO host (id, hostname, facts, joined_ms) VALUES ($1, $2, '{}', 1)";
        sqlx::query(insert).bind(host.to_string()).bind(&hostname).execute(&mut *db).await.unwrap();
        let report = serde_json::from_value(unit_report(1, 1, 1, "running")).unwrap();
        host::set_unit(&mut db, host, &report, 1).await.unwrap();
        wanted.push((hostname, host));
    }
    db.commit().await.unwrap();
    for unit in [None, Some("default/hello".parse().unwrap())] {
        let units = host::units(fixture.shared().store.read(), None, unit.as_ref()).await.unwrap();
        let found: Vec<_> = units.into_iter().map(|unit| (unit.hostname, unit.host)).collect();
        assert_eq!(found, wanted);
    }
}

fn report(command: CommandId, seq: u64, content: Value) -> Value {
    let mut report = json!({"v": 1, "command": command, "seq": seq, "at_ms": 5});
    report.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
    report
}

fn done(code: i32) -> Value {
    json!({"kind": "done", "outcome": {"status": "exited", "exit": {"code": code}, "finished_ms": 9,
        "stdout": {"sent_bytes": 4, "rest": {"text": "ef"}}}})
}

#[tokio::test]
async fn the_first_outcome_stays_and_every_report_is_acknowledged() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let id = fixture.command(&[host]).await.id;
    let output = |offset: u64, text: &str| json!({"kind": "output", "stream": "stdout", "offset_bytes": offset, "data": {"text": text}});
    let outcome = |seq, content| message(host, HostTopic::Outcome, &report(id, seq, content));
    let batch = [
        outcome(0, json!({"kind": "running"})),
        outcome(2, output(2, "cd")),
        outcome(1, output(0, "ab")),
        outcome(1, output(0, "ab")),
    ];
    let mut effects = stored(&fixture, &batch).await;
    let acks: Vec<_> = effects.acks(host).reports.iter().map(|ack| ack.seq).collect();
    assert_eq!(acks, [1, 2]);
    assert_eq!(effects.answered, [(id, host)]);
    assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Running);
    let mut effects =
        stored(&fixture, &[outcome(3, done(0)), outcome(4, done(1)), outcome(0, json!({"kind": "running"}))]).await;
    assert_eq!(effects.acks(host).reports.len(), 2);
    assert_eq!(effects.settled, [(id, host)], "it is done once");
    let line = fixture.console.command(id).await.unwrap().hosts.remove(0);
    assert_eq!(line.state(), CommandState::Done);
    assert!(line.outcome().cloned().unwrap().value.status.is_success(), "the first one stays");
    assert_eq!(fixture.console.output(id, host).await.unwrap(), (b"abcdef".to_vec(), Vec::new()));
}

#[tokio::test]
async fn forged_output_is_held_to_the_commands_limit() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let id = fixture.command(&[host]).await.id;
    let piece = "x".repeat(16_000);
    let output = |seq: u64, offset: u64| {
        let content = json!({"kind": "output", "stream": "stdout", "offset_bytes": offset, "data": {"text": piece}});
        message(host, HostTopic::Outcome, &report(id, seq, content))
    };
    // The same bytes as if they came from ever another place: far more than the MiB that was asked for.
    let batch: Vec<_> = (0..100).map(|n| output(n + 1, n)).collect();
    let mut effects = stored(&fixture, &batch).await;
    assert_eq!(effects.acks(host).reports.len(), 100, "the host may forget it");
    let kept = crate::store::command::output_bytes(fixture.shared().store.read(), id).await.unwrap();
    let kept: u64 = kept.into_values().sum();
    assert!((1_000_000..=1_048_576).contains(&kept), "{kept}");
    let rest = json!({"kind": "done", "outcome": {"status": "completed", "finished_ms": 9,
        "stdout": {"sent_bytes": 0, "rest": {"text": "x".repeat(16_385)}}, "stderr": {"rest": {"text": "short"}}}});
    stored(&fixture, &[message(host, HostTopic::Outcome, &report(id, 200, rest))]).await;
    let line = fixture.console.command(id).await.unwrap().hosts.remove(0);
    let outcome = line.outcome().cloned().unwrap().value;
    assert!(outcome.stdout.rest.is_none() && outcome.stderr.rest.is_some(), "longer than an agent sends");
}

#[tokio::test]
async fn a_late_outcome_replaces_missing() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let id = fixture.command(&[host]).await.id;
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    crate::store::command::miss(&mut transaction, id, &[host]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Missing);
    stored(&fixture, &[message(host, HostTopic::Outcome, &report(id, 1, done(0)))]).await;
    assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Done);
}

#[tokio::test]
async fn unexpected_answer_to_broadcast_is_added() {
    let fixture = Fixture::new().await;
    let [one, slow, quick, talker] = [
        fixture.member("one").await.id,
        fixture.member("slow").await.id,
        fixture.member("quick").await.id,
        fixture.member("talker").await.id,
    ];
    let target = NewTarget::Select("host=one".parse().unwrap());
    let wanted = NewCommand { target, expires_in_ms: None, verb: exec(&["true"]), copied_from: None };
    let id = fixture.console.submit(&admin(), wanted).await.unwrap().id;
    let running = json!({"v": 1, "command": id, "seq": 0, "at_ms": 1, "kind": "running"});
    let output = json!({
        "v": 1, "command": id, "seq": 1, "at_ms": 1, "kind": "output", "stream": "stdout", "offset_bytes": 0,
        "data": {"text": "said"},
    });
    let batch = [
        message(slow, HostTopic::Outcome, &running),
        message(talker, HostTopic::Outcome, &output),
        message(quick, HostTopic::Outcome, &report(id, 1, done(0))),
        message(quick, HostTopic::Outcome, &report(id, 1, done(0))),
        message(HostId::random(), HostTopic::Outcome, &report(id, 1, done(0))),
    ];
    let effects = stored(&fixture, &batch).await;
    assert!(effects.settled.contains(&(id, quick)) && effects.changes.contains(&PageChange::Command(id)));
    let states = async || {
        let hosts = fixture.console.command(id).await.unwrap().hosts;
        let states: std::collections::BTreeMap<_, _> = hosts.iter().map(|line| (line.host, line.state())).collect();
        [one, slow, quick, talker].map(|host| states.get(&host).copied())
    };
    use CommandState::{Accepted, Done, Running, Waiting};
    assert_eq!(states().await, [Some(Waiting), Some(Running), Some(Done), Some(Accepted)]);
    assert_eq!(fixture.console.output(id, talker).await.unwrap().0, b"said");
    stored(&fixture, &[slow, one].map(|host| message(host, HostTopic::Outcome, &report(id, 1, done(0))))).await;
    assert_eq!(states().await, [Some(Done), Some(Done), Some(Done), Some(Accepted)]);
}

#[tokio::test]
async fn report_for_another_host_is_refused() {
    let fixture = Fixture::new().await;
    let (host, other) = (fixture.member("h").await.id, fixture.member("other").await.id);
    let id = fixture.command(&[host]).await.id;
    // The other host was not asked: its answer is none, and it may forget it.
    let mut effects = stored(&fixture, &[message(other, HostTopic::Outcome, &report(id, 1, done(0)))]).await;
    assert_eq!(effects.acks(other).reports.first(), Some(&ReportAck { command: id, seq: 1 }));
    assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Waiting);
    // A report about a unit that the topic does not name.
    let elsewhere = HostTopic::Unit("default/other".parse().unwrap());
    stored(&fixture, &[message(host, elsewhere, &unit_report(1, 1, 1, "running"))]).await;
    assert_eq!(fixture.console.units(None).await.unwrap().len(), 0);
}

#[tokio::test]
async fn faulty_message_does_not_block_others() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let stranger = HostId::random();
    let raw = |topic: Topic, payload: &[u8]| Inbound {
        topic,
        payload: payload.to_vec(),
        retained: false,
        receipt: MessageReceipt::none(),
        room: None,
    };
    let long = vec![b' '; PAYLOAD_MAX_BYTES + 1];
    let batch = [
        raw(Topic::CommandAll(host.slot()), b"{}"),
        raw(Topic::Host(host, HostTopic::Desired), b"{}"),
        raw(Topic::Host(host, HostTopic::Presence), b"nonsense"),
        raw(Topic::Host(host, HostTopic::Presence), b""),
        raw(Topic::Host(host, HostTopic::Heartbeat), &long),
        message(stranger, HostTopic::Presence, &presence(1, 1, "online")),
        message(host, HostTopic::Presence, &presence(u64::MAX, u64::MAX, "online")),
        message(host, HostTopic::Presence, &presence(1, 1, "offline")),
        message(host, HostTopic::Heartbeat, &heartbeat(1, 1, &json!({}))),
    ];
    let mut effects = stored(&fixture, &batch).await;
    assert_eq!(effects.presences, [(host, true)]);
    assert_eq!(effects.acks(host).heartbeat, Some(Numbered { epoch: 1, seq: 1 }));
    assert!(fixture.console.host(&stranger.to_string()).await.is_err());
}

#[tokio::test]
async fn measurements_are_acknowledged_after_their_commit_alone() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let mut changes = fixture.console.changes();
    let (batches, queue) = mpsc::channel(4);
    let recorder = tokio::spawn(record(Arc::clone(fixture.shared()), queue, CancellationToken::new()));
    let batch = |seq: u64| {
        let payload = format!("# v=1 epoch=1 seq={seq}\nmuster_test value={seq} {}\n", now_ms());
        Inbound {
            topic: Topic::Host(host, HostTopic::Metric),
            payload: payload.into_bytes(),
            retained: false,
            receipt: MessageReceipt::none(),
            room: None,
        }
    };
    batches.send(batch(1)).await.unwrap();
    while changes.recv().await.unwrap() != PageChange::Metrics(host) {}
    let answer = fixture.console.series("muster_test_value", None, 1).await.unwrap();
    assert_eq!(answer.series.len(), 1);

    // What is told to pages is told together with the acknowledgement.
    fixture.shared().measurements.series.stop().await;
    batches.send(batch(2)).await.unwrap();
    drop(batches);
    recorder.await.unwrap();
    assert!(changes.try_recv().is_err(), "a batch that is not stored was acknowledged");
}

#[tokio::test]
async fn ended_tasks_are_stored_once_and_acknowledged_each_time() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let task = |number: u64, began_ms: i64, state: &str, about: &str| {
        json!({
            "number": number, "unit": "default/config", "revision": muster_topics::name::Digest::of(b"a"),
            "action": "write", "about": about, "state": state, "began_ms": began_ms,
            "ended_ms": (state != "running").then_some(9),
        })
    };
    let event = |tasks: Vec<Value>| message(host, HostTopic::Event, &json!({"v": 1, "at_ms": 9, "tasks": tasks}));
    let untold = async || {
        let found = store::task_end::untold(fixture.shared().store.write(), "hook", 50).await.unwrap();
        found.ends.iter().map(|end| (end.task.number, end.task.began_ms)).collect::<Vec<_>>()
    };
    assert_eq!(untold().await, []);
    let two = vec![task(1, 5, "changed", "a"), task(2, 6, "failed", "b")];
    for expected in [1, 0] {
        let mut effects = stored(&fixture, &[event(two.clone())]).await;
        assert_eq!(effects.acks(host).tasks.len(), 2);
        let changes = effects.changes.iter().filter(|change| **change == PageChange::Tasks(host)).count();
        assert_eq!(changes, expected, "only what is new is told");
    }
    // Its host has lost its store, and counts anew.
    stored(&fixture, &[event(vec![task(1, 50, "interrupted", "a")])]).await;
    assert_eq!(untold().await, [(1, 5), (2, 6), (1, 50)]);
    let long = "x".repeat(501);
    for bad in [
        vec![task(3, 7, "running", "a")],
        vec![task(3, 7, "unchanged", "a")],
        vec![task(3, 7, "changed", &long)],
        (0..33).map(|number| task(number, 7, "changed", "a")).collect(),
    ] {
        let mut effects = stored(&fixture, &[event(bad)]).await;
        assert!(effects.acks(host).tasks.is_empty());
    }
    assert_eq!(untold().await.len(), 3);
}
