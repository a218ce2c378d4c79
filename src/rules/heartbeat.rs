//! Decides which heartbeat to send, and when: full on connect and on request, then deltas, rate-limited,
//! repeated until the console acknowledges them.
//!
//! **Invariant: every change is reported eventually.** A change that is held back has a time at which
//! it is sent ([`HeartbeatSchedule::next_ms`]), and only an acknowledgement ends its repetition.

use std::collections::{BTreeMap, VecDeque};

use muster_fault::planted;
use muster_topics::{
    Millis, V1,
    ack::Numbered,
    heartbeat::{Content, Heartbeat, HostState, digest},
    name::UnitName,
};
use serde_json::Value;

use super::{backoff::jittered, merge_patch, outbox_retry::REPEAT, time::FRESH_MS};

/// The intervals of heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatPeriods {
    /// The latest time after which a change is published.
    pub period_ms: Millis,
    /// The least time between two heartbeats (those on connect and exit are exempt).
    pub gap_ms: Millis,
    /// The time between two digests.
    pub digest_ms: Millis,
}

/// The number of published states that may still be acknowledged. The console acknowledges at once, so more than a few
/// are outstanding only while it is away.
const TOLD_MAX: usize = 8;

/// The heartbeats of one instance of an agent. Its times are monotonic.
#[derive(Clone, Debug)]
pub struct HeartbeatSchedule {
    epoch: u64,
    periods: HeartbeatPeriods,
    seq: u64,
    state: HostState,
    /// The same as JSON, from which deltas are made.
    current: Value,
    /// Whether it differs from the state published last. It is read with every message, so it is not computed each
    /// time.
    is_news: bool,
    /// Published and unacknowledged states, oldest first.
    told: VecDeque<(u64, Value)>,
    /// When each of the latest heartbeats was made.
    made: VecDeque<(u64, Millis)>,
    /// The state that the console has acknowledged.
    acknowledged: Option<(u64, Value)>,
    /// The newest heartbeat, until it is acknowledged.
    pending: Option<UnackedHeartbeat>,
    /// When the last heartbeat was made, and how long the next change may wait at most.
    last_ms: Option<Millis>,
    /// When a heartbeat was last published, new or repeated.
    said_ms: Option<Millis>,
    wait_ms: Millis,
    /// Whether a command is changing something.
    urgent: bool,
    /// When a full heartbeat is due; `None` if none was requested.
    full_ms: Option<Millis>,
    /// When the next digest is due; `None` before the first heartbeat of a connection.
    digest_ms: Option<Millis>,
    connected: bool,
}

#[derive(Clone, Debug)]
struct UnackedHeartbeat {
    heartbeat: Heartbeat,
    attempts: u32,
    due_ms: Millis,
}

impl HeartbeatSchedule {
    /// Creates a schedule with which nothing was published yet.
    #[must_use]
    pub fn new(epoch: u64, periods: HeartbeatPeriods, state: HostState) -> Self {
        Self {
            epoch,
            periods,
            seq: 0,
            current: json(&state),
            is_news: false,
            state,
            told: VecDeque::new(),
            made: VecDeque::new(),
            acknowledged: None,
            pending: None,
            last_ms: None,
            said_ms: None,
            wait_ms: periods.period_ms,
            urgent: false,
            full_ms: None,
            digest_ms: None,
            connected: false,
        }
    }

    /// Handles a new connection: a full heartbeat is due at once.
    pub fn connected(&mut self, now_ms: Millis) {
        self.connected = true;
        self.start_over();
        self.full_ms = Some(now_ms);
    }

    /// Handles the end of a connection.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.digest_ms = None;
    }

    /// Sets the host's current state.
    pub fn observe(&mut self, state: HostState) {
        if state != self.state {
            if planted!(NoTrailing) && !self.told.is_empty() {
                self.state = state;
                return;
            }
            self.current = json(&state);
            self.state = state;
            self.compare();
        }
    }

    /// Makes the next change due at once, because a command is about to change something.
    pub fn hasten(&mut self) {
        self.urgent = true;
    }

    /// Schedules a full heartbeat on request.
    pub fn refresh(&mut self, now_ms: Millis) {
        self.start_over();
        let earliest_ms = self.said_ms.map_or(now_ms, |said_ms| now_ms.max(said_ms + self.periods.gap_ms));
        self.full_ms = Some(self.full_ms.map_or(earliest_ms, |full_ms| full_ms.min(earliest_ms)));
    }

    /// Makes the next heartbeat a full one: the console has no base for deltas.
    fn start_over(&mut self) {
        self.acknowledged = None;
        self.told.clear();
        self.pending = None;
        self.compare();
    }

    /// Compares the state with the one published last. Before the first heartbeat nothing counts as a change, because a
    /// full one is due.
    fn compare(&mut self) {
        self.is_news = self.newest().is_some_and(|newest| *newest != self.current);
    }

    /// Handles an acknowledgement.
    pub fn acknowledge(&mut self, ack: Numbered) {
        if ack.epoch != self.epoch {
            return;
        }
        // A full heartbeat on a new connection invalidates earlier ones and their acknowledgements.
        let Some(index) = self.told.iter().position(|(seq, _)| *seq == ack.seq) else { return };
        self.told.drain(..index);
        self.acknowledged = self.told.pop_front();
        if self.pending.as_ref().is_some_and(|pending| pending.heartbeat.seq <= ack.seq) {
            self.pending = None;
        }
        self.compare();
    }

    /// Whether this heartbeat was made a moment ago, so that its acknowledgement was just signed.
    #[must_use]
    pub fn is_fresh(&self, ack: Numbered, now_ms: Millis) -> bool {
        let made = self.made.iter().find(|(seq, _)| *seq == ack.seq);
        ack.epoch == self.epoch && made.is_some_and(|(_, made_ms)| now_ms - made_ms <= FRESH_MS)
    }

    /// How many heartbeats were published without an answer of the console, new or repeated.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        let repeated = self.pending.as_ref().map_or(0, |pending| pending.attempts as usize);
        repeated.max(self.told.len())
    }

    /// When to call [`HeartbeatSchedule::take`] next.
    #[must_use]
    pub fn next_ms(&self) -> Option<Millis> {
        if !self.connected {
            return None;
        }
        let repetition = self.pending.as_ref().map(|pending| pending.due_ms);
        [self.full_ms, self.change_ms(), repetition, self.digest_ms].into_iter().flatten().min()
    }

    /// When a change is due, if there is one.
    fn change_ms(&self) -> Option<Millis> {
        let last_ms = self.last_ms?;
        let wait_ms = if self.urgent { self.periods.gap_ms } else { self.wait_ms };
        let gap_ends_ms = self.said_ms.map_or(last_ms, |said_ms| said_ms + self.periods.gap_ms);
        let due_ms = if planted!(NoThrottle) { last_ms } else { gap_ends_ms.max(last_ms + wait_ms) };
        let is_news = self.is_news || (planted!(BeatAnyway) && self.newest().is_some());
        is_news.then_some(due_ms)
    }

    /// The state published last, acknowledged or not.
    fn newest(&self) -> Option<&Value> {
        self.told.back().or(self.acknowledged.as_ref()).map(|(_, state)| state)
    }

    /// Returns the heartbeat to publish now, if one is due. `at_ms` is the wall-clock time, `random` is in `0..1`.
    pub fn take(&mut self, now_ms: Millis, at_ms: Millis, random: f64) -> Option<Heartbeat> {
        let due = |time: Option<Millis>| time.is_some_and(|time| time <= now_ms);
        if !self.connected {
            return None;
        }
        if due(self.full_ms) || due(self.change_ms()) {
            return Some(self.make(now_ms, at_ms, random));
        }
        let pending = self.pending.as_mut().filter(|pending| pending.due_ms <= now_ms && !planted!(BeatOnce))?;
        pending.due_ms = now_ms + REPEAT.jittered_ms(pending.attempts, random);
        pending.attempts += 1;
        self.said_ms = Some(now_ms);
        Some(pending.heartbeat.clone())
    }

    /// Returns the digest to publish now, if one is due and the last heartbeat was acknowledged (otherwise that is
    /// repeated anyway). `units` are the sequence numbers of the last unit reports; `None` while some are unpublished.
    pub fn take_digest(
        &mut self,
        now_ms: Millis,
        at_ms: Millis,
        random: f64,
        units: Option<&BTreeMap<UnitName, u64>>,
    ) -> Option<Heartbeat> {
        if !self.connected || self.digest_ms.is_none_or(|digest_ms| now_ms < digest_ms) {
            return None;
        }
        self.digest_ms = Some(now_ms + jittered(self.periods.digest_ms, random));
        let (seq, state) = self.acknowledged.as_ref().filter(|_| self.told.is_empty() && !planted!(NoDigest))?;
        let digest = digest(state, units?).ok()?;
        let (seq, content) = (*seq, Content::Digest { digest });
        Some(Heartbeat { v: V1, epoch: self.epoch, seq, at_ms, is_final: false, content })
    }

    /// Returns the last heartbeat of an orderly exit. It is a full one, since it cannot be repeated.
    pub fn last(&mut self, at_ms: Millis) -> Heartbeat {
        self.seq += 1;
        let content = Content::Full { state: self.state.clone() };
        Heartbeat { v: V1, epoch: self.epoch, seq: self.seq, at_ms, is_final: true, content }
    }

    fn make(&mut self, now_ms: Millis, at_ms: Millis, random: f64) -> Heartbeat {
        self.seq += 1;
        let base = self.acknowledged.as_ref().filter(|_| self.full_ms.is_none_or(|full_ms| full_ms > now_ms));
        let content = match base {
            Some((base_seq, _)) if planted!(WrongBase) => {
                let newest = self.newest().cloned().unwrap_or_default();
                Content::Delta { base_seq: *base_seq, patch: merge_patch::diff(&newest, &self.current) }
            }
            Some((base_seq, base)) => {
                Content::Delta { base_seq: *base_seq, patch: merge_patch::diff(base, &self.current) }
            }
            None => Content::Full { state: self.state.clone() },
        };
        if matches!(content, Content::Full { .. }) {
            self.full_ms = None;
        }
        let heartbeat = Heartbeat { v: V1, epoch: self.epoch, seq: self.seq, at_ms, is_final: false, content };

        if self.told.len() == TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back((self.seq, self.current.clone()));
        if self.made.len() == TOLD_MAX {
            self.made.pop_front();
        }
        self.made.push_back((self.seq, now_ms));
        self.is_news = false;
        let due_ms = now_ms + REPEAT.jittered_ms(0, random).max(self.periods.gap_ms);
        self.pending = Some(UnackedHeartbeat { heartbeat: heartbeat.clone(), attempts: 1, due_ms });
        (self.last_ms, self.said_ms) = (Some(now_ms), Some(now_ms));
        self.wait_ms = jittered(self.periods.period_ms, random).max(self.periods.gap_ms);
        self.urgent = false;
        self.digest_ms.get_or_insert(now_ms + jittered(self.periods.digest_ms, random));
        heartbeat
    }
}

/// Serialises a state. (Its keys are strings, so this cannot fail.)
fn json(state: &HostState) -> Value {
    serde_json::to_value(state).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        command_keys::KnownKeys,
        desired::{DesiredReport, RemovalTime},
        heartbeat::Facts,
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn acknowledgement_of_latest_heartbeat_is_fresh() {
        let mut beats = HeartbeatSchedule::new(7, PERIODS, state(0));
        beats.connected(1_000);
        let seq = beats.take(1_000, 0, EVEN).unwrap().seq;
        let is_fresh = |epoch, seq, now_ms| beats.is_fresh(Numbered { epoch, seq }, now_ms);
        assert_eq!(
            [1_000, 1_000 + FRESH_MS, 1_001 + FRESH_MS].map(|now_ms| is_fresh(7, seq, now_ms)),
            [true, true, false]
        );
        assert!(!is_fresh(6, seq, 1_000) && !is_fresh(7, seq + 1, 1_000));
    }

    #[test]
    fn change_of_a_removal_arrives_whatever_it_waits_for() {
        let with = |time: Option<RemovalTime>| {
            let removals = time.map(|time| ("shop/till".parse().unwrap(), time)).into_iter().collect();
            HostState { desired: DesiredReport { removals, ..DesiredReport::default() }, ..state(0) }
        };
        // One for an operator, one for the policy, and none.
        let all = [Some(None), Some(Some(5)), None].map(|time| with(time.map(|from_ms| RemovalTime { from_ms })));
        for (old, new) in all.iter().flat_map(|old| all.iter().map(move |new| (old, new))) {
            let mut held = serde_json::to_value(old).unwrap();
            let patch = merge_patch::diff(&held, &serde_json::to_value(new).unwrap());
            merge_patch::apply(&mut held, patch);
            assert_eq!(serde_json::from_value::<HostState>(held).unwrap(), *new);
        }
    }

    const PERIODS: HeartbeatPeriods = HeartbeatPeriods { period_ms: 30_000, gap_ms: 5_000, digest_ms: DIGEST_MS };
    /// Longer than the other tests run.
    const DIGEST_MS: Millis = 600_000;
    /// The middle of the range: no jitter.
    const EVEN: f64 = 0.5;

    fn state(label: u32) -> HostState {
        HostState {
            hostname: "till-7".to_owned(),
            agent_version: "0.1.0".to_owned(),
            facts: Facts {
                os: "Debian".to_owned(),
                kernel: "6.1".to_owned(),
                arch: "x86_64".to_owned(),
                cpus: 2,
                cpu_model: "none".to_owned(),
                memory_bytes: 1,
                boot_id: "b".to_owned(),
                boot_ms: 0,
            },
            interfaces: Default::default(),
            labels: [("n".parse().unwrap(), label.to_string())].into(),
            realms: vec!["default".parse().unwrap()],
            units: Default::default(),
            alerts: Default::default(),
            containers: Default::default(),
            numbers: Default::default(),
            own_labels: None,
            command_keys: KnownKeys::default(),
            desired: DesiredReport::default(),
        }
    }

    fn beats() -> HeartbeatSchedule {
        HeartbeatSchedule::new(3, PERIODS, state(0))
    }

    fn ack(seq: u64) -> Numbered {
        Numbered { epoch: 3, seq }
    }

    /// Returns a schedule that is connected, with its first heartbeat acknowledged.
    fn settled() -> HeartbeatSchedule {
        let mut beats = beats();
        beats.connected(0);
        assert!(matches!(beats.take(0, 0, EVEN).unwrap().content, Content::Full { .. }));
        beats.acknowledge(ack(1));
        assert_eq!(beats.next_ms(), Some(DIGEST_MS));
        beats
    }

    #[test]
    fn change_waits_for_gap_after_repetition() {
        let mut beats = beats();
        beats.connected(0);
        beats.take(0, 0, EVEN).unwrap();
        assert_eq!(beats.take(6_000, 0, EVEN).unwrap().seq, 1);
        beats.hasten();
        beats.observe(state(1));
        assert_eq!((beats.take(10_999, 0, EVEN), beats.next_ms()), (None, Some(11_000)));
        assert_eq!(beats.take(11_000, 0, EVEN).unwrap().seq, 2);
    }

    #[test]
    fn no_heartbeat_while_disconnected_or_unchanged() {
        let mut beats = beats();
        beats.observe(state(1));
        assert_eq!((beats.next_ms(), beats.take(1_000_000, 0, EVEN)), (None, None));
        let mut beats = settled();
        beats.observe(state(0));
        assert_eq!((beats.next_ms(), beats.take(1_000_000, 0, EVEN)), (Some(DIGEST_MS), None));
    }

    #[test]
    fn change_waits_for_period_and_command_for_gap() {
        let mut beats = settled();
        beats.observe(state(1));
        assert_eq!((beats.next_ms(), beats.take(29_999, 0, EVEN)), (Some(30_000), None));
        beats.hasten();
        assert_eq!((beats.next_ms(), beats.take(4_999, 0, EVEN)), (Some(5_000), None));
        let delta = beats.take(5_000, 77, EVEN).unwrap();
        assert_eq!((delta.seq, delta.at_ms), (2, 77));
        assert_eq!(delta.content, Content::Delta { base_seq: 1, patch: json!({"labels": {"n": "1"}}) });
        // The next change is not urgent.
        beats.acknowledge(ack(2));
        beats.observe(state(2));
        assert_eq!(beats.next_ms(), Some(35_000));
    }

    #[test]
    fn digest_is_sent_periodically() {
        let units: BTreeMap<UnitName, u64> = [("default/till".parse().unwrap(), 3)].into();
        let mut beats = beats();
        beats.connected(0);
        beats.take(0, 0, EVEN).unwrap();
        // First the heartbeat is unacknowledged, then a unit is unpublished.
        assert_eq!(beats.take_digest(DIGEST_MS, 0, EVEN, Some(&units)), None);
        beats.acknowledge(ack(1));
        assert_eq!(beats.next_ms(), Some(2 * DIGEST_MS));
        assert_eq!(beats.take_digest(2 * DIGEST_MS - 1, 0, EVEN, Some(&units)), None);
        assert_eq!(beats.take_digest(2 * DIGEST_MS, 0, EVEN, None), None);
        let told = beats.take_digest(3 * DIGEST_MS, 9, EVEN, Some(&units)).unwrap();
        let wanted = digest(&json(&state(0)), &units).unwrap();
        assert_eq!((told.seq, told.at_ms, told.content), (1, 9, Content::Digest { digest: wanted }));
        // The digest covers only published state.
        beats.observe(state(1));
        let delta = beats.take(3 * DIGEST_MS, 0, EVEN).unwrap();
        assert!(matches!(delta.content, Content::Delta { .. }));
        beats.acknowledge(ack(2));
        let next = beats.take_digest(4 * DIGEST_MS, 0, EVEN, Some(&units)).unwrap();
        let wanted = digest(&json(&state(1)), &units).unwrap();
        assert_eq!((next.seq, next.content), (2, Content::Digest { digest: wanted }));
        beats.disconnected();
        assert_eq!((beats.take_digest(9 * DIGEST_MS, 0, EVEN, Some(&units)), beats.next_ms()), (None, None));
    }

    #[test]
    fn delta_is_relative_to_acknowledged_state() {
        let mut beats = settled();
        beats.observe(state(1));
        beats.take(30_000, 0, EVEN).unwrap();
        beats.observe(state(2));
        let second = beats.take(60_000, 0, EVEN).unwrap();
        assert_eq!(second.content, Content::Delta { base_seq: 1, patch: json!({"labels": {"n": "2"}}) });
        // The first of the two is acknowledged; the second is still repeated.
        beats.acknowledge(ack(2));
        assert_eq!(beats.take(65_000, 0, EVEN), Some(second));
        beats.acknowledge(ack(3));
        assert_eq!(beats.next_ms(), Some(DIGEST_MS));
        // A late, repeated acknowledgement changes nothing.
        beats.acknowledge(ack(2));
        beats.observe(state(3));
        let third = beats.take(100_000, 0, EVEN).unwrap();
        assert!(matches!(third.content, Content::Delta { base_seq: 3, .. }));
    }

    #[test]
    fn heartbeat_is_repeated_until_acknowledged() {
        let mut beats = beats();
        beats.connected(0);
        let first = beats.take(0, 0, EVEN).unwrap();
        let mut times = vec![];
        for _ in 0..4 {
            let now_ms = beats.next_ms().unwrap();
            assert_eq!(beats.take(now_ms - 1, 0, EVEN), None);
            assert_eq!(beats.take(now_ms, 1, EVEN), Some(first.clone()));
            times.push(now_ms);
        }
        assert_eq!(times, [5_000, 15_000, 35_000, 75_000]);
        beats.acknowledge(Numbered { epoch: 2, seq: 1 });
        beats.acknowledge(ack(9));
        assert!(beats.next_ms().is_some());
        beats.acknowledge(ack(1));
        assert_eq!(beats.next_ms(), Some(DIGEST_MS));
    }

    #[test]
    fn reconnect_and_request_send_full_heartbeat() {
        let mut beats = settled();
        beats.observe(state(1));
        beats.take(30_000, 0, EVEN).unwrap();
        beats.disconnected();
        assert_eq!((beats.next_ms(), beats.take(99_000, 0, EVEN)), (None, None));
        beats.connected(31_000);
        let full = beats.take(31_000, 0, EVEN).unwrap();
        assert_eq!((full.seq, full.content), (3, Content::Full { state: state(1) }));
        // Acknowledgements of heartbeats of an earlier connection do not count.
        beats.acknowledge(ack(2));
        beats.acknowledge(ack(3));
        beats.refresh(32_000);
        assert_eq!((beats.next_ms(), beats.take(35_999, 0, EVEN)), (Some(36_000), None));
        assert!(matches!(beats.take(36_000, 0, EVEN).unwrap().content, Content::Full { .. }));
        // While that is unacknowledged, there is no base for a delta.
        beats.observe(state(2));
        beats.hasten();
        assert_eq!(beats.take(41_000, 0, EVEN).unwrap().content, Content::Full { state: state(2) });
    }

    #[test]
    fn final_heartbeat_is_full() {
        let mut beats = settled();
        beats.observe(state(5));
        let last = beats.last(9);
        assert_eq!((last.seq, last.is_final, last.content), (2, true, Content::Full { state: state(5) }));
    }

    #[test]
    fn state_contains_no_nulls() {
        fn check(value: &Value) {
            match value {
                Value::Null => panic!("a null"),
                Value::Array(items) => items.iter().for_each(check),
                Value::Object(items) => items.values().for_each(check),
                _ => {}
            }
        }
        let mut state = state(0);
        let summary = json!({"generation": 1, "run": "running", "phase": "running"});
        state.units.insert("default/a".parse().unwrap(), serde_json::from_value(summary).unwrap());
        check(&json(&state));
    }

    proptest! {
        /// With a console that applies deltas only to their base, lost acknowledgements and a changing host: no two
        /// heartbeats come within the gap, and in the end the console has the state.
        #[test]
        fn console_state_converges_despite_loss(
            steps in proptest::collection::vec((1i64..20_000, 0u32..4, any::<bool>(), any::<bool>()), 1..40),
        ) {
            let mut beats = beats();
            let mut console: Option<(u64, Value)> = None;
            let mut last_new_ms = None;
            let mut last_seq = 0;
            let mut now = 0;
            beats.connected(0);
            // In the last steps nothing changes and nothing is lost; they take long enough for everything to be
            // published.
            let quiet = std::iter::repeat_n((40_000, 4, true, true), 20);
            let mut label = 0;
            for (wait, what, arrives, answered) in steps.into_iter().chain(quiet) {
                now += wait;
                match what {
                    0 => label += 1,
                    1 => { label += 1; beats.hasten(); }
                    _ => {}
                }
                beats.observe(state(label));
                let Some(heartbeat) = beats.take(now, 0, EVEN) else { continue };
                if heartbeat.seq > last_seq {
                    prop_assert!(last_new_ms.is_none_or(|last| now - last >= PERIODS.gap_ms));
                    (last_new_ms, last_seq) = (Some(now), heartbeat.seq);
                }
                if !arrives { continue; }
                let seq = heartbeat.seq;
                let stored = match (&heartbeat.content, &mut console) {
                    (Content::Full { state }, console) => { *console = Some((seq, json(state))); true }
                    (Content::Delta { .. }, Some((has, _))) if *has == seq => true,
                    (Content::Delta { base_seq, patch }, Some((has, value))) if has == base_seq => {
                        merge_patch::apply(value, patch.clone());
                        *has = seq;
                        true
                    }
                    (Content::Delta { .. }, _) => { beats.refresh(now); false }
                    (Content::Digest { .. }, _) => { prop_assert!(false, "it is not taken here"); false }
                };
                if stored && answered {
                    beats.acknowledge(ack(seq));
                }
            }
            prop_assert_eq!(console.map(|(_, value)| value), Some(json(&state(label))));
        }
    }
}
