//! The inputs and outputs of rendering a broker's configuration.

use std::{net::SocketAddr, path::PathBuf};

use muster_topics::{
    name::{HostId, Name},
    role::{Action, Role, Rule, SYSTEM_READERS, rules},
    topic::Prefix,
};

use super::kind::{BrokerKind, RenderError, default_listen};

/// The inputs of a configuration, besides the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderInputs {
    /// The prefix of every topic.
    pub prefix: Prefix,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The broker's folder with `authority.pem`, `certificate.pem` and `key.pem`; its usual folder if not given.
    pub certificates: Option<PathBuf>,
    /// Hosts, for a broker that has to know each by name.
    pub hosts: Vec<HostId>,
    /// Consoles, by the name after `console-`.
    pub consoles: Vec<Name>,
    /// Operators, by the name after `operator-`.
    pub operators: Vec<Name>,
    /// Observers, by the name after `observer-`.
    pub observers: Vec<Name>,
}

/// A file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedFile {
    /// Its name, below the folder of the configuration.
    pub name: &'static str,
    /// Its content.
    pub text: String,
}

pub(super) fn folder(kind: BrokerKind, fleet: &RenderInputs) -> Result<String, RenderError> {
    let Some(path) = &fleet.certificates else { return Ok(format!("/etc/{}/muster", kind.as_str())) };
    let is_plain = |text: &&str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'))
    };
    match path.to_str().filter(is_plain) {
        Some(text) => Ok(text.trim_end_matches('/').to_owned()),
        None => Err(RenderError::Folder(path.clone())),
    }
}

/// What the renderers of all brokers share.
pub(super) struct RenderContext<'a> {
    pub(super) kind: BrokerKind,
    pub(super) fleet: &'a RenderInputs,
    /// The folder of the certificates.
    pub(super) folder: String,
}

/// A client that is named in a configuration.
pub(super) struct RenderedClient {
    pub(super) common_name: String,
    /// The replacement of `%u` in the table.
    pub(super) id: String,
    pub(super) role: Role,
}

impl RenderContext<'_> {
    /// Returns the complete filters of a role, with `%u` replaced.
    pub(super) fn filters(&self, role: Role, action: Action, id: &str) -> Vec<String> {
        let is_meant = |rule: &&Rule| rule.role == role && rule.action == action;
        rules().iter().filter(is_meant).map(|rule| self.full(&rule.pattern.replace("%u", id))).collect()
    }

    /// Returns [`RenderContext::filters`], and the broker's own topics, which are outside of every prefix.
    pub(super) fn filters_and_system(&self, role: Role, action: Action, id: &str) -> Vec<String> {
        let reads = action == Action::Subscribe && SYSTEM_READERS.contains(&role);
        self.filters(role, action, id).into_iter().chain(reads.then(|| "$SYS/#".to_owned())).collect()
    }

    /// Returns a topic or filter with the prefix.
    pub(super) fn full(&self, below: &str) -> String {
        format!("{}/{below}", self.fleet.prefix.as_str())
    }

    pub(super) fn hosts(&self) -> Vec<RenderedClient> {
        let client =
            |host: &HostId| RenderedClient { common_name: host.to_string(), id: host.to_string(), role: Role::Host };
        self.fleet.hosts.iter().map(client).collect()
    }

    /// Returns all named clients that are not hosts.
    pub(super) fn others(&self) -> Vec<RenderedClient> {
        let named = |role: Role, word: &'static str, names: &[Name]| -> Vec<RenderedClient> {
            let client =
                |name: &Name| RenderedClient { common_name: format!("{word}-{name}"), id: name.to_string(), role };
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

    pub(super) fn everybody(&self) -> Vec<RenderedClient> {
        [self.hosts(), self.others()].concat()
    }

    /// Returns the command that makes this configuration.
    pub(super) fn command(&self) -> String {
        let fleet = self.fleet;
        let mut command = format!("muster broker render --program {}", self.kind.as_str());
        let mut say = |flag: &str, value: String| command.extend([" --", flag, " ", &value]);
        if fleet.prefix != Prefix::default() {
            say("topic-prefix", fleet.prefix.as_str().to_owned());
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

    /// Returns the head of a file: how it was made, for what, whether that was tried, and what the broker cannot do.
    /// Each line follows `mark`, and is wrapped.
    pub(super) fn head(&self, mark: &str, made_for: &str, tested: &str, notes: &[&str]) -> String {
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

impl Clone for RenderedClient {
    fn clone(&self) -> Self {
        Self { common_name: self.common_name.clone(), id: self.id.clone(), role: self.role }
    }
}

/// The longest line of a comment, in characters.
pub(super) const LINE: usize = 110;

/// Adds a paragraph of a comment, wrapped at blanks. Text in backquotes stays in one line.
pub(super) fn wrap(text: &mut String, mark: &str, indent: &str, paragraph: &str) {
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

/// A note in every broker's configuration except our own.
pub(super) const IDS: &str = "Not expressed: whose a client id is. A client that is admitted may end another one's \
                   session by using its client id; its own permissions do not change.";
