//! Raises the limit of open files, because each connection needs a descriptor.

use std::os::fd::AsFd;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::close,
};

/// Open files besides connections: listeners, the runtime's, stores and journals.
const OTHERS: u64 = 256;

/// How many files may be open, and whether that is as many as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DescriptorLimit {
    files: u64,
    is_enough: bool,
}

impl DescriptorLimit {
    fn within(hard: u64, clients: usize) -> Self {
        let wanted = (clients as u64).saturating_add(OTHERS);
        Self { files: wanted.min(hard), is_enough: wanted <= hard }
    }
}

/// Makes room for this many connections. Limits of the system are logged: fewer clients can connect, but they can.
///
/// - The limit of open files is raised as far as the process itself may. Most systems start with 1,024, for programs
///   that use select(2), and allow more on request.
/// - The kernel's table of open files is grown at once. With several threads it otherwise grows only when no processor
///   can be reading the old one (`expand_fdtable` in Linux's fs/file.c): ten milliseconds each time that it doubles,
///   together a fifth of the time in which 9,500 clients connect.
///
/// `any` is any open file.
pub fn make_room(clients: usize, any: impl AsFd) {
    match raise(clients) {
        Ok(DescriptorLimit { files, is_enough }) => {
            if !is_enough {
                tracing::warn!(
                    files,
                    clients_max = clients,
                    consequence = "fewer clients can connect than the broker allows",
                    hint = "raise the hard limit (LimitNOFILE= of systemd, `ulimit -Hn`)",
                    "the limit of open files is too low",
                );
            }
            if let Err(error) = grow(files, any) {
                tracing::debug!(%error, files, "the table of open files cannot be enlarged in advance");
            }
        }
        Err(error) => tracing::warn!(%error, clients_max = clients, "the limit of open files cannot be raised"),
    }
}

fn raise(clients: usize) -> nix::Result<DescriptorLimit> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let room = DescriptorLimit::within(hard, clients);
    if soft < room.files {
        setrlimit(Resource::RLIMIT_NOFILE, room.files, hard)?;
    }
    Ok(room)
}

/// Grows the table by opening the highest number, which is closed again.
fn grow(files: u64, any: impl AsFd) -> nix::Result<()> {
    let highest = files.saturating_sub(1).try_into().map_err(|_| Errno::EINVAL)?;
    close(fcntl(any, FcntlArg::F_DUPFD_CLOEXEC(highest))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_as_far_as_allowed() {
        assert_eq!(DescriptorLimit::within(524_288, 10_000), DescriptorLimit { files: 10_256, is_enough: true });
        assert_eq!(DescriptorLimit::within(4_096, 10_000), DescriptorLimit { files: 4_096, is_enough: false });
        assert_eq!(DescriptorLimit::within(u64::MAX, usize::MAX), DescriptorLimit { files: u64::MAX, is_enough: true });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_table_of_open_files_has_room_at_once() {
        make_room(3_000, std::io::stderr());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u64>().unwrap() >= 3_256, "{size}");
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= 3_256, "{soft}");
    }
}
