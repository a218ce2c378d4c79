//! Matchers of one label. A label that a series does not have is an empty value, and regular expressions
//! match whole values.
//!
//! **Invariant: a matcher from outside costs a bounded amount.** The size of its compiled expression has a limit, and
//! matching takes time linear in the value.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use regex_automata::{
    nfa::thompson::{
        self, WhichCaptures,
        pikevm::{Cache, PikeVM},
    },
    util::{captures::Captures, syntax},
};

use crate::re2;

/// Largest compiled expression; `[0-9a-f]{64}` needs a fiftieth of it.
const PATTERN_MAX_BYTES: usize = 256 * 1024;
/// Deepest nesting of groups, because the parser of expressions is recursive.
const PATTERN_NEST_MAX: u32 = 50;

/// A condition on one label.
#[derive(Clone, Debug)]
pub struct Matcher {
    /// The label.
    pub label: String,
    /// The condition.
    pub test: MatchOperator,
}

/// The four operators.
#[derive(Clone, Debug)]
pub enum MatchOperator {
    /// Equal to this value.
    Equal(String),
    /// Any other value.
    NotEqual(String),
    /// A value that the expression matches.
    Match(Pattern),
    /// A value that the expression does not match.
    NotMatch(Pattern),
}

impl MatchOperator {
    /// The operator as it is written.
    #[must_use]
    pub fn operator(&self) -> &'static str {
        match self {
            Self::Equal(_) => "=",
            Self::NotEqual(_) => "!=",
            Self::Match(_) => "=~",
            Self::NotMatch(_) => "!~",
        }
    }

    /// The text behind the operator.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Equal(value) | Self::NotEqual(value) => value,
            Self::Match(pattern) | Self::NotMatch(pattern) => pattern.text(),
        }
    }

    /// Whether a value fulfils the condition.
    #[must_use]
    pub fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Equal(wanted) => value == wanted,
            Self::NotEqual(unwanted) => value != unwanted,
            Self::Match(pattern) => pattern.is_match(value),
            Self::NotMatch(pattern) => !pattern.is_match(value),
        }
    }
}

/// A compiled expression that must match a whole value, and the memory that it needs to run.
pub struct Pattern {
    text: String,
    machine: PikeVM,
    cache: Mutex<Cache>,
}

/// Clones share the compiled expression; each has its own memory to run.
impl Clone for Pattern {
    fn clone(&self) -> Self {
        let machine = self.machine.clone();
        let cache = Mutex::new(machine.create_cache());
        Self { text: self.text.clone(), machine, cache }
    }
}

impl Pattern {
    /// Compiles an expression without groups.
    ///
    /// # Errors
    /// If it is invalid or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        Self::build(text, WhichCaptures::None)
    }

    /// Compiles an expression with groups.
    pub(crate) fn with_groups(text: &str) -> Result<Self, String> {
        Self::build(text, WhichCaptures::All)
    }

    fn build(text: &str, groups: WhichCaptures) -> Result<Self, String> {
        let syntax = syntax::Config::new().dot_matches_new_line(true).nest_limit(PATTERN_NEST_MAX);
        let translated = re2::translate(text)?;
        // Parsed by itself first, because `a)|(b` would be valid once it is wrapped.
        syntax::parse_with(&translated, &syntax).map_err(|error| explain(&error))?;
        let thompson = thompson::Config::new().nfa_size_limit(Some(PATTERN_MAX_BYTES)).which_captures(groups);
        let machine = PikeVM::builder()
            .syntax(syntax)
            .thompson(thompson)
            .build(&format!(r"\A(?:{translated})\z"))
            .map_err(|error| explain(&error))?;
        let cache = Mutex::new(machine.create_cache());
        Ok(Self { text: text.to_owned(), machine, cache })
    }

    /// The text of the expression.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches a whole value.
    #[must_use]
    pub fn is_match(&self, value: &str) -> bool {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        self.machine.is_match(&mut cache, value)
    }

    /// The groups of a match of a whole value.
    pub(crate) fn groups(&self, value: &str) -> Option<Captures> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut captures = self.machine.create_captures();
        self.machine.captures(&mut cache, value, &mut captures);
        captures.is_match().then_some(captures)
    }
}

/// The last line of the parser's error; earlier lines draw the expression.
fn explain(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}
