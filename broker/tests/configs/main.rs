//! The configurations of other brokers: the committed ones are what the table gives, and the real brokers,
//! started with such files, do what the table says.
//!
//! Modules: `client`, an MQTT 3.1.1 client that shows each refusal; `server`, brokers as processes; `cases`, who
//! may do what, and how to find out.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cases;
mod client;
mod server;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
};

use muster_broker::render::{BrokerKind, RenderInputs, default_listen, render};
use muster_test_support::committed;
use muster_topics::topic::Prefix;

use self::{
    cases::{CASES, Outcome, WIDE, bring, knows_whom_it_has, outcomes, reads_system, speaks, takes_too_much},
    server::Server,
};

/// A host that is named where hosts must be.
pub(crate) const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
/// Another.
pub(crate) const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

/// The configurations in `broker/configs`: a fleet with one console, and one host where it has to be named.
#[test]
fn committed_files_equal_rendered_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    for kind in BrokerKind::ALL {
        let hosts = match kind {
            BrokerKind::RabbitMq | BrokerKind::Nats => vec![HOST.parse().unwrap()],
            BrokerKind::Mosquitto | BrokerKind::Emqx | BrokerKind::HiveMq => Vec::new(),
        };
        let fleet = RenderInputs {
            prefix: Prefix::default(),
            listen: default_listen(),
            certificates: None,
            hosts,
            consoles: vec!["main".parse().unwrap()],
            operators: Vec::new(),
            observers: Vec::new(),
        };
        let folder = folder.join(kind.as_str());
        for file in render(kind, &fleet).unwrap() {
            let path = folder.join(file.name);
            committed::check(&path, &file.text, "cargo test -p muster-broker --test configs committed");
        }
    }
}

/// Fails with every case in which a broker does not do what the table says.
#[track_caller]
fn check_rules(server: &Server) {
    let wrong: Vec<String> = outcomes(server, CASES)
        .into_iter()
        .filter(|(case, outcome)| case.permitted != (*outcome == Outcome::Arrived))
        .map(|(case, outcome)| format!("{case:?}: {outcome:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}:\n{}", server.name(), wrong.join("\n"));
    for (who, filter, topic) in WIDE {
        assert!(!bring(server, who, filter, topic), "{}: {who} has {filter}, and so {topic}", server.name());
    }
    knows_whom_it_has(server);
    let is_bounded = server.name() != "NATS";
    assert_eq!(takes_too_much(server), !is_bounded, "{}: what its configuration says of long messages", server.name());
}

#[test]
fn mosquitto_and_the_own_broker_agree_on_every_case() {
    check_rules(&Server::own());
    check_rules(&Server::mosquitto());
}

#[test]
fn only_operators_read_system_topics() {
    for server in [Server::own(), Server::mosquitto()] {
        for (who, may) in [("operator-anna", true), ("observer-bridge", false), ("console-main", false), (HOST, false)]
        {
            assert_eq!(reads_system(&server, who), may, "{}: {who}", server.name());
        }
    }
}

#[test]
fn the_own_broker_speaks_the_protocol() {
    speaks(&Server::own(), true);
}

#[test]
fn mosquitto_speaks_the_protocol() {
    speaks(&Server::mosquitto(), true);
}

#[test]
fn mosquitto_refuses_revoked_certificates() {
    let server = Server::mosquitto_with_revoked(OTHER);
    assert!(server.client(HOST, &format!("{HOST}-1")).is_ok());
    assert!(server.client(OTHER, &format!("{OTHER}-1")).is_err());
}

#[test]
fn rabbitmq_speaks_the_protocol_and_keeps_the_rules() {
    let server = Server::rabbitmq();
    speaks(&server, false);
    check_rules(&server);
}

#[test]
fn nats_speaks_the_protocol_and_keeps_the_rules() {
    let server = Server::nats();
    speaks(&server, true);
    check_rules(&server);
}

/// NATS's own port is one more way in, to users who have no passwords.
#[test]
fn nats_asks_for_certificates_on_its_other_port_too() {
    let server = Server::nats();
    let mut socket = TcpStream::connect(server.other_address()).unwrap();
    let greeting = BufReader::new(socket.try_clone().unwrap()).lines().next().unwrap().unwrap();
    assert!(greeting.starts_with("INFO ") && greeting.contains("\"tls_required\":true"), "{greeting}");
    socket.write_all(b"CONNECT {\"verbose\":false,\"user\":\"CN=console-main\",\"pass\":\"\"}\r\nPING\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("PONG"), "{answer:?}");
}
