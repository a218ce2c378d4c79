//! Receives systemd's notify protocol from the program: datagrams of lines `NAME=value`, sent to the
//! socket that `NOTIFY_SOCKET` names.
//!
//! The socket has an abstract name, because a program that runs as another user cannot reach the shim's
//! folder, and a path is limited to 108 bytes. So anybody on this host may send to it; datagrams
//! of other processes than the program's own are ignored ([`crate::program_processes::Body::is_part`]).
//!
//! The kernel closes descriptors that come with a message, because there is no room for them. A
//! `BARRIER=1` waits for exactly that.

use std::{
    io::{self, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt::PassCred},
};

/// Longest message, as in systemd.
const MESSAGE_MAX_BYTES: usize = 4096;
/// Longest status that is kept: a line for people, which is part of every state that is sent.
const STATUS_MAX_BYTES: usize = 200;

/// The notify socket of a program.
#[derive(Debug)]
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
}

/// A message of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotifyMessage {
    /// It is ready, or has read its configuration again.
    Ready,
    /// It is reading its configuration again.
    Reloading,
    /// It is about to end.
    Stopping,
    /// It is alive.
    Alive,
    /// It reports a failure of its own.
    Unwell,
    /// What it is doing, for people.
    Status(String),
    /// Another process is its main one, which is not allowed here.
    MainPid,
}

impl NotifySocket {
    /// Listens on an abstract socket.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, PassCred, &true)?;
        Ok(Self { socket })
    }

    /// The descriptor to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next message, and the process that sent it according to the kernel.
    pub(crate) fn receive(&self) -> Option<(i32, Vec<NotifyMessage>)> {
        let mut message = [0; MESSAGE_MAX_BYTES];
        let mut control = cmsg_space!(UnixCredentials);
        loop {
            let mut place = [IoSliceMut::new(&mut message)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_TRUNC;
            let received = recvmsg::<()>(self.socket.as_raw_fd(), &mut place, Some(&mut control), flags).ok()?;
            // A message with descriptors has unreadable control messages, and one that is too long is invalid.
            let sender = received.cmsgs().ok().and_then(|mut all| {
                all.find_map(|message| match message {
                    ControlMessageOwned::ScmCredentials(sender) => Some(sender.pid()),
                    _ => None,
                })
            });
            let len = received.bytes;
            if let (Some(sender), Some(message)) = (sender, message.get(..len)) {
                return Some((sender, words(message)));
            }
        }
    }
}

/// The parts of a message that concern the shim.
fn words(message: &[u8]) -> Vec<NotifyMessage> {
    message.split(|byte| *byte == b'\n').filter_map(word).collect()
}

fn word(line: &[u8]) -> Option<NotifyMessage> {
    Some(match line {
        b"READY=1" => NotifyMessage::Ready,
        b"RELOADING=1" => NotifyMessage::Reloading,
        b"STOPPING=1" => NotifyMessage::Stopping,
        b"WATCHDOG=1" => NotifyMessage::Alive,
        b"WATCHDOG=trigger" => NotifyMessage::Unwell,
        _ if line.starts_with(b"MAINPID=") => NotifyMessage::MainPid,
        _ => NotifyMessage::Status(status(line.strip_prefix(b"STATUS=")?)),
    })
}

/// A status as one line of printable text.
pub(crate) fn status(bytes: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        let character = if character.is_control() { ' ' } else { character };
        if text.len() + character.len_utf8() > STATUS_MAX_BYTES {
            break;
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notify_messages_are_parsed() {
        let status = |text: &str| NotifyMessage::Status(text.to_owned());
        for (message, wanted) in [
            ("READY=1", vec![NotifyMessage::Ready]),
            ("READY=1\n", vec![NotifyMessage::Ready]),
            (
                "STATUS=all is well\nREADY=1\nMAINPID=7",
                vec![status("all is well"), NotifyMessage::Ready, NotifyMessage::MainPid],
            ),
            ("RELOADING=1\nMONOTONIC_USEC=12", vec![NotifyMessage::Reloading]),
            ("STOPPING=1", vec![NotifyMessage::Stopping]),
            ("WATCHDOG=1", vec![NotifyMessage::Alive]),
            ("WATCHDOG=trigger", vec![NotifyMessage::Unwell]),
            ("STATUS=", vec![status("")]),
            ("STATUS=a\tb\u{1b}[2J", vec![status("a b [2J")]),
            ("READY=0", vec![]),
            ("ready=1", vec![]),
            ("", vec![]),
            ("\n\n=\nX", vec![]),
        ] {
            assert_eq!(words(message.as_bytes()), wanted, "{message:?}");
        }
        let long = format!("STATUS={}", "é".repeat(500));
        assert_eq!(words(long.as_bytes()), [status(&"é".repeat(100))]);
        assert_eq!(words(b"STATUS=\xff"), [status("\u{fffd}")]);
    }

    #[test]
    fn sender_of_a_message_is_known() {
        let name = format!("muster-test-{}", std::process::id());
        let notify = NotifySocket::open(&name).unwrap();
        assert!(NotifySocket::open(&name).is_err(), "nobody else can listen there");
        assert_eq!(notify.receive(), None);
        let ours = UnixDatagram::unbound().unwrap();
        ours.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        let to = SocketAddr::from_abstract_name(&name).unwrap();
        // Messages that are too long or carry descriptors are ignored.
        ours.send_to_addr(&[b'x'; MESSAGE_MAX_BYTES + 1], &to).unwrap();
        ours.send_to_addr(b"READY=1", &to).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(notify.receive(), Some((own, vec![NotifyMessage::Ready])));
        assert_eq!(notify.receive(), None);
    }
}
