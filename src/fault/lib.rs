//! Faults that the simulation plants in decisions, to check that it finds them (`tests/sim`).
//!
//! **Invariant: no program contains any of this**: without the feature `planted`, which only tests enable, `planted!` is the
//! word `false`.

#[cfg(feature = "planted")]
pub use self::enabled::{Fault, is_planted, plant};

/// Whether a test has planted this fault.
#[cfg(feature = "planted")]
#[macro_export]
macro_rules! planted {
    ($fault:ident) => {
        $crate::is_planted($crate::Fault::$fault)
    };
}

/// Whether a test has planted this fault: there is none.
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

    /// One promise broken on purpose.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fault {
        /// The agent does what has expired.
        ObeyExpired,
        /// The agent believes its clock alone, whatever signed times it has seen.
        TrustClock,
        /// The agent does what was issued before its store was made.
        ObeyBeforeStore,
        /// The agent does not note the signed time of what it hears.
        ForgetSignedTime,
        /// The agent takes a repetition for a new command.
        EnterTwice,
        /// The agent forgets commands as soon as the console has their answers.
        PruneEarly,
        /// A program whose fate is not known is started anew after a restart.
        RunLostAgain,
        /// A program that runs still is given up after a restart.
        GiveUpUnfinished,
        /// A refusal is told to nobody.
        RefuseInSilence,
        /// The agent takes a refresh as often as it comes.
        RefreshAgain,
        /// The agent takes a refresh only if it is later than all before.
        RefreshByLatest,
        /// What was acknowledged by nobody is not said again.
        SayOnce,
        /// What an earlier life of the agent left in the outbox is not said.
        ForgetOutbox,
        /// The console acknowledges an answer that it does not store.
        AckUnstored,
        /// The console sends what has expired.
        SendExpired,
        /// The console sends a command once.
        SendOnce,
        /// A host that comes back is not sent what waits for it.
        ForgetReturned,
        /// The console applies a delta to whatever it holds.
        ApplyAnyway,
        /// The agent makes deltas from the newest state that it told, acknowledged or not, but names the acknowledged one.
        WrongBase,
        /// An old last will counts for the console.
        BelieveOldWill,
        /// An instance counts as an earlier life wherever it lived.
        FormerAnywhere,
        /// The agent leaves an old last will as it is.
        LeaveOldWill,
        /// A newcomer does not wait for objections.
        ClaimAtOnce,
        /// An agent that works does not object to a newcomer.
        NeverObject,
        /// An agent that works withdraws for a newcomer.
        YieldToTwin,
        /// A heartbeat goes out with each change.
        NoThrottle,
        /// A change while a heartbeat is under way is not told later.
        NoTrailing,
        /// A heartbeat that nobody acknowledged is not repeated.
        BeatOnce,
        /// A heartbeat goes out though nothing has changed.
        BeatAnyway,
        /// The agent sends no digest.
        NoDigest,
        /// The console finds every digest right.
        AnyDigest,
        /// The console finds no digest right.
        DoubtDigest,
        /// The console does not look at who answers its roll call.
        NoRollCall,
        /// The console does not forget units that a heartbeat does not list.
        KeepUnits,
    }

    /// Plants a fault on this thread, or takes it away.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether this fault is planted.
    pub fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
