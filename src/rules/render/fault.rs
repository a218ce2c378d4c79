//! Why a template cannot be rendered.

use std::error::Error as _;

use minijinja::{Error, ErrorKind};

use super::values::{RenderValues, ValueRoot};
use crate::unknown_keys::nearest;

/// The longest message: parts of it come from the template.
const MESSAGE_MAX_BYTES: usize = 400;

/// The most names that a hint lists.
const LISTED_MAX: usize = 12;

/// The functions that a template may call.
pub(super) const FUNCTIONS: [&str; 4] = ["dict", "endpoint", "range", "secret"];

/// Why a template cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub struct RenderFault {
    /// What the template is called.
    pub name: String,
    /// The line, from 1, if one is at fault.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[help]
    pub hint: Option<String>,
}

impl std::fmt::Display for RenderFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, line, message, hint: _ } = self;
        match line {
            Some(line) => write!(f, "{name}, line {line}: {message}"),
            None => write!(f, "{name}: {message}"),
        }
    }
}

impl RenderFault {
    pub(super) fn new(name: &str, message: String) -> Self {
        Self { name: name.to_owned(), line: None, message, hint: None }
    }

    pub(super) fn at(mut self, line: usize) -> Self {
        self.line = Some(line);
        self
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn shortened(mut self) -> Self {
        for text in [Some(&mut self.message), self.hint.as_mut()].into_iter().flatten() {
            if text.len() > MESSAGE_MAX_BYTES {
                text.truncate(text.floor_char_boundary(MESSAGE_MAX_BYTES));
                text.push('…');
            }
        }
        self
    }
}

/// Turns the engine's error into a fault.
pub(super) fn explain(name: &str, error: &Error, values: &RenderValues) -> RenderFault {
    let detail = error.detail().unwrap_or_default();
    let fault = match error.kind() {
        ErrorKind::OutOfFuel => RenderFault::new(name, "it takes too many steps, or its result is too long".to_owned())
            .with_hint("check its loops"),
        ErrorKind::UndefinedError => {
            let path = detail.split('`').nth(1).unwrap_or("a value");
            let fault = RenderFault::new(name, format!("{path} has no value here"));
            match hint_for(path, values) {
                Some(hint) => fault.with_hint(hint),
                None => fault,
            }
        }
        ErrorKind::UnknownFunction => {
            let word = detail.split(' ').next().unwrap_or_default();
            RenderFault::new(name, format!("unknown function {word}")).with_hint(nearest(word, FUNCTIONS.into_iter()))
        }
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::SyntaxError => {
            RenderFault::new(name, detail.to_owned())
        }
        kind if detail.is_empty() => RenderFault::new(name, kind.to_string()),
        _ => {
            let hint = error.source().and_then(|source| source.downcast_ref::<OwnHint>());
            let fault = RenderFault::new(name, detail.to_owned());
            match hint {
                Some(OwnHint(hint)) => fault.with_hint(hint),
                None => fault,
            }
        }
    };
    match error.line() {
        Some(line) => fault.at(line),
        None => fault,
    }
}

/// The hint of an error of our own functions, which the engine hands on as its source.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OwnHint(String);

fn own_error(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message).with_source(OwnHint(hint.to_owned()))
}

/// The error for a value that has no text that any other program would read.
pub(super) fn no_text(what: &str, hint: &str) -> Error {
    own_error(format!("{what} is not a text"), hint)
}

/// The error for an endpoint that the unit has not.
pub(super) fn no_endpoint<'a>(name: &str, known: impl Iterator<Item = &'a String> + Clone) -> Error {
    let hint = match known.clone().next() {
        Some(_) => listed(name, known.map(String::as_str)),
        None => "the unit's `provides` and `needs` define its endpoints".to_owned(),
    };
    own_error(format!("the unit has no endpoint {name}"), &hint)
}

/// The error for a secret that is not given.
pub(super) fn no_secret(name: &str) -> Error {
    own_error(
        format!("the secret {name} was not sent to the unit"),
        &format!("`muster secret set REALM/{name}`, then apply the unit again"),
    )
}

/// Returns a hint for an expression that has no value: `vars.colour`, `vars['colour']`, `hots`.
fn hint_for(path: &str, values: &RenderValues) -> Option<String> {
    let mut parts = path.split(['.', '[']).map(|part| part.trim_matches(['\'', '"', ']', ' ']));
    let (word, key) = (parts.next()?, parts.next());
    let Some(root) = ValueRoot::of_name(word) else { return Some(unknown_root(word)) };
    let Some(keys) = values.keys(root) else {
        return (root == ValueRoot::Deployment).then(|| "the unit does not belong to a deployment".to_owned());
    };
    let key = key?;
    if keys.clone().any(|known| known == key) {
        return None;
    }
    let how = match root {
        ValueRoot::Vars => format!("`muster var set {key} VALUE`"),
        ValueRoot::Label => format!("`muster host label HOST {key}=VALUE`"),
        _ => return Some(listed(key, keys)),
    };
    match keys.clone().next() {
        Some(_) => Some(format!("{}; or set it: {how}", listed(key, keys))),
        None => Some(format!("set it: {how}")),
    }
}

/// Returns a hint for a word that is no value, variable or function.
pub(super) fn unknown_root(word: &str) -> String {
    nearest(word, ValueRoot::ALL.into_iter().map(ValueRoot::name).chain(FUNCTIONS))
}

/// Returns the nearest known name, or the first of all.
pub(super) fn listed<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near: Vec<&str> = known.clone().filter(|other| strsim::jaro_winkler(word, other) > 0.75).collect();
    match near.is_empty() {
        true if known.clone().nth(LISTED_MAX).is_some() => {
            let first: Vec<String> = known.take(LISTED_MAX).map(|name| format!("`{name}`")).collect();
            format!("known are {}, …", first.join(", "))
        }
        true => nearest(word, known),
        false => nearest(word, near.into_iter()),
    }
}
