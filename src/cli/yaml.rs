//! Writes YAML that every reader understands alike.
//!
//! Readers of YAML 1.1 (PyYAML, Ruby, Ansible) and of 1.2 take different words for other types than text: `yes`, `12:30:45`,
//! `1_000`, `2026-01-01`, `=`, `0o7`. So a text is written plain only if both read it as text, and
//! in double quotes otherwise.

use muster_base::failure::{Failure, FailureContext as _};
use serde_norway::{Mapping, Value};

/// Words, in lower case, that some YAML parser does not read as text. No parser accepts mixed case, but people would
/// read these as such.
const WORDS: [&str; 14] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity", "none", "undefined"];

/// Formats something as one YAML document.
///
/// # Errors
/// If it cannot be represented in YAML.
pub fn document<T: serde::Serialize>(item: &T) -> Result<String, Failure> {
    serde_norway::to_value(item).trying("writing YAML").map(|value| write(&value))
}

/// Formats a value as one YAML document.
#[must_use]
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    lines(&mut text, value, 0, true);
    text
}

/// Appends the lines of a value; the first continues the current line if that is begun.
fn lines(text: &mut String, value: &Value, depth: usize, is_begun: bool) {
    match value {
        Value::Mapping(fields) if !fields.is_empty() => mapping(text, fields, depth, is_begun),
        Value::Sequence(items) if !items.is_empty() => sequence(text, items, depth, is_begun),
        // A tag is a type that other parsers do not know: it becomes the only field of a mapping, as in JSON.
        Value::Tagged(tagged) => {
            let name = tagged.tag.to_string();
            let only = (Value::from(name.trim_start_matches('!')), tagged.value.clone());
            mapping(text, &Mapping::from_iter([only]), depth, is_begun);
        }
        other => {
            scalar(text, other, depth);
            text.push('\n');
        }
    }
}

fn mapping(text: &mut String, fields: &Mapping, depth: usize, mut is_begun: bool) {
    for (key, value) in fields {
        if !std::mem::take(&mut is_begun) {
            indent(text, depth);
        }
        // Keys are texts, or short values.
        match key {
            Value::String(key) => string(text, key),
            other => scalar(text, other, depth),
        }
        text.push(':');
        match value {
            Value::Sequence(items) if !items.is_empty() => {
                text.push('\n');
                sequence(text, items, depth, false);
            }
            Value::Mapping(fields) if fields.is_empty() => text.push_str(" {}\n"),
            Value::Mapping(_) | Value::Tagged(_) => {
                text.push('\n');
                lines(text, value, depth + 1, false);
            }
            other => {
                text.push(' ');
                lines(text, other, depth + 1, true);
            }
        }
    }
}

fn sequence(text: &mut String, items: &[Value], depth: usize, mut is_begun: bool) {
    for item in items {
        if !std::mem::take(&mut is_begun) {
            indent(text, depth);
        }
        text.push_str("- ");
        lines(text, item, depth + 1, true);
    }
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

fn scalar(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(words) if is_block(words) => block(text, words, depth),
        Value::String(words) => string(text, words),
        Value::Number(number) => text.push_str(&with_point(&number.to_string())),
        Value::Bool(is_so) => text.push_str(if *is_so { "true" } else { "false" }),
        Value::Mapping(_) => text.push_str("{}"),
        Value::Sequence(_) => text.push_str("[]"),
        Value::Null | Value::Tagged(_) => text.push_str("null"),
    }
}

/// YAML 1.1 requires a point and a sign in a number with an exponent.
fn with_point(number: &str) -> String {
    let Some((mantissa, exponent)) = number.split_once('e') else { return number.to_owned() };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

fn string(text: &mut String, words: &str) {
    if is_plain(words) {
        text.push_str(words);
        return;
    }
    text.push('"');
    for c in words.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            c if is_printable(c) => text.push(c),
            c => {
                let code = u32::from(c);
                text.push_str(&if code > 0xffff { format!("\\U{code:08x}") } else { format!("\\u{code:04x}") });
            }
        }
    }
    text.push('"');
}

/// Whether all parsers accept the character unescaped.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}' | '\u{ff00}'..='\u{fff0}')
}

/// Whether every parser reads the text unchanged without quotes: it begins with a letter, `/` or `_`, contains no
/// special characters, and is not one of the words.
fn is_plain(words: &str) -> bool {
    let begins = words.starts_with(|first: char| first.is_ascii_alphabetic() || matches!(first, '/' | '_'));
    let is_safe =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '@' | '+' | '-' | ' ' | '=' | ',');
    let is_text = words.chars().all(is_safe) && !words.ends_with(' ');
    begins && is_text && !WORDS.contains(&words.to_ascii_lowercase().as_str())
}

/// Whether it is easier to read as lines: a script, for example.
fn is_block(words: &str) -> bool {
    let has_lines = words.trim_end_matches('\n').contains('\n');
    let begins = !words.starts_with([' ', '\n', '\t']);
    let is_text = words.chars().all(|c| c == '\n' || c == '\t' || is_printable(c));
    has_lines && begins && is_text && !words.ends_with("\n\n") && !words.lines().any(|line| line.ends_with(' '))
}

fn block(text: &mut String, words: &str, depth: usize) {
    text.push_str(if words.ends_with('\n') { "|" } else { "|-" });
    for line in words.lines() {
        text.push('\n');
        if !line.is_empty() {
            indent(text, depth.max(1));
            text.push_str(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{document, string};

    fn write(value: &Value) -> String {
        document(value).unwrap()
    }

    /// Texts that some parser reads as another type: all forms of other types in YAML 1.1 and 1.2.
    const TAKEN_FOR_ELSE: [&str; 60] = [
        "y",
        "Y",
        "n",
        "N",
        "yes",
        "Yes",
        "YES",
        "no",
        "No",
        "on",
        "On",
        "OFF",
        "off",
        "true",
        "True",
        "FALSE",
        "null",
        "Null",
        "~",
        "",
        "=",
        "<<",
        "12:30:45",
        "1:2",
        "190:20:30.15",
        "2026-01-01",
        "2026-11-25 10:00:00",
        "2001-12-14t21:59:43.10-05:00",
        "1_000",
        "1_000.5",
        "0b1010",
        "0o17",
        "017",
        "0x1f",
        "0xDEAD_BEEF",
        "1e3",
        "1.5e+3",
        "1.",
        ".5",
        ".inf",
        "-.INF",
        ".nan",
        "+1",
        "-1",
        "1",
        "1.5",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "*a",
        "&a",
        "!a",
        "|",
        ">",
        "%a",
        "@a",
        "`a",
        "a\u{feff}b",
        "\u{2028}",
    ];

    #[test]
    fn ambiguous_texts_are_quoted() {
        for words in TAKEN_FOR_ELSE {
            let text = write(&json!({"k": words, words: [words]}));
            let mut quoted = String::new();
            string(&mut quoted, words);
            assert!(quoted.starts_with('"'), "{words:?} is written {quoted}");
            assert_eq!(serde_norway::from_str::<Value>(&text).unwrap(), json!({"k": words, words: [words]}), "{text}");
        }
        for words in ["web@1.2.0", "/bin/sh", "default/web", "running", "Europe/Berlin", "a, b", "K=v", "yes sir"] {
            assert_eq!(write(&json!(words)), format!("{words}\n"));
        }
    }

    #[test]
    fn document_is_written_in_block_style() {
        let document = json!({
            "unit": "default/web",
            "args": ["-c", "set -e\necho 'hi: there'\n\n  exec x\n", {"a": [], "b": {}}, [1, [2.5, null]]],
            "env": {"A": "yes", "12:30": "***"},
            "limits": {"memory_bytes": 67_108_864, "cpu": 1e30, "small": 1.5e-9},
        });
        let text = write(&document);
        assert_eq!(
            text,
            "args:\n- \"-c\"\n- |\n  set -e\n  echo 'hi: there'\n\n    exec x\n- a: []\n  b: {}\n- - 1\n  - - 2.5\n    - null\n\
             env:\n  \"12:30\": \"***\"\n  A: \"yes\"\nlimits:\n  cpu: 1.0e+30\n  memory_bytes: 67108864\n  small: 1.5e-9\n\
             unit: default/web\n"
        );
        assert_eq!(serde_norway::from_str::<Value>(&text).unwrap(), document);
    }

    #[test]
    fn fields_keep_their_order_and_a_variant_is_the_only_field_of_a_mapping() {
        #[derive(serde::Serialize)]
        struct Thing {
            z: Kind,
            a: Kind,
        }
        #[derive(serde::Serialize)]
        enum Kind {
            Plain,
            Of(Vec<u8>),
        }
        let text = document(&Thing { z: Kind::Of(vec![1]), a: Kind::Plain }).unwrap();
        assert_eq!(text, "z:\n  Of:\n  - 1\na: Plain\n");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let words = prop_oneof![
            proptest::sample::select(TAKEN_FOR_ELSE.to_vec()).prop_map(str::to_owned),
            "[a-z:#\\-?{}\\[\\],&*!|>'\"%@`\n\t \u{85}\u{feff}\u{1f600}]{0,8}",
            any::<String>(),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            words.clone().prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(words.clone(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_yaml_parses_to_the_same(value in any_value()) {
            let text = write(&value);
            let read = serde_norway::from_str::<Value>(&text);
            prop_assert!(read.is_ok(), "{:?}\n{text}", read);
            prop_assert_eq!(read.unwrap(), value, "{}", text);
        }
    }
}
