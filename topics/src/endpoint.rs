//! Endpoints: ports that units provide, and how others reach them.
//!
//! A unit *provides* endpoints, for each of which its host leases it a port, and *needs* those of others, each of
//! which its host resolves to a [`Connector`]. Both are passed to the unit's process.

use core::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{Name, UnitName};

/// The most endpoints that one unit provides, and the most that it needs: each is a variable of its environment, and
/// part of each report of the unit.
pub const ENDPOINTS_MAX: usize = 32;

/// How one speaks to an endpoint.
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
    /// Its name, as in the JSON form.
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
    /// What it is called, by this unit and by those that need it.
    pub name: Name,
    /// Its port; the lowest of the realm's range that is free if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How one speaks to it.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
    /// It is for other hosts, too, at the realm's bind address; otherwise for this host alone, at its loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub global: bool,
}

/// An endpoint that a unit needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Needed {
    /// What it is called.
    pub name: Name,
    /// The unit that has to provide it. If none is said it is one of the same realm, else one of the nearest of its
    /// parents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<UnitName>,
    /// The unit also runs without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// An endpoint, with its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// What it is called.
    pub name: Name,
    /// Where the unit is to listen.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// How one speaks to it.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
}

/// How a unit reaches an endpoint that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connector {
    /// What the endpoint is called.
    pub name: Name,
    /// Its address, as seen from this host.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// How one speaks to it.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
    /// Who provides it.
    pub unit: UnitName,
}
