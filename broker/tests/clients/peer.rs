//! A real client, whichever it is.

use std::{path::PathBuf, time::Duration};

use muster_broker::BrokerLimits;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{
    rig::{
        HOST, PATIENCE,
        place::{Ours, Place},
        wire::Version,
    },
    rumqttc4::Four,
    rumqttc5::Five,
    script::Script,
};

/// Which client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Paho(Version),
    MqttJs(Version),
    Rumqttc(Version),
}

impl Kind {
    pub(crate) fn version(self) -> Version {
        match self {
            Self::Paho(version) | Self::MqttJs(version) | Self::Rumqttc(version) => version,
        }
    }
}

/// What a CONNECT says.
#[derive(Clone, Serialize)]
pub(crate) struct Connect {
    pub(crate) client_id: String,
    pub(crate) clean: bool,
    pub(crate) session_expiry_s: u32,
    pub(crate) alias_max: u16,
    pub(crate) will: Option<Message>,
}

impl Connect {
    pub(crate) fn new(client_id: &str) -> Self {
        Self { client_id: client_id.to_owned(), clean: true, session_expiry_s: 0, alias_max: 0, will: None }
    }

    pub(crate) fn persistent(client_id: &str) -> Self {
        Self { clean: false, session_expiry_s: 3600, ..Self::new(client_id) }
    }
}

/// How it was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Accepted {
    pub(crate) session_present: bool,
    pub(crate) code: u8,
}

/// A message to publish, or one that came.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: String,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) properties: Properties,
}

/// Properties of MQTT 5 that belong to a message.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Properties {
    pub(crate) content_type: Option<String>,
    pub(crate) response_topic: Option<String>,
    pub(crate) correlation: Option<String>,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) alias: Option<u16>,
    pub(crate) user: Vec<(String, String)>,
    pub(crate) subscription_ids: Vec<usize>,
}

impl Message {
    pub(crate) fn new(topic: &str, qos: u8, payload: &str) -> Self {
        Self { topic: topic.to_owned(), payload: payload.to_owned(), qos, ..Self::default() }
    }

    pub(crate) fn retained(self) -> Self {
        Self { retain: true, ..self }
    }
}

/// What a SUBSCRIBE says of one filter.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Subscribe {
    pub(crate) filter: String,
    pub(crate) qos: u8,
    pub(crate) no_local: bool,
    pub(crate) as_published: bool,
    pub(crate) handling: u8,
    pub(crate) id: Option<usize>,
}

impl Subscribe {
    pub(crate) fn new(filter: &str, qos: u8) -> Self {
        Self { filter: filter.to_owned(), qos, ..Self::default() }
    }
}

/// A broker, and files with the certificates that clients show it.
pub(crate) struct Stage {
    pub(crate) ours: Ours,
    folder: TempDir,
}

/// A client's certificate, as clients want it: in files.
pub(crate) struct Files {
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("muster-").tempdir().unwrap();
        Self { ours: Ours::start(BrokerLimits::default()).await, folder }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.ours.place
    }

    pub(crate) fn port(&self) -> u16 {
        self.ours.broker.local_addr().port()
    }

    /// Makes a certificate for a common name.
    pub(crate) fn files(&self, common_name: &str) -> Files {
        let authority = self.ours.place.authority.as_ref().unwrap();
        let pair = authority.issue(common_name);
        let write = |kind: &str, text: &str| {
            let path = self.folder.path().join(format!("{common_name}.{kind}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Files {
            authority: write("authority.pem", &authority.certificate),
            certificate: write("certificate.pem", &pair.certificate),
            key: write("key.pem", &pair.key),
        }
    }

    /// Connects a client; it may be refused.
    pub(crate) async fn try_connect(&self, kind: Kind, common_name: &str, connect: Connect) -> (Peer, Accepted) {
        match kind {
            Kind::Paho(version) => {
                let mut script = Script::paho();
                let accepted = script.connect(self, version, common_name, &connect).await;
                (Peer::Script(Box::new(script)), accepted)
            }
            Kind::MqttJs(version) => {
                let mut script = Script::mqttjs();
                let accepted = script.connect(self, version, common_name, &connect).await;
                (Peer::Script(Box::new(script)), accepted)
            }
            Kind::Rumqttc(Version::V4) => {
                let (client, accepted) = Four::connect(self.place(), common_name, &connect).await;
                (Peer::Four(client), accepted)
            }
            Kind::Rumqttc(Version::V5) => {
                let (client, accepted) = Five::connect(self.place(), common_name, &connect).await;
                (Peer::Five(client), accepted)
            }
        }
    }

    /// Connects a client.
    pub(crate) async fn connect(&self, kind: Kind, common_name: &str, connect: Connect) -> Peer {
        let (peer, accepted) = self.try_connect(kind, common_name, connect).await;
        assert_eq!(accepted.code, 0, "{kind:?} was refused");
        peer
    }

    /// A console, in the hands of the client under test.
    pub(crate) async fn console(&self, kind: Kind) -> Peer {
        self.connect(kind, "console-main", Connect::new("console-main")).await
    }

    /// A host, likewise.
    pub(crate) async fn host(&self, kind: Kind) -> Peer {
        self.connect(kind, HOST, Connect::new(&format!("{HOST}-1"))).await
    }
}

/// A connected client.
pub(crate) enum Peer {
    Script(Box<Script>),
    Four(Four),
    Five(Five),
}

/// Does the same thing with each of them.
macro_rules! each {
    ($self:ident, $client:ident => $act:expr) => {
        match $self {
            Peer::Script($client) => $act.await,
            Peer::Four($client) => $act.await,
            Peer::Five($client) => $act.await,
        }
    };
}

impl Peer {
    /// Subscribes; gives the reason codes.
    pub(crate) async fn subscribe(&mut self, subscribe: Subscribe) -> Vec<u8> {
        each!(self, client => client.subscribe(&subscribe))
    }

    /// Unsubscribes; gives the reason codes, of which MQTT 3.1.1 has none.
    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        each!(self, client => client.unsubscribe(filter))
    }

    /// Publishes, with QoS 1 until it is acknowledged; gives the reason code.
    pub(crate) async fn publish(&mut self, message: Message) -> u8 {
        each!(self, client => client.publish(&message))
    }

    /// The next message, if one comes in time.
    pub(crate) async fn message_within(&mut self, patience: Duration) -> Option<Message> {
        each!(self, client => client.message(patience))
    }

    /// The next message.
    pub(crate) async fn message(&mut self) -> Message {
        self.message_within(PATIENCE).await.expect("a message")
    }

    /// Says DISCONNECT.
    pub(crate) async fn disconnect(self) {
        match self {
            Self::Script(client) => client.disconnect().await,
            Self::Four(client) => client.disconnect().await,
            Self::Five(client) => client.disconnect().await,
        }
    }

    /// Goes without a word.
    pub(crate) fn cut(self) {
        // A process is killed, a task ended, and the socket goes with it.
        drop(self);
    }

    /// Waits until the broker ends the connection; gives the reason that it says, if it says one.
    pub(crate) async fn end(&mut self) -> Option<u8> {
        each!(self, client => client.end())
    }
}
