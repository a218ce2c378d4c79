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

/// The largest compiled expression; `[0-9a-f]{64}` takes a fiftieth of it.
const PATTERN_MAX_BYTES: usize = 256 * 1024;
/// How deep groups may nest, for the parser of expressions calls itself.
const PATTERN_NEST_MAX: u32 = 50;

/// What one label has to be.
#[derive(Clone, Debug)]
pub struct Matcher {
    /// Which one.
    pub label: String,
    /// What it has to be.
    pub test: MatchOperator,
}

/// The four operators.
#[derive(Clone, Debug)]
pub enum MatchOperator {
    /// This very value.
    Equal(String),
    /// Any other.
    NotEqual(String),
    /// What the expression matches.
    Match(Pattern),
    /// What it does not.
    NotMatch(Pattern),
}

impl MatchOperator {
    /// How it is written.
    #[must_use]
    pub fn operator(&self) -> &'static str {
        match self {
            Self::Equal(_) => "=",
            Self::NotEqual(_) => "!=",
            Self::Match(_) => "=~",
            Self::NotMatch(_) => "!~",
        }
    }

    /// What stands behind the operator.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Equal(value) | Self::NotEqual(value) => value,
            Self::Match(pattern) | Self::NotMatch(pattern) => pattern.text(),
        }
    }

    /// Whether a value is what it has to be.
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

/// A compiled expression that matches whole values, and the memory that it needs to run.
pub struct Pattern {
    text: String,
    machine: PikeVM,
    cache: Mutex<Cache>,
}

/// What was compiled is shared; the memory to run in is each one's own.
impl Clone for Pattern {
    fn clone(&self) -> Self {
        let machine = self.machine.clone();
        let cache = Mutex::new(machine.create_cache());
        Self { text: self.text.clone(), machine, cache }
    }
}

impl Pattern {
    /// Compiles an expression that only tests.
    ///
    /// # Errors
    /// If it is not one, or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        Self::build(text, WhichCaptures::None)
    }

    /// Compiles an expression whose groups are wanted.
    pub(crate) fn with_groups(text: &str) -> Result<Self, String> {
        Self::build(text, WhichCaptures::All)
    }

    fn build(text: &str, groups: WhichCaptures) -> Result<Self, String> {
        let syntax = syntax::Config::new().dot_matches_new_line(true).nest_limit(PATTERN_NEST_MAX);
        let translated = re2::translate(text)?;
        // By itself first, for once it is wrapped `a)|(b` would be an expression.
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

    /// The expression.
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

/// The last line of what the parser of expressions says; those before it draw the expression.
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
