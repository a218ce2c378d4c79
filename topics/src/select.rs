//! Selectors: expressions that pick units, as `realm=prod and role=web and not label.tier=gold`, or hosts, by `host`,
//! `realm` (those that a host carries) and its own labels.
//!
//! ```text
//! select = both { "or" both }
//! both   = not { "and" not }
//! not    = "not" not | "(" select ")" | test
//! test   = field "=" value | field "!=" value | "label." NAME
//! field  = "host" | "id" | "realm" | "name" | "role" | "version" | "kind" | "phase" | "label." NAME
//! value  = letters, digits and . _ - + / : @ * ?   or anything in "double quotes", with \" and \\
//! ```
//!
//! In a value `*` stands for any text and `?` for one character: `version=1.*`. `host` is a host's id or its
//! hostname, `id` a unit's full name (`realm/name`). `a!=b` is `not a=b`; a label alone asks whether there is one.
//!
//! **Invariant: what was parsed prints as a text that parses to the same.**

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    name::{HostId, Name, UnitName},
    unit::{Phase, Spec},
};

/// The longest selector, in bytes: more than anybody types, and a small part of a message.
pub const SELECT_MAX_BYTES: usize = 1_000;

/// How deep parentheses and `not` may be nested: far deeper than anybody reads, far less than a stack holds.
const DEPTH_MAX: usize = 32;

/// Picks some of all units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// What either picks.
    Or(Box<Self>, Box<Self>),
    /// What both pick.
    And(Box<Self>, Box<Self>),
    /// What it does not pick.
    Not(Box<Self>),
    /// Where a field has a value like this.
    Is(Field, String),
    /// Where a field has no value like this.
    IsNot(Field, String),
    /// What has a label of this name.
    Has(Name),
}

/// What of a unit is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The id and the hostname of its host.
    Host,
    /// Its full name.
    Id,
    /// Its realm.
    Realm,
    /// Its name within the realm.
    Name,
    /// The role of what runs.
    Role,
    /// The version of what runs.
    Version,
    /// Its kind.
    Kind,
    /// What it is doing.
    Phase,
    /// A label.
    Label(Name),
}

/// The names of fields, for whoever mistypes one.
const FIELDS: &str = "host, id, realm, name, role, version, kind, phase or label.NAME";

impl Select {
    /// Whether it picks what has these values; of some fields there may be several, or none.
    #[must_use]
    pub fn picks<'a>(&self, values: &dyn Fn(&Field) -> Vec<Cow<'a, str>>) -> bool {
        let has = |field: &Field, pattern: &String| values(field).iter().any(|value| is_like(pattern, value));
        match self {
            Self::Or(left, right) => left.picks(values) || right.picks(values),
            Self::And(left, right) => left.picks(values) && right.picks(values),
            Self::Not(inner) => !inner.picks(values),
            Self::Is(field, pattern) => has(field, pattern),
            Self::IsNot(field, pattern) => !has(field, pattern),
            Self::Has(label) => !values(&Field::Label(label.clone())).is_empty(),
        }
    }

    /// Whether it picks a unit.
    #[must_use]
    pub fn picks_unit(&self, unit: &Unit<'_>) -> bool {
        self.picks(&|field| unit.values(field))
    }

    /// Whether it picks a host.
    #[must_use]
    pub fn picks_host(&self, host: &Host<'_>) -> bool {
        self.picks(&|field| host.values(field))
    }

    /// The first field in it that no host has.
    #[must_use]
    pub fn not_of_hosts(&self) -> Option<&Field> {
        match self {
            Self::Or(left, right) | Self::And(left, right) => left.not_of_hosts().or_else(|| right.not_of_hosts()),
            Self::Not(inner) => inner.not_of_hosts(),
            Self::Is(field, _) | Self::IsNot(field, _) => {
                let has = matches!(field, Field::Host | Field::Realm | Field::Label(_));
                if has { None } else { Some(field) }
            }
            Self::Has(_) => None,
        }
    }
}

/// The names of the fields that hosts have.
pub const HOST_FIELDS: &str = "host, realm and label.NAME";

/// A host, as far as selectors look at it.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its id.
    pub host: HostId,
    /// What it calls itself.
    pub hostname: &'a str,
    /// The realms that it carries.
    pub realms: &'a [Name],
    /// Its labels.
    pub labels: &'a BTreeMap<Name, String>,
}

impl<'a> Host<'a> {
    /// The values of a field; none of those that only units have.
    #[must_use]
    pub fn values(&self, field: &Field) -> Vec<Cow<'a, str>> {
        match field {
            Field::Host => vec![self.host.to_string().into(), self.hostname.into()],
            Field::Realm => self.realms.iter().map(|realm| realm.as_str().into()).collect(),
            Field::Label(name) => self.labels.get(name).map(|value| value.as_str().into()).into_iter().collect(),
            Field::Id | Field::Name | Field::Role | Field::Version | Field::Kind | Field::Phase => Vec::new(),
        }
    }
}

/// A unit, as far as selectors look at it.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// Its host.
    pub host: HostId,
    /// What the host calls itself.
    pub hostname: &'a str,
    /// Its name.
    pub name: &'a UnitName,
    /// What it should be.
    pub spec: &'a Spec,
    /// What it is doing.
    pub phase: Phase,
}

impl<'a> Unit<'a> {
    /// The values of a field.
    #[must_use]
    pub fn values(&self, field: &Field) -> Vec<Cow<'a, str>> {
        let Spec::Yuno(spec) = self.spec;
        match field {
            Field::Host => vec![self.host.to_string().into(), self.hostname.into()],
            Field::Id => vec![self.name.as_str().into()],
            Field::Realm => vec![self.name.realm().as_str().to_owned().into()],
            Field::Name => vec![self.name.name().as_str().to_owned().into()],
            Field::Role => vec![spec.artifact.role.as_str().into()],
            Field::Version => vec![spec.artifact.version.as_str().into()],
            Field::Kind => vec![self.spec.kind().into()],
            Field::Phase => vec![word(self.phase).into()],
            Field::Label(name) => spec.labels.get(name).map(|value| value.as_str().into()).into_iter().collect(),
        }
    }
}

/// A phase in the word that the wire has for it.
fn word(phase: Phase) -> String {
    let json = serde_json::to_value(phase).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}

/// Whether a text is like a pattern, in which `*` stands for anything and `?` for one character.
fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where the last `*` stands, and how much of the text it has been given.
    let mut star = None;
    while at < text.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == text[at] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((stands, given)) = star else { return false };
                star = Some((stands, given + 1));
                (at, of) = (given + 1, stands + 1);
            }
        }
    }
    pattern[of..].iter().all(|rest| *rest == '*')
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Id => "id",
            Self::Realm => "realm",
            Self::Name => "name",
            Self::Role => "role",
            Self::Version => "version",
            Self::Kind => "kind",
            Self::Phase => "phase",
            Self::Label(name) => return write!(f, "label.{name}"),
        })
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = |f: &mut fmt::Formatter<'_>, of: &Self, bare: bool| {
            if bare { write!(f, "{of}") } else { write!(f, "({of})") }
        };
        match self {
            Self::Or(left, right) => {
                write!(f, "{left} or ")?;
                inner(f, right, !matches!(**right, Self::Or(..)))
            }
            Self::And(left, right) => {
                inner(f, left, !matches!(**left, Self::Or(..)))?;
                f.write_str(" and ")?;
                inner(f, right, !matches!(**right, Self::Or(..) | Self::And(..)))
            }
            Self::Not(of) => {
                f.write_str("not ")?;
                inner(f, of, !matches!(**of, Self::Or(..) | Self::And(..)))
            }
            Self::Is(field, value) => write!(f, "{field}={}", quoted(value)),
            Self::IsNot(field, value) => write!(f, "{field}!={}", quoted(value)),
            Self::Has(label) => write!(f, "label.{label}"),
        }
    }
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-+/:@*?".contains(letter)
}

fn quoted(value: &str) -> Cow<'_, str> {
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.into();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")).into()
}

/// Why a text is no selector, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectError {
    text: String,
    /// At which character.
    at: usize,
    what: String,
}

impl SelectError {
    /// At which character of the text the trouble is, counted from 0.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }
}

impl fmt::Display for SelectError {
    /// The complaint, and below it the text with a mark at the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line: String = self.text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        write!(f, "{}\n  {line}\n  {:>width$}", self.what, "^", width = self.at + 1)
    }
}

impl std::error::Error for SelectError {}

impl FromStr for Select {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        if text.len() > SELECT_MAX_BYTES {
            let what = format!("a selector may have at most {SELECT_MAX_BYTES} bytes");
            // What is too long to be read is too long to be shown.
            return Err(SelectError { text: text.chars().take(60).collect(), at: 0, what });
        }
        let mut parser = Parser { letters: text.chars().collect(), at: 0, depth: 0 };
        let select = parser.either()?;
        parser.blanks();
        match parser.peek() {
            None => Ok(select),
            Some(_) => Err(parser.error("`and`, `or` or the end is wanted here")),
        }
    }
}

struct Parser {
    letters: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn error(&self, what: impl Into<String>) -> SelectError {
        self.error_at(self.at, what)
    }

    fn error_at(&self, at: usize, what: impl Into<String>) -> SelectError {
        SelectError { text: self.letters.iter().collect(), at, what: what.into() }
    }

    fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// Takes a keyword, if it stands here as a word of its own.
    fn takes(&mut self, keyword: &str) -> bool {
        self.blanks();
        let end = self.at + keyword.len();
        let stands = self.letters[self.at..].iter().copied().take(keyword.len()).eq(keyword.chars());
        let ends = self.letters.get(end).is_none_or(|next| !is_plain(*next) && !matches!(next, '=' | '!'));
        if stands && ends {
            self.at = end;
        }
        stands && ends
    }

    fn either(&mut self) -> Result<Select, SelectError> {
        let mut left = self.both()?;
        while self.takes("or") {
            left = Select::Or(Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Select, SelectError> {
        let mut left = self.not()?;
        while self.takes("and") {
            left = Select::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Select, SelectError> {
        self.blanks();
        if self.takes("not") {
            return self.nested(|parser| Ok(Select::Not(Box::new(parser.not()?))));
        }
        if self.peek() != Some('(') {
            return self.test();
        }
        let opened = self.at;
        self.at += 1;
        let inner = self.nested(Self::either)?;
        self.blanks();
        match self.peek() {
            Some(')') => {
                self.at += 1;
                Ok(inner)
            }
            None => Err(self.error_at(opened, "this parenthesis is not closed")),
            Some(_) => Err(self.error("`and`, `or` or `)` is wanted here")),
        }
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Result<Select, SelectError>) -> Result<Select, SelectError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("parentheses and `not` may be nested {DEPTH_MAX} deep")));
        }
        let parsed = parse(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    fn test(&mut self) -> Result<Select, SelectError> {
        let field = self.field()?;
        self.blanks();
        let is = match (self.peek(), self.letters.get(self.at + 1)) {
            (Some('='), _) => true,
            (Some('!'), Some('=')) => false,
            _ => {
                return match field {
                    Field::Label(name) => Ok(Select::Has(name)),
                    field => Err(self.error(format!("`=` or `!=` is wanted after {field}"))),
                };
            }
        };
        self.at += if is { 1 } else { 2 };
        self.blanks();
        let start = self.at;
        let value = self.value()?;
        self.check(&field, &value, start)?;
        Ok(if is { Select::Is(field, value) } else { Select::IsNot(field, value) })
    }

    fn field(&mut self) -> Result<Field, SelectError> {
        self.blanks();
        let start = self.at;
        let word = self.word();
        let field = match word.as_str() {
            "host" => Field::Host,
            "id" => Field::Id,
            "realm" => Field::Realm,
            "name" => Field::Name,
            "role" => Field::Role,
            "version" => Field::Version,
            "kind" => Field::Kind,
            "phase" => Field::Phase,
            "" => return Err(self.error_at(start, format!("a field is wanted here: {FIELDS}"))),
            word => {
                let Some(label) = word.strip_prefix("label.") else {
                    return Err(self.error_at(start, format!("there is no field {word:?}; use {FIELDS}")));
                };
                Field::Label(
                    label.parse::<Name>().map_err(|error| self.error_at(start, format!("the label's {error}")))?,
                )
            }
        };
        Ok(field)
    }

    fn word(&mut self) -> String {
        let word: String = self.letters[self.at..].iter().take_while(|letter| is_plain(**letter)).collect();
        self.at += word.chars().count();
        word
    }

    fn value(&mut self) -> Result<String, SelectError> {
        if self.peek() != Some('"') {
            let word = self.word();
            return if word.is_empty() {
                Err(self.error("a value is wanted here; one with blanks or other signs in \"quotes\""))
            } else {
                Ok(word)
            };
        }
        let opened = self.at;
        let mut value = String::new();
        loop {
            self.at += 1;
            match self.peek() {
                None => return Err(self.error_at(opened, "this quotation is not closed")),
                Some('"') => break,
                Some('\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(letter @ ('"' | '\\')) => value.push(letter),
                        _ => return Err(self.error("only \\\" and \\\\ can stand after a backslash")),
                    }
                }
                Some(letter) => value.push(letter),
            }
        }
        self.at += 1;
        Ok(value)
    }

    /// A word that no unit can have there is a slip rather than a wish.
    fn check(&self, field: &Field, value: &str, at: usize) -> Result<(), SelectError> {
        let is_known = match field {
            Field::Phase => serde_json::from_value::<Phase>(value.into()).is_ok(),
            Field::Kind => value == "yuno",
            _ => true,
        };
        if is_known || value.contains(['*', '?']) {
            return Ok(());
        }
        Err(self.error_at(at, format!("there is no {field} {value:?}")))
    }
}

impl Serialize for Select {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Select {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Select {
    fn schema_name() -> Cow<'static, str> {
        "Select".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": SELECT_MAX_BYTES,
            "description": "An expression that picks units: fields host, id, realm, name, role, version, kind, phase and \
                            label.NAME, = and != with * and ? in values, and, or, not, parentheses.",
            "examples": ["realm=prod and role=web and not label.tier=gold and version=1.*"]
        })
    }
}

#[cfg(test)]
mod tests;
