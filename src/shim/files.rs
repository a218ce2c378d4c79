//! The files in a shim's folder.
//!
//! | name | what |
//! |---|---|
//! | `launch.json` | the program to run, written by the agent before it starts the shim |
//! | `lock` | locked as long as a shim is here |
//! | `state.json` | the state of the program; always complete |
//! | `boot.<id>` | empty: the boot in which `state.json` was begun |
//! | `socket` | where the shim listens |
//! | `stdin` | standard input of a command, if any, written by the agent before it starts the shim |
//! | `stdout`, `stderr` | the output of a captured program |
//! | `log`, `log.1`, … | the output of a logged one; a higher number is older |
//! | `times`, `times.1`, … | the times at which each of these was written ([`times`](crate::log_times)) |
//! | `*.fifo` | where the program writes its output to |
//!
//! `state.json` is replaced by renaming, so a reader finds the old content or the new. Only the last
//! state (`over`) is synced to the disk, because waiting for a disk would delay every restart. After a
//! power cut an earlier one may therefore be damaged, which is harmless because nothing can be alive then;
//! the name of the empty file tells that case from one in which something may be, because a file's name
//! is never half written.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Launch, ProgramState, process_identity};

/// The program to run.
pub const LAUNCH: &str = "launch.json";
/// Locked while a shim runs.
pub const LOCK: &str = "lock";
/// The state of the program.
pub const STATE: &str = "state.json";
/// The socket of the shim.
pub const SOCKET: &str = "socket";
/// Standard input of a command.
pub const STDIN: &str = "stdin";
/// Standard output of a captured program.
pub const STDOUT: &str = "stdout";
/// Standard error of a captured program.
pub const STDERR: &str = "stderr";
/// The output of a logged program.
pub const LOG: &str = "log";
/// The times at which the log was written.
pub const TIMES: &str = "times";

const STATE_NEW: &str = ".state.json.new";
const BOOT_PREFIX: &str = "boot.";

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateFile {
    /// There is no file: no program was ever started here.
    Nothing,
    /// The recorded state.
    State(ProgramState),
    /// It cannot be read, which a power failure can explain: it belongs to another boot.
    Damaged,
}

/// Reads `state.json`.
///
/// # Errors
/// If it cannot be read and belongs to this boot, so that processes may still run; or if another build has written it.
pub fn read_state(folder: &Path) -> io::Result<StateFile> {
    match read(&folder.join(STATE)) {
        Ok(state) => Ok(StateFile::State(state)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StateFile::Nothing),
        Err(error)
            if error.kind() == io::ErrorKind::InvalidData
                && !is_of_another_build(&error)
                && !begun_in_this_boot(folder)? =>
        {
            Ok(StateFile::Damaged)
        }
        Err(error) => Err(error),
    }
}

/// Replaces `state.json`. When this returns, later readers see the new content; if `durable`, also after a power
/// failure.
///
/// # Errors
/// If it cannot be written; the old content then stays.
pub fn write_state(folder: &Path, state: &ProgramState, durable: bool) -> io::Result<()> {
    let beside = folder.join(STATE_NEW);
    let written = write_private(&beside, &to_json(state)?).and_then(|file| {
        if durable {
            file.sync_all()?;
        }
        clear_place(&folder.join(STATE))?;
        fs::rename(&beside, folder.join(STATE))
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    if durable { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Reads `launch.json`.
///
/// # Errors
/// If it cannot be read.
pub fn read_launch(folder: &Path) -> io::Result<Launch> {
    read(&folder.join(LAUNCH))
}

/// Writes `launch.json`. It is not synced: if it is missing after a power failure, nothing was launched.
///
/// # Errors
/// If it cannot be written.
pub fn write_launch(folder: &Path, launch: &Launch) -> io::Result<()> {
    write_private(&folder.join(LAUNCH), &to_json(launch)?).map(drop)
}

/// Removes the records of an earlier launch in `folder`, and records the current boot. Called by the agent, which holds
/// the lock.
///
/// # Errors
/// If this cannot be recorded.
pub fn begin(folder: &Path) -> io::Result<()> {
    clear(folder)?;
    write_private(&folder.join(format!("{BOOT_PREFIX}{}", process_identity::boot_id()?)), b"").map(drop)
}

/// Writes `launch.json` and the boot id again if they were damaged or deleted: a later shim needs them.
///
/// # Errors
/// If they cannot be written.
pub fn mend(folder: &Path, launch: &Launch, boot_id: &str) -> io::Result<()> {
    if read_launch(folder).ok().as_ref() != Some(launch) {
        write_launch(folder, launch)?;
    }
    let boot = folder.join(format!("{BOOT_PREFIX}{boot_id}"));
    if boot.is_file() { Ok(()) } else { write_private(&boot, b"").map(drop) }
}

/// Removes the records of an earlier launch in `folder`, but not its output.
///
/// # Errors
/// If it cannot be removed.
pub fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let path = folder.join(&*name);
        if name == STATE || name == STATE_NEW || name == SOCKET || name.starts_with(BOOT_PREFIX) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a folder in the place of one of the shim's files. Nothing else belongs into this folder.
fn clear_place(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { Ok(()) }
}

/// Removes what is at the place of one of the shim's files.
fn remove(path: &Path) -> io::Result<()> {
    clear_place(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn begun_in_this_boot(folder: &Path) -> io::Result<bool> {
    folder.join(format!("{BOOT_PREFIX}{}", process_identity::boot_id()?)).try_exists()
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        // A folder is not a record.
        io::ErrorKind::IsADirectory => io::Error::new(io::ErrorKind::InvalidData, error),
        _ => error,
    })?;
    if let Ok(Numbered { protocol: None }) = serde_json::from_slice(&bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, OtherBuild(path.to_owned())));
    }
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// What every file says.
#[derive(Deserialize)]
struct Numbered {
    protocol: Option<u32>,
}

/// What an operator can do about a file that [another build](is_of_another_build) has written.
pub const OTHER_BUILD_HINT: &str = "stop the program with the build that started it";

/// A file of a shim that a build has started which gave these files no number.
#[derive(Debug)]
struct OtherBuild(PathBuf);

impl std::fmt::Display for OtherBuild {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} was written by a build of muster from before its first release, whose shims are no longer supported",
            self.0.display()
        )
    }
}

impl std::error::Error for OtherBuild {}

/// Whether a file could not be read because it is of a shim that a build has started which gave these files no number.
#[must_use]
pub fn is_of_another_build(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<OtherBuild>())
}

fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}

/// Writes a new file that only the agent's user can read: environments and output can contain secrets. What is in its place is
/// removed rather than written to: it may be on a bad block, or a link.
fn write_private(path: &Path, content: &[u8]) -> io::Result<File> {
    remove(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ProgramState {
        ProgramState { restarts: 3, dropped_bytes: (0, 7), ..ProgramState::new(process_identity::boot_id().unwrap()) }
    }

    #[test]
    fn file_that_cannot_be_read_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        // Each read and write of it is an error of input or output.
        std::os::unix::fs::symlink("/proc/self/mem", folder.path().join(LAUNCH)).unwrap();
        let written = write_private(&folder.path().join(LAUNCH), b"{}").map(drop);
        assert_eq!(written.map_err(|error| error.to_string()), Ok(()));
        assert_eq!(fs::read(folder.path().join(LAUNCH)).unwrap(), b"{}");
    }

    #[test]
    fn folder_in_place_of_a_record_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for name in [STATE, STATE_NEW, LAUNCH] {
            let path = folder.path().join(name);
            let _ = fs::remove_file(&path);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("inside"), "x").unwrap();
        }
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::Damaged, "it was begun in no boot");
        write_state(folder.path(), &state(), true).unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::State(state()));
        fs::remove_file(folder.path().join(STATE)).unwrap();
        fs::create_dir(folder.path().join(STATE)).unwrap();
        begin(folder.path()).unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::Nothing);
    }

    #[test]
    fn a_state_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::Nothing);
        for durable in [false, true] {
            write_state(folder.path(), &state(), durable).unwrap();
            assert_eq!(read_state(folder.path()).unwrap(), StateFile::State(state()));
        }
    }

    #[test]
    fn damaged_state_of_this_boot_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(STATE), "{\"v\":1,").unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::Damaged);

        begin(folder.path()).unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::Nothing, "an earlier launch is forgotten");
        fs::write(folder.path().join(STATE), "").unwrap();
        assert!(read_state(folder.path()).is_err(), "its program may be alive");
    }

    #[test]
    fn shim_of_another_build_is_named_in_any_boot() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{\"v\":1,\"boot_id\":\"b\"}";
        for name in [STATE, LAUNCH] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let (state, launch) = (read_state(folder.path()).unwrap_err(), read_launch(folder.path()).unwrap_err());
        for (error, name) in [(state, STATE), (launch, LAUNCH)] {
            assert!(is_of_another_build(&error), "{error}");
            let error = error.to_string();
            assert!(error.contains("from before its first release") && error.contains(name), "{error}");
        }
        assert_eq!(fs::read_to_string(folder.path().join(STATE)).unwrap(), text);
    }

    #[test]
    fn failed_write_keeps_the_old_state() {
        let folder = tempfile::tempdir().unwrap();
        write_state(folder.path(), &state(), false).unwrap();
        let away = folder.path().with_extension("away");
        fs::rename(folder.path(), &away).unwrap();
        assert!(write_state(folder.path(), &ProgramState { restarts: 4, ..state() }, true).is_err());
        fs::rename(&away, folder.path()).unwrap();
        assert_eq!(read_state(folder.path()).unwrap(), StateFile::State(state()));
    }
}
