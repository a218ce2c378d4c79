//! Tests of the agent on a real broker, also when messages get lost.

use muster_session::identity::ClientIdentity;
use muster_topics::{
    V1,
    command::{Command, Refresh, Target, Verb},
    heartbeat::{Content as Beat, Heartbeat},
    name::{CommandId, HostId},
    outcome::{CHUNK_MAX_BYTES, Content, RefusalCode, Report, Status},
    presence::{Presence, PresenceState},
    topic::HostTopic,
    unit::{Exit, ProcessEnd},
};

use super::testing::{Fleet, a_moment, ago};

const EXITED: Status = Status::Exited(ProcessEnd { exit: Exit::Code(0), oom_killed: false, core_dumped: false });

#[tokio::test]
async fn command_is_executed_once_and_acknowledged() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    assert_eq!(agent.host(), fleet.host);
    console.presence(PresenceState::Online).await;
    let heartbeat = console.heartbeat().await;
    let Beat::Full { state } = &heartbeat.content else { panic!("the first one is whole") };
    assert!(state.facts.cpus > 0);
    fleet.acknowledge_heartbeat(&console, &heartbeat).await;

    let marks = fleet.folder.path().join("marks");
    let append = format!("echo x >> {}; echo done", marks.display());
    let command = fleet.exec(&["/bin/sh", "-c", &append]);
    let bytes = fleet.sign(&command);
    console.publish(HostTopic::Command, false, bytes.clone()).await;
    let (report, outcome) = console.outcome(command.id).await;
    assert_eq!(outcome.status, EXITED);
    assert_eq!(outcome.stdout.rest.unwrap().to_bytes().unwrap(), b"done\n");

    // It comes again, before and after its answer was acknowledged: the answer does too, the work does not.
    console.publish(HostTopic::Command, false, bytes.clone()).await;
    assert_eq!(console.report(command.id).await, report);
    fleet.acknowledge_report(&console, &report).await;
    console.publish(HostTopic::Command, false, bytes.clone()).await;
    assert_eq!(console.report(command.id).await, report);
    console.broadcast(bytes).await;
    assert_eq!(console.report(command.id).await, report);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\n");
    agent.stop().await;
}

#[tokio::test]
async fn long_output_arrives_in_consecutive_pieces() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let command = fleet.exec(&["/bin/sh", "-c", "head -c 100000 /dev/zero"]);
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    let mut output = vec![0xff; 0];
    loop {
        let report = console.report(command.id).await;
        match report.content {
            Content::Output { offset_bytes, data, .. } => {
                assert_eq!(offset_bytes, output.len() as u64);
                output.extend(data.to_bytes().unwrap());
            }
            Content::Done { outcome } => {
                assert_eq!(outcome.stdout.sent_bytes, output.len() as u64);
                output.extend(outcome.stdout.rest.map(|rest| rest.to_bytes().unwrap()).unwrap_or_default());
                break;
            }
            Content::Accepted | Content::Running | Content::Busy => {}
        }
    }
    assert_eq!(output, vec![0; 100_000]);
    assert!(output.len() > CHUNK_MAX_BYTES);
    agent.stop().await;
}

#[tokio::test]
async fn command_waits_for_a_failing_store() {
    use sqlx::{Connection, sqlite::SqliteConnectOptions};
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let options = SqliteConnectOptions::new().filename(fleet.config("agent").data_dir.join("agent.db"));
    let mut store = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON journal BEGIN SELECT raise(ABORT, 'full'); END";
    sqlx::query(full).execute(&mut store).await.unwrap();

    // If they were forgotten, nothing more would come.
    let commands = fleet.more_than_is_owed(&console).await;
    a_moment().await;
    assert!(console.reports_so_far().is_empty());
    sqlx::query("DROP TRIGGER full").execute(&mut store).await.unwrap();
    console.outcomes(&commands).await;
    agent.stop().await;
}

#[tokio::test]
async fn command_during_claim_is_executed_after_it() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let gone = ClientIdentity {
        host: fleet.host,
        instance: uuid::Uuid::new_v4(),
        epoch: 1,
        keep_alive_s: 2,
        capabilities: vec![],
    };
    let presence = gone.presence(1, PresenceState::Online, 0);
    console.publish(HostTopic::Presence, true, serde_json::to_vec(&presence).unwrap()).await;
    let agent = fleet.agent("agent").await;
    console.next(HostTopic::Presence, |presence: &Presence| presence.instance != gone.instance).await;

    // If the broker were owed them, the claim would not end.
    let commands = fleet.more_than_is_owed(&console).await;
    a_moment().await;
    assert!(!*agent.connected().borrow(), "somebody may still object");
    assert!(console.reports_so_far().is_empty());
    console.outcomes(&commands).await;
    agent.stop().await;
}

#[tokio::test]
async fn refused_command_is_answered_and_forged_one_ignored() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let exec = || fleet.exec(&["/bin/true"]);

    // This member starts without a store and without a mark, as one does that has lost both.
    let before = Command { issued_ms: ago(600_000), ..exec() };
    let expired = Command { expires_ms: ago(-1), ..exec() };
    a_moment().await;
    for (command, code) in [(before, RefusalCode::SetBack), (expired, RefusalCode::Expired)] {
        console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
        let (_, outcome) = console.outcome(command.id).await;
        assert!(matches!(outcome.status, Status::Refused { code: found, .. } if found == code), "{outcome:?}");
    }

    // Of a newer build of this protocol: the head is understood, the verb is not.
    let id = CommandId::new();
    let (issued, expires) = (ago(0), ago(-60_000));
    let newer = serde_json::json!({
        "v": 1, "id": id, "target": {"hosts": [fleet.host]}, "issued_ms": issued, "expires_ms": expires,
        "asked_by": {"operator": "anna", "role": "admin"}, "verb": {"levitate": {}},
    });
    let envelope = fleet.sign_text(&newer.to_string());
    console.publish(HostTopic::Command, false, envelope).await;
    let (_, outcome) = console.outcome(id).await;
    assert!(matches!(outcome.status, Status::Refused { code: RefusalCode::Invalid, .. }), "{outcome:?}");

    // For others, signed by others, and no message at all.
    let others = Command { target: Target::Hosts(vec![HostId::random()]), ..exec() };
    console.broadcast(fleet.sign(&others)).await;
    let stranger = Fleet::unknown_signer();
    console.publish(HostTopic::Command, false, stranger.sign(fleet.host.slot(), &exec()).unwrap()).await;
    console.publish(HostTopic::Command, false, b"{".to_vec()).await;
    let last = exec();
    console.publish(HostTopic::Command, false, fleet.sign(&last)).await;
    let (_, outcome) = console.outcome(last.id).await;
    assert_eq!(outcome.status, EXITED, "it continues as if nothing had happened");
    a_moment().await;
    assert!(console.reports_so_far().iter().all(|report| report.command == last.id));
    agent.stop().await;
}

#[tokio::test]
async fn console_of_a_later_protocol_is_refused_by_name_until_it_speaks_this_one() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let is_raised = |beat: &Heartbeat, is_raised| match &beat.content {
        Beat::Full { state } => state.alerts.contains_key(&"later-protocol".parse().unwrap()) == is_raised,
        Beat::Delta { patch, .. } => {
            patch.pointer("/alerts/later-protocol").is_some_and(|alert| alert.is_null() != is_raised)
        }
        Beat::Digest { .. } => false,
    };
    // Once it is answered: each answer clears what was raised before.
    let first = fleet.exec(&["/bin/true"]);
    console.publish(HostTopic::Command, false, fleet.sign(&first)).await;
    console.outcome(first.id).await;
    let later = fleet.exec(&["/bin/true"]);
    for _ in 0..2 {
        console.publish(HostTopic::Command, false, fleet.sign_later(&later)).await;
        a_moment().await;
    }
    console.next(HostTopic::Heartbeat, |beat: &Heartbeat| is_raised(beat, true)).await;
    // The answers to its heartbeats are of the protocol that it knows.
    console.next(HostTopic::Heartbeat, |beat: &Heartbeat| is_raised(beat, false)).await;
    let known = fleet.exec(&["/bin/true"]);
    console.publish(HostTopic::Command, false, fleet.sign(&known)).await;
    let (_, outcome) = console.outcome(known.id).await;
    assert_eq!(outcome.status, EXITED);
    assert!(console.reports_so_far().iter().all(|report| report.command == known.id), "nothing was done of it");
    agent.stop().await;
}

#[tokio::test]
async fn command_for_unknown_unit_is_refused() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let unit = "default/nothing".parse().unwrap();
    let command = Command { verb: Verb::UnitRun { unit }, ..fleet.exec(&[]) };
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    let (_, outcome) = console.outcome(command.id).await;
    assert!(matches!(outcome.status, Status::Refused { code: RefusalCode::NotFound, .. }), "{outcome:?}");
    agent.stop().await;
}

#[tokio::test]
async fn unacknowledged_messages_survive_broker_and_agent() {
    let mut fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let first = console.presence(PresenceState::Online).await;
    let command = fleet.exec(&["/bin/true"]);
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    let (report, _) = console.outcome(command.id).await;

    fleet.kill_broker();
    fleet.start_broker();
    let mut console = fleet.console().await;
    let second = console.presence(PresenceState::Online).await;
    assert_eq!((second.epoch, second.instance), (first.epoch, first.instance));
    assert!(second.session > first.session);
    assert_eq!(console.report(command.id).await, report);

    // As by a crash: no goodbye. The will speaks, and the next life says what the last one had to.
    drop(agent);
    let offline = console.presence(PresenceState::Offline).await;
    assert_eq!(offline.session, second.session);
    let agent = fleet.working("agent").await;
    let third = console.presence(PresenceState::Online).await;
    assert!(third.epoch > first.epoch && third.instance != first.instance);
    assert_eq!(console.report(command.id).await, report);
    fleet.acknowledge_report(&console, &report).await;
    a_moment().await;
    console.reports_so_far();

    let refresh = Refresh { v: V1, issued_ms: ago(0), within_ms: 0 };
    console.publish(HostTopic::Command, false, fleet.sign(&refresh)).await;
    loop {
        let heartbeat = console.heartbeat().await;
        if heartbeat.epoch == third.epoch && heartbeat.seq > 1 {
            assert!(matches!(heartbeat.content, Beat::Full { .. }));
            break;
        }
    }
    assert!(console.reports_so_far().is_empty(), "what was acknowledged is forgotten");
    agent.stop().await;
}

#[tokio::test]
async fn restored_disk_refuses_earlier_commands() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let folder = fleet.config("agent").data_dir;
    let backup = fleet.folder.path().join("backup");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
        assert!(copied.success());
    };
    fleet.working("agent").await.stop().await;
    copy(&folder, &backup);

    // What was done since, and a command that the console has not heard of yet.
    let agent = fleet.working("agent").await;
    let marks = fleet.folder.path().join("marks");
    let append = format!("echo x >> {}", marks.display());
    let command = fleet.exec(&["/bin/sh", "-c", &append]);
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    console.outcome(command.id).await;
    agent.stop().await;
    let later = console.presence(PresenceState::Stopped).await;
    std::fs::remove_dir_all(&folder).unwrap();
    copy(&backup, &folder);
    // The clock was a day ahead in the later life, so the next one has an earlier epoch.
    let ahead = Presence { epoch: later.epoch + 86_400_000, ..later };
    console.publish(HostTopic::Presence, true, serde_json::to_vec(&ahead).unwrap()).await;
    console.next(HostTopic::Presence, |presence: &Presence| *presence == ahead).await;

    let agent = fleet.working("agent").await;
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    // This console acknowledges nothing, so the life before may have said its outcome more than once.
    let is_refused = |report: &Report| match &report.content {
        Content::Done { outcome } => matches!(outcome.status, Status::Refused { code: RefusalCode::SetBack, .. }),
        _ => false,
    };
    assert_eq!(console.next(HostTopic::Outcome, is_refused).await.command, command.id);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\n", "it was done once");
    let next = fleet.exec(&["/bin/true"]);
    console.publish(HostTopic::Command, false, fleet.sign(&next)).await;
    assert_eq!(console.outcome(next.id).await.1.status, EXITED, "what is issued now is done");
    agent.stop().await;
}

#[tokio::test]
async fn stopped_agent_says_goodbye() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let online = console.presence(PresenceState::Online).await;
    agent.stop().await;
    let last = console.next(HostTopic::Heartbeat, |beat: &Heartbeat| beat.is_final).await;
    assert!(matches!(last.content, Beat::Full { .. }));
    let stopped = console.presence(PresenceState::Stopped).await;
    assert_eq!((stopped.epoch, stopped.session), (online.epoch, online.session));
    a_moment().await;
    // The will was not spoken: what is retained is the end.
    let mut later = fleet.console().await;
    let retained = later.next(HostTopic::Presence, |_: &Presence| true).await;
    assert_eq!(retained.state, PresenceState::Stopped);
}

#[tokio::test]
async fn stale_last_will_is_overwritten() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let online = console.presence(PresenceState::Online).await;
    let stale = Presence { state: PresenceState::Offline, session: online.session - 1, ..online.clone() };
    console.publish(HostTopic::Presence, true, serde_json::to_vec(&stale).unwrap()).await;
    console.presence(PresenceState::Offline).await;
    assert_eq!(console.presence(PresenceState::Online).await, online);
    agent.stop().await;
}

#[tokio::test]
async fn twin_withdraws_and_original_continues() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let online = console.presence(PresenceState::Online).await;

    // A clone of the disk, with identity and all.
    let config = fleet.config("agent");
    let clone = fleet.folder.path().join("clone");
    std::fs::create_dir(&clone).unwrap();
    for file in ["host", "identity.json"] {
        std::fs::copy(config.data_dir.join(file), clone.join(file)).unwrap();
    }
    let twin = fleet.agent("clone").await;
    let claim = |presence: &Presence| presence.instance != online.instance;
    console.next(HostTopic::Presence, claim).await;
    let objection = |presence: &Presence| presence.instance == online.instance;
    console.next(HostTopic::Presence, objection).await;

    let command = fleet.exec(&["/bin/true"]);
    console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
    let (report, _) = console.outcome(command.id).await;
    fleet.acknowledge_report(&console, &report).await;
    // Longer than a claim lasts.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert!(!*twin.connected().borrow(), "the twin does not work");
    assert!(*agent.connected().borrow());
    let mut later = fleet.console().await;
    let retained = later.next(HostTopic::Presence, |_: &Presence| true).await;
    assert_eq!((retained.instance, retained.state), (online.instance, PresenceState::Online));
    twin.stop().await;
    agent.stop().await;
}

#[tokio::test]
async fn backlog_after_reconnect_is_sent_newest_first_and_paced() {
    const GAP_MS: u32 = 300;
    let mut fleet = Fleet::new();
    fleet.kill_broker();
    let mut config = fleet.config("agent");
    config.metrics.sample_ms = 20;
    let away = super::start(config).await.unwrap();
    away.measured().wait_for(|stored| *stored >= 10).await.unwrap();
    away.stop().await;

    fleet.start_broker();
    let mut console = fleet.console().await;
    let began = std::time::Instant::now();
    let mut config = fleet.config("agent");
    config.metrics.sample_ms = 10 * GAP_MS;
    let agent = super::start(config).await.unwrap();
    let (first, points) = console.batch().await;
    assert!(first.seq >= 10, "the newest first: {first:?}");
    fleet.acknowledge_batch(&console, first).await;
    let (mut last, mut before_ms) = (first, points[0].at_ms);
    while last.seq > 1 {
        let (id, points) = console.batch().await;
        fleet.acknowledge_batch(&console, id).await;
        // What is new comes between, and batches that were said again before their acknowledgement came.
        if id.epoch > first.epoch || id.seq >= last.seq {
            continue;
        }
        assert_eq!(id.seq, last.seq - 1, "in order, and none left out");
        let newest_ms = points.iter().map(|point| point.at_ms).max().unwrap();
        assert!(newest_ms <= before_ms, "with its own times");
        (last, before_ms) = (id, points[0].at_ms);
    }
    // The second goes at once; each of the others a gap, which varies by a quarter, after the one before.
    let least_ms = (first.seq - 2) * u64::from(GAP_MS) * 3 / 4;
    assert!(began.elapsed().as_millis() >= u128::from(least_ms), "{:?}", began.elapsed());
    agent.stop().await;
}
