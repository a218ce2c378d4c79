//! Endpoints: ports that units provide, and how others reach them.
//!
//! A unit *provides* endpoints, for each of which its host leases it a port, and *needs* those of others, each of
//! which its host resolves to a [`Connector`]. Both are passed to the unit's process.

use core::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{Name, UnitName};

/// The most endpoints that one unit provides, and the most that it requires: each is a variable of its environment, and
/// part of each report of the unit.
pub const ENDPOINTS_MAX: usize = 32;

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    fn is_tcp(&self) -> bool {
        *self == Self::Tcp
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An endpoint that a unit provides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provided {
    /// Its name, for this unit and those that require it.
    pub name: Name,
    /// Its port; by default the lowest free one of the realm's range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Its protocol.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
    /// Whether it is for other hosts, too, at the realm's bind address; otherwise it is for this host alone, on
    /// loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub global: bool,
}

/// An endpoint that a unit requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Needed {
    /// Its name.
    pub name: Name,
    /// The unit that provides it; by default one of the same realm, or else of the nearest parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<UnitName>,
    /// Whether the unit also runs without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// An endpoint with its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Its name.
    pub name: Name,
    /// The address on which the unit listens.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its protocol.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
}

/// How a unit reaches an endpoint that it requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connector {
    /// The endpoint's name.
    pub name: Name,
    /// Its address, as seen from this host.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its protocol.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
    /// The unit that provides it.
    pub unit: UnitName,
}
