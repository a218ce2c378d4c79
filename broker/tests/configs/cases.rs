//! Permissions as data; and how to find out what a broker permits: never by a timeout, but by a
//! second message that would come after the first one.

use std::sync::atomic::{AtomicU32, Ordering};

use muster_topics::{
    role::Identity,
    topic::{Filter, Prefix, Topic},
};

use crate::{
    HOST, OTHER,
    client::{Client, More},
    server::Server,
};

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    Publish,
    /// To subscribe to this one topic, and to be given what is published there.
    Read,
}

/// Who tries what, and whether the table permits it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) who: &'static str,
    pub(crate) what: Try,
    /// Below the prefix; `HOST` and `OTHER` stand for the ids of two hosts.
    pub(crate) topic: &'static str,
    pub(crate) permitted: bool,
}

const fn case(who: &'static str, what: Try, topic: &'static str, permitted: bool) -> Case {
    Case { who, what, topic, permitted }
}

/// Everything that the table permits, and what is next to it.
pub(crate) const CASES: &[Case] = {
    use Try::{Publish, Read};
    &[
        case(HOST, Publish, "s/00/h/HOST/presence", true),
        case(HOST, Publish, "s/00/h/HOST/heartbeat", true),
        case(HOST, Publish, "s/00/h/HOST/unit/default/hello", true),
        case(HOST, Publish, "s/00/h/HOST/alert/disk", true),
        case(HOST, Publish, "s/00/h/HOST/metric", true),
        case(HOST, Publish, "s/00/h/HOST/event", true),
        case(HOST, Publish, "s/00/h/HOST/log/default/hello", false),
        case(HOST, Publish, "s/00/h/HOST/outcome", true),
        case(HOST, Publish, "s/00/h/HOST/admission", true),
        case(HOST, Publish, "s/00/h/HOST/stream/a", true),
        case(HOST, Publish, "s/00/h/HOST/stream/a/input", false),
        case(HOST, Read, "s/00/h/HOST/stream/a/input", true),
        case(HOST, Read, "s/00/h/OTHER/stream/a/input", false),
        case("console-main", Publish, "s/00/h/HOST/stream/a/input", true),
        case("console-main", Read, "s/00/h/HOST/stream/a", true),
        case(HOST, Publish, "h/HOST/presence", false),
        case(HOST, Publish, "s/00/h/HOST/admission/answer", false),
        case(HOST, Publish, "s/00/h/HOST/unit/default", false),
        case(HOST, Publish, "s/00/h/HOST/unit/default/hello/more", false),
        case(HOST, Publish, "s/00/h/HOST/cmd", false),
        case(HOST, Publish, "s/00/h/HOST/ack", false),
        case(HOST, Publish, "s/00/h/HOST/desired", false),
        case(HOST, Publish, "s/00/h/HOST/other", false),
        case(HOST, Publish, "s/00/h/HOST", false),
        case(HOST, Publish, "s/00/h/OTHER/presence", false),
        case(HOST, Publish, "s/00/h/OTHER/outcome", false),
        case(HOST, Publish, "s/00/cmd/all", false),
        case(HOST, Publish, "s/00/cmd/group/edge", false),
        case(HOST, Publish, "console/main/presence", false),
        case(HOST, Read, "s/00/h/HOST/presence", true),
        case(HOST, Read, "s/00/h/HOST/desired", true),
        case(HOST, Read, "s/00/h/HOST/cmd", true),
        case(HOST, Read, "s/00/h/HOST/ack", true),
        case(HOST, Read, "s/00/h/HOST/admission/answer", true),
        case(HOST, Read, "s/00/cmd/all", true),
        case(HOST, Read, "s/00/cmd/group/edge", true),
        case(HOST, Read, "console/main/presence", true),
        case(HOST, Read, "s/00/h/HOST/outcome", false),
        case(HOST, Read, "s/00/h/HOST/metric", false),
        case(HOST, Read, "s/00/h/OTHER/cmd", false),
        case(HOST, Read, "s/00/h/OTHER/desired", false),
        case(HOST, Read, "s/00/h/OTHER/presence", false),
        case("console-main", Publish, "s/00/h/HOST/desired", true),
        case("console-main", Publish, "s/00/h/OTHER/cmd", true),
        case("console-main", Publish, "s/00/h/HOST/ack", true),
        case("console-main", Publish, "s/00/h/HOST/admission/answer", true),
        case("console-main", Publish, "s/00/cmd/all", true),
        case("console-main", Publish, "s/00/cmd/group/edge", true),
        case("console-main", Publish, "console/main/presence", true),
        case("console-main", Publish, "console/spare/presence", false),
        case("console-main", Publish, "console/console-main/presence", false),
        case("console-main", Publish, "s/00/h/HOST/presence", false),
        case("console-main", Publish, "s/00/h/HOST/outcome", false),
        case("console-main", Publish, "s/00/h/console-main/presence", false),
        case("console-main", Publish, "s/00/h/main/heartbeat", false),
        case("console-main", Publish, "s/00/cmd/other", false),
        case("console-main", Read, "s/00/h/OTHER/outcome", true),
        case("console-main", Read, "s/00/h/HOST/cmd", true),
        case("console-main", Read, "console/spare/presence", true),
        case("console-spare", Publish, "console/spare/presence", true),
        case("console-spare", Publish, "console/main/presence", false),
        case("operator-anna", Read, "s/00/h/HOST/outcome", true),
        case("operator-anna", Read, "s/00/cmd/all", true),
        case("operator-anna", Publish, "s/00/h/HOST/cmd", false),
        case("operator-anna", Publish, "s/00/cmd/all", false),
        case("operator-anna", Publish, "s/00/h/operator-anna/presence", false),
        case("operator-anna", Publish, "console/anna/presence", false),
        case("observer-bridge", Read, "s/00/h/HOST/metric", true),
        case("observer-bridge", Read, "s/00/h/OTHER/cmd", true),
        case("observer-bridge", Publish, "s/00/h/HOST/metric", false),
        case("observer-bridge", Publish, "s/00/h/bridge/metric", false),
    ]
};

/// Filters that would bring more than is permitted: who, the filter, and a topic that it matches.
pub(crate) const WIDE: &[(&str, &str, &str)] = &[
    (HOST, "#", "s/00/h/OTHER/cmd"),
    (HOST, "muster/#", "s/00/h/OTHER/cmd"),
    (HOST, "muster/s/+/h/+/cmd", "s/00/h/OTHER/cmd"),
    (HOST, "muster/s/00/+/OTHER/cmd", "s/00/h/OTHER/cmd"),
    (HOST, "+/s/00/h/OTHER/#", "s/00/h/OTHER/cmd"),
    (HOST, "muster/s/00/h/HOST/#", "s/00/h/HOST/outcome"),
    (HOST, "$share/g/muster/s/+/h/+/cmd", "s/00/h/OTHER/cmd"),
    (HOST, "muster/s/00/cmd/#", "s/00/h/OTHER/cmd"),
];

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message came through.
    Arrived,
    /// The broker took it, and nobody was given it.
    Vanished,
    /// The broker said no.
    Refused,
    /// The broker ended the connection.
    Cut,
}

fn full(topic: &str) -> String {
    format!("muster/{}", named(topic))
}

fn named(text: &str) -> String {
    text.replace("HOST", HOST).replace("OTHER", OTHER)
}

/// A name, or a payload, that was not there before.
fn fresh(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn client(server: &Server, who: &str) -> Client {
    let client_id = fresh(who);
    server.client(who, &client_id).unwrap_or_else(|error| panic!("{} lets {who} not in: {error}", server.name()))
}

/// Publishes something by which everybody knows that what was before has gone through.
fn mark(console: &mut Client) -> String {
    let mark = fresh("mark");
    console.publish(&full("s/00/cmd/all"), &mark, false).unwrap();
    mark
}

/// Tries each case.
pub(crate) fn outcomes<'a>(server: &Server, cases: &'a [Case]) -> Vec<(&'a Case, Outcome)> {
    let mut console = client(server, "console-main");
    let mut witness = client(server, "console-main");
    assert!(witness.subscribe("muster/#").unwrap(), "{}", server.name());
    cases
        .iter()
        .map(|case| {
            let outcome = match case.what {
                Try::Publish => publish(server, case, &mut console, &mut witness),
                Try::Read => read(server, case, &mut console),
            };
            (case, outcome)
        })
        .collect()
}

fn publish(server: &Server, case: &Case, console: &mut Client, witness: &mut Client) -> Outcome {
    let (topic, payload) = (full(case.topic), fresh("payload"));
    let published = client(server, case.who).publish(&topic, &payload, false);
    let mark = mark(console);
    let arrived = witness.until(&mark).iter().any(|message| message.topic == topic && message.payload == payload);
    match (arrived, published) {
        (true, _) => Outcome::Arrived,
        (false, Ok(())) => Outcome::Vanished,
        (false, Err(_)) => Outcome::Cut,
    }
}

/// Somebody who may publish to a topic.
fn publisher_of(topic: &str) -> &'static str {
    let may = |who: &&str| who.parse::<Identity>().unwrap().may(muster_topics::role::Action::Publish, &named(topic));
    ["console-main", "console-spare", HOST, OTHER]
        .into_iter()
        .find(may)
        .unwrap_or_else(|| panic!("nobody publishes {topic}"))
}

fn read(server: &Server, case: &Case, console: &mut Client) -> Outcome {
    let mut reader = client(server, case.who);
    assert!(reader.subscribe(&full("s/00/cmd/all")).unwrap());
    match reader.subscribe(&full(case.topic)) {
        Ok(true) => {}
        Ok(false) => return Outcome::Refused,
        Err(_) => return Outcome::Cut,
    }
    let payload = fresh("payload");
    client(server, publisher_of(case.topic)).publish(&full(case.topic), &payload, false).unwrap();
    // NATS keeps the order within a subscription alone, so what is permitted may come after a later mark.
    let marks = if case.permitted { 100 } else { 1 };
    let arrived = (0..marks).any(|_| {
        let mark = mark(console);
        reader.until(&mark).iter().any(|message| message.payload == payload)
    });
    if arrived { Outcome::Arrived } else { Outcome::Vanished }
}

/// Whether somebody who subscribes to a filter is given what is published to a topic.
pub(crate) fn bring(server: &Server, who: &str, filter: &str, topic: &str) -> bool {
    let mut reader = client(server, who);
    assert!(reader.subscribe(&full("s/00/cmd/all")).unwrap());
    if !reader.subscribe(&named(filter)).unwrap_or(false) {
        return false;
    }
    let payload = fresh("payload");
    client(server, publisher_of(topic)).publish(&full(topic), &payload, false).unwrap();
    let mark = mark(&mut client(server, "console-main"));
    reader.until(&mark).iter().any(|message| message.payload == payload)
}

/// A host and a console do what muster is made of: presence, command, outcome, retained presence, last will.
/// `retained_to_wildcards`: whether a filter with a wildcard is given retained messages.
pub(crate) fn speaks(server: &Server, retained_to_wildcards: bool) {
    let prefix = Prefix::default();
    let presence = full("s/00/h/HOST/presence");
    let mut console = client(server, "console-main");
    for filter in Filter::of_console() {
        assert!(console.subscribe(&prefix.filter(&filter)).unwrap(), "{}: {filter}", server.name());
    }
    let mortal = More { will: Some((presence.as_str(), "offline")), ..More::default() };
    let mut host = server.client_with(HOST, &format!("{HOST}-1"), mortal).unwrap();
    for filter in Filter::of_agent(HOST.parse().unwrap(), &["site".parse().unwrap()]) {
        assert!(host.subscribe(&prefix.filter(&filter)).unwrap(), "{}: {filter}", server.name());
    }
    host.publish(&presence, "online", true).unwrap();
    console.until("online");

    console.publish(&full("s/00/h/HOST/cmd"), "command", false).unwrap();
    assert_eq!(host.until("command").pop().unwrap().topic, full("s/00/h/HOST/cmd"));
    host.publish(&full("s/00/h/HOST/outcome"), "outcome", false).unwrap();
    let outcome = console.until("outcome").pop().unwrap();
    assert_eq!(prefix.parse(&outcome.topic).unwrap().to_string(), format!("s/00/h/{HOST}/outcome"));
    console.publish(&full("s/00/cmd/all"), "to all", false).unwrap();
    host.until("to all");
    console.publish(&full("s/00/cmd/group/site"), "to a group", false).unwrap();
    host.until("to a group");
    let longest = "x".repeat(muster_topics::PAYLOAD_MAX_BYTES);
    console.publish(&full("s/00/h/HOST/cmd"), &longest, false).unwrap();
    host.until(&longest);

    check_retained(server, &presence, Some("online"));
    check_retained(server, "muster/s/+/h/+/presence", retained_to_wildcards.then_some("online"));
    host.die();
    console.until("offline");
    check_retained(server, &presence, Some("offline"));
    let topic: Topic = prefix.parse(&presence).unwrap();
    assert_eq!(prefix.topic(&topic), presence);
}

/// Checks what somebody who subscribes now is given at once. A broker may take a moment to keep what it has passed on.
#[track_caller]
fn check_retained(server: &Server, filter: &str, expected: Option<&str>) {
    let mut last = None;
    for _ in 0..100 {
        last = retained(server, filter);
        if last.as_deref() == expected {
            return;
        }
    }
    assert_eq!(last.as_deref(), expected, "{}: {filter}", server.name());
}

fn retained(server: &Server, filter: &str) -> Option<String> {
    let mut late = client(server, "console-main");
    assert!(late.subscribe(&full("s/00/cmd/all")).unwrap());
    assert!(late.subscribe(filter).unwrap());
    let mark = mark(&mut client(server, "console-main"));
    late.until(&mark).into_iter().find(|message| message.retained).map(|message| message.payload)
}

/// Nobody gets in without a certificate of the authority, and a user name beside it makes nobody somebody else.
pub(crate) fn knows_whom_it_has(server: &Server) {
    assert!(server.client("nobody", "nobody").is_err(), "{}: no certificate", server.name());
    assert!(server.foreigner("console-main", "console-main").is_err(), "{}: a foreign one", server.name());
    let topic = full("s/00/h/OTHER/cmd");
    for login in [("console-main", ""), ("console-main", "console-main"), ("guest", "guest"), ("admin", "public")] {
        let mut witness = client(server, "console-main");
        assert!(witness.subscribe("muster/#").unwrap());
        let more = More { login: Some(login), ..More::default() };
        let Ok(mut liar) = server.client_with(HOST, &fresh(HOST), more) else { continue };
        let payload = fresh("lie");
        let _ = liar.publish(&topic, &payload, false);
        let mark = mark(&mut client(server, "console-main"));
        assert!(witness.until(&mark).iter().all(|message| message.payload != payload), "{}: {login:?}", server.name());
    }
}

/// Whether a message that is longer than the protocol's goes through.
pub(crate) fn takes_too_much(server: &Server) -> bool {
    let mut witness = client(server, "console-main");
    assert!(witness.subscribe("muster/#").unwrap());
    let too_long = "x".repeat(1 << 20);
    client(server, "console-main").publish_in_vain(&full("s/00/h/HOST/cmd"), &too_long);
    let mark = mark(&mut client(server, "console-main"));
    witness.until(&mark).iter().any(|message| message.payload == too_long)
}

/// Whether somebody is given what a broker tells of itself. It is retained, so it comes at once or not at all.
pub(crate) fn reads_system(server: &Server, who: &str) -> bool {
    let mut reader = client(server, who);
    assert!(reader.subscribe(&full("s/00/cmd/all")).unwrap());
    let granted = reader.subscribe("$SYS/#").unwrap();
    let mark = mark(&mut client(server, "console-main"));
    let given = reader.until(&mark).iter().any(|message| message.topic == "$SYS/broker/version");
    assert!(granted || !given);
    given
}
