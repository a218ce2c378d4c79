//! Asks yunos questions on their channels: a question goes to the task that keeps the yuno's shim, from there as a line
//! to the shim and on to the yuno, and its answer comes back the same way.
//!
//! **Invariant: a question has exactly one answer**, the yuno's or an error of ours: once the connection that carried it is
//! closed, later answers are ignored.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_base::clock::now_ms;
use muster_rules::plan::{PlayConnection, Slot};
use muster_shim::ShimRequest;
use muster_topics::{
    channel::{self, Ability, Answer, Answered, Complaint, FromYuno, LINE_MAX_BYTES, ToYuno, ToldStats},
    name::UnitName,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::super::kind::{InstanceRequest, complaint};

/// Requests that wait for one yuno's task, which takes them at once.
const CALLS_MAX: usize = 8;

/// Unanswered requests to one yuno. One that does not answer gets no more.
const PENDING_MAX: usize = 64;

/// A request, and where its answer goes.
#[derive(Debug)]
pub(super) struct PendingQuestion {
    ask: InstanceRequest,
    reply: oneshot::Sender<Result<Value, Complaint>>,
}

/// The channels of running yunos.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelRegistry {
    lines: Arc<Mutex<BTreeMap<InstanceKey, mpsc::Sender<PendingQuestion>>>>,
    stats: ReportedStats,
}

/// An instance of a unit.
type InstanceKey = (UnitName, Slot);

/// The statistics that yunos have reported last.
type ReportedStats = Arc<Mutex<BTreeMap<InstanceKey, ToldStats>>>;

impl ChannelRegistry {
    /// Opens the channel of a yuno, which receives its requests from now on.
    pub(super) fn open(&self, unit: &UnitName, slot: Slot) -> ChannelPeer {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        let seat = (unit.clone(), slot);
        self.lines().insert(seat.clone(), sender);
        ChannelPeer {
            seat,
            stats: self.stats.clone(),
            calls,
            prefix: Uuid::new_v4().simple().to_string(),
            count: 0,
            connection: None,
            pending: BTreeMap::new(),
        }
    }

    /// Closes the channels of a yuno that was removed.
    pub(super) fn close(&self, unit: &UnitName) {
        self.lines().retain(|(of, _), _| of != unit);
        self.told().retain(|(of, _), _| of != unit);
    }

    /// The statistics that yunos have reported last.
    pub(super) fn stats(&self) -> BTreeMap<InstanceKey, ToldStats> {
        self.told().clone()
    }

    /// Sends a request to a yuno.
    pub(super) async fn ask(
        &self,
        unit: &UnitName,
        slot: Slot,
        ask: InstanceRequest,
        limit: Duration,
    ) -> Result<Value, Complaint> {
        let unreachable = |why: &str| complaint("unit_unreachable", why);
        let Some(line) = self.lines().get(&(unit.clone(), slot)).cloned() else {
            return Err(unreachable("it is not running"));
        };
        let (reply, answer) = oneshot::channel();
        let asked = async {
            line.send(PendingQuestion { ask, reply }).await.map_err(|_| unreachable("it is not running"))?;
            answer.await.unwrap_or_else(|_| Err(unreachable("it ended before it answered")))
        };
        let late = |_| Err(complaint("deadline", format!("no answer within {} ms", limit.as_millis())));
        tokio::time::timeout(limit, asked).await.unwrap_or_else(late)
    }

    /// Locks the table. A thread that panicked while holding the lock has left it consistent.
    fn lines(&self) -> MutexGuard<'_, BTreeMap<InstanceKey, mpsc::Sender<PendingQuestion>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<InstanceKey, ToldStats>> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent's end of one yuno's channel.
#[derive(Debug)]
pub(super) struct ChannelPeer {
    seat: InstanceKey,
    stats: ReportedStats,
    calls: mpsc::Receiver<PendingQuestion>,
    /// Makes the ids of this channel's requests different from those of any other, such as of an earlier run of the
    /// agent.
    prefix: String,
    count: u64,
    connection: Option<(PeerProcess, PlayConnection)>,
    pending: BTreeMap<String, oneshot::Sender<Result<Value, Complaint>>>,
}

/// The process of a connection.
type PeerProcess = Option<(i32, u64)>;

impl ChannelPeer {
    /// Waits for the next request; never ends. Cancel-safe.
    pub(super) async fn next(&mut self) -> PendingQuestion {
        match self.calls.recv().await {
            Some(call) => call,
            // Another channel of this unit has replaced this one and receives all requests.
            None => std::future::pending().await,
        }
    }

    /// Handles the connection's state from the shim.
    pub(super) fn state(&mut self, state: &muster_shim::ProgramState) {
        let whose = state.main.as_ref().map(|main| (main.pid, main.start_ticks));
        let connection = state.channel.as_ref().and_then(|channel| {
            let connected = channel.connected.as_ref()?;
            let can = connected.can.iter().filter_map(|word| Ability::named(word)).collect();
            Some((whose, PlayConnection { number: channel.connections, playing: connected.playing, can }))
        });
        let number = |connection: &Option<(PeerProcess, PlayConnection)>| {
            connection.as_ref().map(|(whose, at)| (*whose, at.number))
        };
        if number(&connection) != number(&self.connection) {
            // Dropping these reports an error to their senders.
            self.pending.clear();
        }
        self.connection = connection;
    }

    /// The connection of the yuno.
    pub(super) fn connection(&self) -> Option<&PlayConnection> {
        self.connection.as_ref().map(|(_, connection)| connection)
    }

    /// Returns what to send to the shim for a request; nothing if it was answered at once.
    pub(super) fn requests(&mut self, PendingQuestion { ask, reply }: PendingQuestion) -> Vec<ShimRequest> {
        self.pending.retain(|_, waiting| !waiting.is_closed());
        let refusal = match self.connection() {
            None => Some(complaint("unit_unreachable", "it is not connected to its channel")),
            Some(PlayConnection { can, .. }) if !can.contains(&ask.ability()) => {
                Some(complaint("unsupported", format!("its hello does not list {:?}", ask.ability().name())))
            }
            Some(_) if self.pending.len() >= PENDING_MAX => {
                Some(complaint("busy", format!("it has {PENDING_MAX} unanswered commands, the maximum")))
            }
            Some(_) => None,
        };
        self.count += 1;
        let id = format!("{}-{}", self.prefix, self.count);
        let line = refusal.map_or_else(|| line(&ask, &id), Err);
        match line {
            Err(refusal) => {
                // The sender may have ended meanwhile.
                let _ = reply.send(Err(refusal));
                Vec::new()
            }
            Ok(line) => {
                self.pending.insert(id.clone(), reply);
                let wish = match ask {
                    InstanceRequest::Play => Some(true),
                    InstanceRequest::Pause => Some(false),
                    InstanceRequest::Command { .. } | InstanceRequest::Stats | InstanceRequest::Reload => None,
                };
                // First, so that a process that connects in between gets the newest state.
                let wish = wish.map(|playing| ShimRequest::Playing { playing });
                wish.into_iter().chain([ShimRequest::Say { id, line }]).collect()
            }
        }
    }

    /// Handles a line of the yuno.
    pub(super) fn handle_line(&mut self, line: &str) -> Result<(), serde_json::Error> {
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
            // The shim has handled these.
            _ => {}
        }
        Ok(())
    }

    /// Handles a request that could not be delivered.
    pub(super) fn unreachable(&mut self, id: &str) {
        self.answer(id, Err(complaint("unit_unreachable", "it does not read its channel")));
    }

    fn answer(&mut self, id: &str, answer: Result<Value, Complaint>) {
        if let Some(reply) = self.pending.remove(id) {
            // The sender may have given up.
            let _ = reply.send(answer);
        }
    }
}

fn line(ask: &InstanceRequest, id: &str) -> Result<String, Complaint> {
    let request = || channel::Request { id: id.to_owned() };
    let line = match ask {
        InstanceRequest::Play => ToYuno::Play(request()),
        InstanceRequest::Pause => ToYuno::Pause(request()),
        InstanceRequest::Stats => ToYuno::Stats(request()),
        InstanceRequest::Reload => ToYuno::Reload(request()),
        InstanceRequest::Command { name, args } => {
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
    use muster_shim::{ChannelInfo, ChannelToken, MainProcessId, PeerConnected, ProgramState};
    use serde_json::{Map, json};

    use super::*;

    fn state(pid: i32, connections: u64, can: Option<&[&str]>) -> ProgramState {
        let connected =
            can.map(|can| PeerConnected { playing: false, can: can.iter().map(|word| (*word).to_owned()).collect() });
        ProgramState {
            main: Some(MainProcessId { pid, start_ticks: 1, started_ms: 0 }),
            channel: Some(Box::new(ChannelInfo {
                token: ChannelToken(String::new()),
                playing: false,
                connections,
                connected,
            })),
            ..ProgramState::new(String::new())
        }
    }

    fn connected() -> ChannelPeer {
        let mut line = ChannelRegistry::default().open(&"default/a".parse().unwrap(), Slot::First);
        line.state(&state(1, 1, Some(&["play", "command", "sing"])));
        line
    }

    type Reply = oneshot::Receiver<Result<Value, Complaint>>;

    fn ask(line: &mut ChannelPeer, ask: InstanceRequest) -> (Vec<ShimRequest>, Reply) {
        let (reply, answer) = oneshot::channel();
        (line.requests(PendingQuestion { ask, reply }), answer)
    }

    fn id(requests: &[ShimRequest]) -> String {
        let Some(ShimRequest::Say { id, .. }) = requests.last() else { panic!("nothing is said: {requests:?}") };
        id.clone()
    }

    fn code(reply: &mut Reply) -> String {
        reply.try_recv().unwrap().unwrap_err().code
    }

    fn command() -> InstanceRequest {
        InstanceRequest::Command { name: "level".to_owned(), args: Map::new() }
    }

    #[test]
    fn answers_find_who_has_asked() {
        let mut line = connected();
        let (first, mut one) = ask(&mut line, command());
        let (second, mut two) = ask(&mut line, InstanceRequest::Play);
        assert_eq!((first.len(), &second[0]), (1, &ShimRequest::Playing { playing: true }));
        line.handle_line(
            &json!({"answer": {"id": id(&second), "error": {"code": "busy", "message": "no"}}}).to_string(),
        )
        .unwrap();
        line.handle_line(&json!({"answer": {"id": id(&first), "ok": [1]}}).to_string()).unwrap();
        // A second answer, and one without a request, do not count.
        line.handle_line(&json!({"answer": {"id": id(&first), "ok": 2}}).to_string()).unwrap();
        line.handle_line(r#"{"stats":{"a":1}}"#).unwrap();
        assert_eq!(one.try_recv().unwrap(), Ok(json!([1])));
        assert_eq!(code(&mut two), "busy");
        for bad in ["", "{}", r#"{"answer":{"id":"1"}}"#, r#"{"sing":{}}"#] {
            assert!(line.handle_line(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_not_asked() {
        let mut line = connected();
        assert_eq!(line.connection().unwrap().can, [Ability::Play, Ability::Command]);
        let (requests, mut reply) = ask(&mut line, InstanceRequest::Stats);
        assert_eq!((requests, code(&mut reply).as_str()), (vec![], "unsupported"));
        let long = Map::from_iter([("a".to_owned(), json!("x".repeat(LINE_MAX_BYTES)))]);
        let (requests, mut reply) = ask(&mut line, InstanceRequest::Command { name: "level".to_owned(), args: long });
        assert_eq!((requests, code(&mut reply).as_str()), (vec![], "invalid"));
        let waiting: Vec<Reply> = (0..PENDING_MAX).map(|_| ask(&mut line, command()).1).collect();
        assert_eq!(code(&mut ask(&mut line, command()).1), "busy");
        // A sender that gives up makes room.
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
            line.handle_line(&json!({"answer": {"id": id(&requests), "ok": 1}}).to_string()).unwrap();
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
        let switchboard = ChannelRegistry::default();
        let unit: UnitName = "default/a".parse().unwrap();
        let ask = |limit| switchboard.ask(&unit, Slot::First, command(), Duration::from_millis(limit));
        assert_eq!(ask(10).await.unwrap_err().code, "unit_unreachable");
        let mut line = switchboard.open(&unit, Slot::First);
        assert_eq!(ask(10).await.unwrap_err().code, "deadline");
        line.state(&state(1, 1, Some(&["command"])));
        let (answer, ()) = tokio::join!(ask(60_000), async {
            // The request above is still pending, with no one waiting for it.
            for _ in 0..2 {
                let call = line.next().await;
                line.requests(call);
            }
            line.state(&state(1, 1, None));
        });
        let answer = answer.unwrap_err();
        assert_eq!(
            (answer.code.as_str(), answer.diagnostic.cause.as_str()),
            ("unit_unreachable", "it ended before it answered")
        );
        drop(line);
        assert_eq!(ask(10).await.unwrap_err().code, "unit_unreachable");
        switchboard.close(&unit);
        assert!(switchboard.lines().is_empty());
    }
}
