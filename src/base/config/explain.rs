//! Explains why a file is no valid TOML, or not of its type.
//!
//! **Invariant: no explanation has a secret in it.** Roles say why they do not start in logs, and `muster doctor` to whoever helps.

use muster_rules::mask::is_secret_key;
use muster_topics::unit::MASK;

/// The longest name of a key that is shown of a line that cannot be read; the longest known one has half of it.
const KEY_MAX_BYTES: usize = 40;

/// Explains an error with its line. The value of the line is shown only if the file can be read, and the key's name does not say
/// that it is secret.
#[must_use]
pub fn explain(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else { return error.message().to_owned() };
    let start = span.start.min(text.len());
    let (number, line) = line_at(text, start);
    let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
    let is_read = toml::from_str::<toml::Table>(text).is_ok();
    let found = text.get(span).unwrap_or_default();
    let is_whole = !found.contains('\n');
    let is_shown = is_read && is_whole && !value.is_empty() && !is_secret_key(key) && !value.contains("://");
    if is_shown {
        return format!("line {number}, `{line}`: {}", error.message());
    }
    // Whatever is at a wrong place may be a secret.
    let parts = found.lines().chain([value]).map(|part| part.trim().trim_matches(['"', '\'']));
    let parts = parts.filter(|part| !part.is_empty() && *part != MASK);
    let message = parts.fold(error.message().to_owned(), |message, part| message.replace(part, MASK));
    match is_key(key) && !value.is_empty() {
        true => format!("line {number}, `{key} = {MASK}`: {message}"),
        false => format!("line {number}: {message}"),
    }
}

/// Returns the number of the line at a place, counted from 1, and its text.
fn line_at(text: &str, start: usize) -> (usize, &str) {
    let before = text.get(..start).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    (number, text.lines().nth(number - 1).unwrap_or_default().trim())
}

/// Whether a text is the name of a key, rather than a value without one.
fn is_key(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.');
    !text.is_empty() && text.len() <= KEY_MAX_BYTES && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[expect(dead_code, reason = "only its type matters")]
        join: Option<u8>,
        #[expect(dead_code, reason = "only its type matters")]
        sample_ms: Option<u32>,
        #[expect(dead_code, reason = "only its type matters")]
        outlets: Option<Vec<BTreeMap<String, u8>>>,
    }

    fn explained(text: &str) -> String {
        explain(text, &toml::from_str::<Sample>(text).unwrap_err())
    }

    #[test]
    fn no_secret_of_a_wrong_line_is_shown() {
        for text in [
            "join = \"hunter2",
            "join = hunter2\n",
            "join = \"hunter2\"\n",
            "join \"hunter2\"\n",
            "join = [\n\"hunter2\",\nhunter2\n]\n",
            "hunter2",
            "Hunter2.hunter2=",
            "[[outlets]]\nurl = \"https://hooks.example/hunter2\"\n",
            "[[outlets]]\nsecret = \"hunter2\"\n",
            "[[outlets]]\nsecret = \"\"\"\nhunter2\n\"\"\"\n",
            "join = \"ä\" hunter2\n",
            "sample_ms = \"a\"\njoin = hunter2",
        ] {
            let said = explained(text);
            assert!(said.starts_with("line ") && !said.contains("unter2"), "{text}: {said}");
        }
        assert!(explained("x = 1\n\njoin = \"hunter2\n").starts_with("line 3, `join = ***`: "));
    }

    #[test]
    fn other_lines_are_shown() {
        let said = explained("\nsample_ms = \"often\"\n");
        assert!(said.starts_with("line 2, `sample_ms = \"often\"`: ") && said.contains("expected u32"), "{said}");
        assert!(explained("[metrics\n").starts_with("line 1: "));
    }
}
