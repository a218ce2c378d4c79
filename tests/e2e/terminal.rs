//! Text of hosts and other people on a terminal: control characters are escaped.

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
    thread,
};

use nix::pty::openpty;

use crate::fleet::{Fleet, eventually, file};

/// What a program that runs on a terminal prints there.
fn on_a_terminal(command: &mut Command) -> String {
    let pair = openpty(None, None).unwrap();
    let (mut master, slave) = (File::from(pair.master), File::from(pair.slave));
    let reading = thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), [0; 4_096]);
        // Once nobody has the other end any more this fails.
        while let Ok(count @ 1..) = master.read(&mut piece) {
            all.extend_from_slice(&piece[..count]);
        }
        all
    });
    let other = |slave: &File| Stdio::from(slave.try_clone().unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(other(&slave)).stderr(other(&slave)).spawn().unwrap();
    child.wait().unwrap();
    // Whoever holds an end of it keeps it open.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    String::from_utf8(reading.join().unwrap()).unwrap()
}

/// A title, colours, a cleared screen, the eight-bit form of the same, and text that is turned round.
const EVIL: &str = "\x1b]0;pwned\x07\x1b[31mred\x1b[2J\u{9b}32mgreen\u{202e}dlrow";

#[track_caller]
fn assert_harmless(what: &str, printed: &str) {
    let obeyed =
        |one: char| one.is_control() && !matches!(one, '\n' | '\r' | '\t') || matches!(one, '\u{202a}'..='\u{202e}');
    assert!(!printed.contains("\x1b[31mred"), "{what}: {printed:?}");
    // Tables colour states themselves.
    let own = ["\x1b[0m", "\x1b[31m", "\x1b[32m", "\x1b[33m"];
    let printed = &own.iter().fold(printed.to_owned(), |printed, colour| printed.replace(colour, ""));
    assert!(!printed.contains(obeyed), "{what}: {printed:?}");
    // A terminal is given both at the end of a line, by its driver; elsewhere it would overwrite what stands there.
    assert!(!printed.replace("\r\n", "\n").contains('\r'), "{what}: {printed:?}");
    assert!(printed.contains("pwned"), "{what}: {printed:?}");
}

#[test]
fn escapes_are_text_on_terminal_and_raw_in_pipe() {
    let fleet = Fleet::start();
    let script = file(&fleet.home, "evil", &format!("#!/bin/sh\nprintf '%s\\n' '{EVIL}'\nexec sleep 600\n"));
    fleet.ok(&["artifact", "create", &script, "--role", "evil", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/evil", "--artifact", "evil", "--run"]);
    fleet.ok(&["unit", "hold", "default/evil"]);
    eventually("its log", || {
        let log = fleet.muster(&["yuno", "logs", "default/evil"]).stdout;
        // A pipe gets it as it was written.
        if log.contains(EVIL) { Ok(()) } else { Err(log) }
    });
    let shown = on_a_terminal(fleet.home.command().args(["yuno", "logs", "default/evil"]));
    assert!(shown.contains("\\u001b]0;pwned\\u0007") && shown.contains("\\u202edlrow"), "{shown:?}");
    let words = ["exec", "--", "printf", "%s\\n", EVIL];
    assert_eq!(fleet.ok(&words), format!("{EVIL}\n"));
    let commands = fleet.json(&["command", "ls"]);
    let id = commands.as_array().unwrap().iter().find(|one| one["verb"]["exec"].is_object()).unwrap()["id"].clone();
    let id = id.as_str().unwrap();
    let to_stderr = format!("printf '%s\\n' '{EVIL}' >&2");
    let missing = format!("no-such-{EVIL}");
    for args in [
        &words[..],
        &["exec", "--shell", "--", &to_stderr],
        &["yuno", "logs", "default/evil"],
        &["command", "ls"],
        &["command", "show", id],
        &["-o", "yaml", "command", "show", id],
        // An error that repeats what it was given.
        &["host", "show", &missing],
    ] {
        assert_harmless(&args.join(" "), &on_a_terminal(fleet.home.command().args(args)));
    }
}
