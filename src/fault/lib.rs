//! Faults that the simulation plants in decisions, to check that it finds them (`tests/sim`).
//!
//! **Invariant: no program contains any of this**: without the feature `planted`, which only tests enable, `planted!` is the
//! word `false`.

#[cfg(feature = "planted")]
pub use self::enabled::{Fault, is_planted, plant};

/// Whether a test has injected this fault.
#[cfg(feature = "planted")]
#[macro_export]
macro_rules! planted {
    ($fault:ident) => {
        $crate::is_planted($crate::Fault::$fault)
    };
}

/// Whether a test has injected this fault: never in this build.
#[cfg(not(feature = "planted"))]
#[macro_export]
macro_rules! planted {
    ($fault:ident) => {
        false
    };
}

#[cfg(feature = "planted")]
mod enabled {
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// A fault that breaks one promise on purpose.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fault {
        /// The agent runs expired commands.
        ObeyExpired,
        /// The agent relies on its clock alone, regardless of the signed times that it has received.
        TrustClock,
        /// The agent runs commands that were issued before its store was created.
        ObeyBeforeStore,
        /// The agent does not record the signed time of messages.
        ForgetSignedTime,
        /// The agent takes a repeated command for a new one.
        EnterTwice,
        /// The agent deletes commands as soon as the console has their outcomes.
        PruneEarly,
        /// After a restart, the agent starts a program again whose outcome is unknown.
        RunLostAgain,
        /// After a restart, the agent gives up a program that still runs.
        GiveUpUnfinished,
        /// The agent does not report refusals.
        RefuseInSilence,
        /// The agent accepts a refresh each time it arrives.
        RefreshAgain,
        /// The agent accepts a refresh only if it is newer than all earlier ones.
        RefreshByLatest,
        /// The agent does not repeat messages that were not acknowledged.
        SayOnce,
        /// The agent does not send messages that an earlier instance left in the outbox.
        ForgetOutbox,
        /// The console acknowledges an outcome without storing it.
        AckUnstored,
        /// The console sends expired commands.
        SendExpired,
        /// The console sends a command only once.
        SendOnce,
        /// The console does not send waiting commands to a host that reconnects.
        ForgetReturned,
        /// The console applies a delta to any base.
        ApplyAnyway,
        /// The agent computes deltas from the newest state that it sent, acknowledged or not, but names the
        /// acknowledged one as the base.
        WrongBase,
        /// The console accepts an old last will.
        BelieveOldWill,
        /// The console takes an instance for a former one on any host.
        FormerAnywhere,
        /// The agent does not replace an old last will.
        LeaveOldWill,
        /// A new instance does not wait for objections.
        ClaimAtOnce,
        /// A running agent does not object to a new instance.
        NeverObject,
        /// A running agent withdraws in favour of a new instance.
        YieldToTwin,
        /// The agent sends a heartbeat for every change.
        NoThrottle,
        /// The agent does not report a change that happened while a heartbeat was in flight.
        NoTrailing,
        /// The agent does not repeat a heartbeat that was not acknowledged.
        BeatOnce,
        /// The agent sends a heartbeat although nothing has changed.
        BeatAnyway,
        /// The agent sends no digest.
        NoDigest,
        /// The console accepts every digest.
        AnyDigest,
        /// The console accepts no digest.
        DoubtDigest,
        /// The console ignores who answers its roll call.
        NoRollCall,
        /// The console keeps units that a heartbeat does not list.
        KeepUnits,
        /// The agent takes a document that is older than the stored one.
        TakeOlderDocument,
        /// The agent counts a document as its own without storing it.
        ForgetDocument,
        /// The agent removes units that its document does not list.
        RemoveByAbsence,
        /// The console takes a question of a host that is not its last one.
        HearStaleQuestion,
        /// A later version's rollout does not know which hosts an earlier one has left unavailable.
        ForgetEarlierVersion,
        /// The console does not count hosts in the middle of a change.
        NoFlight,
        /// The console admits hosts while a rollout is paused.
        GrantWhilePaused,
        /// The console ends a wave whose hosts have not ended.
        CloseWaveEarly,
        /// The console counts hosts as unavailable only if they have said that they have begun.
        BudgetByReports,
        /// The agent takes an answer to a question that is not its last one.
        TakeLateGrant,
        /// The console grants a second permit for the same question.
        GrantTwice,
        /// The console frees the place of a host that was silent for too long in the middle of a change.
        FreeLostHost,
        /// The console ends a rollout while hosts have no outcome.
        EndWithoutOutcomes,
        /// The console admits hosts outside the windows.
        IgnoreWindow,
    }

    /// Injects a fault on this thread; `None` removes it.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether this fault is injected.
    pub fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
