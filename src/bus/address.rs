//! Addresses of brokers: `mqtts://HOST[:PORT]`, and `mqtt://HOST[:PORT]` on loopback only; and the quality of service
//! with which a message is published.
//!
//! **Invariant: nothing crosses a network in the clear.** Without TLS no certificate identifies the client, and
//! commands are signed but not secret. Loopback without TLS is for measurements, and for a tunnel that ends here.

use std::net::IpAddr;

/// The address of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection uses TLS.
    pub tls: bool,
}

impl BrokerAddress {
    /// Parses a broker's URL; `None` if it is invalid or not allowed.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let (tls, authority) = match url.split_once("://")? {
            ("mqtts", rest) => (true, rest),
            ("mqtt", rest) => (false, rest),
            _ => return None,
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = split(authority)?;
        let port = match port {
            Some(port) => port.parse().ok()?,
            None if tls => 8883,
            None => 1883,
        };
        (tls || is_here(host)).then(|| Self { host: host.to_owned(), port, tls })
    }
}

/// The quality of service of a topic, as the client library's type.
pub fn qos(topic: &muster_topics::topic::Topic) -> rumqttc::QoS {
    use muster_topics::topic::Qos;
    match topic.row().qos {
        Qos::AtMostOnce => rumqttc::QoS::AtMostOnce,
        Qos::AtLeastOnce => rumqttc::QoS::AtLeastOnce,
    }
}

/// Splits an authority into host and port; the port may be missing.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
        return host.parse::<std::net::Ipv6Addr>().is_ok().then_some((host, port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"/@?#:[]".contains(c);
    (!host.is_empty() && host.chars().all(is_plain)).then_some((host, port))
}

/// Whether a host is certainly this machine: a loopback address, or `localhost` (RFC 6761).
fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, wanted: Option<(&str, u16, bool)>) {
        let wanted = wanted.map(|(host, port, tls)| BrokerAddress { host: host.to_owned(), port, tls });
        assert_eq!(BrokerAddress::parse(url), wanted, "{url}");
    }

    #[test]
    fn broker_addresses_parse() {
        check("mqtts://192.0.2.1:1", Some(("192.0.2.1", 1, true)));
        check("mqtts://broker.example", Some(("broker.example", 8883, true)));
        check("mqtts://broker.example/", Some(("broker.example", 8883, true)));
        check("mqtts://[2001:db8::1]:5", Some(("2001:db8::1", 5, true)));
        check("mqtts://[::1]", Some(("::1", 8883, true)));
        for bad in ["", "https://a", "mqtts://", "mqtts://:1", "mqtts://a:b", "mqtts://a:99999", "192.0.2.1:8883"] {
            check(bad, None);
        }
        for bad in ["mqtts://u@a:1", "mqtts://a/b:1", "mqtts://[a]:1", "mqtts://[::1]x", "mqtts://a b", "mqtts://a:"] {
            check(bad, None);
        }
    }

    #[test]
    fn plain_mqtt_is_refused_beyond_loopback() {
        check("mqtt://127.0.0.1:1883", Some(("127.0.0.1", 1883, false)));
        check("mqtt://localhost", Some(("localhost", 1883, false)));
        check("mqtt://[::1]:7", Some(("::1", 7, false)));
        for elsewhere in ["mqtt://a:1", "mqtt://192.0.2.1:1883", "mqtt://0.0.0.0:1", "mqtt://localhost.example"] {
            check(elsewhere, None);
        }
    }
}
