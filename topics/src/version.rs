//! The `v` field of every payload.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The number of the protocol that this build speaks. It grows with each change that a party of the protocol before would
/// misunderstand; what a party can do beside that, [`Capability`](crate::presence::Capability) says. Presences have it, and
/// [signed messages](crate::envelope::Envelope); nothing is taken of a party with a later one.
pub const PROTOCOL: u32 = 1;

/// Version 1 of a payload: written as the number 1, and refusing any other when parsed, so that an incompatible payload
/// of a newer party is an error rather than a misunderstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V1;

impl Serialize for V1 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(1)
    }
}

impl<'de> Deserialize<'de> for V1 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            1 => Ok(Self),
            other => Err(D::Error::custom(format!("unknown payload version {other}; only version 1 is supported"))),
        }
    }
}

impl JsonSchema for V1 {
    fn schema_name() -> Cow<'static, str> {
        "V1".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "const": 1, "description": "version of this payload" })
    }
}
