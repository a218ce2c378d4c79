//! Asking yunos things on their channels: a question goes to the task that keeps the yuno's shim, from there as a line
//! to the shim and on to the yuno, and its answer comes back the same way.
//!
//! **Invariant: a question has one answer**, the yuno's or one of ours: when the connection that it went out on is
//! gone, nothing that comes later counts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_shim::Request;
use muster_topics::{
    channel::{self, Ability, Answer, Answered, Complaint, FromYuno, LINE_MAX_BYTES, ToYuno, ToldStats},
    name::UnitName,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::super::kind::{Ask, complaint};
use crate::{
    clock::now_ms,
    rules::plan::{Connection, Slot},
};

/// Questions that wait for one yuno's task, which takes them in as they come.
const CALLS_MAX: usize = 8;

/// Questions of which the answer is outstanding, for one yuno. One that does not answer must not be told ever more.
const PENDING_MAX: usize = 64;

/// A question, and where its answer goes.
#[derive(Debug)]
pub(super) struct Call {
    ask: Ask,
    reply: oneshot::Sender<Result<Value, Complaint>>,
}

/// How the yunos that run can be asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Switchboard {
    lines: Arc<Mutex<BTreeMap<Seat, mpsc::Sender<Call>>>>,
    stats: Told,
}

/// Which instance of which unit.
type Seat = (UnitName, Slot);

/// The numbers that yunos have told last.
type Told = Arc<Mutex<BTreeMap<Seat, ToldStats>>>;

impl Switchboard {
    /// What is asked of a yuno from now on comes here.
    pub(super) fn open(&self, unit: &UnitName, slot: Slot) -> Line {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        let seat = (unit.clone(), slot);
        self.lines().insert(seat.clone(), sender);
        Line {
            seat,
            stats: self.stats.clone(),
            calls,
            prefix: Uuid::new_v4().simple().to_string(),
            count: 0,
            connection: None,
            pending: BTreeMap::new(),
        }
    }

    /// There is no such yuno any more.
    pub(super) fn close(&self, unit: &UnitName) {
        self.lines().retain(|(of, _), _| of != unit);
        self.told().retain(|(of, _), _| of != unit);
    }

    /// The numbers that yunos have told last.
    pub(super) fn stats(&self) -> BTreeMap<Seat, ToldStats> {
        self.told().clone()
    }

    /// Asks a yuno for something.
    pub(super) async fn ask(&self, unit: &UnitName, slot: Slot, ask: Ask, limit: Duration) -> Result<Value, Complaint> {
        let unreachable = |why: &str| complaint("unit_unreachable", why);
        let Some(line) = self.lines().get(&(unit.clone(), slot)).cloned() else {
            return Err(unreachable("it does not run"));
        };
        let (reply, answer) = oneshot::channel();
        let asked = async {
            line.send(Call { ask, reply }).await.map_err(|_| unreachable("it does not run"))?;
            answer.await.unwrap_or_else(|_| Err(unreachable("it was gone before it answered")))
        };
        let late = |_| Err(complaint("deadline", format!("there was no answer within {} ms", limit.as_millis())));
        tokio::time::timeout(limit, asked).await.unwrap_or_else(late)
    }

    /// A thread that panicked with this held would have changed nothing by halves.
    fn lines(&self) -> MutexGuard<'_, BTreeMap<Seat, mpsc::Sender<Call>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<Seat, ToldStats>> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent's end of one yuno's channel.
#[derive(Debug)]
pub(super) struct Line {
    seat: Seat,
    stats: Told,
    calls: mpsc::Receiver<Call>,
    /// Makes the ids of this line's questions unlike those of any other, such as of an earlier life of the agent.
    prefix: String,
    count: u64,
    connection: Option<(Whose, Connection)>,
    pending: BTreeMap<String, oneshot::Sender<Result<Value, Complaint>>>,
}

/// The process that a connection is with.
type Whose = Option<(i32, u64)>;

impl Line {
    /// The next question; never ends. Cancel-safe.
    pub(super) async fn next(&mut self) -> Call {
        match self.calls.recv().await {
            Some(call) => call,
            // Another line of this unit has taken over, and whatever is asked is asked there.
            None => std::future::pending().await,
        }
    }

    /// Takes in what the shim tells of the connection.
    pub(super) fn state(&mut self, state: &muster_shim::State) {
        let whose = state.main.as_ref().map(|main| (main.pid, main.start_ticks));
        let connection = state.channel.as_ref().and_then(|channel| {
            let connected = channel.connected.as_ref()?;
            let can = connected.can.iter().filter_map(|word| Ability::named(word)).collect();
            Some((whose, Connection { number: channel.connections, playing: connected.playing, can }))
        });
        let number =
            |connection: &Option<(Whose, Connection)>| connection.as_ref().map(|(whose, at)| (*whose, at.number));
        if number(&connection) != number(&self.connection) {
            // Whoever has asked is told so, as each of these is dropped.
            self.pending.clear();
        }
        self.connection = connection;
    }

    /// How the yuno is connected.
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref().map(|(_, connection)| connection)
    }

    /// What to tell the shim for a question. Nothing if it is answered already.
    pub(super) fn requests(&mut self, Call { ask, reply }: Call) -> Vec<Request> {
        self.pending.retain(|_, waiting| !waiting.is_closed());
        let refusal = match self.connection() {
            None => Some(complaint("unit_unreachable", "it is not connected to its channel")),
            Some(Connection { can, .. }) if !can.contains(&ask.ability()) => Some(complaint(
                "unsupported",
                format!("it has not said in its hello that it can {:?}", ask.ability().name()),
            )),
            Some(_) if self.pending.len() >= PENDING_MAX => {
                Some(complaint("busy", format!("it has {PENDING_MAX} questions to answer already")))
            }
            Some(_) => None,
        };
        self.count += 1;
        let id = format!("{}-{}", self.prefix, self.count);
        let line = refusal.map_or_else(|| line(&ask, &id), Err);
        match line {
            Err(refusal) => {
                // Who asked may have gone meanwhile.
                let _ = reply.send(Err(refusal));
                Vec::new()
            }
            Ok(line) => {
                self.pending.insert(id.clone(), reply);
                let wish = match ask {
                    Ask::Play => Some(true),
                    Ask::Pause => Some(false),
                    Ask::Command { .. } | Ask::Stats | Ask::Reload => None,
                };
                // First, so that whoever connects in between hears the newest wish.
                let wish = wish.map(|playing| Request::Playing { playing });
                wish.into_iter().chain([Request::Say { id, line }]).collect()
            }
        }
    }

    /// The yuno has said a line.
    pub(super) fn said(&mut self, line: &str) -> Result<(), serde_json::Error> {
        match serde_json::from_str(line)? {
            FromYuno::Answer(Answer { id, result }) => self.answer(
                &id,
                match result {
                    Answered::Ok(value) => Ok(value),
                    Answered::Error(why) => Err(why),
                },
            ),
            FromYuno::Stats(values) => {
                let told = ToldStats::new(now_ms(), values);
                self.stats.lock().unwrap_or_else(PoisonError::into_inner).insert(self.seat.clone(), told);
            }
            // The shim has seen to these.
            _ => {}
        }
        Ok(())
    }

    /// A question could not be asked.
    pub(super) fn unreachable(&mut self, id: &str) {
        self.answer(id, Err(complaint("unit_unreachable", "it takes nothing on its channel")));
    }

    fn answer(&mut self, id: &str, answer: Result<Value, Complaint>) {
        if let Some(reply) = self.pending.remove(id) {
            // Who asked may have given up.
            let _ = reply.send(answer);
        }
    }
}

fn line(ask: &Ask, id: &str) -> Result<String, Complaint> {
    let request = || channel::Request { id: id.to_owned() };
    let line = match ask {
        Ask::Play => ToYuno::Play(request()),
        Ask::Pause => ToYuno::Pause(request()),
        Ask::Stats => ToYuno::Stats(request()),
        Ask::Reload => ToYuno::Reload(request()),
        Ask::Command { name, args } => {
            ToYuno::Command(channel::Command { id: id.to_owned(), name: name.clone(), args: args.clone() })
        }
    };
    let text = serde_json::to_string(&line).map_err(|error| complaint("invalid", error.to_string()))?;
    if text.len() > LINE_MAX_BYTES {
        let message = format!("the command takes {} bytes, and a line has at most {LINE_MAX_BYTES}", text.len());
        return Err(complaint("invalid", message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use muster_shim::{Channel, Connected, Main, State, Token};
    use serde_json::{Map, json};

    use super::*;

    fn state(pid: i32, connections: u64, can: Option<&[&str]>) -> State {
        let connected =
            can.map(|can| Connected { playing: false, can: can.iter().map(|word| (*word).to_owned()).collect() });
        State {
            main: Some(Main { pid, start_ticks: 1, started_ms: 0 }),
            channel: Some(Box::new(Channel { token: Token(String::new()), playing: false, connections, connected })),
            ..State::new(String::new())
        }
    }

    fn connected() -> Line {
        let mut line = Switchboard::default().open(&"default/a".parse().unwrap(), Slot::First);
        line.state(&state(1, 1, Some(&["play", "command", "sing"])));
        line
    }

    type Reply = oneshot::Receiver<Result<Value, Complaint>>;

    fn ask(line: &mut Line, ask: Ask) -> (Vec<Request>, Reply) {
        let (reply, answer) = oneshot::channel();
        (line.requests(Call { ask, reply }), answer)
    }

    fn id(requests: &[Request]) -> String {
        let Some(Request::Say { id, .. }) = requests.last() else { panic!("nothing is said: {requests:?}") };
        id.clone()
    }

    fn code(reply: &mut Reply) -> String {
        reply.try_recv().unwrap().unwrap_err().code
    }

    fn command() -> Ask {
        Ask::Command { name: "level".to_owned(), args: Map::new() }
    }

    #[test]
    fn answers_find_who_has_asked() {
        let mut line = connected();
        let (first, mut one) = ask(&mut line, command());
        let (second, mut two) = ask(&mut line, Ask::Play);
        assert_eq!((first.len(), &second[0]), (1, &Request::Playing { playing: true }));
        line.said(&json!({"answer": {"id": id(&second), "error": {"code": "busy", "message": "no"}}}).to_string())
            .unwrap();
        line.said(&json!({"answer": {"id": id(&first), "ok": [1]}}).to_string()).unwrap();
        // A second answer, and one to nothing, count for nothing.
        line.said(&json!({"answer": {"id": id(&first), "ok": 2}}).to_string()).unwrap();
        line.said(r#"{"stats":{"a":1}}"#).unwrap();
        assert_eq!(one.try_recv().unwrap(), Ok(json!([1])));
        assert_eq!(code(&mut two), "busy");
        for bad in ["", "{}", r#"{"answer":{"id":"1"}}"#, r#"{"sing":{}}"#] {
            assert!(line.said(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_not_asked() {
        let mut line = connected();
        assert_eq!(line.connection().unwrap().can, [Ability::Play, Ability::Command]);
        let (requests, mut reply) = ask(&mut line, Ask::Stats);
        assert_eq!((requests, code(&mut reply).as_str()), (vec![], "unsupported"));
        let long = Map::from_iter([("a".to_owned(), json!("x".repeat(LINE_MAX_BYTES)))]);
        let (requests, mut reply) = ask(&mut line, Ask::Command { name: "level".to_owned(), args: long });
        assert_eq!((requests, code(&mut reply).as_str()), (vec![], "invalid"));
        let waiting: Vec<Reply> = (0..PENDING_MAX).map(|_| ask(&mut line, command()).1).collect();
        assert_eq!(code(&mut ask(&mut line, command()).1), "busy");
        // Who gives up makes room.
        drop(waiting);
        assert_eq!(ask(&mut line, command()).0.len(), 1);
        line.state(&state(1, 1, None));
        assert_eq!(code(&mut ask(&mut line, command()).1), "unit_unreachable");
    }

    #[test]
    fn an_answer_counts_on_its_own_connection_only() {
        for after in [state(1, 2, Some(&["command"])), state(2, 1, Some(&["command"])), state(1, 1, None)] {
            let mut line = connected();
            let (requests, mut reply) = ask(&mut line, command());
            line.state(&after);
            line.said(&json!({"answer": {"id": id(&requests), "ok": 1}}).to_string()).unwrap();
            assert!(reply.try_recv().is_err(), "its end was dropped");
        }
        let mut line = connected();
        let (requests, mut reply) = ask(&mut line, command());
        line.state(&state(1, 1, Some(&["command"])));
        line.unreachable(&id(&requests));
        assert_eq!(code(&mut reply), "unit_unreachable");
    }

    #[tokio::test]
    async fn who_asks_hears_something() {
        let switchboard = Switchboard::default();
        let unit: UnitName = "default/a".parse().unwrap();
        let ask = |limit| switchboard.ask(&unit, Slot::First, command(), Duration::from_millis(limit));
        assert_eq!(ask(10).await.unwrap_err().code, "unit_unreachable");
        let mut line = switchboard.open(&unit, Slot::First);
        assert_eq!(ask(10).await.unwrap_err().code, "deadline");
        line.state(&state(1, 1, Some(&["command"])));
        let (answer, ()) = tokio::join!(ask(60_000), async {
            // The one above is still there, and nobody waits for it.
            for _ in 0..2 {
                let call = line.next().await;
                line.requests(call);
            }
            line.state(&state(1, 1, None));
        });
        let answer = answer.unwrap_err();
        assert_eq!(
            (answer.code.as_str(), answer.message.as_str()),
            ("unit_unreachable", "it was gone before it answered")
        );
        drop(line);
        assert_eq!(ask(10).await.unwrap_err().code, "unit_unreachable");
        switchboard.close(&unit);
        assert!(switchboard.lines().is_empty());
    }
}
