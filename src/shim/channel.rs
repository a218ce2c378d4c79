//! Handles the program's channel of JSON lines: reports who connects, takes in what concerns the shim, and
//! forwards the rest between program and agent.

use std::{fs::File, io, io::Read};

use muster_shim::{ChannelInfo, ChannelToken, ChannelWelcome, PeerConnected, SAID_MAX_BYTES};

use crate::{
    line::{ChannelHello, ChannelLine},
    lines::ChannelEvent,
    notify::{self, NotifyMessage},
    supervise::{ProgramSocket, Supervisor},
};

impl Supervisor {
    /// A new token for a process that may use the channel; `None` if the program has no channel.
    pub(crate) fn token(&self) -> io::Result<Option<ChannelToken>> {
        self.welcome().map(|_| new_token()).transpose()
    }

    /// Sets the token of the process that is about to start.
    pub(crate) fn renew_channel(&mut self, token: Option<ChannelToken>) {
        if let Some((welcome, token)) = self.welcome().zip(token) {
            let playing = self.state.channel.as_ref().map_or(welcome.playing, |channel| channel.playing);
            self.state.channel = Some(Box::new(ChannelInfo { token, playing, connections: 0, connected: None }));
        }
    }

    fn welcome(&self) -> Option<&ChannelWelcome> {
        self.life.launch().notify.as_ref()?.lines.as_ref()
    }

    /// Accepts connections to the channel, and handles their lines.
    pub(crate) fn handle_lines(&mut self) {
        let (ProgramSocket::Lines(lines), Some(channel)) = (&mut self.socket, &self.state.channel) else { return };
        lines.accept(|pid| self.body.is_part(pid));
        for heard in lines.hear(&channel.token) {
            match heard {
                ChannelEvent::Hello(hello) => self.greet(hello),
                ChannelEvent::Line(ChannelLine::Ready) => self.handle_message(NotifyMessage::Ready),
                ChannelEvent::Line(ChannelLine::Alive) => self.handle_message(NotifyMessage::Alive),
                ChannelEvent::Line(ChannelLine::Status(status)) => {
                    self.handle_message(NotifyMessage::Status(notify::status(status.as_bytes())));
                }
                // All other messages are events of their own.
                ChannelEvent::Line(ChannelLine::Hello(_) | ChannelLine::Other) => {}
                // Without an agent the line is dropped: nobody would remember it.
                ChannelEvent::Said(line) => self.tell(|agent, _| agent.relay(line)),
                ChannelEvent::Gone => self.gone(),
            }
        }
    }

    fn greet(&mut self, hello: ChannelHello) {
        let Some(channel) = &mut self.state.channel else { return };
        let (is_ready, playing) = (hello.ready, channel.playing);
        channel.connections += 1;
        channel.connected = Some(PeerConnected { playing, can: hello.can() });
        self.changed();
        let welcome = self.welcome().map(|welcome| ChannelWelcome { playing, ..welcome.clone() });
        let text = serde_json::to_string(&welcome).unwrap_or_default();
        if let Some(lines) = self.socket.lines_mut() {
            // If the process is gone, the next read reports that.
            let _ = lines.say(&format!("{{\"welcome\":{text}}}"));
        }
        if is_ready {
            self.handle_message(NotifyMessage::Ready);
        }
    }

    /// Closes the connection: the process is gone, or belonged to another shim.
    pub(crate) fn hang_up(&mut self) {
        if let Some(lines) = self.socket.lines_mut() {
            lines.hang_up();
        }
        self.gone();
    }

    fn gone(&mut self) {
        let connected = self.state.channel.as_mut().and_then(|channel| channel.connected.take());
        if connected.is_some() {
            self.changed();
        }
    }

    /// Sends a line to the program; if that fails, the agent is told at once.
    pub(crate) fn say(&mut self, id: &str, line: &str) {
        let said = line.len() <= SAID_MAX_BYTES && self.socket.lines_mut().is_some_and(|lines| lines.say(line));
        if !said {
            self.tell(|agent, _| agent.unreachable(id));
        }
    }

    /// Sets what the next welcome says about playing.
    pub(crate) fn set_playing(&mut self, playing: bool) {
        if let Some(channel) = &mut self.state.channel
            && channel.playing != playing
        {
            channel.playing = playing;
            self.changed();
        }
    }
}

/// 128 random bits.
fn new_token() -> io::Result<ChannelToken> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(ChannelToken(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
}
