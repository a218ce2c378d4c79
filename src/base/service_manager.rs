//! Notifies the service manager that started this process, by systemd's notify protocol: ready, status, watchdog, stopping.
//!
//! It is optional: without `NOTIFY_SOCKET` nothing is sent.

use std::{
    env,
    ffi::OsString,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use crate::failure::{Failure, FailureKind};

/// The service manager that started this process, if it wants to be notified.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process.
    ///
    /// # Errors
    /// If the environment names an invalid socket.
    pub fn of_this_process() -> Result<Self, Failure> {
        Self::from_environment(|name| env::var_os(name), std::process::id())
            .map_err(|error| Failure::new(FailureKind::Usage, error))
    }

    /// Reads what the manager has put into the environment of process `pid`.
    fn from_environment(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> io::Result<Self> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(Self::default()) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(&name)?,
            _ => return Err(io::Error::other(format!("NOTIFY_SOCKET: {} is not a local socket", name.display()))),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not block this process.
        socket.set_nonblocking(true)?;
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        // A variable that was meant for another process was inherited.
        let is_ours = number("WATCHDOG_PID").is_none_or(|wanted| wanted == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0).map(Duration::from_micros);
        Ok(Self { socket: Some((socket, address)), watchdog })
    }

    /// Whether there is one that wants to be notified.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// How long this process may go without a sign of life, if that is watched.
    #[must_use]
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that this process is up, with a status.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports a status.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={}", one_line(status)));
    }

    /// Gives a sign of life.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// Reports that this process is about to end, with a status.
    pub fn stopping(&self, status: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    fn say(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager cannot be notified");
        }
    }
}

/// Joins lines: a line break would begin another field of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::net::UnixDatagram as Listener};

    use super::*;

    fn manager(variables: &[(&str, &str)]) -> io::Result<ServiceManager> {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        ServiceManager::from_environment(|name| variables.get(name).map(OsString::from), 7)
    }

    fn heard(listener: &Listener) -> String {
        let mut message = [0; 512];
        let length = listener.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    }

    #[test]
    fn notifications_arrive_at_path_and_abstract_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("muster-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        for (listener, name) in [
            (Listener::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
            (Listener::bind_addr(&address).unwrap(), format!("@{name}")),
        ] {
            let manager = manager(&[("NOTIFY_SOCKET", &name)]).unwrap();
            manager.ready("up\nREADY=0");
            assert_eq!(heard(&listener), "READY=1\nSTATUS=up READY=0", "a status is one word of the protocol");
            manager.stopping("bye");
            assert_eq!(heard(&listener), "STOPPING=1\nSTATUS=bye");
        }
    }

    #[test]
    fn missing_listener_is_ignored() {
        for variables in [&[][..], &[("NOTIFY_SOCKET", "")], &[("NOTIFY_SOCKET", "/no/such/socket")]] {
            manager(variables).unwrap().ready("up");
        }
        assert!(manager(&[("NOTIFY_SOCKET", "vsock:2:1")]).is_err());
    }

    #[test]
    fn watchdog_of_other_process_is_ignored() {
        for (variables, wanted) in [
            (&[("WATCHDOG_USEC", "3000000")][..], Some(Duration::from_secs(3))),
            (&[("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", "7")], Some(Duration::from_secs(3))),
            (&[("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", "8")], None),
            (&[("WATCHDOG_USEC", "0")], None),
            (&[("WATCHDOG_USEC", "soon")], None),
            (&[], None),
        ] {
            let with_socket = [variables, &[("NOTIFY_SOCKET", "@x")]].concat();
            assert_eq!(manager(&with_socket).unwrap().watchdog, wanted, "{variables:?}");
        }
    }
}
