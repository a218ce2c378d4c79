//! A validated program of a command, ready to be launched.

use muster_rules::CommandRefusal;
use muster_shim::Launch;
use muster_topics::{
    command::{Exec, STDIN_MAX_BYTES},
    outcome::RefusalCode,
};

use super::{inside::RunningContainer, prepare::launch};

/// A program that is ready to be launched.
#[derive(Debug)]
pub(super) struct PreparedProgram {
    pub(super) launch: Launch,
    /// Its standard input.
    pub(super) stdin: Option<Vec<u8>>,
}

/// Prepares a command's program, on the host or in a container.
pub(super) fn prepare(exec: &Exec, inside: Option<&RunningContainer>) -> Result<PreparedProgram, CommandRefusal> {
    let stdin = stdin(exec)?;
    let launch = match inside {
        Some(container) => container.launch(exec)?,
        None => launch(exec)?,
    };
    Ok(PreparedProgram { launch, stdin })
}

pub(super) fn stdin(exec: &Exec) -> Result<Option<Vec<u8>>, CommandRefusal> {
    let Some(data) = &exec.stdin else { return Ok(None) };
    let invalid = |message: String| CommandRefusal::new(RefusalCode::Invalid, message);
    let bytes = data.to_bytes().map_err(|error| invalid(format!("its standard input is not valid base64: {error}")))?;
    if bytes.len() > STDIN_MAX_BYTES {
        return Err(invalid(format!(
            "its standard input has {} bytes; at most {STDIN_MAX_BYTES} are allowed",
            bytes.len()
        )));
    }
    Ok(Some(bytes))
}
