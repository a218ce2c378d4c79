//! A session with a store that answers what a test wants.

mod admission;
mod desired;

use muster_rules::{
    authorise::{CommandSource, LocalPolicy},
    desired::head::KnownDocument,
    heartbeat::{HeartbeatPeriods, HeartbeatSchedule},
    presence::StoreLife,
    time::{BUILD_MS, KnownTime},
};
use muster_topics::{
    Millis, V1,
    ack::{Ack, HostLives, Numbered, ReportAck},
    address::Addresses,
    asker::Asker,
    command::{Command, Exec, Refresh, Target, Verb},
    command_keys::{AUTHORITIES_MAX, AUTHORITY_MAX_BYTES, COMMAND_KEYS_MAX, CommandKeys},
    envelope::Signer,
    name::{CommandId, Digest, HostId, Name},
    numbered::{NumberedContent, NumberedDocument, Numbers},
    outcome::{Content, Report},
    presence::{Capability, Presence, PresenceState},
    select,
    topic::HostTopic,
};
use serde_json::json;
use uuid::Uuid;

use super::Session;
use crate::{
    identity::ClientIdentity,
    interface::{AdmissionStatement, AdmissionStatements, Effect, HostView, Input, Moment, Notice, SessionParts},
    signed::{IncomingMessage, MessageScope, SignedMessage, SignedText},
    store::{CommandTaken, OutboxRead, RepeatedCommand, StoreReply, StoreRequest},
};

const NOW_MS: Millis = BUILD_MS + 1_000_000;
const ROOM: usize = 64;

type TestInput = Input<u32, &'static str>;
type TestEffect = Effect<u32, &'static str>;

struct Host(HostId);

impl HostView for Host {
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T {
        let labels = std::collections::BTreeMap::new();
        let (hostname, agent_version) = ("", "");
        look(&select::Host {
            host: self.0,
            hostname,
            agent_version,
            facts: None,
            labels: &labels,
            realms: &[],
            units: &[],
        })
    }
}

/// The text of a signed message, where it does not matter.
fn text() -> SignedText {
    SignedText(String::new())
}

/// A session, its time, and the store's failures.
struct Bench {
    session: Session<u32, &'static str>,
    life_ms: Millis,
    room: usize,
    /// Whether the store fails.
    is_broken: bool,
    /// What the store answers to commands, if not `Entered`.
    taken: Option<fn(CommandId) -> CommandTaken>,
    /// Commands that end with the next writes.
    ended: Vec<CommandId>,
    /// Requests to the store, in short.
    stored: Vec<String>,
    /// What the host says of a deployment after an answer.
    says: Option<AdmissionStatement>,
}

impl Bench {
    fn new() -> Self {
        let state = json!({
            "hostname": "h", "agent_version": "1", "labels": {}, "realms": ["default"], "units": {}, "interfaces": {},
            "facts": {"os": "", "kernel": "", "arch": "", "cpus": 1, "cpu_model": "", "memory_bytes": 1, "boot_id": "", "boot_ms": 0},
            "command_keys": {"ids": [], "authorities": []}, "desired": {"mark": {"epoch": 0, "generation": 0}},
        });
        let periods = HeartbeatPeriods { period_ms: 30_000, gap_ms: 5_000, digest_ms: 600_000 };
        let me = ClientIdentity {
            host: HostId(Uuid::from_u128(1)),
            instance: Uuid::from_u128(2),
            epoch: 7,
            keep_alive_s: 30,
            capabilities: vec![Capability::Exec],
        };
        let parts = SessionParts {
            me,
            former: vec![StoreLife { instance: Uuid::from_u128(3), is_newcomer: false }],
            time: KnownTime::new(0).with_way_back(),
            created_ms: 0,
            lost_ms: None,
            last_epoch: 6,
            lives: vec![7, 6],
            console_epoch: 1,
            kept_ms: 86_400_000,
            policy: LocalPolicy::default(),
            user: "root".to_owned(),
            realms: ["default".parse().unwrap()].into(),
            beats: HeartbeatSchedule::new(7, periods, serde_json::from_value(state).unwrap()),
            backlog_gap_ms: 1_000,
            numbers: Numbers::new(),
            document: KnownDocument::default(),
            admissions: AdmissionStatements::new(),
        };
        let session = Session::new(parts, || 0.5);
        Self {
            session,
            life_ms: 0,
            room: ROOM,
            is_broken: false,
            taken: None,
            ended: Vec::new(),
            stored: Vec::new(),
            says: None,
        }
    }

    /// One that works.
    fn working() -> Self {
        let mut bench = Self::new();
        bench.connect();
        assert!(bench.session.is_sole());
        bench.lives(&[7, 6]);
        bench.stored.clear();
        bench
    }

    /// The console says of which lives it has heard.
    fn lives(&mut self, heard: &[u64]) -> Vec<TestEffect> {
        self.ack(Some(HostLives { asked_by: 7, heard: heard.to_vec() }))
    }

    fn ack(&mut self, lives: Option<HostLives>) -> Vec<TestEffect> {
        let ack = Ack {
            v: V1,
            host: self.session.me().host,
            issued_ms: NOW_MS,
            reports: vec![],
            metrics: vec![],
            alerts: vec![],
            tasks: vec![],
            heartbeat: None,
            lives,
        };
        self.handle(Input::Message(CommandSource::Own, SignedMessage::Ack(ack).into(), Some(99)))
    }

    /// Connects, and hears its own presence.
    fn connect(&mut self) -> Vec<TestEffect> {
        self.handle(Input::Connected { session: 1, since_ms: NOW_MS });
        let own = self.session.me().presence(1, PresenceState::Online, NOW_MS);
        self.handle(Input::Presence(Some(own), Some(0)))
    }

    /// Has the session handle an input, and the store answer.
    fn handle(&mut self, input: TestInput) -> Vec<TestEffect> {
        let (mut seen, mut inputs) = (Vec::new(), vec![input]);
        while let Some(input) = inputs.pop() {
            let now = Moment { life_ms: self.life_ms, clock_ms: NOW_MS + self.life_ms, random: || 0.5 };
            let host = Host(self.session.me().host);
            for effect in self.session.handle(now, self.room, &host, input) {
                match effect {
                    Effect::Store(request) => inputs.push(Input::Stored(self.answer(request))),
                    effect => seen.push(effect),
                }
            }
        }
        seen
    }

    fn answer(&mut self, request: StoreRequest<&'static str>) -> StoreReply<&'static str> {
        if !matches!(request, StoreRequest::Read(_)) {
            self.stored.push(format!("{request:?}").split([' ', '(']).next().unwrap_or_default().to_owned());
            if self.is_broken {
                return StoreReply::Failed(request);
            }
        }
        match request {
            StoreRequest::Take { command, .. } => StoreReply::Command(match self.taken {
                Some(taken) => taken(command.get().id),
                None => CommandTaken::Entered(command),
            }),
            StoreRequest::Answer { id, .. } => StoreReply::Command(answered(id)),
            StoreRequest::Cancel { command, .. } => StoreReply::Command(answered(command.get().id)),
            StoreRequest::Acknowledge(acknowledgement) => StoreReply::Acknowledged(acknowledgement),
            StoreRequest::Admission(_) => StoreReply::Admission(self.says.clone()),
            StoreRequest::Record(_) => {
                StoreReply::Recorded { keys: Vec::new(), ended: std::mem::take(&mut self.ended) }
            }
            StoreRequest::Read(OutboxRead::FirstReports(_)) => StoreReply::Reports(Vec::new()),
            StoreRequest::Read(OutboxRead::Report(key)) => StoreReply::Report(Some(key.seq.to_string().into_bytes())),
            StoreRequest::Read(OutboxRead::FirstBatches(_)) => StoreReply::Batches(Vec::new()),
            _ => StoreReply::Done,
        }
    }

    fn command(&mut self, command: &Command, receipt: u32) -> Vec<TestEffect> {
        self.handle(Input::Message(CommandSource::Own, SignedMessage::Command(command.clone()).into(), Some(receipt)))
    }

    fn exec(&self) -> Command {
        let verb = Verb::Exec(Exec::new(vec!["true".to_owned()], 1_000));
        self.of_verb(verb)
    }

    fn of_verb(&self, verb: Verb) -> Command {
        let issued_ms = NOW_MS + self.life_ms;
        Command {
            v: V1,
            id: CommandId::new(),
            target: Target::Hosts(vec![self.session.me().host]),
            issued_ms,
            expires_ms: issued_ms + 60_000,
            asked_by: Asker::admin(Name::admin()),
            realms: vec![],
            verb,
            sealed: None,
        }
    }
}

fn answered(id: CommandId) -> CommandTaken {
    CommandTaken::Answered { keys: vec![ReportAck { command: id, seq: 1 }], is_change: false }
}

fn acknowledged(effects: &[TestEffect]) -> Vec<u32> {
    let receipt = |effect: &TestEffect| if let Effect::Acknowledge(receipt) = effect { Some(*receipt) } else { None };
    effects.iter().filter_map(receipt).collect()
}

fn started(effects: &[TestEffect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Start(_))).count()
}

fn published(effects: &[TestEffect]) -> Vec<HostTopic> {
    let topic = |effect: &TestEffect| match effect {
        Effect::Publish(publication) => Some(publication.topic.clone()),
        _ => None,
    };
    effects.iter().filter_map(topic).collect()
}

#[test]
fn command_starts_after_it_is_stored_and_is_acknowledged_then() {
    let mut bench = Bench::working();
    let effects = bench.command(&bench.exec(), 5);
    assert_eq!(bench.stored, ["Take"]);
    assert_eq!((started(&effects), acknowledged(&effects)), (1, vec![5]));
    assert_eq!(bench.session.running(), 1);
}

#[test]
fn command_waits_for_the_claim_and_is_kept_from_the_store_until_then() {
    let mut bench = Bench::new();
    bench.handle(Input::Connected { session: 1, since_ms: NOW_MS });
    let effects = bench.command(&bench.exec(), 5);
    assert_eq!((started(&effects), acknowledged(&effects), bench.stored.len()), (0, vec![], 0));
    let own = bench.session.me().presence(1, PresenceState::Online, NOW_MS);
    let effects = bench.handle(Input::Presence(Some(own), Some(6)));
    assert_eq!((&bench.stored[..], started(&effects), acknowledged(&effects)), (&["Works".to_owned()][..], 0, vec![6]));
    let effects = bench.lives(&[7]);
    assert_eq!(bench.stored, ["Works", "Acknowledge", "Take"]);
    assert_eq!((started(&effects), acknowledged(&effects)), (1, vec![99, 5]));
}

#[test]
fn lost_connection_drops_held_messages() {
    let mut bench = Bench::new();
    bench.handle(Input::Connected { session: 1, since_ms: NOW_MS });
    bench.command(&bench.exec(), 5);
    bench.handle(Input::Disconnected);
    let effects = bench.connect();
    assert_eq!((started(&effects), acknowledged(&effects)), (0, vec![0]));
    assert_eq!(started(&bench.lives(&[7])), 0);
}

#[test]
fn failed_store_starts_and_acknowledges_nothing_and_is_tried_again() {
    let mut bench = Bench::working();
    bench.is_broken = true;
    let effects = bench.command(&bench.exec(), 5);
    assert_eq!((started(&effects), acknowledged(&effects)), (0, vec![]));
    // A later one waits behind it.
    let effects = bench.command(&bench.exec(), 6);
    assert_eq!((started(&effects), bench.stored.len()), (0, 1));
    bench.is_broken = false;
    assert_eq!(started(&bench.handle(Input::Time)), 0, "not at once");
    bench.life_ms = bench.session.next_ms(bench.life_ms).unwrap().max(2_000);
    let effects = bench.handle(Input::Time);
    assert_eq!((started(&effects), acknowledged(&effects)), (2, vec![5, 6]));
}

#[test]
fn command_that_expires_while_the_store_fails_is_refused() {
    let mut bench = Bench::working();
    bench.is_broken = true;
    bench.command(&bench.exec(), 5);
    (bench.is_broken, bench.life_ms) = (false, 120_000);
    let effects = bench.handle(Input::Time);
    assert_eq!(started(&effects), 0);
    bench.stored.retain(|request| request != "Prune");
    assert_eq!(bench.stored, ["Take", "Answer"]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::Refused(..)))), "{effects:?}");
}

#[test]
fn repeated_command_starts_nothing_and_its_outcome_is_published_again() {
    let mut bench = Bench::working();
    bench.taken =
        Some(|id| CommandTaken::Repeated(id, Some(RepeatedCommand::Answered(ReportAck { command: id, seq: 1 }))));
    let effects = bench.command(&bench.exec(), 5);
    assert_eq!((started(&effects), acknowledged(&effects)), (0, vec![5]));
    assert_eq!(published(&effects), [HostTopic::Outcome]);
}

#[test]
fn busy_host_says_so_and_keeps_nothing() {
    let mut bench = Bench::working();
    bench.taken = Some(CommandTaken::Busy);
    let effects = bench.command(&bench.exec(), 5);
    let busy = |effect: &TestEffect| match effect {
        Effect::Publish(publication) => serde_json::from_slice::<Report>(&publication.payload).ok(),
        _ => None,
    };
    let reports: Vec<Content> = effects.iter().filter_map(busy).map(|report| report.content).collect();
    assert_eq!(reports, [Content::Busy]);
    assert_eq!(bench.session.running(), 0);
}

#[test]
fn cancellation_ends_the_command_after_it_is_stored() {
    let mut bench = Bench::working();
    let which = CommandId::new();
    let cancel = bench.of_verb(Verb::Cancel { command: which });
    let effects = bench.command(&cancel, 5);
    assert_eq!(bench.stored, ["Cancel"]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Cancel(id) if *id == which)), "{effects:?}");
}

#[test]
fn failed_writes_keep_their_order() {
    let mut bench = Bench::working();
    bench.is_broken = true;
    bench.handle(Input::Writes(vec!["one", "two"]));
    bench.handle(Input::Writes(vec!["three"]));
    assert!(!bench.session.has_no_writes());
    assert_eq!(Vec::from(bench.session.writes.clone()), ["one", "two", "three"]);
    bench.is_broken = false;
    bench.handle(Input::StoreRetry);
    assert!(bench.session.has_no_writes());
}

#[test]
fn full_connection_gets_no_more_than_it_takes() {
    let mut bench = Bench::new();
    bench.room = 0;
    let effects = bench.connect();
    assert_eq!(published(&effects), []);
    // It is tried again soon, and not at once.
    let next_ms = bench.session.next_ms(bench.life_ms).unwrap();
    assert!((1..1_000).contains(&next_ms), "{next_ms}");
    (bench.room, bench.life_ms) = (ROOM, next_ms);
    assert_eq!(published(&bench.handle(Input::Time)), [HostTopic::Heartbeat]);
}

#[test]
fn acknowledgement_of_another_host_changes_nothing() {
    let mut bench = Bench::working();
    let ack = Ack {
        v: V1,
        host: HostId(Uuid::from_u128(9)),
        issued_ms: NOW_MS,
        reports: vec![ReportAck { command: CommandId::new(), seq: 1 }],
        metrics: vec![Numbered { epoch: 1, seq: 1 }],
        alerts: vec![],
        tasks: vec![],
        heartbeat: None,
        lives: None,
    };
    let message = |ack: &Ack| Input::Message(CommandSource::Own, SignedMessage::Ack(ack.clone()).into(), Some(5));
    let effects = bench.handle(message(&ack));
    assert_eq!((bench.stored.len(), acknowledged(&effects)), (0, vec![5]));
    bench.handle(message(&Ack { host: bench.session.me().host, ..ack }));
    assert_eq!(bench.stored, ["Acknowledge"]);
}

#[test]
fn only_newer_addresses_of_this_host_are_stored() {
    let mut bench = Bench::working();
    let of = |host, number, url: &str| {
        let addresses = Addresses { broker_urls: vec![url.to_owned()], console_urls: vec![] };
        NumberedDocument { v: V1, host, issued_ms: NOW_MS, number, content: NumberedContent::HostAddresses(addresses) }
    };
    let own = bench.session.me().host;
    let message = |told| Input::Message(CommandSource::Own, SignedMessage::Numbered(told, text()).into(), Some(5));
    for refused in [of(HostId(Uuid::from_u128(9)), 3, "mqtts://h"), of(own, 3, "nonsense"), of(own, 0, "mqtts://h")] {
        let effects = bench.handle(message(refused));
        assert_eq!((bench.stored.len(), acknowledged(&effects)), (0, vec![5]));
    }
    // A store that fails is not acknowledged.
    bench.is_broken = true;
    assert_eq!(acknowledged(&bench.handle(message(of(own, 3, "mqtts://h")))), [0; 0]);
    bench.is_broken = false;
    bench.stored.clear();
    bench.life_ms = 60_000;
    // It is tried again, and what comes once more is known by then.
    let effects = bench.handle(Input::Time);
    assert_eq!(acknowledged(&effects), [5]);
    bench.handle(message(of(own, 3, "mqtts://h")));
    assert_eq!(bench.stored.iter().filter(|stored| *stored == "Numbered").count(), 1, "{:?}", bench.stored);
}

#[test]
fn refresh_publishes_once() {
    let mut bench = Bench::working();
    let refresh = Refresh { v: V1, issued_ms: NOW_MS, within_ms: 0 };
    let message = || Input::Message(CommandSource::Broadcast, SignedMessage::Refresh(refresh.clone()).into(), Some(5));
    bench.handle(message());
    bench.life_ms = 60_000;
    let effects = bench.handle(Input::Time);
    assert!(published(&effects).contains(&HostTopic::Presence), "{effects:?}");
    bench.handle(message());
    bench.life_ms = 120_000;
    let effects = bench.handle(Input::Time);
    assert!(!published(&effects).contains(&HostTopic::Presence), "{effects:?}");
}

#[test]
fn slow_command_is_reported_and_fast_one_is_not() {
    let mut bench = Bench::working();
    let (slow, fast) = (bench.exec(), bench.exec());
    bench.command(&slow, 5);
    bench.command(&fast, 6);
    bench.session.running.remove(fast.id);
    bench.handle(Input::Begun(slow.id));
    bench.life_ms = 1_000;
    assert_eq!(published(&bench.handle(Input::Time)), [HostTopic::Outcome]);
}

#[test]
fn begin_of_ended_command_is_ignored() {
    let mut bench = Bench::working();
    let exec = bench.exec();
    bench.command(&exec, 5);
    bench.ended = vec![exec.id];
    bench.handle(Input::Writes(vec!["the end"]));
    assert_eq!(bench.session.running(), 0);
    // The task that started it reports after its end.
    bench.handle(Input::Begun(exec.id));
    assert_eq!(bench.session.running(), 0);
    bench.life_ms = 2_000;
    assert_eq!(published(&bench.handle(Input::Time)), []);
}

#[test]
fn unknown_later_instance_makes_earlier_commands_unacceptable() {
    let mut bench = Bench::new();
    bench.handle(Input::Connected { session: 1, since_ms: NOW_MS });
    let early = bench.exec();
    bench.life_ms = 10;
    let me = bench.session.me().clone();
    let later = Presence { instance: Uuid::from_u128(8), epoch: 9, ..me.presence(4, PresenceState::Offline, 0) };
    let effects = bench.handle(Input::Presence(Some(later), Some(1)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::OlderDisk(9)))), "{effects:?}");
    assert_eq!(bench.stored[0], "NoteOlderDisk");
    // It works once nobody has objected.
    for round in 1..5 {
        let own = me.presence(1, PresenceState::Online, NOW_MS);
        bench.handle(Input::Presence(Some(own), None));
        bench.life_ms = round * 10_000;
        bench.handle(Input::Time);
        bench.life_ms = round * 100_000;
        bench.handle(Input::Time);
    }
    assert!(bench.session.is_sole());
    // The console knows of it as well.
    assert!(bench.lives(&[7, 9, 6]).iter().all(|effect| !matches!(effect, Effect::Notice(_))));
    let late = Command { expires_ms: NOW_MS + 1_000_000, ..early };
    assert_eq!(started(&bench.command(&late, 5)), 0);
    let new = bench.exec();
    assert_eq!(started(&bench.command(&new, 6)), 1);
}

#[test]
fn commands_wait_until_the_console_has_said_of_which_lives_it_has_heard() {
    let mut bench = Bench::new();
    bench.connect();
    let (first, second) = (bench.exec(), bench.exec());
    let unheard = |effects: &[TestEffect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::Notice(Notice::Unheard(_)))).count()
    };
    let effects = bench.command(&first, 5);
    assert_eq!((started(&effects), acknowledged(&effects), unheard(&effects)), (0, vec![], 1));
    // An answer to an earlier life, and other messages, change nothing, and pass those that wait.
    let earlier = HostLives { asked_by: 6, heard: vec![6] };
    assert_eq!(acknowledged(&bench.ack(Some(earlier))), [99]);
    assert_eq!(acknowledged(&bench.ack(None)), [99]);
    bench.life_ms = 60_000;
    assert_eq!(started(&bench.handle(Input::Time)), 0);
    assert_eq!(started(&bench.command(&second, 6)), 0);
    let effects = bench.lives(&[7, 6]);
    assert_eq!((started(&effects), acknowledged(&effects)), (2, vec![99, 5, 6]));
    // It is said once in a life, not with each connection.
    bench.handle(Input::Disconnected);
    bench.connect();
    let third = bench.exec();
    assert_eq!(started(&bench.command(&third, 7)), 1);
}

#[test]
fn life_that_only_the_console_knows_makes_earlier_commands_unacceptable() {
    let mut bench = Bench::new();
    bench.connect();
    bench.stored.clear();
    let early = bench.exec();
    assert_eq!(started(&bench.command(&early, 5)), 0);
    bench.life_ms = 10;
    let effects = bench.lives(&[7, 12, 6]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::OlderDisk(12)))), "{effects:?}");
    assert_eq!(
        (started(&effects), &bench.stored[..]),
        (0, &["Acknowledge", "NoteOlderDisk", "Answer"].map(str::to_owned)[..])
    );
    bench.life_ms = 20;
    let new = bench.exec();
    assert_eq!(started(&bench.command(&new, 6)), 1);
}

#[test]
fn goodbye_ends_when_its_presence_comes_back() {
    let mut bench = Bench::working();
    let effects = bench.handle(Input::Stop);
    assert_eq!(published(&effects), [HostTopic::Heartbeat, HostTopic::Presence]);
    let stopped = bench.session.me().presence(1, PresenceState::Stopped, NOW_MS);
    let effects = bench.handle(Input::Presence(Some(stopped), Some(1)));
    assert!(matches!(effects[..], [Effect::Disconnect]), "{effects:?}");
    assert!(matches!(bench.handle(Input::Disconnected)[..], [Effect::Stopped]));
}

#[test]
fn goodbye_without_connection_is_over_at_once() {
    let effects = Bench::new().handle(Input::Stop);
    assert!(matches!(effects[..], [Effect::Stopped]), "{effects:?}");
}

#[test]
fn input_during_a_store_request_waits_for_the_answer() {
    let mut bench = Bench::working();
    let now = Moment { life_ms: 0, clock_ms: NOW_MS, random: || 0.5 };
    let host = Host(bench.session.me().host);
    let command = |command| Input::Message(CommandSource::Own, SignedMessage::Command(command).into(), Some(5));
    let (first, second) = (bench.exec(), bench.exec());
    let effects = bench.session.handle(now, ROOM, &host, command(first));
    let Some(Effect::Store(request @ StoreRequest::Take { .. })) = effects.into_iter().next() else {
        panic!("a request")
    };
    assert!(bench.session.handle(now, ROOM, &host, command(second)).is_empty());
    let reply = bench.answer(request);
    let effects = bench.handle(Input::Stored(reply));
    assert_eq!((started(&effects), acknowledged(&effects)), (2, vec![5, 5]));
}

#[test]
fn refused_command_is_answered_without_being_started() {
    let mut bench = Bench::working();
    let mut late = bench.exec();
    (late.issued_ms, late.expires_ms) = (NOW_MS - 60_000, NOW_MS - 30_000);
    let effects = bench.command(&late, 5);
    assert_eq!(bench.stored, ["Answer"]);
    assert_eq!((started(&effects), acknowledged(&effects)), (0, vec![5]));
    assert_eq!(published(&effects), [HostTopic::Outcome]);
}

#[test]
fn newer_keys_are_stored_before_they_are_acknowledged_and_older_ones_change_nothing() {
    let key = || Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap().public_key().unwrap();
    let mut bench = Bench::working();
    let host = bench.session.me().host;
    let told = |number, keys, authorities| {
        let content = NumberedContent::CommandKeys(CommandKeys { keys, authorities });
        NumberedDocument { v: V1, host, issued_ms: NOW_MS, number, content }
    };
    let tell = |bench: &mut Bench, keys: NumberedDocument, receipt| {
        bench.stored.clear();
        let message = SignedMessage::Numbered(keys, text()).into();
        let effects = bench.handle(Input::Message(CommandSource::Own, message, Some(receipt)));
        let is_acknowledged =
            effects.iter().any(|effect| matches!(effect, Effect::Acknowledge(which) if *which == receipt));
        let is_rejected = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Notice(Notice::Rejected(what, _)) if what == "command_keys"));
        (bench.stored.contains(&"Numbered".to_owned()), is_acknowledged, is_rejected)
    };
    bench.is_broken = true;
    assert_eq!(tell(&mut bench, told(5, vec![key()], vec![]), 1), (true, false, false));
    bench.is_broken = false;
    bench.life_ms += 5_000;
    bench.stored.clear();
    let effects = bench.handle(Input::Time);
    assert!(bench.stored.contains(&"Numbered".to_owned()), "it is tried again");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Acknowledge(1))));
    for generation in [0, 4, 5] {
        assert_eq!(tell(&mut bench, told(generation, vec![key()], vec![]), 2), (false, true, false), "{generation}");
    }
    let pem = || "x".repeat(AUTHORITY_MAX_BYTES);
    for (keys, authorities) in [
        (vec![], vec![]),
        ((0..=COMMAND_KEYS_MAX).map(|_| key()).collect(), vec![]),
        (vec![key()], vec![pem(); AUTHORITIES_MAX + 1]),
        (vec![key()], vec![pem() + "x"]),
    ] {
        assert_eq!(tell(&mut bench, told(9, keys, authorities), 3), (false, true, true));
    }
    assert_eq!(tell(&mut bench, told(6, vec![key(), key()], vec![pem()]), 4), (true, true, false));
    // They came another way meanwhile.
    bench.session.set_keys_number(8);
    assert_eq!(tell(&mut bench, told(7, vec![key()], vec![]), 5), (false, true, false));
}

#[test]
fn message_for_another_slot_or_of_a_former_console_is_refused_by_name() {
    let mut bench = Bench::working();
    let slot = bench.session.me().host.slot();
    let hear = |bench: &mut Bench, epoch, slot| {
        bench.stored.clear();
        let exec = bench.exec();
        let message =
            IncomingMessage { message: SignedMessage::Command(exec), scope: Some(MessageScope { epoch, slot }) };
        let effects = bench.handle(Input::Message(CommandSource::Own, message, Some(5)));
        let why = effects.iter().find_map(|effect| match effect {
            Effect::Notice(Notice::Rejected(_, why)) => Some(why.clone()),
            _ => None,
        });
        assert_eq!(acknowledged(&effects), [5], "{effects:?}");
        (bench.stored.clone(), started(&effects), why.unwrap_or_default())
    };
    let other = muster_topics::slot::Slot(slot.0 ^ 1);
    let (stored, started, why) = hear(&mut bench, 1, other);
    assert_eq!((stored.len(), started), (0, 0));
    assert_eq!(why, format!("it is for hosts of slot {other}, and this host has slot {slot}"));
    // A later epoch is stored before its first message is handled.
    assert_eq!(hear(&mut bench, 2, slot), (vec!["ConsoleEpoch".to_owned(), "Take".to_owned()], 1, String::new()));
    assert_eq!(hear(&mut bench, 2, slot), (vec!["Take".to_owned()], 1, String::new()));
    let (stored, started, why) = hear(&mut bench, 1, slot);
    assert_eq!((stored.len(), started), (0, 0));
    assert_eq!(why, "it was signed in epoch 1 of the console, and this host has accepted epoch 2");
    // A store that fails has it wait.
    bench.is_broken = true;
    let message = |epoch| IncomingMessage {
        message: SignedMessage::Refresh(Refresh { v: V1, issued_ms: NOW_MS, within_ms: 0 }),
        scope: Some(MessageScope { epoch, slot }),
    };
    let effects = bench.handle(Input::Message(CommandSource::Own, message(3), Some(6)));
    assert_eq!(acknowledged(&effects), [0; 0]);
    bench.is_broken = false;
    bench.life_ms += 60_000;
    assert_eq!(acknowledged(&bench.handle(Input::Time)), [6]);
}

#[test]
fn message_of_a_later_protocol_is_rejected_by_name_and_nothing_is_done() {
    let mut bench = Bench::working();
    let later = muster_topics::PROTOCOL + 1;
    let message = IncomingMessage::from(SignedMessage::LaterProtocol(later));
    let effects = bench.handle(Input::Message(CommandSource::Own, message, Some(1)));
    let words = format!("signed in protocol {later} of the console, and this build uses protocol {}", later - 1);
    let notices: Vec<&Notice> = effects
        .iter()
        .filter_map(|effect| if let Effect::Notice(notice) = effect { Some(notice) } else { None })
        .collect();
    assert_eq!(notices, [&Notice::Rejected("message".to_owned(), words), &Notice::ConsoleProtocol(Some(later))]);
    assert_eq!((acknowledged(&effects), started(&effects)), (vec![1], 0));
    assert!(bench.stored.is_empty());
    // What this build knows is done, and says that the console speaks that again.
    let scope = Some(MessageScope { epoch: 1, slot: bench.session.me().host.slot() });
    let message = IncomingMessage { message: SignedMessage::Command(bench.exec()), scope };
    let effects = bench.handle(Input::Message(CommandSource::Own, message, Some(2)));
    let is_known = |effect: &Effect<_, _>| matches!(effect, Effect::Notice(Notice::ConsoleProtocol(None)));
    assert!(effects.iter().any(is_known), "{effects:?}");
    assert_eq!(started(&effects), 1);
}

#[test]
fn message_with_an_unknown_key_is_rejected_and_noticed() {
    let mut bench = Bench::working();
    let stranger = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
    let signed = stranger.sign(bench.session.me().host.slot(), &bench.exec()).unwrap();
    let message = IncomingMessage::open(&signed, &[]);
    let effects = bench.handle(Input::Message(CommandSource::Own, message, Some(1)));
    let notices: Vec<&Notice> = effects
        .iter()
        .filter_map(|effect| if let Effect::Notice(notice) = effect { Some(notice) } else { None })
        .collect();
    assert!(matches!(&notices[..], [Notice::Rejected(..), Notice::UnknownKey]), "{notices:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Acknowledge(1))));
}
