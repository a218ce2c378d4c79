//! Searches programs in the path, as a shell does.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_rules::CommandRefusal;
use muster_topics::outcome::RefusalCode;

/// Where programs are looked for by name, and what they (and yunos) find in `PATH`: fixed, so that a command
/// means the same however the agent was started.
pub(crate) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program by path, from the working directory on, or by a name on the search path.
pub(crate) fn find_program(program: &str, cwd: &Path) -> Result<String, CommandRefusal> {
    if program.contains('/') {
        // Joined as texts that were texts before, so it still is one.
        return Ok(cwd.join(program).to_string_lossy().into_owned());
    }
    SEARCH_PATH
        .split(':')
        .map(|folder| format!("{folder}/{program}"))
        .find(|path| !program.is_empty() && is_executable(Path::new(path)))
        .ok_or_else(|| {
            let message = format!(
                "there is no program {program:?} in {SEARCH_PATH}\nhint: give its whole path, or run a shell if it is one of its words"
            );
            CommandRefusal::new(RefusalCode::NoSuchFile, message)
        })
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
