//! A list of matchers, all of which a series must satisfy.

use std::fmt;

use crate::{
    labels::{Labels, NAME},
    matcher::{MatchOperator, Matcher},
    text::quote,
};

/// Matchers that a series must all fulfil. A series without labels never fulfils them all.
#[derive(Debug)]
pub struct Matchers(pub(crate) Vec<Matcher>);

impl Matchers {
    /// All matchers.
    pub fn iter(&self) -> impl Iterator<Item = &Matcher> {
        self.0.iter()
    }

    /// Labels that must have a given value; any of them can be used to find the series.
    pub fn equalities(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|matcher| match &matcher.test {
            MatchOperator::Equal(value) if !value.is_empty() => Some((matcher.label.as_str(), value.as_str())),
            _ => None,
        })
    }

    /// Whether a series with these values fulfils all matchers; an empty value means that the label is missing.
    pub fn accept<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|matcher| matcher.test.accepts(value(&matcher.label)))
    }

    /// The labels of the result of `absent`: those that must have a given value.
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

/// As it could be written in a query.
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
