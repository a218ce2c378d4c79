//! Reads how a container ended from the log that `lxc-start` writes at level INFO: its own exit status tells only whether
//! the container was started.
//!
//! ```text
//! lxc-start NAME TIME NOTICE   start - ../src/lxc/start.c:post_start:2205 - Started "/bin/sh" with pid "29831"
//! lxc-start NAME TIME INFO     error - ../src/lxc/error.c:lxc_error_set_and_log:31 - Child <29831> ended on error (7)
//! lxc-start NAME TIME INFO     error - ../src/lxc/error.c:lxc_error_set_and_log:34 - Child <29831> ended on signal Killed(9)
//! ```
//!
//! An exit with 0 is not logged; it is assumed if `lxc-start` itself ended properly.

use muster_topics::unit::Exit;

/// The longest reason that is reported.
const WHY_MAX_CHARS: usize = 400;

/// Returns the exit of a container's first process, from LXC's log and the exit of `lxc-start`.
pub(super) fn exit(log: &str, lxc_start: muster_shim::ProcessExit) -> Exit {
    let told = log.lines().rev().find_map(|line| ended_on(message(line)?));
    match (told, lxc_start) {
        (Some(exit), _) => exit,
        (None, muster_shim::ProcessExit::Code(0)) => Exit::Code(0),
        // It never started, or `lxc-start` was killed before it knew.
        (None, _) => Exit::Unknown,
    }
}

/// Returns why a container did not start: the first two errors, of which the first is the cause and the second the
/// context.
pub(super) fn why_not(log: &str) -> String {
    let errors = log.lines().filter(|line| level(line) == Some("ERROR")).filter_map(message);
    let words = errors.take(2).collect::<Vec<_>>().join("; ");
    if words.is_empty() { "it gave no reason".to_owned() } else { words.chars().take(WHY_MAX_CHARS).collect() }
}

fn ended_on(message: &str) -> Option<Exit> {
    let (_, end) = message.strip_prefix("Child <")?.split_once("> ended on ")?;
    let number = || end.strip_suffix(')')?.rsplit_once('(')?.1.parse().ok();
    match end.split(' ').next()? {
        "error" => number().map(Exit::Code),
        "signal" => number().map(Exit::Signal),
        _ => None,
    }
}

/// `PROGRAM NAME TIME LEVEL …`
fn level(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().nth(3)
}

/// Returns the message after the name of LXC's part and the place in its source.
fn message(line: &str) -> Option<&str> {
    line.splitn(3, " - ").nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: &str = "lxc-start b 20261122202054.929 NOTICE   start - ../src/lxc/start.c:post_start:2205 - Started \"/bin/sh\" with pid \"7\"\n";

    fn line(level: &str, message: &str) -> String {
        format!(
            "lxc-start b 20261122202113.969 {level}     error - ../src/lxc/error.c:lxc_error_set_and_log:34 - {message}\n"
        )
    }

    #[test]
    fn exit_codes_and_signals_are_parsed() {
        use muster_shim::ProcessExit::{Code, Signal};
        for (message, lxc_start, wanted) in [
            ("Child <7> ended on error (3)", Code(0), Exit::Code(3)),
            ("Child <7> ended on signal Killed(9)", Code(0), Exit::Signal(9)),
            ("Child <7> ended on signal (15)", Code(0), Exit::Signal(15)),
            ("Child <7> ended on signal Real-time signal 2(36)", Code(0), Exit::Signal(36)),
            // What is not understood is not guessed.
            ("Child <7> ended on a whim (15)", Signal(9), Exit::Unknown),
            ("Child <7> ended on error (x)", Code(1), Exit::Unknown),
            ("Container \"b\" is initialized", Code(0), Exit::Code(0)),
            ("Container \"b\" is initialized", Code(1), Exit::Unknown),
            ("Container \"b\" is initialized", Signal(9), Exit::Unknown),
        ] {
            assert_eq!(exit(&format!("{STARTED}{}", line("INFO", message)), lxc_start), wanted, "{message}");
        }
        assert_eq!(exit("", Code(0)), Exit::Code(0));
        assert_eq!(exit("nonsense\n - - -\n", muster_shim::ProcessExit::Unknown), Exit::Unknown);
    }

    #[test]
    fn first_error_is_the_cause() {
        let log = [
            line("INFO", "all is well"),
            line("ERROR", "No such file or directory - Failed to exec \"/bin/x\""),
            line("ERROR", "An error occurred in another process"),
            line("ERROR", "The container failed to start"),
        ];
        let wanted = "No such file or directory - Failed to exec \"/bin/x\"; An error occurred in another process";
        assert_eq!(why_not(&log.concat()), wanted);
        assert_eq!(why_not(STARTED), "it gave no reason");
    }
}
