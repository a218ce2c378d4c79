//! Masks the values of secrets in texts that leave a host: what programs say that were given them.
//!
//! A value is found as it is, line by line, and as programs usually write it: escaped for JSON, HTML or URLs, in hexadecimal
//! digits and in base64, also as a part of something longer.
//!
//! **Invariant: a text that was masked is shortened afterwards, never before**, or it is said where it was cut: then a part of
//! a value counts there.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use muster_topics::{diagnostic::Diagnostic, secret::MASKED_MIN_BYTES, unit::MASK};
use serde_json::Value;

/// The shortest value that is masked where it is a word of its own. A shorter one is in too many.
const WORD_MIN_BYTES: usize = 3;

/// The shortest part of a value that counts at an edge where a text was cut.
const PART_MIN_BYTES: usize = 4;

/// The shortest base64 that counts: of a value that is just long enough, without its ends.
const BASE64_MIN_CHARS: usize = 7;

/// The lengths of lines in which programs write long base64.
const BASE64_LINES: [usize; 2] = [64, 76];

/// The longest part of a value that is looked for at an edge.
const EDGE_MAX_BYTES: usize = 1_024;

/// Words in the names of keys whose values are secret.
const SECRET_KEYS: [&str; 10] =
    ["token", "password", "passwd", "secret", "join", "key", "credential", "authorization", "cookie", "bearer"];
/// Keys that have such a word in their name and hold paths or numbers.
const HARMLESS_ENDS: [&str; 5] = ["_file", "_path", "_max", "_bytes", "_days"];

/// Whether the value of a key is secret, by the key's name.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    let key = key.trim_matches(['-', '"', '\'', '`']).to_ascii_lowercase();
    // A broker's `key` is the path of a file; what is in it is never read into a bundle.
    SECRET_KEYS.iter().any(|word| key.contains(word)) && !HARMLESS_ENDS.iter().any(|end| key.ends_with(end))
}

/// Where a text was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Something was before it.
    pub start: bool,
    /// Something was after it.
    pub end: bool,
}

impl Cut {
    /// It is whole.
    pub const NONE: Self = Self { start: false, end: false };
    /// It may have been cut at both ends.
    pub const BOTH: Self = Self { start: true, end: true };
    /// Its end may be missing.
    pub const END: Self = Self { start: false, end: true };
}

/// The values of secrets, in the forms in which they are masked.
#[derive(Default)]
pub struct SecretMask {
    forms: Vec<Form>,
    /// The forms by their first two bytes.
    starts: BTreeMap<[u8; 2], Vec<usize>>,
}

/// A form of a value.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Form {
    bytes: Vec<u8>,
    place: FormPlace,
}

/// Where a form counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FormPlace {
    Anywhere,
    /// As a word of its own.
    Word,
    /// Anywhere, also if it is broken into lines.
    Folded,
}

impl Form {
    fn anywhere(text: String) -> Self {
        Self { bytes: text.into_bytes(), place: FormPlace::Anywhere }
    }

    fn folded(text: String) -> Self {
        Self { bytes: text.into_bytes(), place: FormPlace::Folded }
    }

    /// Where it ends, if it begins there.
    fn end(&self, text: &[u8], at: usize) -> Option<usize> {
        let rest = text.get(at..).unwrap_or_default();
        let end = at + self.bytes.len();
        match self.place {
            FormPlace::Anywhere => rest.starts_with(&self.bytes).then_some(end),
            FormPlace::Word => (rest.starts_with(&self.bytes) && is_word(text, at..end)).then_some(end),
            FormPlace::Folded => {
                let (mut wanted, mut length) = (self.bytes.iter().peekable(), 0);
                for byte in rest {
                    match wanted.peek() {
                        None => break,
                        Some(next) if *next == byte => _ = wanted.next(),
                        Some(_) if matches!(byte, b'\r' | b'\n') => {}
                        Some(_) => return None,
                    }
                    length += 1;
                }
                wanted.peek().is_none().then_some(at + length)
            }
        }
    }
}

impl std::fmt::Debug for SecretMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretMask({} forms)", self.forms.len())
    }
}

impl SecretMask {
    /// Masks these values.
    #[must_use]
    pub fn of<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms = BTreeSet::new();
        for value in values {
            add_forms(value, &mut forms);
        }
        let forms: Vec<Form> = forms.into_iter().collect();
        let mut starts: BTreeMap<[u8; 2], Vec<usize>> = BTreeMap::new();
        for (at, form) in forms.iter().enumerate() {
            if let Some(start) = form.bytes.first_chunk() {
                starts.entry(*start).or_default().push(at);
            }
        }
        Self { forms, starts }
    }

    /// Whether a value is in a text.
    #[must_use]
    pub fn is_in(&self, text: &str) -> bool {
        !self.spans(text.as_bytes(), Cut::NONE).is_empty()
    }

    /// Returns a text without values.
    #[must_use]
    pub fn text(&self, text: &str, cut: Cut) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes(), cut)).into_owned()
    }

    /// Masks the values in a text.
    pub fn mask(&self, text: &mut String, cut: Cut) {
        if !self.forms.is_empty() {
            *text = self.text(text, cut);
        }
    }

    /// Masks the values in the texts of a document.
    pub fn mask_diagnostic(&self, told: &mut Diagnostic, cut: Cut) {
        let Diagnostic { cause, consequence, hint } = told;
        for text in [Some(cause), consequence.as_mut(), hint.as_mut()].into_iter().flatten() {
            self.mask(text, cut);
        }
    }

    /// Masks every text of a document.
    pub fn mask_document(&self, document: &mut Value) {
        match document {
            Value::Object(object) => {
                for (mut name, mut value) in std::mem::take(object) {
                    self.mask(&mut name, Cut::NONE);
                    self.mask_document(&mut value);
                    object.insert(name, value);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_document(item)),
            Value::String(text) => self.mask(text, Cut::NONE),
            Value::Number(number) if self.is_in(&number.to_string()) => *document = MASK.into(),
            _ => {}
        }
    }

    /// Returns a text of bytes without values.
    #[must_use]
    pub fn bytes(&self, text: &[u8], cut: Cut) -> Vec<u8> {
        let mut masked = Vec::with_capacity(text.len());
        let mut from = 0;
        for span in self.spans(text, cut) {
            masked.extend_from_slice(text.get(from..span.start).unwrap_or_default());
            masked.extend_from_slice(MASK.as_bytes());
            from = span.end;
        }
        masked.extend_from_slice(text.get(from..).unwrap_or_default());
        masked
    }

    /// Finds values, in order; those that overlap are one.
    fn spans(&self, text: &[u8], cut: Cut) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        if self.forms.is_empty() {
            return spans;
        }
        let mut add = |span: Range<usize>| match spans.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => spans.push(span),
        };
        if let Some(end) = cut.start.then(|| self.part_at_start(text)).flatten() {
            add(0..end);
        }
        for (at, start) in text.windows(2).enumerate() {
            let Some(forms) = self.starts.get(start) else { continue };
            let ends = forms.iter().filter_map(|form| self.forms.get(*form)?.end(text, at));
            if let Some(end) = ends.max() {
                add(at..end);
            }
        }
        if let Some(start) = cut.end.then(|| self.part_at_end(text)).flatten() {
            // Spans that begin in it are a part of it.
            while spans.last().is_some_and(|last| last.start >= start) {
                spans.pop();
            }
            match spans.last_mut() {
                Some(last) if start < last.end => last.end = text.len(),
                _ => spans.push(start..text.len()),
            }
        }
        spans
    }

    /// Where the end of a value ends with which a text begins.
    fn part_at_start(&self, text: &[u8]) -> Option<usize> {
        let part = |form: &Form| {
            let most = form.bytes.len().saturating_sub(1).min(text.len()).min(EDGE_MAX_BYTES);
            let ends_with = |length: &usize| form.bytes.ends_with(text.get(..*length).unwrap_or_default());
            (PART_MIN_BYTES..=most).rev().find(ends_with)
        };
        self.forms.iter().filter_map(part).max()
    }

    /// Where the beginning of a value begins with which a text ends.
    fn part_at_end(&self, text: &[u8]) -> Option<usize> {
        let part = |form: &Form| {
            let most = form.bytes.len().saturating_sub(1).min(text.len()).min(EDGE_MAX_BYTES);
            let begins = |length: &usize| {
                let end = text.get(text.len() - *length..).unwrap_or_default();
                form.bytes.starts_with(end)
            };
            (PART_MIN_BYTES..=most).rev().find(begins)
        };
        self.forms.iter().filter_map(part).max().map(|length| text.len() - length)
    }
}

fn is_word(text: &[u8], span: Range<usize>) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let before = span.start.checked_sub(1).and_then(|at| text.get(at));
    !before.is_some_and(is_part) && !text.get(span.end).is_some_and(is_part)
}

/// Adds the forms of a value.
fn add_forms(value: &str, forms: &mut BTreeSet<Form>) {
    let plain = value.trim_end_matches(['\r', '\n']);
    let is_word = plain.len() < MASKED_MIN_BYTES;
    if is_word {
        if plain.len() >= WORD_MIN_BYTES {
            forms.insert(Form { bytes: plain.into(), place: FormPlace::Word });
        }
        return;
    }
    let lines = value.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    for text in lines.chain([plain]).filter(|text| text.len() >= MASKED_MIN_BYTES) {
        let written = [json(text, false), json(text, true), html(text), url(text, "", true), url(text, "", false)];
        let more = [url(text, "/", true), url(text, " ", true).replace(' ', "+"), hex(text), hex(text).to_uppercase()];
        forms.extend(written.into_iter().chain(more).chain([text.to_owned()]).map(Form::anywhere));
    }
    for text in [plain, value] {
        forms.extend(base64_forms(text).into_iter().map(Form::folded));
    }
}

/// As in a text of JSON, which many programs use to quote what they say; `is_ascii` with other characters escaped.
fn json(text: &str, is_ascii: bool) -> String {
    let quoted = Value::from(text).to_string();
    let quoted = quoted.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"')).unwrap_or(&quoted);
    if !is_ascii {
        return quoted.to_owned();
    }
    let mut escaped = String::new();
    for character in quoted.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        }
    }
    escaped
}

fn html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// As a part of a URL; what is in `kept` stays as it is.
fn url(text: &str, kept: &str, is_upper: bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let character = char::from(byte);
        if character.is_ascii_alphanumeric() || "-._~".contains(character) || kept.contains(character) {
            encoded.push(character);
        } else if is_upper {
            encoded.push_str(&format!("%{byte:02X}"));
        } else {
            encoded.push_str(&format!("%{byte:02x}"));
        }
    }
    encoded
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The base64 of a text wherever it begins in something longer: without the characters at its ends that depend on what is
/// around it. What is encoded by itself may be written line by line.
fn base64_forms(text: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let padded = [&[0_u8; 2][..before], text.as_bytes()].concat();
        let skipped = [0, 2, 3].get(before).copied().unwrap_or_default();
        let whole = (padded.len() / 3) * 4;
        // Of the last bytes, the characters whose bits are all known.
        let kept = whole + [0, 1, 2].get(padded.len() % 3).copied().unwrap_or_default();
        for encoded in [STANDARD.encode(&padded), URL_SAFE.encode(&padded)] {
            forms.extend(encoded.get(skipped..kept).map(ToOwned::to_owned));
            for length in BASE64_LINES.iter().filter(|length| before == 0 && encoded.len() > **length) {
                let lines = encoded.trim_end_matches('=').as_bytes().chunks(*length);
                forms.extend(lines.map(|line| String::from_utf8_lossy(line).into_owned()));
            }
        }
    }
    forms.retain(|form| form.len() >= BASE64_MIN_CHARS);
    forms
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "hunter2 & \"söhne\"/+";

    #[test]
    fn value_is_masked_as_programs_write_it() {
        let mask = SecretMask::of([VALUE]);
        let around = |text: &str| STANDARD.encode(format!("{text}{VALUE}{text}"));
        for (said, masked) in [
            (format!("line 3: {VALUE}?"), "line 3: ***?".to_owned()),
            (serde_json::json!({ "a": VALUE }).to_string(), r#"{"a":"***"}"#.to_owned()),
            (r#""hunter2 & \"s\u00f6hne\"/+""#.to_owned(), r#""***""#.to_owned()),
            ("<b>hunter2 &amp; &quot;söhne&quot;/+</b>".to_owned(), "<b>***</b>".to_owned()),
            ("u?p=hunter2%20%26%20%22s%C3%B6hne%22%2F%2B&x".to_owned(), "u?p=***&x".to_owned()),
            ("u?p=hunter2+%26+%22s%C3%B6hne%22%2F%2B".to_owned(), "u?p=***".to_owned()),
            (format!("0x{}", hex(VALUE)), "0x***".to_owned()),
            (format!("{VALUE}{VALUE}"), "******".to_owned()),
        ] {
            assert_eq!(mask.text(&said, Cut::NONE), masked);
        }
        for text in ["", "a", "ab", "abc", "basic:"] {
            let said = mask.text(&around(text), Cut::NONE);
            // What is left says nothing of the middle of the value.
            assert!(said.contains(MASK) && !said.contains(&STANDARD.encode("hunter2")[..8]), "{said}");
        }
    }

    #[test]
    fn key_of_many_lines_is_masked_line_by_line() {
        let line = |letter: &str| letter.repeat(64);
        let key = format!("-----BEGIN KEY-----\n{}\n{}\nend==\n-----END KEY-----\n", line("a"), line("b"));
        let mask = SecretMask::of([&*key]);
        assert_eq!(mask.text(&format!("bad line {} in it", line("b")), Cut::NONE), "bad line *** in it");
        assert_eq!(mask.text(&format!("> {key}"), Cut::NONE), "> ***\n");
        // As `base64` writes it, by itself and in something longer; and its lines one by one.
        let written = |text: &str| {
            let encoded = STANDARD.encode(text);
            let lines = encoded.as_bytes().chunks(76).map(|line| format!("{}\n", String::from_utf8_lossy(line)));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(mask.text(&written(&key).concat(), Cut::NONE).replace('=', ""), "***\n");
        for before in ["a", "ab", "abc"] {
            let said = mask.text(&written(&format!("{before}{key}{before}")).concat(), Cut::NONE);
            assert!(said.len() < 30 && said.contains(MASK), "{said}");
        }
        let lines = written(&key);
        assert!(lines[..lines.len() - 1].iter().all(|line| mask.text(line, Cut::NONE) == "***\n"), "{lines:?}");
        assert!(mask.text("-----BEGIN KEY-----", Cut::NONE).contains("BEGIN"));
    }

    #[test]
    fn part_of_a_value_counts_where_the_text_was_cut() {
        let mask = SecretMask::of(["hunter2-hunter2"]);
        for (said, cut, masked) in [
            ("pw=hunter2-hun", Cut::END, "pw=***"),
            ("pw=hunter2-hun", Cut::NONE, "pw=hunter2-hun"),
            ("ter2-hunter2 x", Cut::BOTH, "*** x"),
            ("ter2-hunter2 x", Cut::END, "ter2-hunter2 x"),
            ("pw=hun", Cut::BOTH, "pw=hun"),
            ("hunter2-hunter2-hunter2", Cut::BOTH, "***"),
        ] {
            assert_eq!(mask.text(said, cut), masked, "{cut:?}");
        }
    }

    #[test]
    fn short_value_is_masked_as_a_word_and_a_shorter_one_not_at_all() {
        let mask = SecretMask::of(["4711", "x", "", "\n"]);
        assert_eq!(mask.text("pin 4711, x 47110 a4711", Cut::BOTH), "pin ***, x 47110 a4711");
        assert_eq!(SecretMask::default().text("x", Cut::BOTH), "x");
    }

    #[test]
    fn texts_and_numbers_of_a_document_are_masked() {
        let mut document = serde_json::json!({"hunter2-hunter2": ["is hunter2-hunter2"], "n": 471_100, "ok": true});
        SecretMask::of(["hunter2-hunter2", "471100"]).mask_document(&mut document);
        assert_eq!(document, serde_json::json!({"***": ["is ***"], "n": "***", "ok": true}));
    }

    proptest! {
        #[test]
        fn no_value_is_left_in_any_text(value in "[a-c]{6,9}", before in "[a-c]{0,9}", after in "[a-c]{0,9}") {
            let mask = SecretMask::of([&*value]);
            let masked = mask.text(&format!("{before}{value}{after}"), Cut::NONE);
            prop_assert!(!masked.contains(&value), "{masked}");
        }

        #[test]
        fn no_part_is_left_of_a_value_that_is_split(value in "[a-z0-9]{8,20}", at in 0_usize..20) {
            let mask = SecretMask::of([&*value]);
            let at = at.min(value.len());
            let (first, second) = (format!("say {}", &value[..at]), &value[at..]);
            let left = mask.text(&first, Cut::BOTH) + &mask.text(second, Cut::BOTH);
            prop_assert!((0..=value.len() - 4).all(|from| !left.contains(&value[from..from + 4])), "{left}");
        }
    }
}
