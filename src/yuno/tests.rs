//! Tests of the client with a channel that each test plays itself.

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread,
};

use super::*;

fn listen(test: &str) -> (String, UnixListener) {
    let name = format!("muster-yuno-{test}-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    (format!("@{name}"), listener)
}

fn hear(stream: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn tell(stream: &mut BufReader<UnixStream>, line: &Value) {
    stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Lets a process in; what it said first.
fn greet(listener: &UnixListener, playing: bool) -> (BufReader<UnixStream>, Value) {
    let mut stream = BufReader::new(listener.accept().unwrap().0);
    let hello = hear(&mut stream)["hello"].take();
    let welcome = json!({"unit": "default/a", "host": "h", "realm": "default", "playing": playing, "new": 1});
    tell(&mut stream, &json!({ "welcome": welcome }));
    (stream, hello)
}

#[test]
fn requests_come_and_are_answered() {
    let (socket, listener) = listen("requests");
    let channel = thread::spawn(move || {
        let (mut stream, hello) = greet(&listener, false);
        assert_eq!(hello, json!({"token": "t", "protocol": 1, "can": ["play"], "ready": false}));
        assert_eq!(hear(&mut stream), json!({"ready": {}}));
        for line in [
            json!({"play": {"id": "1"}}),
            json!({"sing": {}}),
            json!([]),
            json!({"command": {"id": "2", "name": "level", "args": {"to": 3}}}),
        ] {
            tell(&mut stream, &line);
        }
        assert_eq!(hear(&mut stream), json!({"answer": {"id": "1", "ok": null}}));
        let error = json!({"code": "unknown", "message": "not here"});
        assert_eq!(hear(&mut stream), json!({"answer": {"id": "2", "error": error}}));
        stream
    });
    let mut yuno = Yuno::connect(&socket, "t", &["play"]).unwrap();
    assert_eq!((yuno.welcome().unit.as_str(), yuno.welcome().playing), ("default/a", false));
    yuno.ready().unwrap();
    let request = yuno.next().unwrap();
    assert_eq!(request.ask(), &YunoQuestion::Play);
    yuno.ok(&request, Value::Null).unwrap();
    let request = yuno.next().unwrap();
    let args = json!({"to": 3}).as_object().unwrap().clone();
    assert_eq!(request.ask(), &YunoQuestion::Command("level".to_owned(), args));
    yuno.error(&request, "unknown", "not here").unwrap();
    let _stream = channel.join().unwrap();
    assert_eq!(yuno.next_within(Duration::from_millis(20)).unwrap(), None);
    assert!(matches!(yuno.status(&"x".repeat(LINE_MAX_BYTES)), Err(ChannelError::TooLong(_))));
}

#[test]
fn a_lost_connection_is_made_anew() {
    let (socket, listener) = listen("anew");
    let again = socket.clone();
    let channel = thread::spawn(move || {
        let (mut stream, _) = greet(&listener, false);
        assert_eq!((hear(&mut stream), hear(&mut stream)), (json!({"ready": {}}), json!({"status": "busy"})));
        tell(&mut stream, &json!({"stats": {"id": "1"}}));
        // Nobody listens for a while, as after a kill of the shim.
        drop((stream, listener));
        thread::sleep(Duration::from_millis(100));
        let name = again.strip_prefix('@').unwrap();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let (mut stream, hello) = greet(&listener, true);
        assert_eq!(hello["ready"], true);
        assert_eq!(hear(&mut stream), json!({"status": "busy"}));
        tell(&mut stream, &json!({"pause": {"id": "2"}}));
        assert_eq!(hear(&mut stream), json!({"answer": {"id": "2", "ok": 2}}));
    });
    let mut yuno = Yuno::connect(&socket, "t", &[]).unwrap();
    yuno.ready().unwrap();
    yuno.status("busy").unwrap();
    let first = yuno.next().unwrap();
    assert_eq!(first.ask(), &YunoQuestion::Stats);
    let second = yuno.next().unwrap();
    assert_eq!((second.ask(), yuno.connections(), yuno.welcome().playing), (&YunoQuestion::Pause, 2, true));
    // Nobody waits for this one any more.
    yuno.ok(&first, json!(1)).unwrap();
    yuno.ok(&second, json!(2)).unwrap();
    channel.join().unwrap();
}

#[test]
fn who_is_refused_is_told_why() {
    let (socket, listener) = listen("refused");
    let channel = thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        tell(&mut stream, &json!({"refused": {"why": "the token"}}));
        let (mut stream, _) = greet(&listener, false);
        tell(&mut stream, &json!({"refused": {"why": "a line"}}));
    });
    let error = Yuno::connect(&socket, "t", &[]).unwrap_err();
    assert_eq!(error.to_string(), "the channel is refused: the token");
    let mut yuno = Yuno::connect(&socket, "t", &[]).unwrap();
    assert!(matches!(yuno.next(), Err(ChannelError::Refused(why)) if why == "a line"));
    channel.join().unwrap();
}
