//! `-w` of lists: on a terminal the list takes the screen and is drawn anew while it changes; elsewhere it is printed again
//! whenever it has changed.

use std::{
    cell::RefCell,
    io::{self, IsTerminal},
    time::Duration,
};

use muster_base::{
    clock,
    failure::{Failure, FailureContext as _, FailureKind},
};

use super::{
    print::{self, Printer},
    top::terminal::{Terminal, TerminalInput},
};

/// How often a list is asked for: a person is watching, and a question is answered from memory.
pub const EVERY: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// What a list that is watched has printed.
    static PRINTED: RefCell<PrintedText>;
}

/// What a verb printed, data and messages apart.
#[derive(Debug, Default)]
struct PrintedText {
    out: String,
    messages: String,
}

/// Keeps data that a list printed, if it is watched; tells whether it did.
pub(super) fn keep_out(text: &str) -> bool {
    PRINTED.try_with(|printed| printed.borrow_mut().out.push_str(text)).is_ok()
}

/// The same of a message.
pub(super) fn keep_message(text: &str) -> bool {
    PRINTED.try_with(|printed| printed.borrow_mut().messages.push_str(text)).is_ok()
}

/// Prints a list again and again, until the user ends it.
///
/// # Errors
/// If the first time fails, later other than by a console that cannot be reached, or if the terminal cannot be used.
pub async fn run(list: impl AsyncFn() -> Result<(), Failure>, printer: Printer) -> Result<(), Failure> {
    // Asked before the screen is switched, so that an error is shown on the normal one.
    let first = printed(&list).await?;
    match io::stdout().is_terminal() && !printer.is_for_programs() {
        true => on_screen(list, first, printer).await,
        false => appended(list, first).await,
    }
}

async fn printed(list: &impl AsyncFn() -> Result<(), Failure>) -> Result<PrintedText, Failure> {
    PRINTED
        .scope(RefCell::default(), async {
            list().await?;
            Ok(PRINTED.with(RefCell::take))
        })
        .await
}

/// Prints a list whenever it is another one.
async fn appended(list: impl AsyncFn() -> Result<(), Failure>, first: PrintedText) -> Result<(), Failure> {
    let mut last: Option<PrintedText> = None;
    let mut next = first;
    loop {
        if last.as_ref().is_none_or(|last| last.out != next.out || last.messages != next.messages) {
            print::write_out(&next.out)?;
            if !next.messages.is_empty() {
                print::say(next.messages.trim_end());
            }
            last = Some(next);
        }
        tokio::time::sleep(EVERY).await;
        next = printed(&list).await?;
    }
}

/// Draws a list on the whole screen, until `q` or Ctrl-C. In all cases the terminal is restored when it is dropped.
async fn on_screen(
    list: impl AsyncFn() -> Result<(), Failure>,
    first: PrintedText,
    printer: Printer,
) -> Result<(), Failure> {
    let mut terminal = Terminal::take().trying("using the terminal")?;
    let (mut shown, mut trouble) = (first, None);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + EVERY, EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let height = terminal.look().height.unwrap_or(usize::MAX);
        let title = format!("{} · every {} s · q quits", printer.bare_time(clock::now_ms()), EVERY.as_secs());
        terminal.draw(&frame(&title, trouble.as_deref(), &shown, height)).trying("using the terminal")?;
        // Each arm is safe to cancel: a tick comes again, and an unread key stays in the kernel.
        let input = tokio::select! {
            _ = ticks.tick() => TerminalInput::Now,
            input = terminal.input() => input,
        };
        match input {
            TerminalInput::Quit => return Ok(()),
            TerminalInput::Now => match printed(&list).await {
                Ok(now) => (shown, trouble) = (now, None),
                // A console that restarts is waited for.
                Err(failure) if failure.kind == FailureKind::Unreachable => {
                    trouble = failure.cause().map(str::to_owned);
                }
                Err(failure) => return Err(failure),
            },
            TerminalInput::Sort(_) | TerminalInput::Other => {}
        }
    }
}

/// What fits the screen: a title, what is wrong, the list as far as there is room, and its messages.
fn frame(title: &str, trouble: Option<&str>, shown: &PrintedText, height: usize) -> String {
    let head = [Some(title), trouble].into_iter().flatten();
    let lines: Vec<&str> = head.chain(shown.out.lines()).chain(shown.messages.lines()).collect();
    let hidden = lines.len().saturating_sub(height.max(2));
    if hidden == 0 {
        return lines.iter().fold(String::new(), |text, line| text + line + "\n");
    }
    let kept = lines.iter().take(lines.len() - hidden - 1);
    kept.fold(String::new(), |text, line| text + line + "\n") + &format!("… and {} more lines\n", hidden + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_has_what_fits_and_says_how_much_does_not() {
        let shown = PrintedText { out: "HOST\na\nb\n".to_owned(), messages: "a note\n".to_owned() };
        for (height, wanted) in [
            (9, "now\nHOST\na\nb\na note\n"),
            (5, "now\nHOST\na\nb\na note\n"),
            (4, "now\nHOST\na\n… and 2 more lines\n"),
            (0, "now\n… and 4 more lines\n"),
        ] {
            assert_eq!(frame("now", None, &shown, height), wanted, "{height}");
        }
        assert_eq!(frame("now", Some("gone"), &shown, 4), "now\ngone\nHOST\n… and 3 more lines\n");
    }

    #[tokio::test]
    async fn what_a_list_prints_is_kept_while_it_is_watched() {
        let list = async || {
            print::write_out("HOST\na\n")?;
            print::say("a note");
            Ok(())
        };
        let kept = printed(&list).await.unwrap();
        assert_eq!((kept.out.as_str(), kept.messages.as_str()), ("HOST\na\n", "a note\n"));
        assert!(!keep_out("elsewhere"));
    }
}
