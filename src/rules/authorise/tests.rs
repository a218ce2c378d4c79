use muster_topics::{
    V1,
    asker::Asker,
    command::Exec,
    name::{CommandId, HostId},
};

use super::*;
use crate::time::{AHEAD_MAX_MS, BUILD_MS};

const CREATED: Millis = BUILD_MS + 1_000;
/// Up to then the store of that host has lost commands.
const LOST: Millis = CREATED + 10;
const NOW: Millis = BUILD_MS + 1_000_000;
const MINUTE: Millis = 60_000;

fn host() -> HostId {
    HostId(uuid::Uuid::from_u128(1))
}

/// This host, with the label `site=north` and no units.
fn seen<R>(look: impl FnOnce(&select::Host<'_>) -> R) -> R {
    let labels = [("site".parse().unwrap(), "north".to_owned())].into();
    look(&select::Host {
        host: host(),
        hostname: "shop-7",
        agent_version: "1.2.3",
        facts: None,
        labels: &labels,
        realms: &[],
        units: &[],
    })
}

fn exec() -> Command {
    let exec = Exec::new(vec!["true".to_owned()], 1_000);
    Command {
        v: V1,
        id: CommandId::new(),
        target: Target::Hosts(vec![host()]),
        issued_ms: NOW - MINUTE,
        expires_ms: NOW + MINUTE,
        asked_by: Asker::admin("anna".parse().unwrap()),
        realms: Vec::new(),
        verb: Verb::Exec(exec),
        sealed: None,
    }
}

fn of(verb: Verb) -> Command {
    Command { verb, ..exec() }
}

fn run(unit: &str) -> Command {
    of(Verb::UnitRun { unit: unit.parse().unwrap() })
}

fn apply_as(user: &str) -> Command {
    let sha256 = muster_topics::name::Digest::of(b"");
    let spec = format!(
        r#"{{"kind":"yuno","artifact":{{"sha256":"{sha256}","size_bytes":0,"role":"r","version":"1"}},"user":"{user}"}}"#
    );
    let spec = serde_json::from_str(&spec).unwrap();
    of(Verb::UnitApply { unit: "default/a".parse().unwrap(), spec, run: None })
}

/// What becomes of a command: nothing if it is granted.
fn judged(command: Command, channel: CommandSource, time: KnownTime, clock_ms: Millis) -> Option<RefusalCode> {
    judged_after(Some(LOST), command, channel, time, clock_ms)
}

fn judged_after(
    lost_ms: Option<Millis>,
    command: Command,
    channel: CommandSource,
    time: KnownTime,
    clock_ms: Millis,
) -> Option<RefusalCode> {
    let policy: LocalPolicy = serde_json::from_str(
        r#"{"deny_verbs": ["unit_rm"], "deny_realms": ["secret"], "deny_users": ["root", "nobody"]}"#,
    )
    .unwrap();
    let realms = ["default", "secret"].map(|realm| realm.parse().unwrap()).into();
    let verdict = seen(|host| {
        let judge = JudgeContext {
            host,
            realms: &realms,
            policy: &policy,
            user: "muster",
            created_ms: CREATED,
            lost_ms,
            time,
            clock_ms,
        };
        check(command, channel, &judge)
    });
    match verdict {
        CommandVerdict::Granted(_) => None,
        CommandVerdict::Refused(_, refusal) => Some(refusal.code),
        CommandVerdict::NotMine | CommandVerdict::Later(_) => panic!("silence"),
    }
}

#[track_caller]
fn check_own(command: Command, expected: Option<RefusalCode>) {
    assert_eq!(judged(command, CommandSource::Own, KnownTime::new(0), NOW), expected);
}

#[test]
fn valid_commands_are_authorised() {
    check_own(exec(), None);
    check_own(Command { target: Target::All, ..exec() }, None);
    check_own(run("default/a"), None);
    check_own(apply_as("shop"), None);
    assert_eq!(judged(exec(), CommandSource::Broadcast, KnownTime::new(0), NOW), None);
}

#[test]
fn denied_realm_is_denied_inside_its_containers() {
    let inside = |container: &str, daemon: bool| {
        let container = Some(container.parse().unwrap());
        let exec = Exec { container, daemon, ..Exec::new(vec!["true".to_owned()], 1_000) };
        let batch = muster_topics::command::Batch { steps: vec![exec.clone()], keep_going: false };
        [of(Verb::Exec(exec)), of(Verb::Batch(batch))]
    };
    for (container, refused) in
        [("default/a", None), ("secret/a", Some(RefusalCode::Denied)), ("other/a", Some(RefusalCode::Denied))]
    {
        for command in [inside(container, false), inside(container, true)].into_iter().flatten() {
            check_own(command, refused);
        }
    }
}

#[test]
fn expired_and_future_commands_are_refused() {
    use RefusalCode::{Expired, Invalid, Replayed, SetBack};
    let dated = |issued_ms, expires_ms| Command { issued_ms, expires_ms, ..exec() };
    check_own(dated(NOW - MINUTE, NOW - 1), Some(Expired));
    check_own(dated(NOW - MINUTE, NOW), None);
    let without_loss =
        |issued_ms| judged_after(None, dated(issued_ms, NOW + MINUTE), CommandSource::Own, KnownTime::new(0), NOW);
    assert_eq!([CREATED - 1, CREATED].map(without_loss), [Some(Replayed), None]);
    check_own(dated(CREATED - 1, NOW + MINUTE), Some(SetBack));
    check_own(dated(CREATED, NOW + MINUTE), Some(SetBack));
    check_own(dated(LOST, NOW + MINUTE), Some(SetBack));
    check_own(dated(LOST + 1, NOW + MINUTE), None);
    check_own(dated(NOW, NOW), Some(Invalid));
    check_own(dated(NOW, NOW - 1), Some(Invalid));
    check_own(dated(NOW, NOW + LIFETIME_MAX_MS), None);
    check_own(dated(NOW, NOW + LIFETIME_MAX_MS + 1), Some(Invalid));
    check_own(dated(i64::MIN, i64::MAX), Some(Invalid));
    check_own(dated(NOW + AHEAD_MAX_MS, NOW + AHEAD_MAX_MS + MINUTE), None);
    check_own(dated(NOW + AHEAD_MAX_MS + 1, NOW + AHEAD_MAX_MS + MINUTE), Some(Invalid));
}

#[test]
fn command_expires_by_signed_time_without_a_clock() {
    let unset = 7_000;
    let judged = |signed_ms| judged(exec(), CommandSource::Own, KnownTime::new(signed_ms), unset);
    assert_eq!(judged(0), None);
    assert_eq!(judged(NOW + MINUTE), None);
    assert_eq!(judged(NOW + MINUTE + 1), Some(RefusalCode::Expired));
}

/// What becomes of a command that differs in its target alone: granted, a refusal, or silence.
fn addressed(target: Target, channel: CommandSource) -> Result<(), Option<RefusalCode>> {
    let command = Command { target, ..exec() };
    let (realms, policy) = Default::default();
    let verdict = seen(|host| {
        let time = KnownTime::new(0);
        let judge = JudgeContext {
            host,
            realms: &realms,
            policy: &policy,
            user: "muster",
            created_ms: CREATED,
            lost_ms: None,
            time,
            clock_ms: NOW,
        };
        check(command, channel, &judge)
    });
    match verdict {
        CommandVerdict::Granted(_) => Ok(()),
        CommandVerdict::Refused(_, refusal) => Err(Some(refusal.code)),
        CommandVerdict::NotMine | CommandVerdict::Later(_) => Err(None),
    }
}

#[test]
fn command_for_other_host_is_ignored() {
    let others = || Target::Hosts(vec![HostId(uuid::Uuid::from_u128(2))]);
    let group = |label: &str| Target::Group(label.parse().unwrap());
    let select = |text: &str| Target::Select(text.parse().unwrap());
    for (target, on_own) in [
        (Target::All, Ok(())),
        (Target::Hosts(vec![HostId(uuid::Uuid::from_u128(2)), host()]), Ok(())),
        (others(), Err(RefusalCode::WrongHost)),
        (Target::Hosts(Vec::new()), Err(RefusalCode::WrongHost)),
        (group("site"), Ok(())),
        (group("north"), Err(RefusalCode::NotSelected)),
        (select("label.site=north and host=shop-*"), Ok(())),
        (select("label.site=south"), Err(RefusalCode::NotSelected)),
        (select("unit(name=*)"), Err(RefusalCode::NotSelected)),
        (select("not unit(name=*) and fact.agent_version>=1.2"), Ok(())),
        // Nothing is known of its machine here.
        (select("fact.cpus>0"), Err(RefusalCode::NotSelected)),
    ] {
        assert_eq!(addressed(target.clone(), CommandSource::Own), on_own.map_err(Some), "{target:?}");
        // Of a broadcast that is for others nothing is said.
        assert_eq!(addressed(target.clone(), CommandSource::Broadcast), on_own.map_err(|_| None), "{target:?}");
    }
}

#[test]
fn faulty_command_for_other_host_is_not_answered() {
    let foreign = |channel| {
        let target = Target::Select("label.site=south".parse().unwrap());
        let expired = Command { target, expires_ms: 0, ..run("secret/a") };
        let (realms, policy) = Default::default();
        seen(|host| {
            let time = KnownTime::new(0);
            let (user, created_ms) = ("muster", CREATED);
            check(
                expired,
                channel,
                &JudgeContext {
                    host,
                    realms: &realms,
                    policy: &policy,
                    user,
                    created_ms,
                    lost_ms: None,
                    time,
                    clock_ms: NOW,
                },
            )
        })
    };
    assert!(matches!(foreign(CommandSource::Broadcast), CommandVerdict::NotMine));
    // Its sender thinks that it is not, and is told that.
    let CommandVerdict::Refused(_, refusal) = foreign(CommandSource::Own) else { panic!("a refusal") };
    assert_eq!(refusal.code, RefusalCode::NotSelected);
    assert!(refusal.diagnostic.cause.contains("label.site=south"), "{}", refusal.diagnostic.cause);
}

#[test]
fn unknown_verb_is_refused_only_by_its_targets() {
    let Command { id, issued_ms, expires_ms, .. } = exec();
    let told = |target: Target, channel| {
        let head = CommandHead { id, target, issued_ms, expires_ms };
        seen(|host| not_understood(&head, channel, host, &"\u{e4}".repeat(4_000))).map(|refusal| {
            assert!(refusal.diagnostic.cause.len() < 2 * MESSAGE_MAX_BYTES, "it is bounded");
            refusal.code
        })
    };
    let group = |label: &str| Target::Group(label.parse().unwrap());
    assert_eq!(told(group("site"), CommandSource::Broadcast), Some(RefusalCode::Invalid));
    assert_eq!(told(group("other"), CommandSource::Broadcast), None);
    assert_eq!(told(group("other"), CommandSource::Own), Some(RefusalCode::NotSelected));
}

#[test]
fn broadcast_with_standard_input_is_refused() {
    let with_stdin = |target| {
        let mut command = Command { target, ..exec() };
        let Verb::Exec(exec) = &mut command.verb else { panic!("an exec") };
        exec.stdin = Some(muster_topics::outcome::Data::new(b"secret"));
        command
    };
    let mine = || Target::Hosts(vec![host()]);
    check_own(with_stdin(mine()), None);
    check_own(with_stdin(Target::All), Some(RefusalCode::Invalid));
    check_own(with_stdin(Target::Group("site".parse().unwrap())), Some(RefusalCode::Invalid));
    check_own(with_stdin(Target::Select("host=*".parse().unwrap())), Some(RefusalCode::Invalid));
    let judged = |channel| judged(with_stdin(mine()), channel, KnownTime::new(0), NOW);
    assert_eq!((judged(CommandSource::Own), judged(CommandSource::Broadcast)), (None, Some(RefusalCode::Invalid)));
}

#[test]
fn batch_needs_permission_for_each_step() {
    use muster_topics::command::Batch;
    let batch = |change: fn(&mut Exec)| {
        let plain = Exec::new(vec!["true".to_owned()], 1_000);
        let mut last = plain.clone();
        change(&mut last);
        of(Verb::Batch(Batch { steps: vec![plain, last], keep_going: false }))
    };
    let env = |exec: &mut Exec| drop(exec.env.insert("COLOUR".to_owned(), "x".to_owned()));
    check_own(batch(|_| ()), None);
    check_own(batch(env), None);
    check_own(Command { target: Target::All, ..batch(env) }, Some(RefusalCode::Invalid));
    check_own(batch(|exec| drop(exec.env.insert("LD_AUDIT".to_owned(), "x".to_owned()))), Some(RefusalCode::Denied));
    check_own(batch(|exec| exec.user = Some("nobody".to_owned())), Some(RefusalCode::Denied));
    assert_eq!(batch(|_| ()).verb.row().permission, muster_topics::verb_table::VerbName::Exec);
}

#[test]
fn dangerous_environment_is_refused() {
    let with = |name: &str| {
        let mut command = exec();
        let Verb::Exec(exec) = &mut command.verb else { panic!("an exec") };
        exec.env.insert(name.to_owned(), "x".to_owned());
        command
    };
    check_own(with("COLOUR"), None);
    check_own(with("LD_PRELOAD"), Some(RefusalCode::Denied));
}

#[test]
fn broadcast_with_environment_is_refused() {
    let with_env = |target| {
        let mut command = Command { target, ..exec() };
        let Verb::Exec(exec) = &mut command.verb else { panic!("an exec") };
        exec.env.insert("PASSWORD".to_owned(), "x".to_owned());
        command
    };
    let mine = || Target::Hosts(vec![host()]);
    check_own(with_env(mine()), None);
    check_own(with_env(Target::All), Some(RefusalCode::Invalid));
    let mut unit = Command { target: Target::All, ..apply_as("shop") };
    check_own(unit.clone(), None);
    let Verb::UnitApply { spec, .. } = &mut unit.verb else { panic!("an apply") };
    let muster_topics::unit::Spec::Yuno(spec) = &mut **spec else { panic!("a yuno") };
    spec.program.env.insert("PASSWORD".to_owned(), "x".to_owned());
    check_own(unit, Some(RefusalCode::Invalid));
    let judged = judged(with_env(mine()), CommandSource::Broadcast, KnownTime::new(0), NOW);
    assert_eq!(judged, Some(RefusalCode::Invalid));
}

#[test]
fn local_policy_refuses_denied_verbs() {
    use RefusalCode::Denied;
    check_own(of(Verb::UnitRm { unit: "default/a".parse().unwrap() }), Some(Denied));
    check_own(run("secret/a"), Some(Denied));
    check_own(run("elsewhere/a"), Some(Denied));
    check_own(apply_as("root"), Some(Denied));
    let as_user = |user: &str| {
        let mut command = exec();
        let Verb::Exec(exec) = &mut command.verb else { panic!("an exec") };
        exec.user = Some(user.to_owned());
        command
    };
    check_own(as_user("root"), Some(Denied));
    check_own(as_user("0"), Some(Denied));
    check_own(as_user("+0"), Some(Denied));
    check_own(apply_as("0"), Some(Denied));
    check_own(as_user("shop"), None);
}

#[test]
fn command_expired_by_unconfirmed_time_is_not_answered() {
    const DAY: i64 = 24 * 60 * MINUTE;
    let (realms, policy) = Default::default();
    let verdict = |command: Command, time: KnownTime, created_ms: i64| {
        let verdict = seen(|host| {
            let (user, lost_ms, clock_ms) = ("muster", None, NOW);
            let judge =
                JudgeContext { host, realms: &realms, policy: &policy, user, created_ms, lost_ms, time, clock_ms };
            check(command, CommandSource::Own, &judge)
        });
        match verdict {
            CommandVerdict::Granted(_) => "granted",
            CommandVerdict::Later(_) => "later",
            CommandVerdict::Refused(_, refusal) if refusal.code == RefusalCode::Expired => "expired",
            CommandVerdict::Refused(_, refusal) if refusal.code == RefusalCode::Replayed => "replayed",
            other => panic!("{other:?}"),
        }
    };
    let short = || Command { issued_ms: NOW, expires_ms: NOW + 15_000, ..exec() };
    let past = || Command { issued_ms: NOW - MINUTE, expires_ms: NOW - 1, ..exec() };
    let mut time = KnownTime::new(NOW + DAY).with_way_back().at(1_000);
    assert_eq!(verdict(short(), time, CREATED), "later");
    assert_eq!(verdict(past(), time, CREATED), "expired", "by the clock as well");
    assert_eq!(verdict(short(), KnownTime::new(0).with_way_back(), NOW + DAY), "later");
    assert_eq!(verdict(short(), KnownTime::new(NOW + DAY), CREATED), "expired", "it cannot go back");
    // The console says that its clock is right.
    time.observe_fresh(NOW + DAY, NOW, 2 * DAY);
    assert_eq!(verdict(short(), time, CREATED), "expired");
    // It was not.
    time.observe_fresh(NOW, NOW, 2 * DAY);
    assert_eq!([verdict(short(), time, CREATED), verdict(past(), time, CREATED)], ["granted", "expired"]);
}

#[test]
fn missing_user_means_the_agents_own() {
    let policy = LocalPolicy { deny_users: ["root".to_owned()].into(), ..LocalPolicy::default() };
    let realms = Default::default();
    let (user, time) = ("root", KnownTime::new(0));
    let verdict = seen(|host| {
        let judge = JudgeContext {
            host,
            realms: &realms,
            policy: &policy,
            user,
            created_ms: CREATED,
            lost_ms: None,
            time,
            clock_ms: NOW,
        };
        check(exec(), CommandSource::Own, &judge)
    });
    assert!(matches!(verdict, CommandVerdict::Refused(_, CommandRefusal { code: RefusalCode::Denied, .. })));
}

#[test]
fn misspelt_policy_is_refused() {
    for text in [r#"{"deny_verbs": ["excec"]}"#, r#"{"deny_verb": []}"#, r#"{"deny_realms": ["Å"]}"#] {
        assert!(serde_json::from_str::<LocalPolicy>(text).is_err(), "{text}");
    }
}

#[test]
fn verb_names_equal_wire_names() {
    for command in [exec(), run("default/a"), apply_as("shop")] {
        let name = serde_json::to_value(command.verb.row().permission).unwrap();
        assert_eq!(name, command.verb.name());
    }
}
