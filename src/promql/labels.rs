//! The labels of a series, including its name.

use std::{fmt, sync::Arc};

/// The label with the name of a series.
pub const NAME: &str = "__name__";

/// Labels, sorted by name. None has an empty value, which would be the same as not having the label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    /// The value of a label; empty if it is missing.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.find(name).ok().and_then(|at| self.0.get(at)).map_or("", |(_, value)| value)
    }

    /// Sets a label; an empty value removes it.
    pub fn set(&mut self, name: &str, value: &str) {
        match (self.find(name), value.is_empty()) {
            (Ok(at), true) => {
                self.0.remove(at);
            }
            (Ok(at), false) => {
                if let Some((_, old)) = self.0.get_mut(at) {
                    *old = value.into();
                }
            }
            (Err(_), true) => {}
            (Err(at), false) => self.0.insert(at, (name.into(), value.into())),
        }
    }

    /// A copy without some labels.
    #[must_use]
    pub fn without(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(name, _)| !names.contains(&name.as_ref())).cloned().collect())
    }

    /// A copy with only some labels.
    #[must_use]
    pub fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(name, _)| names.contains(&name.as_ref())).cloned().collect())
    }

    /// A copy without the name.
    #[must_use]
    pub fn nameless(&self) -> Self {
        self.without(&[NAME])
    }

    /// All labels, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// The memory that they take, at most: copies share their texts.
    pub(crate) fn bytes(&self) -> usize {
        // Two counted pointers, and what an allocation begins with, beside the texts.
        const OVERHEAD_BYTES: usize = 64;
        self.0.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD_BYTES).sum()
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.as_ref().cmp(name))
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut labels = Self::default();
        for (name, value) in pairs {
            labels.set(name.as_ref(), value.as_ref());
        }
        labels
    }
}

/// As a selector of this series: `name{label="value"}`.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get(NAME))?;
        f.write_str("{")?;
        for (index, (name, value)) in self.iter().filter(|(name, _)| *name != NAME).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value:?}")?;
        }
        f.write_str("}")
    }
}

/// Whether a text is a valid label name.
pub(crate) fn is_label_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_a_set_with_one_order() {
        let mut labels: Labels = [("b", "2"), ("a", "1"), (NAME, "m"), ("gone", "")].into_iter().collect();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [(NAME, "m"), ("a", "1"), ("b", "2")]);
        assert_eq!(labels.to_string(), r#"m{a="1", b="2"}"#);
        labels.set("a", "");
        labels.set("b", "3");
        assert_eq!((labels.get("a"), labels.get("b")), ("", "3"));
        assert_eq!(labels.nameless().to_string(), r#"{b="3"}"#);
        assert_eq!(labels.only(&[NAME]).to_string(), "m{}");
    }
}
