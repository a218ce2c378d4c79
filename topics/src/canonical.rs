//! Canonical JSON (RFC 8785), for hashing only: signed messages are never serialised again.
//!
//! Beyond the standard: numbers are integers within ±2⁵³ or finite fractions, and a key that
//! occurs twice in an object is refused rather than resolved.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use crate::name::Digest;

/// The largest integer that every JSON implementation represents exactly.
pub const INTEGER_MAX: i64 = 1 << 53;

/// The most levels of nesting.
pub const DEPTH_MAX: usize = 64;

/// Why a document has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("not a valid JSON document: {0}")]
pub struct CanonicalError(#[from] serde_json::Error);

/// Parses JSON strictly: no duplicate keys, no integer beyond ±2⁵³, no more than [`DEPTH_MAX`] levels.
///
/// # Errors
/// If `bytes` are no such document; the message has line and column.
pub fn parse(bytes: &[u8]) -> Result<Value, CanonicalError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { depth: 0 }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Returns the canonical bytes of `value`.
///
/// # Errors
/// If it does not serialise to JSON.
pub fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    Ok(serde_json_canonicalizer::to_vec(value)?)
}

/// Returns the SHA-256 of the canonical bytes of `value`.
///
/// # Errors
/// As [`to_bytes`].
pub fn digest<T: Serialize>(value: &T) -> Result<Digest, CanonicalError> {
    Ok(Digest::of(&to_bytes(value)?))
}

/// Deserialises one value, at this depth.
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: de::Error>(&self) -> Result<Self, E> {
        if self.depth >= DEPTH_MAX {
            return Err(E::custom(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

fn integer<E: de::Error>(value: i128) -> Result<Value, E> {
    if value.unsigned_abs() > INTEGER_MAX.unsigned_abs().into() {
        return Err(E::custom(format!("integer {value} is beyond ±2^53; write it as a string")));
    }
    i64::try_from(value).map(Value::from).map_err(E::custom)
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        integer(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        integer(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number must be finite"))?;
        // 1e300 is a whole number that cannot be represented exactly; 0.5 is fine.
        if value.fract() == 0.0 && value.abs() > INTEGER_MAX as f64 {
            return Err(E::custom(format!("number {value} is beyond ±2^53; write it as a string")));
        }
        Ok(Value::Number(number))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self.deeper()?)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(de::Error::custom(format!("key {key:?} stands twice in one object")));
            }
            let value = map.next_value_seed(self.deeper()?)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// A strictly parsed JSON document, as in a config or a signed body.
#[derive(Clone, Debug, PartialEq)]
pub struct Document(pub Value);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Strict { depth: 0 }.deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(document: &str, canonical: &str) {
        let value = parse(document.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(to_bytes(&value).unwrap()).unwrap(), canonical);
    }

    #[test]
    fn rfc_8785_examples_match() {
        // RFC 8785, sections 3.2.2 and 3.2.3, without the numbers that are refused.
        check(
            r#"{"numbers": [4.50, 2e-3, 0.000000000000000000000000001], "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"#,
            "{\"literals\":[null,true,false],\"numbers\":[4.5,0.002,1e-27],\"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}",
        );
        check(
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#,
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}",
        );
        check("-0.0", "0");
        check("9007199254740992", "9007199254740992");
    }

    #[test]
    fn duplicate_keys_and_bad_numbers_are_refused() {
        let deep = "[".repeat(1_000_000);
        for document in [
            "",
            "{",
            "{} {}",
            r#"{"a":1,"a":1}"#,
            r#"{"x":{"a":1,"\u0061":2}}"#,
            "9007199254740993",
            "-9007199254740993",
            "18446744073709551616",
            "1e300",
            "\"\\ud800\"",
            deep.as_str(),
        ] {
            assert!(parse(document.as_bytes()).is_err(), "{}", &document[..document.len().min(60)]);
        }
        assert!(parse(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn canonical_form_is_a_fixed_point(text in r#"[\[\]{}",:0-9a-c .e-]{0,40}"#) {
            if let Ok(value) = parse(text.as_bytes()) {
                let once = to_bytes(&value).unwrap();
                prop_assert_eq!(&to_bytes(&parse(&once).unwrap()).unwrap(), &once);
            }
        }
    }
}
