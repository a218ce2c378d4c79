//! What the shim does about its program's channel of JSON lines: who speaks there is told, what it says of itself is
//! taken in, and all else passes between it and the agent.

use std::{fs::File, io, io::Read};

use muster_shim::{Channel, Connected, SAID_MAX_BYTES, Token, Welcome};

use crate::{
    line::{Hello, Line},
    lines::Heard,
    notify::{self, Word},
    supervise::Shim,
};

impl Shim {
    /// A token for a process that will speak there, which is its own; nothing if the program has no such channel.
    pub(crate) fn token(&self) -> io::Result<Option<Token>> {
        self.welcome().map(|_| new_token()).transpose()
    }

    /// The process that is about to be the program has this token.
    pub(crate) fn renew_channel(&mut self, token: Option<Token>) {
        if let Some((welcome, token)) = self.welcome().zip(token) {
            let playing = self.state.channel.as_ref().map_or(welcome.playing, |channel| channel.playing);
            self.state.channel = Some(Box::new(Channel { token, playing, connections: 0, connected: None }));
        }
    }

    fn welcome(&self) -> Option<&Welcome> {
        self.life.launch().notify.as_ref()?.lines.as_ref()
    }

    /// Takes in who connects to the channel, and what is said there.
    pub(crate) fn hear_lines(&mut self) {
        let (Some(lines), Some(channel)) = (&mut self.lines, &self.state.channel) else { return };
        lines.accept(|pid| self.body.is_part(pid));
        for heard in lines.hear(&channel.token) {
            match heard {
                Heard::Hello(hello) => self.greet(hello),
                Heard::Line(Line::Ready) => self.heard(Word::Ready),
                Heard::Line(Line::Alive) => self.heard(Word::Alive),
                Heard::Line(Line::Status(status)) => self.heard(Word::Status(notify::status(status.as_bytes()))),
                // The others are said as what they are.
                Heard::Line(Line::Hello(_) | Line::Other) => {}
                // While there is no agent nobody remembers what it would have been told.
                Heard::Said(line) => self.tell(|agent, _| agent.relay(line)),
                Heard::Gone => self.gone(),
            }
        }
    }

    fn greet(&mut self, hello: Hello) {
        let Some(channel) = &mut self.state.channel else { return };
        let (is_ready, playing) = (hello.ready, channel.playing);
        channel.connections += 1;
        channel.connected = Some(Connected { playing, can: hello.can() });
        (self.unrecorded, self.untold) = (true, true);
        let welcome = self.welcome().map(|welcome| Welcome { playing, ..welcome.clone() });
        let text = serde_json::to_string(&welcome).unwrap_or_default();
        if let Some(lines) = &mut self.lines {
            // If it is gone already, that is heard next.
            let _ = lines.say(&format!("{{\"welcome\":{text}}}"));
        }
        if is_ready {
            self.heard(Word::Ready);
        }
    }

    /// The process is gone, or was another shim's: it has no connection here.
    pub(crate) fn hang_up(&mut self) {
        if let Some(lines) = &mut self.lines {
            lines.hang_up();
        }
        self.gone();
    }

    fn gone(&mut self) {
        let connected = self.state.channel.as_mut().and_then(|channel| channel.connected.take());
        if connected.is_some() {
            (self.unrecorded, self.untold) = (true, true);
        }
    }

    /// Says a line to the program; if that cannot be, the agent hears so at once.
    pub(crate) fn say(&mut self, id: &str, line: &str) {
        let said = line.len() <= SAID_MAX_BYTES && self.lines.as_mut().is_some_and(|lines| lines.say(line));
        if !said {
            self.tell(|agent, _| agent.unreachable(id));
        }
    }

    /// Remembers what the next welcome says.
    pub(crate) fn shall_play(&mut self, playing: bool) {
        if let Some(channel) = &mut self.state.channel
            && channel.playing != playing
        {
            channel.playing = playing;
            (self.unrecorded, self.untold) = (true, true);
        }
    }
}

/// 128 bits that nobody can guess.
fn new_token() -> io::Result<Token> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
}
