//! The role table as other brokers' configuration, for fleets that put one of them in this broker's place.
//!
//! A configuration is a plain function of the table, of the fleet's prefix and of who has to be named. Those for
//! a fleet with the one console `main` are committed in `broker/configs/`; a test holds them true, and others run
//! them in the real brokers.
//!
//! Modules: [`mosquitto`], [`rabbitmq`], [`nats`], [`emqx`], [`hivemq`], one for each.
//!
//! **Invariant: no broker is given a rule that is not in the table.** What a broker cannot express, its file says.

mod emqx;
mod hivemq;
mod mosquitto;
mod nats;
mod rabbitmq;

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use muster_topics::{
    name::{HostId, Name},
    role::{Action, Role, Rule, SYSTEM_READERS, TABLE},
    topic::Prefix,
};

/// A kind of broker that can stand in this one's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Eclipse Mosquitto.
    Mosquitto,
    /// RabbitMQ, with its MQTT plug-in.
    RabbitMq,
    /// NATS server, with its MQTT listener.
    Nats,
    /// EMQX.
    Emqx,
    /// HiveMQ, with its file RBAC extension.
    HiveMq,
}

impl Kind {
    /// All that there are.
    pub const ALL: [Self; 5] = [Self::Mosquitto, Self::RabbitMq, Self::Nats, Self::Emqx, Self::HiveMq];

    /// Its name as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mosquitto => "mosquitto",
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
            Self::Emqx => "emqx",
            Self::HiveMq => "hivemq",
        }
    }
}

/// A word that names no broker of [`Kind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no configuration for {0:?}; there is one for mosquitto, rabbitmq, nats, emqx and hivemq")]
pub struct KindError(String);

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, KindError> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| KindError(text.chars().take(64).collect()))
    }
}

/// What a configuration depends on, besides the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The first levels of every topic.
    pub prefix: Prefix,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where the broker finds `authority.pem`, `certificate.pem` and `key.pem`; its own usual folder if not said.
    pub certificates: Option<PathBuf>,
    /// Hosts, for a broker that has to know each by name.
    pub hosts: Vec<HostId>,
    /// Consoles, by the name behind `console-`.
    pub consoles: Vec<Name>,
    /// Operators, by the name behind `operator-`.
    pub operators: Vec<Name>,
    /// Observers, by the name behind `observer-`.
    pub observers: Vec<Name>,
}

/// A file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name, below the folder of the configuration.
    pub name: &'static str,
    /// What is in it.
    pub text: String,
}

/// Why a configuration cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A path that some broker would not read as it is meant.
    #[error("the folder {0:?} cannot stand in every broker's configuration: use letters, digits and /._- alone")]
    Folder(PathBuf),
}

/// The files that make a broker of this kind serve this fleet by the role table.
///
/// # Errors
/// If something of the fleet cannot stand in such a file.
pub fn render(kind: Kind, fleet: &Fleet) -> Result<Vec<File>, RenderError> {
    let maker = Maker { kind, fleet, folder: folder(kind, fleet)? };
    Ok(match kind {
        Kind::Mosquitto => mosquitto::files(&maker),
        Kind::RabbitMq => rabbitmq::files(&maker),
        Kind::Nats => nats::files(&maker),
        Kind::Emqx => emqx::files(&maker),
        Kind::HiveMq => hivemq::files(&maker),
    })
}

fn folder(kind: Kind, fleet: &Fleet) -> Result<String, RenderError> {
    let Some(path) = &fleet.certificates else { return Ok(format!("/etc/{}/muster", kind.as_str())) };
    let is_plain = |text: &&str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'))
    };
    match path.to_str().filter(is_plain) {
        Some(text) => Ok(text.trim_end_matches('/').to_owned()),
        None => Err(RenderError::Folder(path.clone())),
    }
}

/// What the makers of the single configurations have in common.
struct Maker<'a> {
    kind: Kind,
    fleet: &'a Fleet,
    /// Where the certificates are.
    folder: String,
}

/// A client that is named in a configuration.
struct Client {
    common_name: String,
    /// What `%u` stands for in the table.
    id: String,
    role: Role,
}

impl Maker<'_> {
    /// Full filters of what a role may do, `%u` replaced.
    fn filters(&self, role: Role, action: Action, id: &str) -> Vec<String> {
        let is_meant = |rule: &&Rule| rule.role == role && rule.action == action;
        TABLE.iter().filter(is_meant).map(|rule| self.full(&rule.pattern.replace("%u", id))).collect()
    }

    /// [`Maker::filters`], and what a broker tells of itself, which stands outside of every prefix.
    fn filters_and_system(&self, role: Role, action: Action, id: &str) -> Vec<String> {
        let reads = action == Action::Subscribe && SYSTEM_READERS.contains(&role);
        self.filters(role, action, id).into_iter().chain(reads.then(|| "$SYS/#".to_owned())).collect()
    }

    /// A topic or filter with the prefix in front.
    fn full(&self, below: &str) -> String {
        format!("{}/{below}", self.fleet.prefix.as_str())
    }

    fn hosts(&self) -> Vec<Client> {
        let client = |host: &HostId| Client { common_name: host.to_string(), id: host.to_string(), role: Role::Host };
        self.fleet.hosts.iter().map(client).collect()
    }

    /// Everybody who is named and no host.
    fn others(&self) -> Vec<Client> {
        let named = |role: Role, word: &'static str, names: &[Name]| -> Vec<Client> {
            let client = |name: &Name| Client { common_name: format!("{word}-{name}"), id: name.to_string(), role };
            names.iter().map(client).collect()
        };
        let fleet = self.fleet;
        [
            named(Role::Console, "console", &fleet.consoles),
            named(Role::Operator, "operator", &fleet.operators),
            named(Role::Observer, "observer", &fleet.observers),
        ]
        .concat()
    }

    fn everybody(&self) -> Vec<Client> {
        [self.hosts(), self.others()].concat()
    }

    /// The command that makes this configuration.
    fn command(&self) -> String {
        let fleet = self.fleet;
        let mut command = format!("muster broker render --for {}", self.kind.as_str());
        let mut say = |flag: &str, value: String| command.extend([" --", flag, " ", &value]);
        if fleet.prefix != Prefix::default() {
            say("prefix", fleet.prefix.as_str().to_owned());
        }
        if fleet.listen != default_listen() {
            say("listen", fleet.listen.to_string());
        }
        if fleet.certificates.is_some() {
            say("certificates", self.folder.clone());
        }
        fleet.hosts.iter().for_each(|host| say("host", host.to_string()));
        for (flag, names) in
            [("console", &fleet.consoles), ("operator", &fleet.operators), ("observer", &fleet.observers)]
        {
            names.iter().for_each(|name| say(flag, name.to_string()));
        }
        command
    }

    /// The head of a file: how it was made, for what, whether that was tried, and what the broker cannot do. Each
    /// line comes after `mark`, wrapped where it grows long.
    fn head(&self, mark: &str, made_for: &str, tested: &str, notes: &[&str]) -> String {
        let mut text = String::new();
        for paragraph in [&format!("Made by `{}`, for {made_for}.", self.command()), tested] {
            wrap(&mut text, mark, "", paragraph);
        }
        for note in notes {
            text.push_str(&format!("{mark}\n"));
            wrap(&mut text, mark, "", note);
        }
        text
    }
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self { common_name: self.common_name.clone(), id: self.id.clone(), role: self.role }
    }
}

/// Where clients connect unless something else is said: MQTT's own port for TLS, on every address.
#[must_use]
pub fn default_listen() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 8883))
}

/// The longest line of a comment, in characters.
const LINE: usize = 110;

/// Adds a paragraph of a comment, broken at blanks. What stands in backquotes stays in one line.
fn wrap(text: &mut String, mark: &str, indent: &str, paragraph: &str) {
    let mut line = String::new();
    let mut words: Vec<String> = Vec::new();
    for word in paragraph.split(' ') {
        match words.last_mut() {
            Some(last) if last.matches('`').count() % 2 == 1 => last.extend([" ", word]),
            _ => words.push(word.to_owned()),
        }
    }
    for word in words {
        if !line.is_empty() && line.chars().count() + word.chars().count() > LINE {
            text.push_str(&format!("{mark} {indent}{line}\n"));
            line.clear();
        }
        line.extend([if line.is_empty() { "" } else { " " }, &word]);
    }
    text.push_str(&format!("{mark} {indent}{line}\n"));
}

/// What holds for every broker but our own, in a configuration's head.
const IDS: &str = "Not expressed: whose a client id is. Whoever is let in may end another's session by taking its \
                   client id; its own rights stay as they are.";

#[cfg(test)]
mod tests;
