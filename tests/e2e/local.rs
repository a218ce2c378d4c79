//! The agent's local interface.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use serde_json::Value;

use crate::{
    fleet::{Running, eventually},
    roles::Roles,
};

/// The status and the body of the answer to a request.
fn ask(mut stream: impl Read + Write, request: &str, host: &str) -> (u16, Value) {
    write!(stream, "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn socket(roles: &Roles) -> PathBuf {
    roles.home.path().join("agent/agent.sock")
}

pub(crate) fn on_socket(roles: &Roles, request: &str) -> (u16, Value) {
    ask(UnixStream::connect(socket(roles)).unwrap(), request, "agent")
}

#[test]
fn local_interface_works_with_and_without_broker() {
    let mut roles = Roles::start();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let config = roles.agent_config();
    let text = format!("local_listen = \"{listen}\"\n") + &fs::read_to_string(&config).unwrap();
    fs::write(&config, text).unwrap();
    let agent = Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]));
    let host = roles.wait_for_host("online");
    eventually("it is connected", || {
        let (status, standing) = on_socket(&roles, "GET /ping");
        if status == 200 && standing["connected"] == true { Ok(()) } else { Err(standing.to_string()) }
    });
    let (_, standing) = on_socket(&roles, "GET /ping");
    assert_eq!((&standing["host"], &standing["units"]), (&host["id"], &Value::from(0)));

    let on_tcp = |request: &str, host: &str| ask(TcpStream::connect(&listen).unwrap(), request, host);
    assert_eq!(on_tcp("GET /ping", &listen).0, 200);
    assert_eq!(on_tcp("POST /trigger", "evil.example").0, 403);
    let (status, state) = on_tcp("GET /heartbeat", "localhost");
    assert_eq!(status, 200);
    assert!(state["facts"]["kernel"].is_string() && state["units"].is_object(), "{state}");
    for (request, status) in [("GET /", 404), ("DELETE /heartbeat", 405), ("GET /trigger", 405)] {
        let (got, body) = on_socket(&roles, request);
        assert!(got == status && body["error"].is_string(), "{request}: {got} {body}");
    }

    let heard_ms = |roles: &Roles| roles.json(&["host", "show"])["state"]["at_ms"].as_i64().unwrap();
    let before_ms = heard_ms(&roles);
    assert_eq!(on_socket(&roles, "POST /heartbeat"), (202, serde_json::json!({ "v": 1, "connected": true })));
    eventually("a heartbeat that nothing but this has made", || {
        if heard_ms(&roles) > before_ms { Ok(()) } else { Err(before_ms.to_string()) }
    });

    roles.kill_broker();
    eventually("it is told that nobody hears it", || {
        let (status, answer) = on_socket(&roles, "POST /trigger");
        if status == 202 && answer["connected"] == false { Ok(()) } else { Err(answer.to_string()) }
    });
    assert_eq!(agent.stop().0, 0);
    assert!(!socket(&roles).exists());
}
