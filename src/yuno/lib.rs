//! The channel between a program and the muster agent that keeps it, for programs in Rust that are content to block:
//! the standard library, `serde_json`, and no threads of its own.
//!
//! A program whose unit has `"channel": "lines"` finds the channel in its environment. It connects, says what it can,
//! says that it is ready, and then answers requests:
//!
//! ```no_run
//! use muster_yuno::{YunoQuestion, Yuno};
//! use serde_json::json;
//!
//! let mut yuno = Yuno::connect_from_env(&["play", "command", "stats"])?;
//! yuno.ready()?;
//! loop {
//!     let request = yuno.next()?;
//!     match request.ask() {
//!         YunoQuestion::Play | YunoQuestion::Pause => yuno.ok(&request, json!(null))?,
//!         YunoQuestion::Stats => yuno.ok(&request, json!({ "requests": 7 }))?,
//!         _ => yuno.error(&request, "unknown", "this is not known here")?,
//!     }
//! }
//! # #[allow(unreachable_code)] Ok::<(), muster_yuno::ChannelError>(())
//! ```
//!
//! A connection that is lost is made anew, by whatever call notices it; until then a call waits, as its program has
//! nobody else to speak with. What was said of readiness and status is said again, and an answer to a request of
//! before is dropped, for nobody waits for it any more.
//!
//! `topics/CHANNEL.md` says what passes on the channel, line by line.

mod stream;

use std::{
    fmt, io,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

use stream::{ChannelStream, LINE_MAX_BYTES};

/// Version of the protocol that this library implements.
const PROTOCOL: u32 = 1;
/// Waits between attempts to connect: first short, so that nobody notices; at last long enough to cause no load.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the shim's welcome, which normally takes microseconds.
const WELCOME_MAX: Duration = Duration::from_secs(10);

/// Why the channel cannot be used.
#[derive(Debug)]
pub enum ChannelError {
    /// This process was not started with a channel.
    NoChannel,
    /// The shim refuses this process; another attempt would fail as well.
    Refused(String),
    /// The message is longer than a line may be.
    TooLong(usize),
    /// The channel's socket does not work.
    Io(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChannel => f.write_str(
                "MUSTER_SOCKET or MUSTER_TOKEN is not set: run this as a yuno whose spec has \"channel\": \"lines\"",
            ),
            Self::Refused(why) => write!(f, "the channel is refused: {why}"),
            Self::TooLong(bytes) => {
                write!(f, "a line of {bytes} bytes is too long; at most {LINE_MAX_BYTES} are allowed")
            }
            Self::Io(error) => write!(f, "the channel cannot be used: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::NoChannel | Self::Refused(_) | Self::TooLong(_) => None,
        }
    }
}

/// The contents of the channel's welcome message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WelcomeInfo {
    /// The id of this unit.
    pub unit: String,
    /// The host that it runs on.
    pub host: String,
    /// The unit's realm.
    pub realm: String,
    /// Whether this process should play.
    pub playing: bool,
    /// The path of its configuration, if it has one.
    pub config: Option<String>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum YunoQuestion {
    /// Start to play.
    Play,
    /// Stop playing.
    Pause,
    /// Run a command of this program, with arguments.
    Command(String, Map<String, Value>),
    /// Report statistics.
    Stats,
    /// Read the configuration again.
    Reload,
    /// Use this configuration.
    Config(Value),
    /// A request that this version does not know, by its name.
    Other(String),
}

/// A request, which needs an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct YunoRequest {
    id: String,
    /// The connection on which it arrived.
    connection: u64,
    ask: YunoQuestion,
}

impl YunoRequest {
    /// What the request asks for.
    #[must_use]
    pub fn ask(&self) -> &YunoQuestion {
        &self.ask
    }
}

/// The connection of this process to its agent.
#[derive(Debug)]
pub struct Yuno {
    socket: String,
    token: String,
    can: Vec<String>,
    ready: bool,
    status: Option<String>,
    stream: Option<ChannelStream>,
    connections: u64,
    welcome: WelcomeInfo,
}

impl Yuno {
    /// Connects to the channel that the environment names. `can` lists the requests that this process supports: any of
    /// `play`, `command`, `stats`, `reload` and `config`.
    ///
    /// # Errors
    /// If there is no channel, or if it refuses this process.
    pub fn connect_from_env(can: &[&str]) -> Result<Self, ChannelError> {
        let variable = |name| std::env::var(name).map_err(|_| ChannelError::NoChannel);
        Self::connect(&variable("MUSTER_SOCKET")?, &variable("MUSTER_TOKEN")?, can)
    }

    /// Connects to the channel at `socket` with a token.
    ///
    /// # Errors
    /// As [`Yuno::connect_from_env`].
    pub fn connect(socket: &str, token: &str, can: &[&str]) -> Result<Self, ChannelError> {
        let mut yuno = Self {
            socket: socket.to_owned(),
            token: token.to_owned(),
            can: can.iter().map(|word| (*word).to_owned()).collect(),
            ready: false,
            status: None,
            stream: None,
            connections: 0,
            welcome: WelcomeInfo::default(),
        };
        yuno.connected()?;
        Ok(yuno)
    }

    /// The welcome message of the last connection. `playing` may have changed after a reconnect.
    #[must_use]
    pub fn welcome(&self) -> &WelcomeInfo {
        &self.welcome
    }

    /// Number of connections so far: when it changes, read [`Yuno::welcome`] again.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Longest time that this process may be silent, if it has a watchdog; call [`Yuno::alive`] twice as often.
    #[must_use]
    pub fn watchdog() -> Option<Duration> {
        std::env::var("MUSTER_WATCHDOG_MS").ok()?.parse().ok().map(Duration::from_millis)
    }

    /// Reports that this process is ready.
    ///
    /// # Errors
    /// If the channel cannot be used any more.
    pub fn ready(&mut self) -> Result<(), ChannelError> {
        self.ready = true;
        self.say(&json!({ "ready": {} }))
    }

    /// Reports what this process is doing, in one line for people.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn status(&mut self, status: &str) -> Result<(), ChannelError> {
        self.status = Some(status.to_owned());
        self.say(&json!({ "status": status }))
    }

    /// Reports that this process is alive.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn alive(&mut self) -> Result<(), ChannelError> {
        self.say(&json!({ "alive": {} }))
    }

    /// Sends statistics without a request.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn stats(&mut self, stats: &Map<String, Value>) -> Result<(), ChannelError> {
        self.say(&json!({ "stats": stats }))
    }

    /// Answers a request: done, with this result.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn ok(&mut self, request: &YunoRequest, result: Value) -> Result<(), ChannelError> {
        self.answer(request, &json!({ "answer": { "id": request.id, "ok": result } }))
    }

    /// Answers a request: not done, for this reason.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn error(&mut self, request: &YunoRequest, code: &str, message: &str) -> Result<(), ChannelError> {
        let error = json!({ "code": code, "message": message });
        self.answer(request, &json!({ "answer": { "id": request.id, "error": error } }))
    }

    /// Waits for the next request, without a limit.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not say why it ends, and this one does not end"
    )]
    pub fn next(&mut self) -> Result<YunoRequest, ChannelError> {
        loop {
            if let Some(request) = self.wait(None)? {
                return Ok(request);
            }
        }
    }

    /// Waits for the next request, at most this long.
    ///
    /// # Errors
    /// As [`Yuno::ready`].
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<YunoRequest>, ChannelError> {
        self.wait(Instant::now().checked_add(limit))
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<YunoRequest>, ChannelError> {
        loop {
            let connection = self.connections;
            let line = self.connected()?.line(until);
            match line {
                Ok(Some(line)) => {
                    if let Some(request) = self.understand(&line)? {
                        return Ok(Some(request));
                    }
                }
                Ok(None) => return Ok(None),
                Err(_) => self.stream = None,
            }
            if self.stream.is_none() {
                self.connected()?;
            }
            if self.connections != connection && until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// Handles a line of the shim. Returns a request, if it is one.
    fn understand(&mut self, line: &[u8]) -> Result<Option<YunoRequest>, ChannelError> {
        // A line that cannot be parsed comes from a newer agent; it is ignored.
        let Ok(Value::Object(line)) = serde_json::from_slice(line) else { return Ok(None) };
        let Some((key, content)) = line.into_iter().next() else { return Ok(None) };
        if key == "refused" {
            return Err(ChannelError::Refused(text(&content, "why")));
        }
        if content.get("id").is_none() {
            return Ok(None);
        }
        let id = text(&content, "id");
        let ask = match key.as_str() {
            "play" => YunoQuestion::Play,
            "pause" => YunoQuestion::Pause,
            "stats" => YunoQuestion::Stats,
            "reload" => YunoQuestion::Reload,
            "config" => YunoQuestion::Config(content.get("config").cloned().unwrap_or_default()),
            "command" => {
                let args = content.get("args").and_then(Value::as_object).cloned().unwrap_or_default();
                YunoQuestion::Command(text(&content, "name"), args)
            }
            _ => YunoQuestion::Other(key),
        };
        Ok(Some(YunoRequest { id, connection: self.connections, ask }))
    }

    fn answer(&mut self, request: &YunoRequest, line: &Value) -> Result<(), ChannelError> {
        if request.connection != self.connections {
            return Ok(());
        }
        let text = to_line(line)?;
        if let Some(stream) = &mut self.stream
            && stream.say(&text).is_err()
        {
            self.stream = None;
        }
        Ok(())
    }

    /// Sends a line, on a new connection if the old one is lost.
    fn say(&mut self, line: &Value) -> Result<(), ChannelError> {
        let text = to_line(line)?;
        while self.connected()?.say(&text).is_err() {
            self.stream = None;
        }
        Ok(())
    }

    /// The connection, reestablished if necessary.
    fn connected(&mut self) -> Result<&mut ChannelStream, ChannelError> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.reconnect()?,
        };
        Ok(self.stream.insert(stream))
    }

    fn reconnect(&mut self) -> Result<ChannelStream, ChannelError> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.greet() {
                Ok((stream, welcome)) => {
                    self.connections += 1;
                    self.welcome = welcome;
                    return Ok(stream);
                }
                // An invalid socket name stays invalid, so another attempt is useless.
                Err(ChannelError::Io(error)) if error.kind() != io::ErrorKind::InvalidInput => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    fn greet(&self) -> Result<(ChannelStream, WelcomeInfo), ChannelError> {
        let mut stream = ChannelStream::connect(&self.socket).map_err(ChannelError::Io)?;
        let hello = json!({ "token": self.token, "protocol": PROTOCOL, "can": self.can, "ready": self.ready });
        // A shim that refuses may already have closed the socket; its reason is read below.
        let said = stream.say(&to_line(&json!({ "hello": hello }))?);
        let line = stream.line(Some(Instant::now() + WELCOME_MAX)).map_err(ChannelError::Io)?;
        let line = line.ok_or_else(|| ChannelError::Io(io::ErrorKind::TimedOut.into()))?;
        let line: Value = serde_json::from_slice(&line).map_err(|error| ChannelError::Io(error.into()))?;
        if let Some(refused) = line.get("refused") {
            return Err(ChannelError::Refused(text(refused, "why")));
        }
        said.map_err(ChannelError::Io)?;
        let welcome = line.get("welcome").ok_or_else(|| ChannelError::Io(io::ErrorKind::InvalidData.into()))?;
        if let Some(status) = &self.status {
            stream.say(&to_line(&json!({ "status": status }))?).map_err(ChannelError::Io)?;
        }
        let welcome = WelcomeInfo {
            unit: text(welcome, "unit"),
            host: text(welcome, "host"),
            realm: text(welcome, "realm"),
            playing: welcome.get("playing").and_then(Value::as_bool).unwrap_or_default(),
            config: welcome.get("config").and_then(Value::as_str).map(str::to_owned),
        };
        Ok((stream, welcome))
    }
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn to_line(line: &Value) -> Result<String, ChannelError> {
    let text = line.to_string();
    if text.len() > LINE_MAX_BYTES { Err(ChannelError::TooLong(text.len())) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
