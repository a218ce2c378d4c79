//! The brokers whose configuration can be rendered.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

/// A kind of broker that can be used in place of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
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

impl BrokerKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Mosquitto, Self::RabbitMq, Self::Nats, Self::Emqx, Self::HiveMq];

    /// Returns its name as one word.
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

/// A word that is no name of a [`BrokerKind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no configuration for {0:?}; there is one for mosquitto, rabbitmq, nats, emqx and hivemq")]
pub struct BrokerKindError(pub(super) String);

impl FromStr for BrokerKind {
    type Err = BrokerKindError;

    fn from_str(text: &str) -> Result<Self, BrokerKindError> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| BrokerKindError(text.chars().take(64).collect()))
    }
}

/// Why a configuration cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A path that some broker would misread.
    #[error("the folder {0:?} cannot be written in every broker's configuration: use only letters, digits and /._-")]
    Folder(PathBuf),
}

/// Returns the default address: MQTT's port for TLS, on every interface.
#[must_use]
pub fn default_listen() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 8883))
}
