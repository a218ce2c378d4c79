//! Options of `muster unit create yuno` for endpoints, and how endpoints are shown.

use std::net::SocketAddr;

use clap::Args;
use muster_topics::{
    endpoint::{Connector, Endpoint, Needed, Protocol, Provided},
    unit::Observed,
};

/// Where a unit listens, and what it connects to.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Endpoints")]
#[group(id = "endpoints")]
pub struct EndpointOptions {
    /// Endpoint that it provides; repeatable
    ///
    /// NAME, and if wanted =PORT for a port of your own, /udp, and /global for other hosts to reach. Its host leases it
    /// a port, which is in MUSTER_PORT_NAME, in arguments as {port:NAME}, and in the configuration under `endpoints`.
    #[arg(long = "provide", value_name = "NAME[=PORT][/udp][/global]", value_parser = parse_provided)]
    provides: Vec<Provided>,
    /// Endpoint of another unit that it needs; repeatable
    ///
    /// NAME, and if wanted @REALM/UNIT for the unit that provides it, and ? if it also runs without. Its ADDRESS:PORT
    /// is in MUSTER_ENDPOINT_NAME, in arguments as {endpoint:NAME}, and in the configuration under `connectors`.
    #[arg(long = "need", value_name = "NAME[@REALM/UNIT][?]", value_parser = parse_needed)]
    needs: Vec<Needed>,
}

impl EndpointOptions {
    /// As fields of a spec.
    #[must_use]
    pub fn into_fields(self) -> (Vec<Provided>, Vec<Needed>) {
        (self.provides, self.needs)
    }
}

fn parse_provided(text: &str) -> Result<Provided, String> {
    let mut parts = text.split('/');
    let named = parts.next().unwrap_or_default();
    let (name, port) = named.split_once('=').map_or((named, None), |(name, port)| (name, Some(port)));
    let name = name.parse().map_err(|error: muster_topics::name::NameError| error.to_string())?;
    let port = port.map(|port| port.parse().map_err(|_| format!("{port:?} is not a port")));
    let mut provided = Provided { name, port: port.transpose()?, protocol: Protocol::Tcp, global: false };
    for part in parts {
        match part {
            "udp" => provided.protocol = Protocol::Udp,
            "tcp" => provided.protocol = Protocol::Tcp,
            "global" => provided.global = true,
            other => return Err(format!("unknown /{other}: use /udp or /global")),
        }
    }
    Ok(provided)
}

fn parse_needed(text: &str) -> Result<Needed, String> {
    let (text, optional) = text.strip_suffix('?').map_or((text, false), |text| (text, true));
    let (name, from) = text.split_once('@').map_or((text, None), |(name, from)| (name, Some(from)));
    let words = |error: muster_topics::name::NameError| error.to_string();
    Ok(Needed { name: name.parse().map_err(words)?, from: from.map(str::parse).transpose().map_err(words)?, optional })
}

/// The endpoints of a unit, on one line.
#[must_use]
pub fn listens(observed: &Observed) -> String {
    let word =
        |end: &Endpoint| format!("{}={}", end.name, socket(SocketAddr::new(end.address, end.port), end.protocol));
    observed.endpoints.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The connectors of a unit, on one line.
#[must_use]
pub fn connects(observed: &Observed) -> String {
    let word = |end: &Connector| {
        format!("{}={} of {}", end.name, socket(SocketAddr::new(end.address, end.port), end.protocol), end.unit)
    };
    observed.connectors.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// An address with its port, for people.
pub(super) fn socket(at: SocketAddr, protocol: Protocol) -> String {
    match protocol {
        Protocol::Tcp => at.to_string(),
        Protocol::Udp => format!("{at}/udp"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoint_options_parse() {
        for (text, json) in [
            ("http", json!({"name": "http"})),
            ("http=80", json!({"name": "http", "port": 80})),
            ("dns=53/udp/global", json!({"name": "dns", "port": 53, "protocol": "udp", "global": true})),
        ] {
            assert_eq!(serde_json::to_value(parse_provided(text).unwrap()).unwrap(), json, "{text}");
        }
        for text in ["", "http=", "http=99999", "http/x", "a b", "http/"] {
            assert!(parse_provided(text).is_err(), "{text}");
        }
        for (text, json) in [
            ("db", json!({"name": "db"})),
            ("db?", json!({"name": "db", "optional": true})),
            ("db@land/db?", json!({"name": "db", "from": "land/db", "optional": true})),
        ] {
            assert_eq!(serde_json::to_value(parse_needed(text).unwrap()).unwrap(), json, "{text}");
        }
        for text in ["", "?", "db@", "db@land", "db@land/db/x"] {
            assert!(parse_needed(text).is_err(), "{text}");
        }
    }
}
