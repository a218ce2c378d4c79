//! A recursive-descent parser, whose errors have a position.

use std::{fmt, str::FromStr};

use super::{DEPTH_MAX, Fact, Field, HostSelect, Order, SELECT_MAX_BYTES, Select, is_plain, value, value::Sort};
use crate::{name::Name, unit::Phase};

/// The names of units' fields, for error messages.
const UNIT_FIELDS: &str = "host, id, realm, name, role, version, wanted.version, kind, phase or label.NAME";

/// The names of hosts' fields.
const HOST_FIELDS: &str = "host, realm, label.NAME, fact.NAME or unit(…)";

/// Why a text is no selector, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectError {
    text: String,
    /// The character.
    at: usize,
    what: String,
}

impl SelectError {
    /// Returns the index of the character, from 0.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }
}

impl fmt::Display for SelectError {
    /// Formats the error, and below it the text with a mark at the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line: String = self.text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        write!(f, "{}\n  {line}\n  {:>width$}", self.what, "^", width = self.at + 1)
    }
}

impl std::error::Error for SelectError {}

impl FromStr for Select {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        parse(text, Scope::Units)
    }
}

impl FromStr for HostSelect {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        parse(text, Scope::Hosts).map(HostSelect)
    }
}

fn parse(text: &str, scope: Scope) -> Result<Select, SelectError> {
    let too_long = |what: String| {
        // A text that is too long to be parsed is too long to be shown.
        SelectError { text: text.chars().take(60).collect(), at: 0, what }
    };
    if text.len() > SELECT_MAX_BYTES {
        return Err(too_long(format!("a selector may have at most {SELECT_MAX_BYTES} bytes")));
    }
    let mut parser = Parser { letters: text.chars().collect(), at: 0, depth: 0, scope };
    let select = parser.either()?;
    parser.blanks();
    if parser.peek().is_some() {
        return Err(parser.error("expected `and`, `or` or the end"));
    }
    // It is sent in its printed form, which has no abbreviations.
    let printed = select.to_string().len();
    if printed > SELECT_MAX_BYTES {
        let what = format!("written in full it has {printed} bytes, and a selector may have {SELECT_MAX_BYTES}");
        return Err(too_long(what));
    }
    Ok(select)
}

/// What the parser selects at this point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Units,
    Hosts,
}

struct Parser {
    letters: Vec<char>,
    at: usize,
    depth: usize,
    scope: Scope,
}

/// An operator between a field and a value.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Is,
    IsNot,
    Compares(Order),
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

    /// Takes a keyword, if it is here as a word of its own.
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
        self.in_parentheses(Self::either)
    }

    fn in_parentheses(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<Select, SelectError>,
    ) -> Result<Select, SelectError> {
        let opened = self.at;
        self.at += 1;
        let inner = self.nested(parse)?;
        self.blanks();
        match self.peek() {
            Some(')') => {
                self.at += 1;
                Ok(inner)
            }
            None => Err(self.error_at(opened, "this parenthesis is not closed")),
            Some(_) => Err(self.error("expected `and`, `or` or `)`")),
        }
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Result<Select, SelectError>) -> Result<Select, SelectError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(too_deep()));
        }
        let parsed = parse(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    fn test(&mut self) -> Result<Select, SelectError> {
        self.blanks();
        let start = self.at;
        let word = self.word();
        if self.scope == Scope::Hosts && (word == "unit" || word.starts_with("unit.")) {
            return self.of_unit(start, &word);
        }
        let field = self.field(start, &word)?;
        match self.sign() {
            Some((sign, at)) => self.compared(field, sign, at),
            None => match field {
                Field::Label(name) => Ok(Select::Has(name)),
                field => Err(self.error(format!("expected `=` or `!=` after {field}"))),
            },
        }
    }

    /// Parses what follows `unit` or `unit.FIELD`.
    fn of_unit(&mut self, start: usize, word: &str) -> Result<Select, SelectError> {
        let after = self.at;
        self.blanks();
        if word == "unit" && self.peek() == Some('(') {
            let of = self.in_parentheses(|parser| parser.within(Scope::Units, Self::either))?;
            return Ok(Select::Unit(Box::new(of)));
        }
        // Its full form is `not unit(…)`.
        if self.depth + 2 > DEPTH_MAX {
            return Err(self.error_at(start, too_deep()));
        }
        let field = match word.strip_prefix("unit.") {
            Some(name) => self.within(Scope::Units, |parser| parser.field(start, name))?,
            None => Field::Id,
        };
        let Some((sign, at)) = self.sign() else {
            if let Field::Label(name) = field {
                return Ok(Select::Unit(Box::new(Select::Has(name))));
            }
            let what = format!("expected `(`, `=` or `!=` after {word}, as in unit(role=web and phase=failed)");
            return Err(self.error_at(after, what));
        };
        let (sign, is_not) = match sign {
            Sign::IsNot => (Sign::Is, true),
            sign => (sign, false),
        };
        let of = Select::Unit(Box::new(self.compared(field, sign, at)?));
        Ok(if is_not { Select::Not(Box::new(of)) } else { of })
    }

    fn within<T>(&mut self, scope: Scope, parse: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.scope, scope);
        let parsed = parse(self);
        self.scope = outer;
        parsed
    }

    /// Takes an operator, with its place.
    fn sign(&mut self) -> Option<(Sign, usize)> {
        self.blanks();
        let at = self.at;
        let (sign, length) = match (self.peek()?, self.letters.get(at + 1)) {
            ('=', _) => (Sign::Is, 1),
            ('!', Some('=')) => (Sign::IsNot, 2),
            ('<', Some('=')) => (Sign::Compares(Order::AtMost), 2),
            ('<', _) => (Sign::Compares(Order::Less), 1),
            ('>', Some('=')) => (Sign::Compares(Order::AtLeast), 2),
            ('>', _) => (Sign::Compares(Order::More), 1),
            _ => return None,
        };
        self.at += length;
        Some((sign, at))
    }

    /// Parses the value after a field and its operator.
    fn compared(&mut self, field: Field, sign: Sign, at: usize) -> Result<Select, SelectError> {
        if let (Sign::Compares(order), Sort::Text) = (sign, Sort::of(&field)) {
            let what = format!("`{field}` is text, and `{order}` compares numbers; use = and != with * and ?");
            return Err(self.error_at(at, what));
        }
        self.blanks();
        let start = self.at;
        let value = self.value()?;
        self.check(&field, sign, &value, start)?;
        Ok(match sign {
            Sign::Is => Select::Is(field, value),
            Sign::IsNot => Select::IsNot(field, value),
            Sign::Compares(order) => Select::Compares(field, order, value),
        })
    }

    /// Returns the field of a word that begins at `start`.
    fn field(&self, start: usize, word: &str) -> Result<Field, SelectError> {
        let named = match word {
            "host" => Field::Host,
            "id" => Field::Id,
            "realm" => Field::Realm,
            "name" => Field::Name,
            "role" => Field::Role,
            "version" => Field::Version,
            "wanted.version" => Field::WantedVersion,
            "kind" => Field::Kind,
            "phase" => Field::Phase,
            word => self.dotted(start, word)?,
        };
        let is_fact = matches!(named, Field::Fact(_));
        match self.scope {
            Scope::Units if is_fact => {
                let what = format!("`{word}` is a field of hosts, and this selector selects units: use {UNIT_FIELDS}");
                Err(self.error_at(start, what))
            }
            Scope::Hosts if !is_fact && !matches!(named, Field::Host | Field::Realm | Field::Label(_)) => {
                let what = format!(
                    "`{word}` is a field of units, and this selector selects hosts: use unit({word}=…) for hosts with such a unit"
                );
                Err(self.error_at(start, what))
            }
            _ => Ok(named),
        }
    }

    fn dotted(&self, start: usize, word: &str) -> Result<Field, SelectError> {
        let known = if self.scope == Scope::Units { UNIT_FIELDS } else { HOST_FIELDS };
        if word.is_empty() {
            return Err(self.error_at(start, format!("expected a field: {known}")));
        }
        if let Some(label) = word.strip_prefix("label.") {
            let name = label.parse::<Name>();
            return name.map(Field::Label).map_err(|error| self.error_at(start, format!("the label's {error}")));
        }
        if let Some(name) = word.strip_prefix("fact.") {
            let fact = Fact::ALL.into_iter().find(|fact| fact.name() == name);
            return fact.map(Field::Fact).ok_or_else(|| {
                let names = Fact::ALL.map(Fact::name).join(", ");
                self.error_at(start, format!("unknown fact {name:?}; use one of {names}"))
            });
        }
        Err(self.error_at(start, format!("unknown field {word:?}; use {known}")))
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
                Err(self.error("expected a value; quote one with blanks or other signs"))
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
                        _ => return Err(self.error("only \\\" and \\\\ are allowed after a backslash")),
                    }
                }
                Some(letter) => value.push(letter),
            }
        }
        self.at += 1;
        Ok(value)
    }

    /// Refuses a value that the field can never have: it is a typing error.
    fn check(&self, field: &Field, sign: Sign, value: &str, at: usize) -> Result<(), SelectError> {
        let compares = matches!(sign, Sign::Compares(_));
        let wanted = match (Sort::of(field), compares) {
            (Sort::Number, _) | (Sort::Label, true) if value::number(value).is_none() => {
                "expected a number, such as 4, 1.5 or 8G"
            }
            (Sort::Version, true) if value::version(value).is_none() => "expected a version, such as 1.10",
            _ => "",
        };
        if !wanted.is_empty() {
            return Err(self.error_at(at, wanted));
        }
        let is_known = match field {
            Field::Phase => serde_json::from_value::<Phase>(value.into()).is_ok(),
            Field::Kind => value == "yuno",
            _ => true,
        };
        if is_known || value.contains(['*', '?']) {
            return Ok(());
        }
        Err(self.error_at(at, format!("unknown {field} {value:?}")))
    }
}

fn too_deep() -> String {
    format!("parentheses, `not` and `unit(…)` may be nested {DEPTH_MAX} deep")
}
