//! Ids and names. Each is a newtype that is parsed once, where it enters, so that a value of the
//! type is known to be well formed everywhere else.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest name of a realm, unit, role or label, in bytes: the limit of a DNS label.
pub const NAME_MAX_BYTES: usize = 63;

const NAME_PATTERN: &str = "[a-z0-9][a-z0-9_-]{0,62}";

/// An invalid id or name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not valid: {rule}")]
pub struct NameError {
    what: &'static str,
    text: String,
    rule: &'static str,
}

impl NameError {
    /// Returns the same of another kind of name.
    pub(crate) fn of(self, what: &'static str) -> Self {
        Self { what, ..self }
    }
}

pub(crate) fn error(what: &'static str, text: &str, rule: &'static str) -> NameError {
    // A name from outside may be of any length; an error message may not.
    let text = text.chars().take(NAME_MAX_BYTES + 1).collect();
    NameError { what, text, rule }
}

/// Implements text forms (Display, serde, schema) for a newtype over its `FromStr` and `as_str`.
macro_rules! text_type {
    ($type:ident, $pattern:expr, $example:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": format!("^{}$", $pattern),
                    "examples": [$example]
                })
            }
        }
    };
}

/// The name of a realm, unit, role or label: `[a-z0-9][a-z0-9_-]{0,62}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    const RULE: &'static str = "use 1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or a digit";

    /// The realm that always exists.
    #[must_use]
    pub fn default_realm() -> Self {
        Self("default".to_owned())
    }

    /// The role of operators who may do everything.
    #[must_use]
    pub fn admin() -> Self {
        Self("admin".to_owned())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_valid(text: &str) -> bool {
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = text.as_bytes();
        bytes.len() <= NAME_MAX_BYTES
            && bytes.first().is_some_and(plain)
            && bytes.iter().all(|b| plain(b) || matches!(b, b'-' | b'_'))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if Self::is_valid(text) { Ok(Self(text.to_owned())) } else { Err(error("name", text, Self::RULE)) }
    }
}

text_type!(Name, NAME_PATTERN, "default");

/// A host's id: a UUID that its agent generates at its first start, never its hostname.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct HostId(pub Uuid);

impl HostId {
    /// Generates a random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl FromStr for HostId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        parse_uuid("host id", text).map(Self)
    }
}

/// A command's id: a version 7 UUID, so that ids sort by their creation time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CommandId(pub Uuid);

impl CommandId {
    /// Generates an id.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for CommandId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl FromStr for CommandId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        parse_uuid("command id", text).map(Self)
    }
}

/// Accepts only the form that [`HostId`] and [`CommandId`] print: any other would make two topics, certificates or
/// journal rows of one id.
fn parse_uuid(what: &'static str, text: &str) -> Result<Uuid, NameError> {
    let canonical = |id: &Uuid| *id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text;
    Uuid::try_parse(text)
        .ok()
        .filter(canonical)
        .ok_or_else(|| error(what, text, "expected a UUID in lower case with hyphens"))
}

/// A unit's full name, `realm/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName {
    text: String,
    slash: usize,
}

impl UnitName {
    /// Creates the name of unit `name` in `realm`.
    #[must_use]
    pub fn new(realm: &Name, name: &Name) -> Self {
        Self { text: format!("{realm}/{name}"), slash: realm.as_str().len() }
    }

    /// Returns the name of an instance of this unit that the console places: `realm/name-<number>`.
    #[must_use]
    pub fn instance(&self, number: u32) -> Self {
        Self { text: format!("{}-{number}", self.text), slash: self.slash }
    }

    /// Returns the realm's name.
    #[must_use]
    pub fn realm(&self) -> Name {
        Name(self.text[..self.slash].to_owned())
    }

    /// Returns the unit's name without its realm.
    #[must_use]
    pub fn name(&self) -> Name {
        Name(self.text[self.slash + 1..].to_owned())
    }

    /// Returns `realm/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for UnitName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        text.split_once('/')
            .filter(|(realm, name)| Name::is_valid(realm) && Name::is_valid(name))
            .map(|(realm, _)| Self { text: text.to_owned(), slash: realm.len() })
            .ok_or_else(|| error("unit", text, "expected REALM/NAME, each 1 to 63 of a-z, 0-9, '-' and '_'"))
    }
}

text_type!(UnitName, format!("{NAME_PATTERN}/{NAME_PATTERN}"), "default/hello");

/// A config's id: one or two names, joined by a dot (`role.name`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigId(String);

impl ConfigId {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ConfigId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let valid = match text.split_once('.') {
            Some((role, name)) => Name::is_valid(role) && Name::is_valid(name),
            None => Name::is_valid(text),
        };
        if valid { Ok(Self(text.to_owned())) } else { Err(error("config id", text, "expected NAME or ROLE.NAME")) }
    }
}

text_type!(ConfigId, format!("{NAME_PATTERN}(\\.{NAME_PATTERN})?"), "hello.main");

/// A version of an artifact or config, such as `1.2.0`: up to 64 letters, digits and `.-+_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(String);

impl Version {
    /// Returns the version as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Version {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b'_');
        let bytes = text.as_bytes();
        let first = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        if first && bytes.len() <= 64 && bytes.iter().copied().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(error("version", text, "use 1 to 64 letters, digits and '.-+_', beginning with a letter or a digit"))
        }
    }
}

text_type!(Version, "[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}", "1.2.0");

/// The value of a unit's label: up to 63 letters, digits and `.-+_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelValue(String);

impl LabelValue {
    /// Returns the value as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LabelValue {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b'_');
        let bytes = text.as_bytes();
        let first = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        if first && bytes.len() <= NAME_MAX_BYTES && bytes.iter().copied().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            let rule = "use 1 to 63 letters, digits and '.-+_', beginning with a letter or a digit";
            Err(error("label value", text, rule))
        }
    }
}

text_type!(LabelValue, "[A-Za-z0-9][A-Za-z0-9.+_-]{0,62}", "gold");

/// Formats bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    /// Returns the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_ring(ring::digest::digest(&ring::digest::SHA256, bytes))
    }

    /// Converts a digest of a [`ring::digest::Context`] over SHA-256.
    #[must_use]
    pub fn from_ring(digest: ring::digest::Digest) -> Self {
        debug_assert_eq!(digest.as_ref().len(), 32);
        Self(hex(digest.as_ref()))
    }

    /// Converts a [`ring::hmac::Tag`] over SHA-256.
    #[must_use]
    pub(crate) fn from_tag(tag: &ring::hmac::Tag) -> Self {
        debug_assert_eq!(tag.as_ref().len(), 32);
        Self(hex(tag.as_ref()))
    }

    /// Returns the 64 digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first 12 digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl FromStr for Digest {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let hex = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
        if text.len() == 64 && text.as_bytes().iter().all(hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err(error("SHA-256", text, "expected 64 lower-case hexadecimal digits"))
        }
    }
}

text_type!(Digest, "[0-9a-f]{64}", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: FromStr + fmt::Display>(good: &[&str], bad: &[&str]) {
        for text in good {
            match text.parse::<T>() {
                Ok(value) => assert_eq!(value.to_string(), *text),
                Err(_) => panic!("{text:?} should be accepted"),
            }
        }
        for text in bad {
            assert!(text.parse::<T>().is_err(), "{text:?} should be refused");
        }
    }

    #[test]
    fn valid_names_parse_and_others_are_refused() {
        let longest = "a".repeat(63);
        let too_long = "a".repeat(64);
        check::<Name>(
            &["default", "a", "0", "a-b_c9", &longest],
            &["", "-a", "_a", "A", "a.b", "a/b", "a b", "é", "a\n", "+", "#", "$sys", &too_long],
        );
    }

    #[test]
    fn valid_ids_parse_and_others_are_refused() {
        check::<HostId>(
            &["0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52"],
            &[
                "",
                "host",
                "0E2C1A4E-6A61-4A1C-9D0F-0D6D5A8F1F52",
                "0e2c1a4e6a614a1c9d0f0d6d5a8f1f52",
                "{0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52}",
                "urn:uuid:0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52",
            ],
        );
        check::<UnitName>(&["default/hello", "a/b"], &["", "hello", "/hello", "default/", "a/b/c", "../x"]);
        check::<ConfigId>(&["hello", "hello.main"], &["", ".", "a.", ".a", "a.b.c", "a/b"]);
        check::<Version>(&["1", "1.2.0", "2024-01-01", "1.0+build_5"], &["", ".1", "1 2", "1/2", "é"]);
        check::<Digest>(&[Digest::of(b"").as_str()], &["", "e3b0", &Digest::of(b"").as_str().to_uppercase()]);
    }

    #[test]
    fn unit_name_has_realm_and_name() {
        let unit: UnitName = "shop/till".parse().unwrap();
        assert_eq!((unit.realm().as_str(), unit.name().as_str()), ("shop", "till"));
        assert_eq!(UnitName::new(&unit.realm(), &unit.name()), unit);
    }

    #[test]
    fn error_of_long_input_is_short() {
        let text = "é".repeat(100_000);
        assert!(text.parse::<Name>().unwrap_err().to_string().len() < 400);
    }
}
