//! The console's clock is ahead for one command. The agent takes that time from it, and puts it back once the console has said
//! what time it is; it is killed while it does.
//!
//! Whenever that is, the command is done once, later ones are taken as before, and the time that was put back stays so.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{agent::Agent, in_source};
use crate::{fleet::eventually, roles::Roles};

const AFTER: &str = "put time back/after commit";
/// Longer than an agent waits before it asks the console again what time it is.
const HEARD: Duration = Duration::from_secs(15);
/// Now and then the console has compared its clock with the host's before the command is ordered, and dates it rightly.
const TRIES: usize = 10;

struct Trial {
    roles: Arc<Roles>,
    agent: Agent,
    commands: usize,
}

impl Trial {
    /// How often the agent has put its time back.
    fn times(&self) -> usize {
        self.agent.passed(&[AFTER])[0]
    }

    fn effect(&self, number: usize) -> String {
        fs::read_to_string(self.roles.home.path().join(format!("ahead-{number}"))).unwrap_or_default()
    }

    /// Runs a program while the console's clock is ahead; whether the agent has put its time back since, and was killed if it
    /// was to be.
    fn is_ahead_and_back(&mut self) -> bool {
        let before = self.times();
        self.commands += 1;
        let effects = self.roles.home.path().join(format!("ahead-{}", self.commands));
        let script = format!("echo once >> {}", effects.display());
        self.roles.set_clock("+2h");
        let run = self.roles.home.muster(&["exec", "--timeout", "20s", "--shell", "--", &script]);
        let effect = self.effect(self.commands);
        match run.code {
            0 => assert_eq!(effect, "once\n", "{run:?}"),
            _ => assert!(run.stderr.contains("lost"), "{run:?}"),
        }
        let began = Instant::now();
        let is_back = || self.times() > before && self.agent.next_point().is_none();
        while !is_back() && began.elapsed() < HEARD {
            thread::sleep(Duration::from_millis(50));
        }
        self.roles.set_clock("+0");
        is_back()
    }

    /// Waits until commands are taken, and the agent finds nothing to put back, however often it is started.
    fn stays(&self) {
        eventually("a time that stays", || {
            let before = self.times();
            let runs = [(); 2].map(|()| {
                self.agent.restart();
                self.roles.home.muster(&["exec", "--timeout", "20s", "--", "true"])
            });
            let is_taken = runs.iter().all(|run| run.code == 0);
            if is_taken && self.times() == before { Ok(()) } else { Err(format!("{runs:?}")) }
        });
    }
}

#[test]
fn agent_killed_while_putting_time_back_accepts_commands() {
    let places: Vec<String> = in_source().into_iter().filter(|name| name.starts_with("put time back/")).collect();
    assert!(places.len() == 2 && places.iter().any(|name| name == AFTER), "{places:?}");
    let roles = Arc::new(Roles::start_with_clock());
    let agent = Agent::start(&roles, "");
    roles.wait_for_host("online");
    let mut trial = Trial { roles, agent, commands: 0 };
    for place in std::iter::once(None).chain(places.iter().map(Some)) {
        trial.agent.kill_at(place.map(|name| (name.clone(), 1)));
        trial.agent.restart();
        trial.roles.wait_for_host("online");
        let is_back = (0..TRIES).any(|_| trial.is_ahead_and_back());
        assert!(is_back, "its time is not put back, killed at {place:?}");
        trial.stays();
    }
    assert_eq!(trial.agent.killed().len(), places.len());
    let effects: Vec<String> = (1..=trial.commands).map(|number| trial.effect(number)).collect();
    assert!(effects.iter().all(|effect| ["", "once\n"].contains(&effect.as_str())), "{effects:?}");
    eprintln!("killed at {} places in {} commands", places.len(), trial.commands);
}
