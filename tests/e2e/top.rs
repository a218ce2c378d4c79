//! `muster top`: once, and interactively on a terminal.

use nix::sys::signal::Signal;

use crate::{
    fleet::{Fleet, eventually},
    screen::Screen,
};

#[test]
fn top_draws_hosts_and_restores_the_terminal() {
    let fleet = Fleet::start();
    let host = fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap().to_owned();
    let mut screen = Screen::start(&fleet, &["top", "--every", "1s"]);
    screen.wait_for("1 hosts, 1 online · by cpu");
    screen.wait_for(&host.chars().take(10).collect::<String>());
    screen.wait_for("\x1b[?1049h");
    assert!(screen.is_silent());
    screen.press("m");
    screen.wait_for("by memory");
    screen.wait_for("% ");
    screen.press("q");
    screen.expect_given_back(0);

    // Whoever ends it from outside gets his terminal back as well.
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 130)] {
        let screen = Screen::start(&fleet, &["top", "units"]);
        screen.wait_for("0 units on 1 hosts");
        screen.signal(signal);
        screen.expect_given_back(code);
    }
    let mut screen = Screen::start(&fleet, &["top"]);
    screen.wait_for("by cpu");
    screen.press("\x03");
    screen.wait_for("1 hosts");
    // Without a session of its own, Ctrl-C is a key that means nothing; the signal is what the terminal makes of it.
    screen.press("q");
    screen.expect_given_back(0);
}

#[test]
fn top_prints_once_without_terminal() {
    let fleet = Fleet::start_with(&[]);
    let host = fleet.host();
    fleet.unit_in_phase("default/hello", "running");
    let told = eventually("a host that is measured", || {
        let told = fleet.json(&["top"]);
        if told[0]["cpu_ratio"].is_number() { Ok(told) } else { Err(told.to_string()) }
    });
    assert_eq!((told[0]["host"].as_str(), told[0]["state"].as_str()), (Some(host.as_str()), Some("online")));
    let memory = told[0]["memory_ratio"].as_f64().unwrap();
    assert!(memory > 0.0 && memory < 1.0, "{told}");
    let units = eventually("a unit that is measured", || {
        let told = fleet.json(&["top", "units", "--sort", "memory"]);
        if told[0]["memory_bytes"].is_number() { Ok(told) } else { Err(told.to_string()) }
    });
    assert_eq!((units[0]["unit"].as_str(), units[0]["state"].as_str()), (Some("default/hello"), Some("running")));
    let table = fleet.ok(&["top", "--once"]);
    assert!(table.starts_with("HOST ") && table.contains("CPU▾") && table.lines().count() == 2, "{table}");
    assert!(!table.contains('\x1b') && table.lines().all(|line| line.chars().count() <= 80), "{table:?}");
    // Where nobody sits, once is enough.
    assert!(fleet.ok(&["top", "units"]).contains("default/hello"));

    assert_eq!(fleet.json(&["top", "--select", &format!("host={host}")]).as_array().unwrap().len(), 1);
    let run = fleet.muster(&["top", "--select", "host=nobody"]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains("no host matches"), "{run:?}");
    assert_eq!(fleet.muster(&["top", "--select", "("]).code, 2);
}
