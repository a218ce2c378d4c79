//! The agent is killed while more programs wait for their turn than may run at once: none of them is lost for it, none
//! runs twice, and never do two run together.
//!
//! The one program whose start the kill interrupts may end as `lost`: nobody can know what became of it. Those that wait
//! were not begun, so of them that is never true.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use super::agent::{Agent, Point};
use crate::{fleet::eventually, roles::Roles};

/// One runs, and the others wait.
const CONFIG: &str = "[exec]\nparallel_max = 1\nqueue_max = 8";

/// Where the way of a program through the queue can be interrupted.
const OF_QUEUE: [&str; 10] = [
    "enter command/before commit",
    "enter command/after commit",
    "record facts/before commit",
    "record facts/after commit",
    "launch/before files",
    "launch/before spawn",
    "launch/after spawn",
    "launch/before it is told",
    "acknowledge/before commit",
    "acknowledge/after commit",
];

const WORDS: [&str; 4] = ["first", "second", "third", "fourth"];

struct Desk {
    roles: Arc<Roles>,
    rounds: usize,
}

impl Desk {
    fn path(&self, name: &str) -> PathBuf {
        self.roles.home.path().join(format!("{name}-{}", self.rounds))
    }

    fn effects(&self) -> String {
        fs::read_to_string(self.path("effects")).unwrap_or_default()
    }

    fn order(&self, word: &str, work: &str) -> String {
        let effects = self.path("effects").display().to_string();
        let script = format!("echo begin {word} >> {effects}; {work}; echo end {word} >> {effects}");
        self.roles.ok(&["exec", "--no-wait", "--shell", "--", &script]).trim().to_owned()
    }

    /// How far a command has come: its state, and its outcome's status.
    fn stands(&self, id: &str) -> (String, String) {
        let host = self.roles.json(&["command", "show", id])["hosts"][0].clone();
        let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        (word(&host["state"]), word(&host["outcome"]["value"]["status"]))
    }

    /// Waits until the agent works again.
    fn wait(&self) {
        // Wherever it is killed meanwhile, it comes back.
        eventually("an answer", || match self.roles.home.muster(&["exec", "--timeout", "20s", "--", "true"]) {
            run if run.code == 0 => Ok(()),
            run => Err(run.stderr),
        });
    }

    /// One program keeps the only place until all others wait; what became of each.
    fn round(&mut self) -> BTreeMap<&'static str, String> {
        self.rounds += 1;
        let gate = self.path("gate");
        let first = self.order(WORDS[0], &format!("while ! test -e {}; do sleep 0.02; done", gate.display()));
        eventually("the first one's start", || match self.stands(&first) {
            (state, _) if state == "done" || self.effects().contains("begin first") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let others = WORDS[1..].iter().map(|word| (*word, self.order(word, "true")));
        let ids: Vec<(&str, String)> = [(WORDS[0], first)].into_iter().chain(others).collect();
        for (word, id) in &ids {
            eventually("a command that the host has", || match self.stands(id) {
                (state, _) if ["accepted", "running", "done"].contains(&state.as_str()) => Ok(()),
                other => Err(format!("{word}: {other:?}")),
            });
        }
        fs::write(gate, "").unwrap();
        let outcome = |(word, id): (&'static str, String)| {
            let status = eventually("an outcome", || match self.stands(&id) {
                (state, status) if state == "done" => Ok(status),
                other => Err(format!("{word}: {other:?}")),
            });
            (word, status)
        };
        ids.into_iter().map(outcome).collect()
    }

    /// Checks what a round came to. Whoever was not begun when the agent was killed has waited.
    #[track_caller]
    fn check(&self, outcomes: &BTreeMap<&str, String>, killed_at: Option<&Point>) {
        let effects = self.effects();
        let about = format!("killed at {killed_at:?}: {outcomes:?}, {effects:?}");
        let lost: Vec<&str> = outcomes.iter().filter(|(_, status)| *status == "lost").map(|(word, _)| *word).collect();
        assert!(outcomes.values().all(|status| ["exited", "lost"].contains(&status.as_str())), "{about}");
        assert!(lost.len() <= usize::from(killed_at.is_some()), "{about}");
        for word in WORDS {
            let count = effects.lines().filter(|line| *line == format!("begin {word}")).count();
            let is_lost = lost.contains(&word);
            assert!(count == 1 || (count == 0 && is_lost), "{word} ran {count} times: {about}");
        }
        let lines: Vec<&str> = effects.lines().filter(|line| !lost.iter().any(|word| line.ends_with(word))).collect();
        let one_by_one = lines.chunks(2).all(|pair| match pair {
            [begin, end] => begin.strip_prefix("begin ").is_some_and(|word| end.strip_prefix("end ") == Some(word)),
            _ => false,
        });
        assert!(one_by_one, "two ran together: {about}");
    }
}

#[test]
fn queued_programs_run_once_despite_kills() {
    let roles = Arc::new(Roles::start());
    let agent = Agent::start(&roles, CONFIG);
    roles.wait_for_host("online");
    let mut desk = Desk { roles, rounds: 0 };
    desk.wait();

    // A life that nobody ends tells how often each place is passed before and while programs wait.
    let at_first = agent.passed(&OF_QUEUE);
    agent.restart();
    desk.wait();
    let before = agent.passed(&OF_QUEUE);
    let outcomes = desk.round();
    desk.check(&outcomes, None);
    assert_eq!(desk.effects(), WORDS.map(|word| format!("begin {word}\nend {word}\n")).concat(), "in their order");
    let after = agent.passed(&OF_QUEUE);

    let is_long = std::env::var_os("TESTS_LONG").is_some();
    let points: Vec<Point> = (OF_QUEUE.iter().enumerate())
        .flat_map(|(index, name)| {
            let counts = before[index] - at_first[index] + 1..=after[index] - at_first[index];
            // One in the middle is one while some wait.
            let middle = (counts.start() + counts.end()).div_ceil(2);
            counts.filter(move |count| is_long || *count == middle).map(|count| ((*name).to_owned(), count))
        })
        .collect();
    assert!(points.len() >= 8, "{points:?}");
    for point in &points {
        agent.kill_at([point.clone()]);
        agent.restart();
        desk.wait();
        let outcomes = desk.round();
        desk.check(&outcomes, Some(point));
        agent.kill_at([]);
    }
    let killed = agent.killed().len();
    eprintln!("killed at {killed} of {} places of a queue", points.len());
    // How often a place is passed varies a little with time.
    assert!(killed * 10 >= points.len() * 7, "killed at {killed} of {points:?}");
}
