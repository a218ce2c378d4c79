//! Clocks that are wrong, jump both ways, and a host that is offline for a week.

use std::{thread, time::Duration};

use serde_json::{Value, json};

use super::{
    bus::Kind,
    stage::{Party, Special, Stage, shell},
};

fn stage() -> Stage {
    Stage::start_special(Kind::Own, Special { clocks: true, ..Special::default() })
}

/// Orders something that has an effect; whether it was done, which nothing does twice.
#[track_caller]
fn done(stage: &Stage, name: &str) -> Result<(), String> {
    let outcome = stage.outcome(&stage.exec(&stage.note(name)));
    match (outcome["exit"]["code"].as_i64(), stage.effects(name)) {
        (Some(0), 1) => Ok(()),
        (None, 0) => Err(format!("{}: {} ({})", outcome["code"], outcome["message"], outcome["hint"])),
        other => panic!("{name}: {other:?}: {outcome}"),
    }
}

#[test]
fn agents_clock_jump_repeats_and_loses_nothing() {
    let mut stage = stage();
    done(&stage, "at-first").unwrap();
    // Back, as after an empty battery: what was signed says what time it is.
    for (name, to) in [("an-hour-behind", "-1h"), ("a-week-behind", "-8d"), ("in-1970", "@1970-01-02 00:00:00")] {
        stage.set_clock(Party::Agent, to);
        done(&stage, name).unwrap();
        // And a start with such a clock.
        stage.kill(Party::Agent);
        stage.start_party(Party::Agent);
        done(&stage, &format!("{name}-again")).unwrap();
    }
    // Somebody keeps a command back until it has expired: a clock that is behind does not bring it back to life.
    let late = stage.order(&shell(&stage.note("late")), 1_000);
    let first = stage.outcome(&late);
    thread::sleep(Duration::from_millis(1_100));
    done(&stage, "later").unwrap();
    stage.bus.publish(&stage.topic("cmd"), &stage.signed(&late), 3);
    done(&stage, "at-last").unwrap();
    assert_eq!((stage.outcome(&late), stage.effects("late")), (first, 1));

    // Ahead: by that clock everything has expired, and who orders it hears that.
    stage.set_clock(Party::Agent, "+8d");
    let refused = done(&stage, "a-week-ahead").unwrap_err();
    assert!(refused.contains("expired"), "{refused}");
    stage.set_clock(Party::Agent, "+0");
    done(&stage, "right-again").unwrap();
    assert!(!stage.printed(Party::Agent).contains("panicked"));
}

#[test]
fn consoles_clock_jump_recovers() {
    let mut stage = stage();
    done(&stage, "at-first").unwrap();
    stage.set_clock(Party::Console, "+2h");
    done(&stage, "ahead").unwrap();
    // What it has signed is dated ahead, and nothing that it signs from now on is older.
    stage.set_clock(Party::Console, "+0");
    done(&stage, "right-again").unwrap();
    stage.kill(Party::Console);
    stage.start_party(Party::Console);
    done(&stage, "after-a-restart").unwrap();
    stage.set_clock(Party::Console, "-1h");
    done(&stage, "behind").unwrap();
    // So far ahead that no agent believes it: refused, with the reason, and no harm is left of it.
    stage.set_clock(Party::Console, "+3d");
    let refused = done(&stage, "days-ahead").unwrap_err();
    assert!(refused.contains("compare the clocks"), "{refused}");
    stage.set_clock(Party::Console, "+0");
    stage.kill(Party::Console);
    stage.start_party(Party::Console);
}

/// How far ahead of the real time a command is dated, under its signature and in the console's ledger.
fn dated_ahead(stage: &Stage, id: &str) -> [Duration; 2] {
    let envelope: Value = serde_json::from_str(&stage.signed(id)).unwrap();
    let body: Value = serde_json::from_str(envelope["body"].as_str().unwrap()).unwrap();
    let listed = stage.request("GET", &format!("/commands/{id}"), None);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    [&body, &listed].map(|dated| Duration::from_millis(dated["issued_ms"].as_u64().unwrap()).saturating_sub(now))
}

/// Waits until the console says so much of its own clock, or nothing.
#[track_caller]
fn wait_for_word_of_the_clock(stage: &Stage, words: Option<&str>) {
    crate::fleet::eventually("a word about the console's clock", || {
        let alerts = stage.request("GET", "/alerts", None);
        let word = alerts.as_array().unwrap().iter().find(|one| one["alert"]["rule"] == "console-clock");
        let message = word.map(|one| one["alert"]["message"].as_str().unwrap().to_owned());
        match (&message, words) {
            (None, None) => Ok(()),
            (Some(message), Some(words)) if message.contains(words) => Ok(()),
            _ => Err(format!("{message:?}, not {words:?}")),
        }
    });
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn clock_a_day_ahead_for_one_command_is_corrected() {
    let mut stage = stage();
    let first = stage.exec(&stage.note("at-first"));
    stage.succeeds(&first);
    // Ordered before hosts can have said what their clocks show.
    stage.set_clock(Party::Console, "+23h");
    let ahead = stage.exec(&stage.note("ahead"));
    stage.succeeds(&ahead);
    assert!(dated_ahead(&stage, &ahead).iter().all(|by| *by > 20 * HOUR));
    // It waits for a host that is away for longer than it has.
    stage.kill(Party::Agent);
    stage.wait_for_presence("offline");
    let open = stage.order(&shell(&stage.note("open")), 3_000);

    // Started with such a clock it makes certificates that are not good yet.
    stage.kill(Party::Console);
    stage.start_party(Party::Console);
    wait_for_word_of_the_clock(&stage, Some("refuse each other's certificates"));
    stage.kill(Party::Console);
    stage.set_clock(Party::Console, "+0");
    stage.start_party(Party::Console);
    let short = stage.order(&shell(&stage.note("short")), 3_000);
    for id in [&open, &short] {
        crate::fleet::eventually("the end of a command", || match stage.progress(id)["state"].as_str() {
            Some("missing") => Ok(()),
            state => Err(format!("{state:?}")),
        });
    }
    stage.start_party(Party::Agent);
    // Once the host has shown that the clock is right, what is signed is dated by it.
    let later = crate::fleet::eventually("a command that is dated rightly", || {
        let id = stage.exec("true");
        stage.succeeds(&id);
        let by = dated_ahead(&stage, &id);
        if by.iter().all(|by| *by < HOUR) { Ok(id) } else { Err(format!("{by:?}")) }
    });
    wait_for_word_of_the_clock(&stage, None);
    // Whoever owns the broker brings all of it again.
    for id in [&first, &ahead, &later] {
        stage.bus.publish(&stage.topic("cmd"), &stage.signed(id), 1);
    }
    done(&stage, "at-last").unwrap();
    let effects = ["at-first", "ahead", "open", "short"].map(|name| stage.effects(name));
    assert_eq!(effects, [1, 1, 0, 0]);
}

#[test]
fn wrong_console_clock_is_reported_and_corrected_by_hosts() {
    let stage = stage();
    for (to, words) in
        [("+1d", "1440 min ahead of those of 1 of 1 hosts"), ("-1d", "1440 min behind those of 1 of 1 hosts")]
    {
        // A minute less or more.
        let words = words.split_once(' ').unwrap().1;
        stage.set_clock(Party::Console, to);
        wait_for_word_of_the_clock(&stage, Some(words));
        let id = stage.exec(&stage.note(to));
        stage.succeeds(&id);
        let [signed, _] = dated_ahead(&stage, &id);
        assert!(signed < HOUR, "{to}: {signed:?}");
        stage.home.muster(&["host", "ls"]).expect_code(0).expect_stderr("the console's clock is");
    }
    stage.set_clock(Party::Console, "+0");
    wait_for_word_of_the_clock(&stage, None);
    done(&stage, "right-again").unwrap();
}

#[test]
fn host_offline_for_a_week_catches_up() {
    let mut stage = stage();
    let hours = |hours: u64| hours * 3_600_000;
    // An answer that the console has not heard yet when both go away.
    let owed = stage.exec(&format!("{}; sleep 1; echo told", stage.note("owed")));
    stage.wait_for_effect("owed");
    stage.kill(Party::Console);
    let waiting = "SELECT count(*) FROM outbox";
    crate::fleet::eventually("an answer that waits", || match stage.query::<i64>("agent/agent.db", waiting) {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    stage.kill(Party::Agent);
    stage.start_party(Party::Console);
    stage.wait_for_presence("offline");
    let week = stage.order(&shell(&stage.note("a-week")), hours(7 * 24));
    let day = stage.order(&shell(&stage.note("a-day")), hours(24));
    stage.kill(Party::Console);

    stage.restart_broker_at("+167h");
    for party in [Party::Console, Party::Agent] {
        stage.set_clock(party, "+167h");
        stage.start_party(party);
        if party == Party::Console {
            // The only host is on the same machine, which has not run for so long: its clock confirms nothing.
            assert_eq!(stage.progress(&day)["state"], "waiting");
            stage.home.muster(&["clock", "confirm", "--yes"]).expect_code(0);
        }
    }
    stage.succeeds(&week);
    stage.succeeds(&owed);
    assert_eq!(stage.progress(&day)["state"], "missing");
    stage.bus.publish(&stage.topic("cmd"), &stage.signed(&day), 1);
    assert_eq!(stage.outcome(&day)["code"], json!("expired"));
    let effects = ["owed", "a-week", "a-day"].map(|name| stage.effects(name));
    assert_eq!(effects, [1, 1, 0]);
    done(&stage, "again").unwrap();
}
