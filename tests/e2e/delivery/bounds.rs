//! Limits of what an agent keeps: what does not fit is not lost.

use std::fs;

use nix::sys::signal::Signal;

use super::{
    bus::Kind,
    stage::{Party, Special, Stage, shell},
};
use crate::fleet::eventually;

#[test]
fn full_journal_defers_commands() {
    // The unit of the stage takes a few.
    let agent_config = "journal_max_bytes = 16000\n";
    let mut stage = Stage::start_special(Kind::Own, Special { agent_config, ..Special::default() });
    let ids: Vec<String> = (0..16).map(|n| stage.exec(&stage.note(&format!("full-{n}")))).collect();
    eventually("the agent's own words", || {
        let printed = stage.printed(Party::Agent);
        if printed.contains("journal_max_bytes") { Ok(()) } else { Err(printed) }
    });
    let journalled: i64 = stage.query("agent/agent.db", "SELECT count(*) FROM journal");
    assert!((10..=12).contains(&journalled), "{journalled}");
    // What is in it is known as before.
    stage.succeeds(&ids[0]);
    stage.bus.publish(&stage.topic("cmd"), &stage.signed(&ids[0]), 3);

    stage.stop_agent();
    let config = stage.home.path().join("agent.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("= 16000", "= 2000000")).unwrap();
    stage.start_party(Party::Agent);
    for (n, id) in ids.iter().enumerate() {
        stage.succeeds(id);
        assert_eq!(stage.effects(&format!("full-{n}")), 1);
    }
}

#[test]
fn unacknowledged_output_waits_in_its_files() {
    let agent_config = "journal_max_bytes = 400000\n";
    let mut stage = Stage::start_special(Kind::Own, Special { agent_config, ..Special::default() });
    let mut verb = shell(&format!("{}; sleep 1; seq 1000000; {}", stage.note("begun"), stage.note("ended")));
    verb["exec"]["output_max_bytes"] = (8 * 1024 * 1024).into();
    let id = stage.order(&verb, 600_000);
    stage.wait_for_effect("begun");
    stage.signal(Party::Console, Signal::SIGSTOP);
    stage.wait_for_effect("ended");
    let waiting = "SELECT coalesce(sum(length(payload)), 0) FROM outbox";
    eventually("a full outbox", || match stage.query::<i64>("agent/agent.db", waiting) {
        bytes if bytes >= 100_000 => Ok(()),
        bytes => Err(bytes.to_string()),
    });
    // What one transaction takes may be beyond the bound: 32 pieces of 16 KiB, in base64 at the worst.
    let bytes: i64 = stage.query("agent/agent.db", waiting);
    assert!(bytes < 100_000 + 32 * 22_000, "{bytes}");
    // Through the death of the agent, too.
    stage.kill(Party::Agent);
    stage.start_party(Party::Agent);
    stage.signal(Party::Console, Signal::SIGCONT);
    stage.succeeds(&id);
    assert_eq!(stage.stored_output(&id), (1..=1_000_000_u32).map(|n| n.to_string().len() + 1).sum::<usize>());
}
