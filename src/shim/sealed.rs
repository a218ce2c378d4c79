//! An immutable copy in memory, which not even root can change by `/proc/<pid>/exe`.
//!
//! A container could write to files that it reaches through a process that has just entered: to the file of the
//! shim's program, which is the host's, and to the input of a command. So what enters is such a copy.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read, Seek},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

/// A sealed copy in memory of everything that `original` returns, positioned at its start. `name` appears in `/proc`.
///
/// # Errors
/// If reading or creating the file in memory fails.
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
    fn sealed_copy_runs_and_is_immutable() {
        let program = fs::read("/bin/true").unwrap();
        let mut copy = copy(c"true", &mut program.as_slice()).unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        assert!(Command::new(&path).status().unwrap().success());
        assert!(copy.write_all(b"more").is_err() && copy.set_len(0).is_err());
        assert!(File::options().write(true).open(&path).and_then(|mut again| again.write_all(b"x")).is_err());
        assert_eq!(fs::read(&path).unwrap(), program);
    }
}
