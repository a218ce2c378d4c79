//! Playing and pausing: what a unit has confirmed, and when it is asked again.
//!
//! Playing is desired state, and a yuno may have forgotten it: its process,
//! its connection, or the agent may be new. So a state that is not confirmed on *this* connection is
//! requested, until it is confirmed or refused.

use muster_topics::{Millis, channel::Ability, diagnostic::Diagnostic};

use super::{PlanStep, ProcessId, clock_shift::shift, step::due};

/// When to repeat an unanswered request. Each request has half a minute to be answered, so this is for a unit that is
/// connected and cannot be reached.
const ASK_AGAIN_MS: Millis = 5_000;

/// A connection of a unit to its agent, on which it can be asked to do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayConnection {
    /// Its number among the connections of its process, from 1.
    pub number: u64,
    /// Whether the welcome told it to play.
    pub playing: bool,
    /// What it can be asked for.
    pub can: Vec<Ability>,
}

/// Why a unit did not confirm a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlayFailure {
    /// It refused, or cannot do it.
    Refused(Diagnostic),
    /// It did not answer.
    Unanswered(Diagnostic),
}

/// Whether an instance plays, as far as known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PlayState {
    /// Whether confirmations to an earlier run of the agent were not seen.
    adopted: bool,
    /// The process that this is about: id and start time.
    process: Option<(i32, u64)>,
    connection: Option<u64>,
    can: bool,
    /// What it confirmed last, if known.
    playing: Option<bool>,
    /// The request under way, with its number.
    asked: Option<(u32, bool)>,
    /// The number of requests so far.
    asks: u32,
    refused: bool,
    again_ms: Option<Millis>,
}

impl PlayState {
    /// Resets it for an instance that was just started, or (`adopted`) started by an earlier run of the agent.
    pub(super) fn begin(&mut self, adopted: bool) {
        *self = Self { adopted, asks: self.asks, ..Self::default() };
    }

    /// Forgets a refusal, for a new generation.
    pub(super) fn try_again(&mut self) {
        self.refused = false;
        self.again_ms = None;
    }

    /// Handles the state of the connection.
    pub(super) fn observe(&mut self, process: Option<ProcessId>, connection: Option<&PlayConnection>) {
        let process = process.map(|process| (process.pid, process.start_ticks));
        if process != self.process {
            // A process plays only after it was asked to.
            let unknown = self.adopted && self.process.is_none();
            self.playing = (!unknown).then_some(false);
            self.process = process;
            self.forget_connection();
        }
        match connection {
            Some(connection) if self.connection != Some(connection.number) => {
                let is_first = connection.number == 1 && !connection.playing;
                self.playing = self.playing.filter(|playing| is_first && !playing);
                self.forget_connection();
                self.connection = Some(connection.number);
                self.can = connection.can.contains(&Ability::Play);
            }
            Some(_) => {}
            None => self.forget_connection(),
        }
    }

    /// Shifts its time by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        self.again_ms.iter_mut().for_each(|at_ms| shift(at_ms, by_ms));
    }

    fn forget_connection(&mut self) {
        (self.connection, self.can, self.asked) = (None, false, None);
        self.try_again();
    }

    /// Returns the request to make to a unit that is up, if any.
    pub(super) fn step(&self, wanted: bool, now_ms: Millis) -> Option<PlanStep> {
        if !self.can || self.refused || self.asked.is_some() || self.playing == Some(wanted) {
            return None;
        }
        Some(due(self.again_ms, now_ms).unwrap_or(PlanStep::Play { playing: wanted, ask: self.asks }))
    }

    /// Handles that a request was made.
    pub(super) fn began(&mut self, playing: bool, ask: u32) {
        self.asked = Some((ask, playing));
        self.asks = self.asks.wrapping_add(1);
        self.again_ms = None;
    }

    /// Handles an answer; returns the error to report, if there is one.
    pub(super) fn answered(&mut self, ask: u32, answer: Result<(), PlayFailure>, now_ms: Millis) -> Option<Diagnostic> {
        let (_, playing) = self.asked.take_if(|(asked, _)| *asked == ask)?;
        let word = if playing { "play" } else { "pause" };
        match answer {
            Ok(()) => {
                self.playing = Some(playing);
                None
            }
            Err(PlayFailure::Refused(why)) => {
                self.refused = true;
                Some(why.within(format_args!("it refuses to {word}")))
            }
            Err(PlayFailure::Unanswered(why)) => {
                self.again_ms = Some(now_ms.saturating_add(ASK_AGAIN_MS));
                Some(why.within(format_args!("it was asked to {word}, and has not answered")))
            }
        }
    }

    /// Why it cannot play, if it cannot: it has no channel (`speaks`), or said that it has no such ability.
    pub(super) fn cannot(&mut self, speaks: bool) -> Option<&'static str> {
        let why = match (speaks, self.connection) {
            (false, _) => "unsupported: its channel is not `lines`, so it takes no commands to play",
            (true, Some(_)) if !self.can => "unsupported: its hello does not list it play",
            _ => return None,
        };
        self.refused = true;
        Some(why)
    }

    /// Whether it refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether it plays; until that is known, the last observation (`seen`) holds.
    pub(super) fn is_playing(&self, seen: bool) -> bool {
        self.playing.unwrap_or(seen)
    }

    /// Whether `playing` is known to be its state.
    pub(super) fn is_known(&self, playing: bool) -> bool {
        self.playing == Some(playing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Option<ProcessId> = Some(ProcessId { pid: 7, start_ticks: 1, started_ms: 0 });
    const OTHER: Option<ProcessId> = Some(ProcessId { pid: 8, start_ticks: 2, started_ms: 0 });

    fn connection(number: u64, playing: bool) -> PlayConnection {
        PlayConnection { number, playing, can: vec![Ability::Play, Ability::Stats] }
    }

    fn connected(adopted: bool, number: u64, playing: bool) -> PlayState {
        let mut play = PlayState::default();
        play.begin(adopted);
        play.observe(PROCESS, None);
        assert_eq!(play.step(true, 0), None, "nobody is there to be asked");
        play.observe(PROCESS, Some(&connection(number, playing)));
        play
    }

    /// Makes a request and answers it.
    #[track_caller]
    fn ask(play: &mut PlayState, wanted: bool, answer: Result<(), PlayFailure>) -> Option<Diagnostic> {
        let Some(PlanStep::Play { playing, ask }) = play.step(wanted, 0) else { panic!("nothing is asked: {play:?}") };
        assert_eq!(playing, wanted);
        play.began(playing, ask);
        assert_eq!(play.step(wanted, 0), None, "one question at a time");
        play.answered(ask, answer, 0)
    }

    #[test]
    fn unconfirmed_play_state_is_requested() {
        // A new process plays only if it was asked to.
        assert_eq!(connected(false, 1, false).step(false, 0), None);
        // It may have begun to play at its welcome.
        assert!(connected(false, 1, true).step(false, 0).is_some());
        for playing in [true, false] {
            // A process that an earlier run of the agent knew, and one that was connected before.
            assert_eq!(ask(&mut connected(true, 1, false), playing, Ok(())), None);
            assert_eq!(ask(&mut connected(false, 2, false), playing, Ok(())), None);
        }
    }

    #[test]
    fn play_is_requested_again_after_reconnect() {
        let mut play = connected(false, 1, false);
        ask(&mut play, true, Ok(()));
        assert!(play.step(true, 0).is_none() && play.is_playing(false));
        play.observe(PROCESS, None);
        assert!(play.step(true, 0).is_none() && play.is_playing(false), "it goes on, as far as anybody knows");
        play.observe(PROCESS, Some(&connection(2, true)));
        assert!(play.is_playing(true) && !play.is_known(true));
        ask(&mut play, true, Ok(()));
        // Another process does not play until it is asked to.
        play.observe(OTHER, None);
        assert!(!play.is_playing(true));
        play.observe(OTHER, Some(&connection(1, false)));
        ask(&mut play, true, Ok(()));
        assert!(play.is_known(true));
        ask(&mut play, false, Ok(()));
        assert!(play.is_known(false));
    }

    #[test]
    fn refusal_holds_for_its_process() {
        let mut play = connected(false, 1, false);
        let error = ask(&mut play, true, Err(PlayFailure::Refused("busy: not now".into())));
        assert_eq!(error.as_ref().map(|error| error.cause.as_str()), Some("it refuses to play: busy: not now"));
        assert!(play.is_refused() && play.step(true, 9_000).is_none());
        play.observe(PROCESS, Some(&connection(2, false)));
        assert!(!play.is_refused() && play.step(true, 0).is_some());
        ask(&mut play, true, Err(PlayFailure::Refused("".into())));
        play.try_again();
        assert!(play.step(true, 0).is_some());
    }

    #[test]
    fn unanswered_request_is_repeated_later() {
        let mut play = connected(false, 1, false);
        assert!(ask(&mut play, true, Err(PlayFailure::Unanswered("late".into()))).is_some());
        assert_eq!(play.step(true, 0), Some(PlanStep::WaitUntil(ASK_AGAIN_MS)));
        assert_eq!(play.step(true, ASK_AGAIN_MS), Some(PlanStep::Play { playing: true, ask: 1 }));
    }

    #[test]
    fn answer_of_earlier_connection_is_ignored() {
        let mut play = connected(false, 1, false);
        play.began(true, 0);
        play.observe(PROCESS, Some(&connection(2, false)));
        assert_eq!(play.answered(0, Ok(()), 0), None);
        assert!(!play.is_known(true) && play.step(true, 0).is_some());
    }

    #[test]
    fn unit_without_play_reports_it() {
        let mut play = connected(false, 1, false);
        assert!(play.cannot(false).unwrap().contains("`lines`"));
        assert_eq!(connected(false, 1, false).cannot(true), None);
        play.observe(PROCESS, Some(&PlayConnection { number: 2, playing: false, can: vec![Ability::Stats] }));
        assert!(play.cannot(true).unwrap().starts_with("unsupported") && play.is_refused());
        play.observe(PROCESS, None);
        assert_eq!(play.cannot(true), None, "the next one may");
    }
}
