//! Canonical JSON (RFC 8785), for hashing only: signed messages are never serialised again.
//!
//! Beyond the standard: numbers are integers within ±2⁵³ or finite fractions, and a key that
//! occurs twice in an object is refused rather than resolved.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use crate::name::Digest;

/// The largest integer that every JSON implementation represents exactly.
pub const INTEGER_MAX: i64 = 1 << 53;

/// Returns a number as far as it can be signed; a host may claim to be beyond.
#[must_use]
pub fn signable(number: u64) -> u64 {
    number.min(INTEGER_MAX.unsigned_abs())
}

/// The most levels of nesting.
pub const DEPTH_MAX: usize = 64;

/// The most levels of a value that an operator types, such as a variable. Messages and documents nest it: the deepest
/// place, a variable in the request for a plan in a command, is 6 levels down.
pub const VALUE_DEPTH_MAX: usize = 32;

/// Why a document has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("not a valid JSON document: {0}")]
pub struct CanonicalError(#[from] serde_json::Error);

/// Parses JSON strictly: no duplicate keys, no integer beyond ±2⁵³, no more than [`DEPTH_MAX`] levels.
///
/// # Errors
/// If `bytes` are no such document; the message has line and column.
pub fn parse(bytes: &[u8]) -> Result<Value, CanonicalError> {
    parse_with(bytes, Strict { depth_max: DEPTH_MAX, ..Strict::default() })
}

/// Parses a value as an operator types it: as [`parse`], with at most [`VALUE_DEPTH_MAX`] levels.
///
/// # Errors
/// As [`parse`].
pub fn parse_value(bytes: &[u8]) -> Result<Value, CanonicalError> {
    parse_with(bytes, Strict { depth_max: VALUE_DEPTH_MAX, ..Strict::default() })
}

/// Checks a value that was not parsed here as [`parse_value`] does.
///
/// # Errors
/// If that would refuse it.
pub fn check_value(value: &Value) -> Result<(), CanonicalError> {
    parse_value(&serde_json::to_vec(value)?).map(drop)
}

/// A part of an object: one of its keys, and within that a key or an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The key.
    pub key: String,
    /// The key or index within it, if it is an object or a list.
    pub item: Option<String>,
}

/// The first fault of each part of an object that is not valid.
pub type PartFaults = BTreeMap<Part, String>;

/// Parses an object as [`parse`] does, but what is refused stands as `null` in the result, and the part that it belongs to is
/// among the faults.
///
/// # Errors
/// If the bytes are no JSON at all, or the object itself has a key twice.
pub fn parse_parts(bytes: &[u8]) -> Result<(Value, PartFaults), CanonicalError> {
    let faults = RefCell::default();
    let value = parse_with(bytes, Strict { faults: Some(&faults), ..Strict::default() })?;
    Ok((value, faults.into_inner()))
}

fn parse_with(bytes: &[u8], strict: Strict<'_>) -> Result<Value, CanonicalError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = strict.deserialize(&mut deserializer)?;
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
#[derive(Clone)]
struct Strict<'a> {
    depth: usize,
    depth_max: usize,
    /// Where faults of parts go; without it they are errors.
    faults: Option<&'a RefCell<PartFaults>>,
    /// The part that the value belongs to; none at the object itself.
    part: Option<Part>,
}

impl Default for Strict<'_> {
    fn default() -> Self {
        Self { depth: 0, depth_max: DEPTH_MAX, faults: None, part: None }
    }
}

impl Strict<'_> {
    /// The same for a value within this one.
    fn inner(&self, name: impl FnOnce() -> String) -> Self {
        let part = match &self.part {
            _ if self.faults.is_none() => None,
            None => Some(Part { key: name(), item: None }),
            Some(Part { key, item: None }) => Some(Part { key: key.clone(), item: Some(name()) }),
            Some(whole) => Some(whole.clone()),
        };
        Self { depth: self.depth + 1, part, ..*self }
    }

    /// Returns what stands in the place of a value that is refused.
    fn refuse<E: de::Error>(&self, why: impl fmt::Display) -> Result<Value, E> {
        let Some((faults, part)) = self.faults.zip(self.part.as_ref()) else { return Err(E::custom(why)) };
        faults.borrow_mut().entry(part.clone()).or_insert_with(|| why.to_string());
        Ok(Value::Null)
    }

    /// Whether a value within this one would be too deep.
    fn is_deepest(&self) -> bool {
        self.depth >= self.depth_max
    }

    fn too_deep(&self) -> String {
        format!("nested deeper than {} levels", self.depth_max)
    }

    fn integer<E: de::Error>(&self, value: i128) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(exact) if exact.unsigned_abs() <= INTEGER_MAX.unsigned_abs() => Ok(Value::from(exact)),
            _ => self.refuse(format!("integer {value} is beyond ±2^53; write it as a string")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
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
        self.integer(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.integer(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        // 1e300 is a whole number that cannot be represented exactly; 0.5 is fine.
        if value.fract() == 0.0 && value.abs() > INTEGER_MAX as f64 {
            return self.refuse(format!("number {value} is beyond ±2^53; write it as a string"));
        }
        Number::from_f64(value).map(Value::Number).map_or_else(|| self.refuse("a number must be finite"), Ok)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        if self.is_deepest() {
            let refused = self.refuse(self.too_deep())?;
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(refused);
        }
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self.inner(|| values.len().to_string()))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let inner = self.inner(|| key.clone());
            let refusal = if object.contains_key(&key) {
                Some(format!("key {key:?} occurs twice in one object"))
            } else {
                self.is_deepest().then(|| self.too_deep())
            };
            let value = match refusal {
                // Which of two parts of the object itself is meant cannot be told.
                Some(why) if self.part.is_none() => return Err(de::Error::custom(why)),
                Some(why) => {
                    let refused = inner.refuse(why)?;
                    map.next_value::<IgnoredAny>()?;
                    refused
                }
                None => map.next_value_seed(inner)?,
            };
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
        Strict::default().deserialize(deserializer).map(Self)
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

    #[test]
    fn typed_value_has_fewer_levels_than_a_message() {
        let nested = |levels: usize| ["[".repeat(levels), "]".repeat(levels)].concat();
        for (levels, is_value, is_message) in [
            (VALUE_DEPTH_MAX, true, true),
            (VALUE_DEPTH_MAX + 1, false, true),
            (DEPTH_MAX, false, true),
            (DEPTH_MAX + 1, false, false),
            (100, false, false),
            (100_000, false, false),
        ] {
            let text = nested(levels);
            assert_eq!(parse_value(text.as_bytes()).is_ok(), is_value, "{levels}");
            assert_eq!(parse(text.as_bytes()).is_ok(), is_message, "{levels}");
        }
        assert!(check_value(&serde_json::json!(u64::MAX)).is_err());
        check_value(&serde_json::json!([1, {"a": null}])).unwrap();
    }

    #[test]
    fn fault_is_of_its_part_alone() {
        let deep = ["[".repeat(5_000), "]".repeat(5_000)].concat();
        let text = format!(
            r#"{{"a": {{"x": 1, "y": 18446744073709551616, "z": [1, 9007199254740993], "d": {deep}}},
                "b": [2, {{"k": 1, "k": 2}}], "c": 1e300, "e": {{"x": 1, "x": 2}}}}"#
        );
        let (value, faults) = parse_parts(text.as_bytes()).unwrap();
        let parts: Vec<(&str, Option<&str>)> =
            faults.keys().map(|part| (part.key.as_str(), part.item.as_deref())).collect();
        let wanted = [("a", "d"), ("a", "y"), ("a", "z"), ("b", "1"), ("e", "x")];
        let mut wanted: Vec<_> = wanted.map(|(key, item)| (key, Some(item))).to_vec();
        wanted.insert(4, ("c", None));
        assert_eq!(parts, wanted, "{faults:?}");
        assert_eq!((&value["a"]["x"], &value["b"][0], &value["a"]["y"]), (&1.into(), &2.into(), &Value::Null));
        for broken in ["", "{", r#"{"a": 1, "a": 2}"#, r#"{"a": tru}"#] {
            parse_parts(broken.as_bytes()).unwrap_err();
        }
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
