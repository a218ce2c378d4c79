//! Decides which commands run now and which wait: a number of running commands, a queue of waiting ones in order, and
//! refusal as busy beyond that.
//!
//! The expiry of a command limits how long it waits; its time limit starts with the program.

use std::{sync::Arc, time::Duration};

use muster_rules::CommandRefusal;
use muster_topics::{diagnostic::Diagnostic, name::CommandId, outcome::RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::cancel_tokens::CancelTokens;

/// Makes a command cancellable from its admission until this is dropped.
#[derive(Debug)]
pub(super) struct CancellableCommand {
    cancels: CancelTokens,
    id: CommandId,
    cancelled: CancellationToken,
}

impl CancellableCommand {
    fn new(cancels: &CancelTokens, id: CommandId) -> Self {
        // Their number is bounded by places, queue, and what an earlier run has left.
        let cancelled = cancels.enter(id, usize::MAX).unwrap_or_default();
        Self { cancels: cancels.clone(), id, cancelled }
    }

    /// A token that is cancelled when the command is to end.
    pub(super) fn cancelled(&self) -> CancellationToken {
        self.cancelled.clone()
    }
}

impl Drop for CancellableCommand {
    fn drop(&mut self) {
        self.cancels.leave(self.id);
    }
}

/// A place for a running program, until this is dropped.
#[derive(Debug)]
pub struct RunningPermit {
    pub(super) entered: CancellableCommand,
    /// `None` if more programs were running when the agent started than are allowed.
    _permit: Option<OwnedSemaphorePermit>,
}

/// A place in the queue, until this is dropped.
#[derive(Debug)]
pub struct QueuePermit {
    entered: CancellableCommand,
    /// `None` if more were waiting when the agent started than are allowed.
    _permit: Option<OwnedSemaphorePermit>,
}

/// A command that was admitted.
#[derive(Debug)]
pub enum AdmittedCommand {
    /// It can run at once.
    Now(RunningPermit),
    /// It has to wait in the queue.
    Later(QueuePermit),
}

/// The result of waiting.
#[derive(Debug)]
pub enum QueueResult {
    /// It can run.
    Come(RunningPermit),
    /// It was cancelled.
    Cancelled,
    /// It has expired.
    Expired,
}

/// The limits of running and waiting programs.
#[derive(Clone, Debug)]
pub(super) struct ExecutionLimits {
    parallel: Arc<Semaphore>,
    parallel_max: usize,
    queue: Arc<Semaphore>,
    queue_max: usize,
}

impl ExecutionLimits {
    pub(super) fn new(parallel_max: usize, queue_max: usize) -> Self {
        let semaphore = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self { parallel: semaphore(parallel_max), parallel_max, queue: semaphore(queue_max), queue_max }
    }

    /// Returns a place to run, or one in the queue. Waiting commands go first, because a semaphore with waiters gives
    /// no permit at once.
    pub(super) fn admit(&self, id: CommandId, cancels: &CancelTokens) -> Result<AdmittedCommand, CommandRefusal> {
        let permit = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        if let Some(permit) = permit(&self.parallel) {
            return Ok(AdmittedCommand::Now(RunningPermit {
                entered: CancellableCommand::new(cancels, id),
                _permit: Some(permit),
            }));
        }
        if let Some(permit) = permit(&self.queue) {
            return Ok(AdmittedCommand::Later(QueuePermit {
                entered: CancellableCommand::new(cancels, id),
                _permit: Some(permit),
            }));
        }
        let Self { parallel_max, queue_max, .. } = self;
        let message = match queue_max {
            0 => format!("{parallel_max} commands are running, the maximum").into(),
            _ => Diagnostic::new(format_args!(
                "{parallel_max} commands are running and {queue_max} are waiting, the maximum"
            ))
            .with_hint("try again later"),
        };
        Err(CommandRefusal::new(RefusalCode::Busy, message))
    }

    /// Returns a place for a program that already runs.
    pub(super) fn taken(&self, id: CommandId, cancels: &CancelTokens) -> RunningPermit {
        // It runs with or without a place, and takes one if there is one.
        RunningPermit {
            entered: CancellableCommand::new(cancels, id),
            _permit: Arc::clone(&self.parallel).try_acquire_owned().ok(),
        }
    }

    /// Returns a place in the queue for a command that had one before the agent was started.
    pub(super) fn waiting(&self, id: CommandId, cancels: &CancelTokens) -> QueuePermit {
        QueuePermit {
            entered: CancellableCommand::new(cancels, id),
            _permit: Arc::clone(&self.queue).try_acquire_owned().ok(),
        }
    }

    /// Waits for a command's turn.
    pub(super) async fn wait(&self, queued: QueuePermit, limit: Duration) -> QueueResult {
        let QueuePermit { entered, _permit } = queued;
        let cancelled = entered.cancelled();
        tokio::select! {
            biased;
            () = cancelled.cancelled() => QueueResult::Cancelled,
            permit = Arc::clone(&self.parallel).acquire_owned() => match permit {
                Ok(permit) => QueueResult::Come(RunningPermit { entered, _permit: Some(permit) }),
                // The semaphore is never closed.
                Err(_) => QueueResult::Cancelled,
            },
            () = tokio::time::sleep(limit) => QueueResult::Expired,
        }
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.parallel.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    struct Rig {
        places: ExecutionLimits,
        cancels: CancelTokens,
    }

    impl Rig {
        fn new(parallel_max: usize, queue_max: usize) -> Self {
            Self { places: ExecutionLimits::new(parallel_max, queue_max), cancels: CancelTokens::default() }
        }

        fn admit(&self) -> Result<AdmittedCommand, CommandRefusal> {
            self.places.admit(CommandId::new(), &self.cancels)
        }

        fn now(&self) -> RunningPermit {
            let Ok(AdmittedCommand::Now(place)) = self.admit() else { panic!("no place") };
            place
        }

        fn later(&self, id: CommandId) -> QueuePermit {
            let Ok(AdmittedCommand::Later(queued)) = self.places.admit(id, &self.cancels) else { panic!("no queue") };
            queued
        }

        fn busy(&self) {
            assert_eq!(self.admit().unwrap_err().code, RefusalCode::Busy);
        }
    }

    #[tokio::test]
    async fn commands_beyond_the_queue_are_refused() {
        let rig = Rig::new(2, 1);
        let (first, _second) = (rig.now(), rig.now());
        let third = rig.later(CommandId::new());
        rig.busy();
        drop(first);
        let QueueResult::Come(_third) = rig.places.wait(third, LONG).await else { panic!("its turn") };
        let fourth = rig.later(CommandId::new());
        rig.busy();
        drop(fourth);
        let _fifth = rig.later(CommandId::new());
    }

    #[tokio::test]
    async fn without_queue_busy_command_is_refused() {
        let rig = Rig::new(1, 0);
        let _first = rig.now();
        rig.busy();
    }

    #[tokio::test]
    async fn waiting_command_expires() {
        let rig = Rig::new(1, 1);
        let _first = rig.now();
        let waiting = rig.later(CommandId::new());
        assert!(matches!(rig.places.wait(waiting, Duration::from_millis(1)).await, QueueResult::Expired));
        let _next = rig.later(CommandId::new());
    }

    #[tokio::test]
    async fn waiting_command_can_be_cancelled() {
        let rig = Rig::new(1, 1);
        let first = rig.now();
        let id = CommandId::new();
        let waiting = rig.later(id);
        rig.cancels.cancel(id);
        assert!(matches!(rig.places.wait(waiting, LONG).await, QueueResult::Cancelled));
        let waiting = rig.later(id);
        let (turn, ()) = tokio::join!(rig.places.wait(waiting, LONG), async {
            tokio::task::yield_now().await;
            rig.cancels.cancel(id);
        });
        assert!(matches!(turn, QueueResult::Cancelled));
        drop(first);
        let _next = rig.now();
    }

    #[tokio::test]
    async fn waiting_commands_run_in_order() {
        let rig = Rig::new(1, 3);
        let first = rig.now();
        let (one, two) = (rig.later(CommandId::new()), rig.later(CommandId::new()));
        let (one, two) = (rig.places.wait(one, LONG), rig.places.wait(two, LONG));
        tokio::pin!(one, two);
        // Both wait.
        tokio::select! {
            biased;
            _ = &mut one => panic!("no place yet"),
            _ = &mut two => panic!("no place yet"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        assert!(matches!(rig.admit(), Ok(AdmittedCommand::Later(_))), "nobody passes those who wait");
        let QueueResult::Come(one) = one.await else { panic!("its turn") };
        tokio::select! {
            biased;
            _ = &mut two => panic!("no place yet"),
            () = std::future::ready(()) => {}
        }
        drop(one);
        assert!(matches!(two.await, QueueResult::Come(_)));
    }

    #[tokio::test]
    async fn resumed_commands_occupy_places() {
        let rig = Rig::new(1, 1);
        let running =
            [rig.places.taken(CommandId::new(), &rig.cancels), rig.places.taken(CommandId::new(), &rig.cancels)];
        let waiting = [0, 1].map(|_| rig.places.waiting(CommandId::new(), &rig.cancels));
        rig.busy();
        drop(waiting);
        drop(running);
        let _place = rig.now();
    }
}
