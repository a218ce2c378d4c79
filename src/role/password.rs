//! `muster broker password`: reads a password from the terminal, and prints a line of a users file.

use std::io::{self, BufRead, IsTerminal, Read, stdin};

use muster_base::{
    failure::{Failure, FailureContext, FailureKind},
    terminal::SilentTerminal,
};
use tokio_util::sync::CancellationToken;

/// The longest password that MQTT can send.
const PASSWORD_MAX_BYTES: usize = 65_535;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a password and prints `name`'s line.
///
/// # Errors
/// If the name is not a valid one, or if no password can be read.
pub(crate) async fn print_line(name: &str, shutdown: &CancellationToken) -> Result<(), Failure> {
    let password = if stdin().is_terminal() { ask(name, shutdown).await? } else { read_line(shutdown).await? };
    let line = muster_broker::password_line(name, &password).map_err(|why| {
        Failure::new(FailureKind::Usage, why)
            .hint("give the user's name as argument, and the password as the first line of standard input")
    })?;
    muster_base::terminal::out(format!("{line}\n").as_bytes())
}

/// Asks twice, to detect typing errors.
async fn ask(name: &str, shutdown: &CancellationToken) -> Result<Vec<u8>, Failure> {
    let _quiet = SilentTerminal::begin().trying("the terminal")?;
    prompt(&format!("password of {name}: "));
    let first = read_line(shutdown).await?;
    prompt("\nonce more: ");
    let second = read_line(shutdown).await?;
    prompt("\n");
    if first == second { Ok(first) } else { Err(Failure::new(FailureKind::Usage, "the passwords differ")) }
}

/// Writes to standard error, because standard output may go to a file.
fn prompt(text: &str) {
    muster_base::terminal::err(text);
}

/// The next line of standard input, without its line ending.
async fn read_line(shutdown: &CancellationToken) -> Result<Vec<u8>, Failure> {
    let reading = tokio::task::spawn_blocking(|| {
        let mut line = Vec::new();
        let most = u64::try_from(PASSWORD_MAX_BYTES + 2).unwrap_or(u64::MAX);
        stdin().lock().take(most).read_until(b'\n', &mut line)?;
        io::Result::Ok(line)
    });
    let mut line = tokio::select! {
        line = reading => line.trying("standard input")?.trying("standard input")?,
        // As in a shell: 128 + SIGINT. The terminal is restored on the way out.
        () = shutdown.cancelled() => return Err(Failure::silent(FailureKind::Code(130))),
    };
    if line.pop_if(|last| *last == b'\n').is_some() {
        line.pop_if(|last| *last == b'\r');
    }
    // Files of some systems begin with this mark.
    if line.starts_with(BYTE_ORDER_MARK) {
        line.drain(..BYTE_ORDER_MARK.len());
    }
    if line.len() > PASSWORD_MAX_BYTES {
        return Err(Failure::new(FailureKind::Usage, format!("a password has at most {PASSWORD_MAX_BYTES} bytes")));
    }
    Ok(line)
}
