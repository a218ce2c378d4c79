//! Searches programs in the path, as a shell does.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_rules::CommandRefusal;
use muster_topics::{diagnostic::Diagnostic, outcome::RefusalCode};

/// The `PATH` of commands and yunos: fixed, so that a command means the same however the agent was started.
pub(crate) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Resolves a program: by path, relative to the working directory, or by name on the search path.
pub(crate) fn find_program(program: &str, cwd: &Path) -> Result<String, CommandRefusal> {
    if program.contains('/') {
        // Both parts are UTF-8, so the result is, too.
        return Ok(cwd.join(program).to_string_lossy().into_owned());
    }
    SEARCH_PATH
        .split(':')
        .map(|folder| format!("{folder}/{program}"))
        .find(|path| !program.is_empty() && is_executable(Path::new(path)))
        .ok_or_else(|| {
            let message = Diagnostic::new(format_args!("there is no program {program:?} in {SEARCH_PATH}"))
                .with_hint("give its whole path, or run a shell if it is one of its words");
            CommandRefusal::new(RefusalCode::NoSuchFile, message)
        })
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
