//! Classifies a line of a program: hello, ready, status and alive are for the shim, all others for the agent.
//!
//! A line is a JSON object with exactly one key. The value of a key that is not the shim's is parsed only as far
//! as that requires.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

/// Limits of the list of requests that a program supports: there are five, and each becomes part of every state that is
/// sent.
const CAN_MAX: usize = 8;
const CAN_MAX_BYTES: usize = 32;

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelLine {
    /// The first line of a connection.
    Hello(ChannelHello),
    /// The program is ready.
    Ready,
    /// What it is doing, for people.
    Status(String),
    /// It is alive.
    Alive,
    /// A line for the agent.
    Other,
}

/// How a process identifies itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ChannelHello {
    /// The token from its environment.
    pub(crate) token: String,
    /// The version of the protocol that it uses.
    pub(crate) protocol: u32,
    /// The requests that it supports.
    #[serde(default)]
    pub(crate) can: Vec<String>,
    /// It is ready already.
    #[serde(default)]
    pub(crate) ready: bool,
}

impl ChannelHello {
    /// The supported requests, within the limits.
    pub(crate) fn can(self) -> Vec<String> {
        self.can.into_iter().filter(|word| word.len() <= CAN_MAX_BYTES).take(CAN_MAX).collect()
    }
}

/// Parses a line; otherwise returns the reason why not.
pub(crate) fn parse(line: &[u8]) -> Result<ChannelLine, String> {
    serde_json::from_slice(line).map_err(|error| format!("a line is not valid: {error}"))
}

impl<'de> Deserialize<'de> for ChannelLine {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OneKey)
    }
}

struct OneKey;

impl<'de> Visitor<'de> for OneKey {
    type Value = ChannelLine;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with exactly one key")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<ChannelLine, M::Error> {
        let none = || M::Error::custom("expected an object with exactly one key");
        let key: Cow<'de, str> = map.next_key()?.ok_or_else(none)?;
        let line = match &*key {
            "hello" => ChannelLine::Hello(map.next_value()?),
            "status" => ChannelLine::Status(map.next_value()?),
            other => {
                map.next_value::<IgnoredAny>()?;
                match other {
                    "ready" => ChannelLine::Ready,
                    "alive" => ChannelLine::Alive,
                    _ => ChannelLine::Other,
                }
            }
        };
        if map.next_key::<IgnoredAny>()?.is_some() { Err(none()) } else { Ok(line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_lines_are_classified() {
        let hello = |can: &[&str], ready| {
            let can = can.iter().map(|word| (*word).to_owned()).collect();
            ChannelLine::Hello(ChannelHello { token: "t".into(), protocol: 1, can, ready })
        };
        for (text, wanted) in [
            (r#"{"hello":{"token":"t","protocol":1}}"#, Some(hello(&[], false))),
            (
                r#"{"hello":{"token":"t","protocol":1,"can":["play"],"ready":true,"new":1}}"#,
                Some(hello(&["play"], true)),
            ),
            (r#" { "ready" : {} } "#, Some(ChannelLine::Ready)),
            (r#"{"r\u0065ady":{}}"#, Some(ChannelLine::Ready)),
            (r#"{"alive":null}"#, Some(ChannelLine::Alive)),
            (r#"{"status":"well"}"#, Some(ChannelLine::Status("well".into()))),
            (r#"{"answer":{"id":"1","ok":[1,{"a":2}]}}"#, Some(ChannelLine::Other)),
            (r#"{"":1}"#, Some(ChannelLine::Other)),
            ("{}", None),
            (r#"{"ready":{},"answer":{}}"#, None),
            (r#"{"answer":{"id":1}"#, None),
            (r#"{"answer":1} {"ready":1}"#, None),
            (r#"{"status":7}"#, None),
            (r#"{"hello":{"token":"t"}}"#, None),
            (r#"["ready"]"#, None),
            ("ready", None),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes()).ok(), wanted, "{text:?}");
        }
        assert!(parse(b"{\"status\":\"\xff\"}").is_err());
        // Deep nesting does not crash the shim.
        assert!(parse(&[b'['; 60_000]).is_err());
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(30_000), "]".repeat(30_000));
        assert_eq!(parse(deep.as_bytes()), Ok(ChannelLine::Other));
    }

    #[test]
    fn remembered_lines_are_bounded() {
        let can = (0..100).map(|number| "x".repeat(number)).collect();
        let can = ChannelHello { token: String::new(), protocol: 1, can, ready: false }.can();
        assert_eq!((can.len(), can.iter().map(String::len).max()), (CAN_MAX, Some(CAN_MAX - 1)));
    }
}
