//! Who holds the lock of a package manager.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};

/// The longest command line that is shown.
const COMMAND_MAX_CHARS: usize = 120;

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockHolder {
    pub(super) pid: i32,
    /// Its command line, as far as known.
    pub(super) command: String,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            // A process of another container.
            ..=0 => f.write_str("a process that cannot be seen from here"),
            pid => write!(f, "{} (process {pid})", self.command),
        }
    }
}

/// Returns who holds the lock of a file, which is not taken; `None` if nobody does, or there is no such file.
pub(super) fn holder(path: &Path) -> io::Result<Option<LockHolder>> {
    let file = match File::options().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    if lock.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(None);
    }
    let command = fs::read(format!("/proc/{}/cmdline", lock.l_pid)).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace(char::is_control, " ");
    let command = match command.trim() {
        "" => "a program".to_owned(),
        command => command.chars().take(COMMAND_MAX_CHARS).collect(),
    };
    Ok(Some(LockHolder { pid: lock.l_pid, command }))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn holder_of_a_lock_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(holder(&path).unwrap(), None);
        File::create(&path).unwrap();
        assert_eq!(holder(&path).unwrap(), None);
        // `flock` takes another kind of lock than apt does.
        let script = "import fcntl,sys\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('held',flush=True)\nsys.stdin.read()\n";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut said).unwrap();
        let held = holder(&path).unwrap().unwrap();
        assert_eq!(held.pid, i32::try_from(child.id()).unwrap());
        assert!(held.command.contains("python3 -c import fcntl,sys f=open"), "{held}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(holder(&path).unwrap(), None);
    }
}
