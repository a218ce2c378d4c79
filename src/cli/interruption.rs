//! The question before a change that stops or restarts several processes.

use muster_base::failure::{Failure, FailureKind};

use super::print;

/// Processes that a change stops or restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interruption {
    /// How many.
    pub(crate) processes: u64,
    /// Which, and why: a line for each, with a line feed before it.
    pub(crate) names: String,
}

impl Interruption {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { processes: self.processes + other.processes, names: self.names + &other.names }
    }

    /// Asks for confirmation if more than one process is interrupted.
    ///
    /// # Errors
    /// If the user does not confirm.
    pub(crate) fn confirm(&self, yes: bool) -> Result<(), Failure> {
        let Self { processes, names } = self;
        if yes || *processes < 2 {
            return Ok(());
        }
        let what = format!("interrupt {processes} processes");
        if print::confirm(&format!("{what}?{names}\n")) {
            return Ok(());
        }
        Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation:{names}")).hint("pass --yes"))
    }
}
