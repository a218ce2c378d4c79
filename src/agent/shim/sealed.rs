//! A copy of the shim's program that nobody can change.
//!
//! For the moment before it executes a program of a container, a process of the shim's is in there, and what else is in
//! there could come to write to its file by `/proc/<pid>/exe`: root inside may well be root outside. So what goes into
//! containers runs from memory, sealed.

use std::{
    fs::File,
    io::{self, Write},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

pub(super) fn copy(program: &[u8]) -> io::Result<File> {
    let mut copy = File::from(memfd_create(c"muster-shim", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    copy.write_all(program)?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsRawFd, process::Command};

    use super::*;

    #[test]
    fn it_runs_and_stays_as_it_is() {
        let program = fs::read("/bin/true").unwrap();
        let mut copy = copy(&program).unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        assert!(Command::new(&path).status().unwrap().success());
        assert!(copy.write_all(b"more").is_err() && copy.set_len(0).is_err());
        assert!(File::options().write(true).open(&path).and_then(|mut again| again.write_all(b"x")).is_err());
        assert_eq!(fs::read(&path).unwrap(), program);
    }
}
