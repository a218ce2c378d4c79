//! The table of topics: address, permissions, quality of service, retention and payload of each.

use super::Qos;
use crate::role::Role;

/// The kinds of topics, each a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the topic of its name, which its row describes")]
pub enum TopicKind {
    Presence,
    Heartbeat,
    Unit,
    Alert,
    Metric,
    Event,
    Outcome,
    Admission,
    Stream,
    StreamInput,
    Desired,
    Command,
    Ack,
    AdmissionAnswer,
    CommandAll,
    CommandGroup,
    ConsolePresence,
}

/// A row of the table of topics. Consoles, operators and observers may read every topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicRow {
    /// Its key in the AsyncAPI document.
    pub id: &'static str,
    /// The topic below the prefix, with parameters in braces.
    pub address: &'static str,
    /// Who may publish. If a parameter names one of this role (`{host}`, `{console}`), only that one may.
    pub publisher: Role,
    /// Whether hosts may read it; of those with `{host}`, each its own.
    pub hosts: HostReads,
    /// The quality of service at which messages are published.
    pub qos: Qos,
    /// Whether messages are retained.
    pub retained: bool,
    /// Whether a host repeats a message until the console has acknowledged it. Then losses in a broker do no harm, and a
    /// console need not subscribe with QoS 1, which costs a broker more and makes some of them drop messages when many
    /// hosts publish at once (see `topics/decisions/0023`).
    pub acknowledged: bool,
    /// What a message holds.
    pub payload: Payload,
    /// What it is for.
    pub about: &'static str,
}

/// How hosts read a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostReads {
    /// They may not.
    No,
    /// They may, and do not at present.
    May,
    /// Each agent subscribes.
    Subscribe,
}

/// The payload of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// JSON, by the schema of this name.
    Json(&'static str),
    /// Line protocol, plain or packed.
    Lines,
    /// Not fixed yet: the topic is reserved, with its name and its permissions.
    Reserved,
}

impl TopicKind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Presence,
        Self::Heartbeat,
        Self::Unit,
        Self::Alert,
        Self::Metric,
        Self::Event,
        Self::Outcome,
        Self::Admission,
        Self::Stream,
        Self::StreamInput,
        Self::Desired,
        Self::Command,
        Self::Ack,
        Self::AdmissionAnswer,
        Self::CommandAll,
        Self::CommandGroup,
        Self::ConsolePresence,
    ];

    /// The table of topics.
    ///
    /// Lost answers, acknowledgements and broadcasts are repeated by a protocol above MQTT. A broker's own
    /// acknowledgement would promise nothing that counts, and costs ten thousand packets for each of the three when ten
    /// thousand hosts are sent a command and answer (`topics/decisions/0023`, 0045 and 0048). Other topics are repeated
    /// by nobody, or may have other readers, with stored sessions.
    #[must_use]
    pub const fn row(self) -> TopicRow {
        use HostReads::{May, No, Subscribe};
        use Payload::{Json, Lines, Reserved};
        use Qos::{AtLeastOnce, AtMostOnce};
        match self {
            Self::Presence => TopicRow {
                id: "presence",
                address: "s/{slot}/h/{host}/presence",
                publisher: Role::Host,
                hosts: Subscribe,
                qos: AtLeastOnce,
                retained: true,
                acknowledged: false,
                payload: Json("Presence"),
                about: "Whether the agent is there; also its last will.",
            },
            Self::Heartbeat => TopicRow {
                id: "heartbeat",
                address: "s/{slot}/h/{host}/heartbeat",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: true,
                payload: Json("Heartbeat"),
                about: "The host's state: whole on connect and on request, then what has changed. Repeated until acknowledged.",
            },
            Self::Unit => TopicRow {
                id: "unit",
                address: "s/{slot}/h/{host}/unit/{realm}/{unit}",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: true,
                acknowledged: false,
                payload: Json("UnitReport"),
                about: "Desired and observed state of one unit, on change; an empty payload once the unit is gone.",
            },
            Self::Alert => TopicRow {
                id: "alert",
                address: "s/{slot}/h/{host}/alert/{alert}",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: true,
                acknowledged: true,
                payload: Json("Alert"),
                about: "One alert: retained while it holds, then `cleared` until that is acknowledged, then an empty payload.",
            },
            Self::Metric => TopicRow {
                id: "metric",
                address: "s/{slot}/h/{host}/metric",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: true,
                payload: Lines,
                about: "A batch of measurements in InfluxDB line protocol, times in milliseconds, by default packed with zlib and the dictionary \
                        `metric-dictionary-1.txt`. \
                        The first line is a comment, `# v=1 epoch=… seq=…`, and behind it tags of all lines that do not have them. \
                        A packed batch leaves `host` to its topic. Repeated until acknowledged.",
            },
            Self::Event => TopicRow {
                id: "event",
                address: "s/{slot}/h/{host}/event",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: true,
                payload: Json("HostEvent"),
                about: "Tasks of units that have changed something, have failed or were interrupted, a few at a time. Repeated until acknowledged.",
            },
            Self::Outcome => TopicRow {
                id: "outcome",
                address: "s/{slot}/h/{host}/outcome",
                publisher: Role::Host,
                hosts: No,
                qos: AtMostOnce,
                retained: false,
                acknowledged: true,
                payload: Json("Report"),
                about: "Answers to commands. Output and the terminal answer are repeated until acknowledged.",
            },
            Self::Admission => TopicRow {
                id: "admission",
                address: "s/{slot}/h/{host}/admission",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: true,
                payload: Json("AdmissionReport"),
                about: "The progress of the host in a rollout: it asks whether it may begin, has begun, or has ended. Repeated until \
                        answered.",
            },
            Self::Stream => TopicRow {
                id: "stream",
                address: "s/{slot}/h/{host}/stream/{stream}",
                publisher: Role::Host,
                hosts: No,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: false,
                payload: Reserved,
                about: "Binary frames of a stream, such as a terminal or a log that is followed, from the host.",
            },
            Self::StreamInput => TopicRow {
                id: "streamInput",
                address: "s/{slot}/h/{host}/stream/{stream}/input",
                publisher: Role::Console,
                hosts: May,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: false,
                payload: Reserved,
                about: "Binary frames of a stream, to the host.",
            },
            Self::Desired => TopicRow {
                id: "desired",
                address: "s/{slot}/h/{host}/desired",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtLeastOnce,
                retained: true,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed DesiredHead, retained: which document the host should have. Behind it, unretained, the document's body (a DesiredBody) \
                        while that is short and holds no secret; otherwise hosts fetch it over HTTPS.",
            },
            Self::Command => TopicRow {
                id: "command",
                address: "s/{slot}/h/{host}/cmd",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed Command, Refresh, NumberedDocument or DocumentRequest for one host. A command is repeated until there is an outcome, \
                        a numbered document until a heartbeat says that the host has it.",
            },
            Self::Ack => TopicRow {
                id: "ack",
                address: "s/{slot}/h/{host}/ack",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtMostOnce,
                retained: false,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed Ack: what the console has safely stored.",
            },
            Self::AdmissionAnswer => TopicRow {
                id: "admissionAnswer",
                address: "s/{slot}/h/{host}/admission/answer",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtLeastOnce,
                retained: false,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed AdmissionAnswer: the host may begin, has to wait, or was heard.",
            },
            Self::CommandAll => TopicRow {
                id: "commandAll",
                address: "s/{slot}/cmd/all",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtMostOnce,
                retained: false,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed Command or Refresh for every host of the slot, or a Command for those that its select expression picks: \
                        each host decides by its own state, and does not answer if it is not one of them.",
            },
            Self::CommandGroup => TopicRow {
                id: "commandGroup",
                address: "s/{slot}/cmd/group/{label}",
                publisher: Role::Console,
                hosts: Subscribe,
                qos: AtMostOnce,
                retained: false,
                acknowledged: false,
                payload: Json("Envelope"),
                about: "A signed Command for the hosts of the slot that carry a label of this name, whatever its value; these subscribe to it.",
            },
            Self::ConsolePresence => TopicRow {
                id: "consolePresence",
                address: "console/{console}/presence",
                publisher: Role::Console,
                hosts: May,
                qos: AtLeastOnce,
                retained: true,
                acknowledged: false,
                payload: Json("ConsolePresence"),
                about: "Whether a console is there; also its last will.",
            },
        }
    }
}

impl TopicRow {
    /// Returns the MQTT filter of the topics that a client of this role may use, in which `%u` stands for its own id.
    #[must_use]
    pub fn pattern(&self, role: Role) -> String {
        let own = match role {
            Role::Host => "{host}",
            Role::Console => "{console}",
            Role::Operator | Role::Observer => "",
        };
        let level = |level| match level {
            level if level == own => "%u",
            level if is_parameter(level) => "+",
            literal => literal,
        };
        self.address.split('/').map(level).collect::<Vec<_>>().join("/")
    }

    /// Whether the address has this parameter.
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.address.split('/').any(|level| level == parameter)
    }

    /// Whether a topic has the form of this row's address.
    pub(super) fn fits(&self, topic: &str) -> bool {
        let mut levels = topic.split('/');
        let mut address = self.address.split('/');
        let is_same =
            |level: &str, found: Option<&str>| found.is_some_and(|found| is_parameter(level) || level == found);
        address.all(|level| is_same(level, levels.next())) && levels.next().is_none()
    }

    /// Returns the values of the parameters of a topic of this form.
    pub(super) fn values<'t>(&self, topic: &'t str) -> Vec<(&'static str, &'t str)> {
        self.address.split('/').zip(topic.split('/')).filter(|(level, _)| is_parameter(level)).collect()
    }
}

/// Whether a level of an address stands for a value.
pub(super) fn is_parameter(level: &str) -> bool {
    level.starts_with('{')
}
