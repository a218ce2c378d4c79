//! `label_replace` and `label_join`.

use crate::{labels::Labels, matcher::Pattern};

/// Sets a label to a replacement that uses the groups of a pattern in another label; without a match nothing changes.
pub(crate) fn replace(labels: &Labels, to: &str, replacement: &str, from: &str, pattern: &Pattern) -> Labels {
    let value = labels.get(from);
    let mut labels = labels.clone();
    let Some(groups) = pattern.groups(value) else { return labels };
    let group = |name: &str| {
        let span = match name.parse::<usize>() {
            Ok(index) => groups.get_group(index),
            Err(_) => groups.get_group_by_name(name),
        };
        span.and_then(|span| value.get(span.range())).unwrap_or_default()
    };
    let new = expand(replacement, group);
    labels.set(to, &new);
    labels
}

/// Replaces `$1`, `${1}` and `$name` by groups; `$$`, and a `$` without a name, become a dollar.
fn expand<'a>(template: &str, group: impl Fn(&str) -> &'a str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(behind) = behind.strip_prefix('$') {
            out.push('$');
            rest = behind;
            continue;
        }
        match name(behind) {
            Some((name, after)) => {
                out.push_str(group(name));
                rest = after;
            }
            None => {
                out.push('$');
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    out
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
pub(crate) fn join(labels: &Labels, to: &str, separator: &str, from: &[String]) -> Labels {
    let parts: Vec<&str> = from.iter().map(|name| labels.get(name)).collect();
    let mut joined = labels.clone();
    joined.set(to, &parts.join(separator));
    joined
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
            assert_eq!(replace(&labels, "to", replacement, "from", &pattern).get("to"), value, "{replacement}");
        }
    }
}
