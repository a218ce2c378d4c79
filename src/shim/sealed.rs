//! A copy in memory that nobody can change any more, not even root by `/proc/<pid>/exe`.
//!
//! What is in a container could write to files that it reaches by a process that has just come in: to the file of the
//! shim's program, which is the host's, and to what a command reads. So what goes in is such a copy.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read, Seek},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

/// A copy of all that `original` gives, to be read from its beginning. `name` is what `/proc` shows of it.
///
/// # Errors
/// What reading, or making a file in memory, ends with.
pub fn copy(name: &CStr, original: &mut impl Read) -> io::Result<File> {
    let mut copy = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    io::copy(original, &mut copy)?;
    copy.rewind()?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::fd::AsRawFd, process::Command};

    use super::*;

    #[test]
    fn it_runs_and_stays_as_it_is() {
        let program = fs::read("/bin/true").unwrap();
        let mut copy = copy(c"true", &mut program.as_slice()).unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        assert!(Command::new(&path).status().unwrap().success());
        assert!(copy.write_all(b"more").is_err() && copy.set_len(0).is_err());
        assert!(File::options().write(true).open(&path).and_then(|mut again| again.write_all(b"x")).is_err());
        assert_eq!(fs::read(&path).unwrap(), program);
    }
}
