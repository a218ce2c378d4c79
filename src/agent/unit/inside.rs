//! Finds the process through which a command enters a container.

use muster_rules::{CommandRefusal, edit};
use muster_topics::{
    diagnostic::Diagnostic,
    name::UnitName,
    outcome::RefusalCode,
    unit::{Phase, Spec},
};

use super::Units;

pub(crate) use super::first_process::FirstProcess;

impl Units {
    /// Returns the first process of a container: the one that this agent has seen starting, if the runtime confirms it.
    /// A number alone may belong to another process by now, and so may what was seen before.
    ///
    /// # Errors
    /// If there is no such unit, it is no container, it does not run or is frozen, or its runtime does not answer.
    pub(crate) async fn first_process(&self, unit: &UnitName) -> Result<FirstProcess, CommandRefusal> {
        let refuse = |code, message: Diagnostic| Err(CommandRefusal::new(code, message));
        let known = self.states.borrow().get(unit).cloned();
        let Some(state) = known else { return Err(edit::unknown(unit)) };
        let Spec::Container(_) = state.spec() else {
            let kind = state.spec().kind();
            return refuse(
                RefusalCode::Unsupported,
                format!("{unit} is a {kind}; programs can be run inside a container only").into(),
            );
        };
        let Some((pid, start_ticks)) = state.process else { return Err(does_not_run(unit, state.observed.phase())) };
        let Some(containers) = &self.kinds.containers else {
            return refuse(RefusalCode::Unsupported, "this agent has no container runtime".into());
        };
        match containers.first(unit).await {
            Ok(Some(first)) if first.frozen => refuse(
                RefusalCode::Conflict,
                Diagnostic::new(format_args!("{unit} is frozen")).with_hint(format_args!("`muster unit thaw {unit}`")),
            ),
            Ok(Some(first)) if first.pid == pid => Ok(FirstProcess { pid, start_ticks }),
            Ok(Some(_)) => refuse(
                RefusalCode::Conflict,
                Diagnostic::new(format_args!("{unit} has just restarted")).with_hint("try again"),
            ),
            Ok(None) => Err(does_not_run(unit, state.observed.phase())),
            Err(failure) => {
                refuse(RefusalCode::Conflict, failure.error.within(format_args!("{unit} cannot be entered")))
            }
        }
    }
}

fn does_not_run(unit: &UnitName, phase: Phase) -> CommandRefusal {
    // Each is one word.
    let phase = format!("{phase:?}").to_lowercase();
    let message = Diagnostic::new(format_args!("{unit} is not running: its phase is {phase}"))
        .with_hint(format_args!("`muster unit run {unit}`"));
    CommandRefusal::new(RefusalCode::Conflict, message)
}
