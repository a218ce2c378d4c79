//! The life cycle of a program: when it is signalled, killed, restarted, and over.
//!
//! **Invariant: this module does no IO and reads no clock.** Events come in as
//! [`LifeInput`]s, with the time in milliseconds since the shim's start; actions are returned as [`LifeStep`]s.
//!
//! ```text
//!            Stop, time limit              MainEnded
//!      Up ──────────────────────▶ Stopping ─────────▶ Clearing ──▶ Draining ──▶ Over
//!      ▲ │                                              ▲ │
//!      │ └──────────────────── MainEnded ───────────────┘ │
//!      └───────────────────── started again ──────────────┘
//! ```

use muster_shim::{Launch, OutputMode, ProcessExit, RestartOn};

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Interval at which a kill is repeated while processes are left: those that were forked at that moment were missed.
const KILL_AGAIN_MS: u64 = 100;
/// Longest wait for killed processes. Only a process that is blocked in the kernel takes longer, and it will not run
/// again.
const CLEAR_MS: u64 = 5_000;
/// How long output of remaining processes is read. The program's own output is in the pipe already; this is for helpers
/// that are about to end with it (`… | tee`).
const DRAIN_MS: u64 = 500;
/// How long after its start, and after each fork of this kind, a program may go to the background. Such programs fork
/// twice, microseconds apart; on a host without free processor time, seconds apart.
const FORK_AGAIN_MS: u64 = 10_000;

/// Inputs of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeInput {
    /// The main process has ended.
    MainEnded(ProcessExit),
    /// No process of the program is left.
    NoneLeft,
    /// All output has been read to its end.
    OutputEnded,
    /// The program reports that it is ready.
    Ready,
    /// The program reports that it is alive.
    Alive,
    /// The program reports that it has failed.
    Unwell,
    /// The program is suspended, and cannot report anything.
    Frozen,
    /// The program is resumed.
    Thawed,
    /// The program went to the background: another process is the main one now.
    Forked,
    /// The agent wants the program to end.
    Stop { signal: i32, grace_ms: u64 },
    /// Time has passed.
    Tick,
}

/// Outputs of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeStep {
    /// Ask the program to end.
    Ask { signal: i32, group: bool },
    /// Kill all processes of the program.
    KillAll,
    /// Check whether processes are left; if not, `NoneLeft` follows.
    LookWhatIsLeft,
    /// Start the program again.
    Start,
    /// Read the available output; if its end is reached, `OutputEnded` follows.
    Drain,
    /// The program is over.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifePhase {
    /// The main process runs.
    Up,
    /// It was asked to end; after `kill_at_ms` it is killed.
    Stopping { kill_at_ms: u64 },
    /// It has ended, and its remaining processes must end.
    Clearing { kill_at_ms: u64, until_ms: u64 },
    /// No process matters any more; output is still read.
    Draining { until_ms: u64 },
    /// It is over.
    Over,
}

/// The state machine of a program's life.
#[derive(Debug)]
pub(crate) struct ProgramLife {
    launch: Launch,
    phase: LifePhase,
    up_since_ms: u64,
    /// Until when another process may become the main one, after the program was ready.
    forks_until_ms: u64,
    /// The signal with which it was asked to end.
    asked_by: i32,
    timeout_at_ms: Option<u64>,
    restarts_left: u32,
    ready: bool,
    frozen: bool,
    /// The deadline for its next report.
    heard_by_ms: Option<u64>,
    /// It missed the deadline.
    silent: bool,
    /// The missed deadline was its start timeout.
    start_timed_out: bool,
    /// It must not be restarted.
    stop: bool,
    timed_out: bool,
    last: Option<ProcessExit>,
}

impl ProgramLife {
    /// A program that has run for `up_for_ms` when the shim starts, has been restarted `restarts` times, and has
    /// reported readiness or not.
    pub(crate) fn new(launch: Launch, restarts: u32, up_for_ms: u64, ready: bool) -> Self {
        let mut life = Self {
            timeout_at_ms: launch.timeout_ms.map(|timeout_ms| timeout_ms.saturating_sub(up_for_ms)),
            restarts_left: launch.restart.budget.saturating_sub(restarts),
            asked_by: launch.stop_signal,
            launch,
            phase: LifePhase::Up,
            up_since_ms: 0,
            forks_until_ms: 0,
            ready,
            frozen: false,
            heard_by_ms: None,
            silent: false,
            start_timed_out: false,
            stop: false,
            timed_out: false,
            last: None,
        };
        life.listen(0);
        life
    }

    /// The launch.
    pub(crate) fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Whether it is a command and not a service; see [`OutputMode`].
    pub(crate) fn is_command(&self) -> bool {
        matches!(self.launch.output, OutputMode::Capture(_))
    }

    /// Whether it reached its time limit.
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// Whether it was ended because it missed a deadline for a report.
    pub(crate) fn was_silent(&self) -> bool {
        self.silent
    }

    /// Whether it missed its start timeout.
    pub(crate) fn was_late_to_start(&self) -> bool {
        self.start_timed_out
    }

    /// Whether the program runs and should not end.
    pub(crate) fn is_up(&self) -> bool {
        self.phase == LifePhase::Up
    }

    /// Whether another process may become the main one when the main one ends.
    pub(crate) fn may_fork(&self) -> bool {
        self.launch.forking.is_some() && matches!(self.phase, LifePhase::Up | LifePhase::Stopping { .. })
    }

    /// Whether this end of the main process means that the program went to the background. (If another shim started it,
    /// its exit code is not known.)
    pub(crate) fn is_fork(&self, exit: ProcessExit, now_ms: u64) -> bool {
        let in_time = !self.ready || now_ms < self.forks_until_ms;
        self.may_fork() && in_time && matches!(exit, ProcessExit::Code(0) | ProcessExit::Unknown)
    }

    /// Whether this end looks as if a program went to the background that was not launched as one.
    pub(crate) fn looks_like_fork(&self, exit: ProcessExit, now_ms: u64) -> bool {
        let is_fresh = now_ms.saturating_sub(self.up_since_ms) < FORK_AGAIN_MS;
        let stays = !self.is_command() && self.launch.forking.is_none();
        self.is_up() && stays && is_fresh && exit == ProcessExit::Code(0)
    }

    /// Whether the program is ready: it said so, or it went to the background.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether it would be restarted if it ended now.
    pub(crate) fn starts_again(&self) -> bool {
        let wanted = self.launch.restart.on != RestartOn::Never && self.launch.restart.budget > 0;
        wanted && !self.stop && !matches!(self.phase, LifePhase::Draining { .. } | LifePhase::Over)
    }

    /// Whether the program is over.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == LifePhase::Over
    }

    /// Whether the shim waits for processes that the main process left behind.
    pub(crate) fn is_clearing(&self) -> bool {
        matches!(self.phase, LifePhase::Clearing { .. })
    }

    /// Whether the shim waits for the end of the output.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.phase, LifePhase::Draining { .. })
    }

    /// When the next [`LifeInput::Tick`] is due.
    pub(crate) fn wake_at_ms(&self) -> Option<u64> {
        match self.phase {
            LifePhase::Up => self.timeout_at_ms.into_iter().chain(self.heard_by_ms).min(),
            LifePhase::Stopping { kill_at_ms } => Some(kill_at_ms),
            LifePhase::Clearing { kill_at_ms, until_ms } => Some(kill_at_ms.min(until_ms)),
            LifePhase::Draining { until_ms } => Some(until_ms),
            LifePhase::Over => None,
        }
    }

    /// Handles an input, and returns what to do.
    pub(crate) fn on(&mut self, input: LifeInput, now_ms: u64) -> Vec<LifeStep> {
        match input {
            LifeInput::MainEnded(exit) => self.main_ended(exit, now_ms),
            LifeInput::NoneLeft if self.is_clearing() => self.cleared(now_ms),
            LifeInput::OutputEnded if self.is_draining() => self.finish(),
            LifeInput::Stop { signal, grace_ms } => self.stop(signal, grace_ms, now_ms),
            LifeInput::Tick => self.tick(now_ms),
            LifeInput::Ready | LifeInput::Alive | LifeInput::Frozen | LifeInput::Thawed => {
                self.ready |= input == LifeInput::Ready;
                // Reports from before it was suspended may arrive after that.
                self.frozen = input == LifeInput::Frozen || self.frozen && input != LifeInput::Thawed;
                self.listen(now_ms);
                Vec::new()
            }
            LifeInput::Forked => {
                self.forks_until_ms = now_ms.saturating_add(FORK_AGAIN_MS);
                match self.phase {
                    // The process that was asked to end is gone, and the new main process was not asked.
                    LifePhase::Stopping { .. } => {
                        vec![LifeStep::Ask { signal: self.asked_by, group: self.is_command() }]
                    }
                    _ => Vec::new(),
                }
            }
            LifeInput::Unwell if self.is_up() => self.give_up(SIGABRT, now_ms),
            LifeInput::Unwell | LifeInput::NoneLeft | LifeInput::OutputEnded => Vec::new(),
        }
    }

    /// Starts a new deadline for the next report, unless the program is suspended.
    fn listen(&mut self, now_ms: u64) {
        let notify = self.launch.notify.as_ref();
        let forking = || self.launch.forking.as_ref().map(|forking| forking.start_timeout_ms);
        let within_ms = match self.ready {
            true => notify.and_then(|notify| notify.watchdog_ms),
            false => notify.map(|notify| notify.start_timeout_ms).or_else(forking),
        };
        self.heard_by_ms = within_ms.filter(|_| !self.frozen).map(|ms| now_ms.saturating_add(ms));
    }

    /// Ends a program that missed a deadline or reported a failure; it may be restarted.
    fn give_up(&mut self, signal: i32, now_ms: u64) -> Vec<LifeStep> {
        self.silent = true;
        self.asked_by = signal;
        self.phase = LifePhase::Stopping { kill_at_ms: now_ms.saturating_add(self.launch.grace_ms) };
        vec![LifeStep::Ask { signal, group: self.is_command() }]
    }

    fn stop(&mut self, signal: i32, grace_ms: u64, now_ms: u64) -> Vec<LifeStep> {
        self.stop = true;
        self.asked_by = signal;
        let grace_ms = if signal == SIGKILL { 0 } else { grace_ms };
        // A second request to stop can shorten the grace time, but not extend it.
        let kill_at_ms = match self.phase {
            LifePhase::Up => now_ms.saturating_add(grace_ms),
            LifePhase::Stopping { kill_at_ms } => kill_at_ms.min(now_ms.saturating_add(grace_ms)),
            LifePhase::Clearing { kill_at_ms, .. } => {
                let kill_at_ms = kill_at_ms.min(now_ms.saturating_add(grace_ms));
                self.phase = LifePhase::Clearing { kill_at_ms, until_ms: kill_at_ms.saturating_add(CLEAR_MS) };
                return Vec::new();
            }
            LifePhase::Draining { .. } | LifePhase::Over => return Vec::new(),
        };
        self.phase = LifePhase::Stopping { kill_at_ms };
        if kill_at_ms <= now_ms { self.tick(now_ms) } else { vec![LifeStep::Ask { signal, group: self.is_command() }] }
    }

    fn main_ended(&mut self, exit: ProcessExit, now_ms: u64) -> Vec<LifeStep> {
        self.last = Some(exit);
        let now_clear = LifePhase::Clearing { kill_at_ms: now_ms + KILL_AGAIN_MS, until_ms: now_ms + CLEAR_MS };
        match self.phase {
            LifePhase::Up if self.is_command() => self.cleared(now_ms),
            LifePhase::Stopping { kill_at_ms } if self.is_command() => {
                let until_ms = kill_at_ms.max(now_ms).saturating_add(CLEAR_MS);
                self.phase = LifePhase::Clearing { kill_at_ms, until_ms };
                vec![LifeStep::LookWhatIsLeft]
            }
            LifePhase::Up | LifePhase::Stopping { .. } => {
                self.phase = now_clear;
                vec![LifeStep::KillAll, LifeStep::LookWhatIsLeft]
            }
            LifePhase::Clearing { .. } | LifePhase::Draining { .. } | LifePhase::Over => Vec::new(),
        }
    }

    fn tick(&mut self, now_ms: u64) -> Vec<LifeStep> {
        match self.phase {
            LifePhase::Up if self.timeout_at_ms.is_some_and(|at_ms| at_ms <= now_ms) => {
                self.timed_out = true;
                self.stop(self.launch.stop_signal, self.launch.grace_ms, now_ms)
            }
            LifePhase::Up if self.heard_by_ms.is_some_and(|by_ms| by_ms <= now_ms) => {
                let signal = if self.ready { SIGABRT } else { self.launch.stop_signal };
                self.start_timed_out = !self.ready;
                self.give_up(signal, now_ms)
            }
            LifePhase::Stopping { kill_at_ms } if kill_at_ms <= now_ms => {
                self.phase = LifePhase::Stopping { kill_at_ms: now_ms + KILL_AGAIN_MS };
                vec![LifeStep::KillAll]
            }
            LifePhase::Clearing { until_ms, .. } if until_ms <= now_ms => self.cleared(now_ms),
            LifePhase::Clearing { kill_at_ms, until_ms } if kill_at_ms <= now_ms => {
                self.phase = LifePhase::Clearing { kill_at_ms: now_ms + KILL_AGAIN_MS, until_ms };
                vec![LifeStep::KillAll, LifeStep::LookWhatIsLeft]
            }
            LifePhase::Draining { until_ms } if until_ms <= now_ms => self.finish(),
            _ => Vec::new(),
        }
    }

    fn cleared(&mut self, now_ms: u64) -> Vec<LifeStep> {
        if self.take_restart(now_ms) {
            self.phase = LifePhase::Up;
            self.up_since_ms = now_ms;
            (self.ready, self.frozen, self.silent, self.start_timed_out) = (false, false, false, false);
            self.listen(now_ms);
            return vec![LifeStep::Start];
        }
        self.phase = LifePhase::Draining { until_ms: now_ms + DRAIN_MS };
        vec![LifeStep::Drain]
    }

    fn take_restart(&mut self, now_ms: u64) -> bool {
        let restart = self.launch.restart;
        let wanted = match restart.on {
            RestartOn::Never => false,
            RestartOn::Failure => self.silent || self.last != Some(ProcessExit::Code(0)),
            RestartOn::Always => true,
        };
        if self.stop || !wanted {
            return false;
        }
        if now_ms.saturating_sub(self.up_since_ms) >= restart.reset_after_ms {
            self.restarts_left = restart.budget;
        }
        let allowed = self.restarts_left > 0;
        self.restarts_left = self.restarts_left.saturating_sub(1);
        allowed
    }

    fn finish(&mut self) -> Vec<LifeStep> {
        self.phase = LifePhase::Over;
        vec![LifeStep::Finish]
    }
}

#[cfg(test)]
mod tests {
    use muster_shim::{CaptureResult, RestartLimits};

    use super::*;

    const TERM: i32 = 15;
    const NEVER: RestartLimits = RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 1_000 };

    fn launch(output: OutputMode, restart: RestartLimits) -> Launch {
        Launch {
            protocol: muster_shim::PROTOCOL,
            argv: vec!["/bin/true".into()],
            env: Vec::new(),
            cwd: "/".into(),
            user: None,
            attributes: muster_shim::ProcessAttributes::default(),
            cgroup: muster_shim::cgroup::Cgroup::default(),
            inside: None,
            notify: None,
            forking: None,
            output,
            restart,
            timeout_ms: None,
            stop_signal: TERM,
            grace_ms: 5_000,
        }
    }

    fn command() -> ProgramLife {
        let launch = Launch { timeout_ms: Some(10_000), ..launch(OutputMode::Capture(CaptureResult::of(10)), NEVER) };
        ProgramLife::new(launch, 0, 0, false)
    }

    fn service(on: RestartOn, budget: u32) -> ProgramLife {
        let restart = RestartLimits { on, budget, reset_after_ms: 1_000 };
        ProgramLife::new(launch(OutputMode::Log { max_bytes: 10, keep: 1, max_age_ms: None }, restart), 0, 0, false)
    }

    /// Feeds inputs at given times and compares the steps that each one led to.
    #[track_caller]
    fn check(mut life: ProgramLife, script: &[(u64, LifeInput, &[LifeStep])]) -> ProgramLife {
        for (now_ms, input, steps) in script {
            assert_eq!(&life.on(*input, *now_ms), steps, "at {now_ms} ms, {input:?}");
        }
        life
    }

    const ASK_GROUP: LifeStep = LifeStep::Ask { signal: TERM, group: true };
    const ASK_MAIN: LifeStep = LifeStep::Ask { signal: TERM, group: false };
    const CODE_0: LifeInput = LifeInput::MainEnded(ProcessExit::Code(0));
    const CODE_1: LifeInput = LifeInput::MainEnded(ProcessExit::Code(1));
    const STOP: LifeInput = LifeInput::Stop { signal: TERM, grace_ms: 2_000 };

    #[test]
    fn ended_command_leaves_background_processes() {
        let life =
            check(command(), &[(5, CODE_1, &[LifeStep::Drain]), (6, LifeInput::OutputEnded, &[LifeStep::Finish])]);
        assert!(life.is_over() && !life.timed_out());
        assert_eq!(life.wake_at_ms(), None);
    }

    #[test]
    fn draining_output_has_a_limit() {
        check(
            command(),
            &[
                (5, CODE_0, &[LifeStep::Drain]),
                (504, LifeInput::Tick, &[]),
                (505, LifeInput::Tick, &[LifeStep::Finish]),
            ],
        );
    }

    #[test]
    fn timed_out_command_is_terminated_then_killed() {
        let life = check(
            command(),
            &[
                (9_999, LifeInput::Tick, &[]),
                (10_000, LifeInput::Tick, &[ASK_GROUP]),
                (14_999, LifeInput::Tick, &[]),
                (15_000, LifeInput::Tick, &[LifeStep::KillAll]),
                (15_100, LifeInput::Tick, &[LifeStep::KillAll]),
                (15_110, LifeInput::MainEnded(ProcessExit::Signal(9)), &[LifeStep::LookWhatIsLeft]),
                (15_200, LifeInput::Tick, &[LifeStep::KillAll, LifeStep::LookWhatIsLeft]),
                (15_210, LifeInput::NoneLeft, &[LifeStep::Drain]),
                (15_220, LifeInput::OutputEnded, &[LifeStep::Finish]),
            ],
        );
        assert!(life.timed_out());
    }

    #[test]
    fn children_of_stopped_command_have_grace() {
        check(
            command(),
            &[
                (0, STOP, &[ASK_GROUP]),
                (1, CODE_0, &[LifeStep::LookWhatIsLeft]),
                (1_999, LifeInput::Tick, &[]),
                (2_000, LifeInput::Tick, &[LifeStep::KillAll, LifeStep::LookWhatIsLeft]),
                // Something stuck in the kernel is not waited for without end.
                (7_000, LifeInput::Tick, &[LifeStep::Drain]),
            ],
        );
    }

    #[test]
    fn second_stop_only_shortens_grace() {
        check(
            command(),
            &[
                (0, STOP, &[ASK_GROUP]),
                (1_000, STOP, &[ASK_GROUP]),
                (1_500, LifeInput::Tick, &[]),
                (1_600, LifeInput::Stop { signal: 9, grace_ms: 9_999 }, &[LifeStep::KillAll]),
                (1_601, LifeInput::MainEnded(ProcessExit::Signal(9)), &[LifeStep::LookWhatIsLeft]),
            ],
        );
        check(
            command(),
            &[(0, STOP, &[ASK_GROUP]), (1_900, STOP, &[ASK_GROUP]), (2_000, LifeInput::Tick, &[LifeStep::KillAll])],
        );
    }

    #[test]
    fn service_restarts_within_budget_after_clearing() {
        const KILL: &[LifeStep] = &[LifeStep::KillAll, LifeStep::LookWhatIsLeft];
        check(
            service(RestartOn::Always, 2),
            &[
                (1, CODE_0, KILL),
                (1, LifeInput::NoneLeft, &[LifeStep::Start]),
                (2, CODE_1, KILL),
                (102, LifeInput::Tick, KILL),
                (103, LifeInput::NoneLeft, &[LifeStep::Start]),
                (104, CODE_1, KILL),
                (104, LifeInput::NoneLeft, &[LifeStep::Drain]),
            ],
        );
    }

    #[test]
    fn stable_run_resets_the_budget() {
        let mut life = service(RestartOn::Failure, 1);
        for round in 1..5 {
            let now_ms = round * 1_000;
            life.on(CODE_1, now_ms);
            assert_eq!(life.on(LifeInput::NoneLeft, now_ms), [LifeStep::Start], "round {round}");
        }
        life.on(CODE_1, 4_999);
        assert_eq!(life.on(LifeInput::NoneLeft, 4_999), [LifeStep::Drain]);
    }

    #[test]
    fn service_is_not_restarted_when_stopped_or_over_budget() {
        for (on, input) in [(RestartOn::Never, CODE_1), (RestartOn::Failure, CODE_0)] {
            let mut life = service(on, 9);
            life.on(input, 1);
            assert_eq!(life.on(LifeInput::NoneLeft, 1), [LifeStep::Drain], "{on:?}");
        }
        // Not after a stop either, also one that comes between an end and the next start.
        check(
            service(RestartOn::Always, 9),
            &[(0, STOP, &[ASK_MAIN]), (1, CODE_0, &[LifeStep::KillAll, LifeStep::LookWhatIsLeft])],
        );
        let mut life = service(RestartOn::Always, 9);
        life.on(CODE_0, 0);
        assert_eq!(life.on(STOP, 1), []);
        assert_eq!(life.on(LifeInput::NoneLeft, 2), [LifeStep::Drain]);
    }

    fn speaker(watchdog_ms: Option<u64>, ready: bool) -> ProgramLife {
        let restart = RestartLimits { on: RestartOn::Failure, budget: 1, reset_after_ms: 60_000 };
        let notify = muster_shim::NotifyKind { name: "n".into(), start_timeout_ms: 500, watchdog_ms, lines: None };
        let output = OutputMode::Log { max_bytes: 10, keep: 1, max_age_ms: None };
        ProgramLife::new(Launch { notify: Some(notify), ..launch(output, restart) }, 0, 0, ready)
    }

    #[test]
    fn start_timeout_ends_and_fails_the_program() {
        let kill = [LifeStep::KillAll, LifeStep::LookWhatIsLeft];
        let life = check(
            speaker(None, false),
            &[
                (499, LifeInput::Tick, &[]),
                (500, LifeInput::Tick, &[ASK_MAIN]),
                // However it ends.
                (600, CODE_0, &kill),
                (600, LifeInput::NoneLeft, &[LifeStep::Start]),
                (1_000, LifeInput::Ready, &[]),
                (900_000, LifeInput::Tick, &[]),
            ],
        );
        assert!(!life.was_silent() && !life.was_late_to_start(), "this was the one before");
        assert_eq!(life.wake_at_ms(), None);
    }

    #[test]
    fn watchdog_timeout_aborts_the_program() {
        let abort = LifeStep::Ask { signal: SIGABRT, group: false };
        let life = check(
            speaker(Some(100), false),
            &[
                (400, LifeInput::Ready, &[]),
                (499, LifeInput::Alive, &[]),
                (598, LifeInput::Tick, &[]),
                // What cannot speak is not silent.
                (598, LifeInput::Frozen, &[]),
                // Said before, and heard after.
                (598, LifeInput::Alive, &[]),
                (9_000, LifeInput::Tick, &[]),
                (9_000, LifeInput::Thawed, &[]),
                (9_099, LifeInput::Tick, &[]),
                (9_100, LifeInput::Tick, &[abort]),
                (14_100, LifeInput::Tick, &[LifeStep::KillAll]),
            ],
        );
        assert!(life.was_silent() && !life.was_late_to_start());
        check(speaker(Some(100), true), &[(100, LifeInput::Tick, &[abort])]);
        check(speaker(None, true), &[(5, LifeInput::Unwell, &[abort]), (6, LifeInput::Unwell, &[])]);
    }

    fn forking(ready: bool) -> ProgramLife {
        let restart = RestartLimits { on: RestartOn::Always, budget: 1, reset_after_ms: 60_000 };
        let forking = muster_shim::ForkingMode { pid_file: None, start_timeout_ms: 500 };
        let output = OutputMode::Log { max_bytes: 10, keep: 1, max_age_ms: None };
        ProgramLife::new(Launch { forking: Some(forking), ..launch(output, restart) }, 0, 0, ready)
    }

    #[test]
    fn fork_is_accepted_only_after_quick_success() {
        let (well, unseen, ill) = (ProcessExit::Code(0), ProcessExit::Unknown, ProcessExit::Code(1));
        let mut life = forking(false);
        assert!(life.is_fork(well, 499) && life.is_fork(unseen, 499) && !life.is_fork(ill, 499));
        life.on(LifeInput::Forked, 400);
        life.on(LifeInput::Ready, 400);
        assert!(life.is_fork(well, 10_399) && !life.is_fork(well, 10_400) && !life.is_fork(ill, 401));
        assert!(!forking(true).is_fork(well, 0), "it was up under the shim before");
        assert!(!service(RestartOn::Always, 1).is_fork(well, 0));
        life.on(CODE_1, 500);
        assert!(!life.is_fork(well, 500) && !life.may_fork(), "it has ended");
    }

    #[test]
    fn forking_program_that_stays_fails() {
        let kill = [LifeStep::KillAll, LifeStep::LookWhatIsLeft];
        check(
            forking(false),
            &[
                (499, LifeInput::Tick, &[]),
                (500, LifeInput::Tick, &[ASK_MAIN]),
                // What takes over while it is to end is asked as well.
                (501, LifeInput::Forked, &[ASK_MAIN]),
                (600, LifeInput::MainEnded(ProcessExit::Signal(15)), &kill),
                (600, LifeInput::NoneLeft, &[LifeStep::Start]),
                (700, LifeInput::Forked, &[]),
                (700, LifeInput::Ready, &[]),
                (900_000, LifeInput::Tick, &[]),
                (900_000, LifeInput::Stop { signal: 3, grace_ms: 2_000 }, &[LifeStep::Ask { signal: 3, group: false }]),
                (900_001, LifeInput::Forked, &[LifeStep::Ask { signal: 3, group: false }]),
            ],
        );
    }

    #[test]
    fn unexpected_daemonising_is_detected() {
        let life = service(RestartOn::Always, 1);
        assert!(life.looks_like_fork(ProcessExit::Code(0), 9_999));
        assert!(!life.looks_like_fork(ProcessExit::Code(0), 10_000) && !life.looks_like_fork(ProcessExit::Code(1), 5));
        assert!(
            !forking(false).looks_like_fork(ProcessExit::Code(0), 5)
                && !command().looks_like_fork(ProcessExit::Code(0), 5)
        );
    }

    #[test]
    fn restarts_and_time_used_before_an_adoption_count() {
        let restart = RestartLimits { on: RestartOn::Always, budget: 3, reset_after_ms: 1_000 };
        let launch = Launch {
            timeout_ms: Some(500),
            ..launch(OutputMode::Log { max_bytes: 10, keep: 1, max_age_ms: None }, restart)
        };
        let mut life = ProgramLife::new(launch.clone(), 3, 200, false);
        assert_eq!(life.wake_at_ms(), Some(300));
        life.on(CODE_1, 1);
        assert_eq!(life.on(LifeInput::NoneLeft, 1), [LifeStep::Drain]);
        assert_eq!(ProgramLife::new(launch, 3, 9_000, false).wake_at_ms(), Some(0));
    }
}
