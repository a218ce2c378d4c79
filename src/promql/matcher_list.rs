//! A list of matchers, all of which a series must satisfy.

use std::fmt;

use crate::{
    labels::{Labels, NAME},
    matcher::{MatchOperator, Matcher},
    text::quote,
};

/// Matchers that a series must all satisfy; never such that a series without labels would.
#[derive(Debug)]
pub struct Matchers(pub(crate) Vec<Matcher>);

impl Matchers {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Matcher> {
        self.0.iter()
    }

    /// Labels that must have this very value: any of them leads to the series.
    pub fn equalities(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|matcher| match &matcher.test {
            MatchOperator::Equal(value) if !value.is_empty() => Some((matcher.label.as_str(), value.as_str())),
            _ => None,
        })
    }

    /// Whether a series is meant that has these values; an empty one is a label that it does not have.
    pub fn accept<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|matcher| matcher.test.accepts(value(&matcher.label)))
    }

    /// The labels that `absent` gives: those that must have one value.
    pub(crate) fn wanted(&self) -> Labels {
        let mut labels = Labels::default();
        let mut seen: Vec<&str> = Vec::new();
        for matcher in self.0.iter().filter(|matcher| matcher.label != NAME) {
            match &matcher.test {
                MatchOperator::Equal(value) if !seen.contains(&matcher.label.as_str()) => {
                    labels.set(&matcher.label, value);
                    seen.push(&matcher.label);
                }
                _ => labels.set(&matcher.label, ""),
            }
        }
        labels
    }
}

/// As it could have been written.
impl fmt::Display for Matchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, matcher) in self.0.iter().enumerate() {
            let (operator, value) = (matcher.test.operator(), matcher.test.text());
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}{operator}{}", matcher.label, quote(value))?;
        }
        f.write_str("}")
    }
}
