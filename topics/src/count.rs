//! Numbers of things, for people.

use std::fmt::Display;

/// A number of things: `1 unit`, `3 units`. The noun is in the singular, and takes an `s`.
#[must_use]
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noun_agrees_with_its_number() {
        for (count, expected) in [(0, "0 units"), (1, "1 unit"), (2, "2 units"), (11, "11 units")] {
            assert_eq!(counted(count, "unit"), expected);
        }
    }
}
