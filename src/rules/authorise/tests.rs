use muster_topics::{
    V1,
    command::Exec,
    name::{CommandId, HostId},
};

use super::*;
use crate::rules::time::{AHEAD_MAX_MS, BUILD_MS};

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
        operator: "anna".parse().unwrap(),
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
fn judged(command: Command, channel: Channel, time: KnownTime, clock_ms: Millis) -> Option<RefusalCode> {
    let policy: Policy = serde_json::from_str(
        r#"{"deny_verbs": ["unit_rm"], "deny_realms": ["secret"], "deny_users": ["root", "nobody"]}"#,
    )
    .unwrap();
    let realms = ["default", "secret"].map(|realm| realm.parse().unwrap()).into();
    let verdict = seen(|host| {
        let judge = Judge {
            host,
            realms: &realms,
            policy: &policy,
            user: "muster",
            created_ms: CREATED,
            lost_ms: Some(LOST),
            time,
            clock_ms,
        };
        check(command, channel, &judge)
    });
    match verdict {
        Verdict::Granted(_) => None,
        Verdict::Refused(_, refusal) => Some(refusal.code),
        Verdict::NotMine | Verdict::Later(_) => panic!("silence"),
    }
}

#[track_caller]
fn check_own(command: Command, expected: Option<RefusalCode>) {
    assert_eq!(judged(command, Channel::Own, KnownTime::new(0), NOW), expected);
}

#[test]
fn good_commands_are_granted() {
    check_own(exec(), None);
    check_own(Command { target: Target::All, ..exec() }, None);
    check_own(run("default/a"), None);
    check_own(apply_as("shop"), None);
    assert_eq!(judged(exec(), Channel::Broadcast, KnownTime::new(0), NOW), None);
}

#[test]
fn a_realm_that_is_denied_is_so_inside_its_containers() {
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
fn time() {
    use RefusalCode::{Expired, Invalid, Replayed, SetBack};
    let dated = |issued_ms, expires_ms| Command { issued_ms, expires_ms, ..exec() };
    check_own(dated(NOW - MINUTE, NOW - 1), Some(Expired));
    check_own(dated(NOW - MINUTE, NOW), None);
    check_own(dated(CREATED - 1, NOW + MINUTE), Some(Replayed));
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
fn a_clock_that_was_never_set_expires_by_signed_time() {
    let unset = 7_000;
    let judged = |signed_ms| judged(exec(), Channel::Own, KnownTime::new(signed_ms), unset);
    assert_eq!(judged(0), None);
    assert_eq!(judged(NOW + MINUTE), None);
    assert_eq!(judged(NOW + MINUTE + 1), Some(RefusalCode::Expired));
}

/// What becomes of a command that differs in its target alone: granted, a refusal, or silence.
fn addressed(target: Target, channel: Channel) -> Result<(), Option<RefusalCode>> {
    let command = Command { target, ..exec() };
    let (realms, policy) = Default::default();
    let verdict = seen(|host| {
        let time = KnownTime::new(0);
        let judge = Judge {
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
        Verdict::Granted(_) => Ok(()),
        Verdict::Refused(_, refusal) => Err(Some(refusal.code)),
        Verdict::NotMine | Verdict::Later(_) => Err(None),
    }
}

#[test]
fn targets() {
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
        assert_eq!(addressed(target.clone(), Channel::Own), on_own.map_err(Some), "{target:?}");
        // Of a broadcast that is for others nothing is said.
        assert_eq!(addressed(target.clone(), Channel::Broadcast), on_own.map_err(|_| None), "{target:?}");
    }
}

#[test]
fn about_a_foreign_command_nothing_is_said_whatever_is_wrong_with_it() {
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
                &Judge { host, realms: &realms, policy: &policy, user, created_ms, lost_ms: None, time, clock_ms: NOW },
            )
        })
    };
    assert!(matches!(foreign(Channel::Broadcast), Verdict::NotMine));
    // Its sender thinks that it is not, and is told that.
    let Verdict::Refused(_, refusal) = foreign(Channel::Own) else { panic!("a refusal") };
    assert_eq!(refusal.code, RefusalCode::NotSelected);
    assert!(refusal.message.contains("label.site=south"), "{}", refusal.message);
}

#[test]
fn of_a_command_that_is_not_understood_those_hear_whom_it_is_for() {
    let Command { id, issued_ms, expires_ms, .. } = exec();
    let told = |target: Target, channel| {
        let head = Head { id, target, issued_ms, expires_ms };
        seen(|host| not_understood(&head, channel, host, &"\u{e4}".repeat(4_000))).map(|refusal| {
            assert!(refusal.message.len() < 2 * MESSAGE_MAX_BYTES, "it is bounded");
            refusal.code
        })
    };
    let group = |label: &str| Target::Group(label.parse().unwrap());
    assert_eq!(told(group("site"), Channel::Broadcast), Some(RefusalCode::Invalid));
    assert_eq!(told(group("other"), Channel::Broadcast), None);
    assert_eq!(told(group("other"), Channel::Own), Some(RefusalCode::NotSelected));
}

#[test]
fn a_broadcast_carries_no_standard_input() {
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
    assert_eq!((judged(Channel::Own), judged(Channel::Broadcast)), (None, Some(RefusalCode::Invalid)));
}

#[test]
fn a_batch_may_what_each_of_its_steps_may() {
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
    assert_eq!(VerbName::from(&batch(|_| ()).verb), VerbName::Exec);
}

#[test]
fn an_environment_that_is_dangerous_is_refused() {
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
fn a_broadcast_carries_no_environment() {
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
    spec.env.insert("PASSWORD".to_owned(), "x".to_owned());
    check_own(unit, Some(RefusalCode::Invalid));
    let judged = judged(with_env(mine()), Channel::Broadcast, KnownTime::new(0), NOW);
    assert_eq!(judged, Some(RefusalCode::Invalid));
}

#[test]
fn policy() {
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
fn a_command_that_only_unconfirmed_signed_time_speaks_against_is_left_unanswered() {
    const DAY: i64 = 24 * 60 * MINUTE;
    let (realms, policy) = Default::default();
    let verdict = |command: Command, time: KnownTime, created_ms: i64| {
        let verdict = seen(|host| {
            let (user, lost_ms, clock_ms) = ("muster", None, NOW);
            let judge = Judge { host, realms: &realms, policy: &policy, user, created_ms, lost_ms, time, clock_ms };
            check(command, Channel::Own, &judge)
        });
        match verdict {
            Verdict::Granted(_) => "granted",
            Verdict::Later(_) => "later",
            Verdict::Refused(_, refusal) if refusal.code == RefusalCode::Expired => "expired",
            Verdict::Refused(_, refusal) if refusal.code == RefusalCode::Replayed => "replayed",
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
    time.heard_fresh(NOW + DAY, NOW, 2 * DAY);
    assert_eq!(verdict(short(), time, CREATED), "expired");
    // It was not.
    time.heard_fresh(NOW, NOW, 2 * DAY);
    assert_eq!([verdict(short(), time, CREATED), verdict(past(), time, CREATED)], ["granted", "expired"]);
}

#[test]
fn the_agents_own_user_counts_where_none_is_named() {
    let policy = Policy { deny_users: ["root".to_owned()].into(), ..Policy::default() };
    let realms = Default::default();
    let (user, time) = ("root", KnownTime::new(0));
    let verdict = seen(|host| {
        let judge = Judge {
            host,
            realms: &realms,
            policy: &policy,
            user,
            created_ms: CREATED,
            lost_ms: None,
            time,
            clock_ms: NOW,
        };
        check(exec(), Channel::Own, &judge)
    });
    assert!(matches!(verdict, Verdict::Refused(_, Refusal { code: RefusalCode::Denied, .. })));
}

#[test]
fn a_misspelt_policy_is_an_error() {
    for text in [r#"{"deny_verbs": ["excec"]}"#, r#"{"deny_verb": []}"#, r#"{"deny_realms": ["Å"]}"#] {
        assert!(serde_json::from_str::<Policy>(text).is_err(), "{text}");
    }
}

#[test]
fn a_verb_is_named_as_on_the_wire() {
    for command in [exec(), run("default/a"), apply_as("shop")] {
        let name = serde_json::to_value(VerbName::from(&command.verb)).unwrap();
        assert_eq!(name, command.verb.name());
    }
}
