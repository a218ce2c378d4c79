//! `label_replace` and `label_join`.

use crate::{error::Error, labels::Labels, matcher::Pattern};

/// Sets a label to a replacement that uses the groups of a pattern in another label; without a match nothing changes.
///
/// # Errors
/// If the new value is longer than `max_bytes`.
pub(crate) fn replace(
    labels: &Labels,
    to: &str,
    (replacement, from): (&str, &str),
    pattern: &Pattern,
    max_bytes: usize,
) -> Result<Labels, Error> {
    let value = labels.get(from);
    let mut labels = labels.clone();
    let Some(groups) = pattern.groups(value) else { return Ok(labels) };
    let group = |name: &str| {
        let span = match name.parse::<usize>() {
            Ok(index) => groups.get_group(index),
            Err(_) => groups.get_group_by_name(name),
        };
        span.and_then(|span| value.get(span.range())).unwrap_or_default()
    };
    let mut new = LabelText { label: to, text: String::new(), max_bytes };
    expand(replacement, group, |part| new.push(part))?;
    labels.set(to, &new.text);
    Ok(labels)
}

/// A value of a label while it is made.
struct LabelText<'a> {
    label: &'a str,
    text: String,
    max_bytes: usize,
}

impl LabelText<'_> {
    fn push(&mut self, part: &str) -> Result<(), Error> {
        if self.text.len().saturating_add(part.len()) > self.max_bytes {
            let Self { label, max_bytes, .. } = self;
            let problem = format!("the query makes a value of the label {label} that is longer than {max_bytes} bytes");
            return Err(Error::limit(problem).with_hint("make a shorter one"));
        }
        self.text.push_str(part);
        Ok(())
    }
}

/// Replaces `$1`, `${1}` and `$name` by groups; `$$`, and a `$` without a name, become a dollar. Passes on part by part.
fn expand<'a>(
    template: &str,
    group: impl Fn(&str) -> &'a str,
    mut push: impl FnMut(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('$') {
        push(before)?;
        if let Some(behind) = behind.strip_prefix('$') {
            push("$")?;
            rest = behind;
            continue;
        }
        match name(behind) {
            Some((name, after)) => {
                push(group(name))?;
                rest = after;
            }
            None => {
                push("$")?;
                rest = behind;
            }
        }
    }
    push(rest)
}

/// The name at the beginning, with or without braces, and the rest.
fn name(text: &str) -> Option<(&str, &str)> {
    let braced = text.strip_prefix('{');
    let inner = braced.unwrap_or(text);
    let end = inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
    let (name, after) = inner.split_at_checked(end)?;
    if name.is_empty() {
        return None;
    }
    match braced {
        Some(_) => Some((name, after.strip_prefix('}')?)),
        None => Some((name, after)),
    }
}

/// Sets a label to other labels, joined.
///
/// # Errors
/// As [`replace`].
pub(crate) fn join(
    labels: &Labels,
    to: &str,
    separator: &str,
    from: &[String],
    max_bytes: usize,
) -> Result<Labels, Error> {
    let mut new = LabelText { label: to, text: String::new(), max_bytes };
    for (index, name) in from.iter().enumerate() {
        if index > 0 {
            new.push(separator)?;
        }
        new.push(labels.get(name))?;
    }
    let mut joined = labels.clone();
    joined.set(to, &new.text);
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_their_places() {
        let labels: Labels = [("from", "abc-12")].into_iter().collect();
        for (pattern, replacement, value) in [
            ("(.*)-(.*)", "$2:$1", "12:abc"),
            ("(.*)-(.*)", "${2}x$1", "12xabc"),
            ("(.*)-(.*)", "$2x", ""),
            ("(.*)-(?P<n>.*)", "$n!", "12!"),
            ("(.*)-(.*)", "$$1$", "$1$"),
            ("(.*)-(.*)", "${1", "${1"),
            ("abc", "x", "old"),
            (".*", "", ""),
        ] {
            let mut labels = labels.clone();
            labels.set("to", "old");
            let pattern = Pattern::with_groups(pattern).unwrap();
            let replaced = replace(&labels, "to", (replacement, "from"), &pattern, 6).unwrap();
            assert_eq!(replaced.get("to"), value, "{replacement}");
        }
    }
}
