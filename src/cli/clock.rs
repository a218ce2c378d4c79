//! `muster clock`: the console's clock, and the confirmation that it is right.

use clap::{Args, Subcommand};
use muster_api::{ConfirmClock, ConsoleClock};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::diagnostic::Diagnostic;

use super::{
    print::{self, Printer},
    session::CliSession,
};

/// Verbs on the console's clock.
#[derive(Subcommand, Clone, Debug)]
pub enum ClockVerb {
    /// Show the console's clock, and whether it is confirmed
    Show,
    /// Confirm that the console's clock is right
    ///
    /// A clock that is ahead would end commands and remove what is kept for some time, for good. So nothing goes by a clock that is
    /// further ahead than the time that has certainly passed, until hosts on other machines agree with it, or an operator
    /// confirms it.
    Confirm(ConfirmArgs),
}

/// Confirm the clock.
#[derive(Args, Clone, Debug)]
pub struct ConfirmArgs {
    /// Do not ask first
    #[arg(long)]
    yes: bool,
}

/// Runs the verb.
///
/// # Errors
/// If it fails, or if the user does not confirm.
pub async fn run(verb: ClockVerb, session: &CliSession) -> Result<(), Failure> {
    let clock: ConsoleClock = session.client.get("clock", &[]).await?;
    let clock = match verb {
        ClockVerb::Show => clock,
        ClockVerb::Confirm(ConfirmArgs { yes }) => {
            let question = format!("confirm that it is {} now?", session.printer.time(clock.clock_ms));
            if !yes && !print::confirm(&question) {
                return Err(
                    Failure::new(FailureKind::Usage, "to confirm the clock needs confirmation").hint("pass --yes")
                );
            }
            session.client.post("clock", &ConfirmClock { clock_ms: clock.clock_ms }).await?
        }
    };
    session.printer.line(&clock, &words(&clock, session.printer))
}

fn words(clock: &ConsoleClock, printer: Printer) -> String {
    let at = printer.time(clock.clock_ms);
    match clock.ahead_ms {
        0 => format!("the console's clock shows {at}, and is confirmed"),
        ahead_ms => {
            let cause = format!(
                "the console's clock shows {at}, {} min ahead of the time that is confirmed: nothing expires \
                 or is removed by it",
                ahead_ms / 60_000
            );
            format!("{:#}", Diagnostic::new(cause).with_hint("`muster clock confirm`, if it is right"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_is_ahead_names_the_way_to_confirm_it() {
        let printer = Printer::new(print::PrintFormat::Table);
        let clock = ConsoleClock { clock_ms: 1_800_000_000_000, ahead_ms: 0 };
        assert!(words(&clock, printer).ends_with("is confirmed"));
        let ahead = words(&ConsoleClock { ahead_ms: 31 * 86_400_000, ..clock }, printer);
        assert!(
            ahead.contains("44640 min ahead") && ahead.ends_with(": `muster clock confirm`, if it is right"),
            "{ahead}"
        );
    }
}
