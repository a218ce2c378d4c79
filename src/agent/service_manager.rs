//! Notifies the service manager by systemd's notify protocol: ready, status, watchdog, stopping.
//!
//! It is optional: without `NOTIFY_SOCKET` the agent sends nothing.

use std::{
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

use muster_topics::unit::Phase;
use tokio_util::sync::CancellationToken;

use muster_session::unit_state::UnitStates;

use super::running::RunningAgent;

/// How long changes are gathered before they are reported: people do not read faster.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// The service manager that started this process, if it wants to be notified.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads what the manager has put into the environment of process `pid`.
    ///
    /// # Errors
    /// If it names an invalid socket.
    pub fn from_environment(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> io::Result<Self> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(Self::default()) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(&name)?,
            _ => return Err(io::Error::other(format!("NOTIFY_SOCKET: {} is no local socket", name.display()))),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not block the agent.
        socket.set_nonblocking(true)?;
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        // A variable that was meant for another process was inherited.
        let is_ours = number("WATCHDOG_PID").is_none_or(|wanted| wanted == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0).map(Duration::from_micros);
        Ok(Self { socket: Some((socket, address)), watchdog })
    }

    /// Reports that the agent is up, with a status.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports a status.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={}", one_line(status)));
    }

    /// Reports that the agent is about to end.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=the agent ends; yunos go on");
    }

    fn say(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager does not hear");
        }
    }

    /// Reports the status of a running agent until `shutdown`, and then its end.
    pub async fn follow(&self, agent: &RunningAgent, shutdown: &CancellationToken) {
        if self.socket.is_none() {
            return shutdown.cancelled().await;
        }
        shutdown
            .run_until_cancelled(async {
                agent.looked_up().await;
                self.ready(&describe(*agent.connected().borrow(), &agent.units().borrow()));
                tokio::join!(self.report_status_changes(agent), self.notify_watchdog(agent));
            })
            .await;
        self.stopping();
    }

    async fn report_status_changes(&self, agent: &RunningAgent) {
        let (mut connected, mut units) = (agent.connected(), agent.units());
        let mut told = String::new();
        loop {
            let now = describe(*connected.borrow_and_update(), &units.borrow_and_update());
            if now != told {
                self.status(&now);
                told = now;
            }
            tokio::time::sleep(STATUS_PAUSE).await;
            // Both keep changes until they are read; an error means that the agent has ended.
            let changed = tokio::select! {
                changed = connected.changed() => changed,
                changed = units.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Notifies the watchdog as long as the agent's loop answers: three times within the watchdog's time, so that one
    /// answer may be late.
    async fn notify_watchdog(&self, agent: &RunningAgent) {
        let Some(time) = self.watchdog else { return };
        let every = time / 3;
        loop {
            match tokio::time::timeout(every, agent.answers()).await {
                Ok(true) => self.say("WATCHDOG=1"),
                Ok(false) => return,
                Err(_) => tracing::warn!("the agent's loop has not answered for {} s", every.as_secs()),
            }
            tokio::time::sleep(every).await;
        }
    }
}

/// Describes the agent's state in a line for people.
fn describe(connected: bool, units: &UnitStates) -> String {
    let connection = if connected { "connected" } else { "not connected to the broker" };
    let running = units.values().filter(|unit| unit.observed.phase == Phase::Running).count();
    match units.len() {
        0 => format!("{connection}; no units"),
        all => format!("{connection}; {running} of {all} units running"),
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
        let name = format!("muster-test-{}", uuid::Uuid::new_v4());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        for (listener, name) in [
            (Listener::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
            (Listener::bind_addr(&address).unwrap(), format!("@{name}")),
        ] {
            let manager = manager(&[("NOTIFY_SOCKET", &name)]).unwrap();
            manager.ready("up\nREADY=0");
            assert_eq!(heard(&listener), "READY=1\nSTATUS=up READY=0", "a status is one word of the protocol");
            manager.stopping();
            assert!(heard(&listener).starts_with("STOPPING=1\n"));
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

    #[test]
    fn status_is_one_line() {
        assert_eq!(describe(false, &UnitStates::default()), "not connected to the broker; no units");
        assert_eq!(describe(true, &UnitStates::default()), "connected; no units");
    }
}
