//! A revoked host over brokers that do not know of the revocation and still admit it.

use serde_json::json;

use super::{
    bus::Kind,
    stage::{Party, Special, Stage},
};
use crate::{
    fleet::{Running, eventually},
    wire::of_host,
};

/// Listens to all that goes to hosts, and has heard something of it.
fn listen(stage: &Stage) -> Running {
    let mut heard = stage.bus.listen(&["muster/s/+/cmd/#", "muster/s/+/h/+/cmd"]);
    let topic = of_host(&stage.other.to_string(), "cmd ");
    eventually("somebody who listens", || {
        stage.ok(&["exec", "--host", &stage.other.to_string(), "--", "true"]);
        if heard.printed().contains(&topic) { Ok(()) } else { Err(heard.printed()) }
    });
    // What is heard from here on comes behind this.
    say(stage, &mut heard, "from-here");
    heard
}

/// Has the second host told a word, and waits until that is heard: all that was said before is then heard, too.
fn say(stage: &Stage, heard: &mut Running, word: &str) {
    stage.ok(&["exec", "--host", &stage.other.to_string(), "--", "echo", word]);
    heard.wait_for(word, |printed| printed.contains(word).then_some(()));
}

fn a_revoked_host_is_neither_told_nor_heard_over(kind: Kind) {
    let mut stage = Stage::start(kind);
    let second = stage.second();
    let (host, other) = (stage.host.to_string(), stage.other.to_string());
    let running = stage.exec("sleep 1000");
    eventually("a command is restored", || match stage.progress(&running)["state"].as_str() {
        Some("running") => Ok(()),
        other => Err(format!("{other:?}")),
    });

    stage.ok(&["host", "revoke", "--yes", &host]);
    // What it owed is over at once, and says why.
    let outcome = stage.progress(&running)["outcome"]["value"].clone();
    assert_eq!((&outcome["status"], &outcome["code"]), (&json!("refused"), &json!("revoked")), "{outcome}");
    let mut heard = listen(&stage);
    let refused =
        |args: &[&str]| stage.home.muster(args).expect_code(3).expect_stderr("revoked, so they get no commands");
    refused(&["exec", "--host", &host, "--", "true"]);
    refused(&["yuno", "stop", "default/till"]);
    // Its broker lets it in, as before: whatever it says of itself, it is away.
    stage.kill(Party::Agent);
    stage.start_party(Party::Agent);
    stage.bus.wait_for_retained(&of_host(&host, "presence"), "online");
    stage.ok(&["exec", "--all", "--", "sh", "-c", &stage.note("all")]);
    say(&stage, &mut heard, "to-here");
    let printed = heard.printed();
    let since = &printed[printed.find("from-here").unwrap()..];
    assert!(!since.contains("/cmd/all"), "what all hosts read was published: {since}");
    assert!(!since.contains(&of_host(&host, "cmd")), "the revoked host was told something: {since}");
    assert!(since.contains(&of_host(&other, "cmd")));
    assert_eq!(stage.effects("all"), 1);
    let shown = stage.request("GET", &format!("/hosts/{host}"), None);
    assert_eq!(shown["presence"]["state"], "offline", "{shown}");
    drop(second);
    eprintln!("{stage}");
}

#[test]
fn revoked_host_is_excluded_over_mosquitto() {
    a_revoked_host_is_neither_told_nor_heard_over(Kind::Mosquitto);
}

#[test]
fn revoked_host_is_excluded_over_rabbitmq() {
    a_revoked_host_is_neither_told_nor_heard_over(Kind::RabbitMq);
}

/// Gives Mosquitto the list, as `systemctl restart` would: it ends once the broker was started again.
const FEED: &str = "cp \"$MUSTER_REVOKED_PEM\" broker/revoked.pem && chmod 644 broker/revoked.pem && : > asked || exit 1\n\
                    while [ -e hold ]; do sleep 0.1; done\n";

#[test]
fn mosquitto_with_current_list_gets_broadcasts_again() {
    let console_config = "revocation_command = [\"sh\", \"feed.sh\"]\n";
    let feed = |stage: &Stage| std::fs::write(stage.home.path().join("feed.sh"), FEED).unwrap();
    let mut stage = Stage::start_special(Kind::Mosquitto, Special { console_config, ..Special::default() });
    feed(&stage);
    stage.bus.use_list();
    let second = stage.second();
    let (hold, asked) = (stage.home.path().join("hold"), stage.home.path().join("asked"));
    // The first list is given as soon as there is a program that can do it.
    stage.kill(Party::Console);
    stage.start_party(Party::Console);
    eventually("the first list", || if asked.exists() { Ok(()) } else { Err("nothing came".to_owned()) });
    std::fs::remove_file(&asked).unwrap();
    std::fs::write(&hold, "").unwrap();
    stage.wait_for(stage.other, "online");
    stage.ok(&["host", "revoke", "--yes", &stage.host.to_string()]);
    eventually("the list with the host", || if asked.exists() { Ok(()) } else { Err("nothing came".to_owned()) });
    let mut heard = listen(&stage);
    let before = heard.printed().len();
    stage.ok(&["exec", "--all", "--", "true"]);
    say(&stage, &mut heard, "told-alone");
    assert!(!heard.printed()[before..].contains("/cmd/all"), "the broker does not have the list yet");

    stage.bus.kill();
    stage.bus.again();
    std::fs::remove_file(&hold).unwrap();
    eventually("a refusal of the broker", || match stage.printed(Party::Agent) {
        printed if printed.to_lowercase().contains("revoked") => Ok(()),
        printed => Err(printed),
    });
    let mut heard = listen(&stage);
    let mut tries = 0;
    eventually("a command to all in one message", || {
        tries += 1;
        let before = heard.printed().len();
        stage.ok(&["exec", "--all", "--", "true"]);
        say(&stage, &mut heard, &format!("again-{tries}"));
        match heard.printed()[before..].contains("/cmd/all") {
            true => Ok(()),
            false => Err("each was told alone".to_owned()),
        }
    });
    drop(second);
}
