//! Parses a line in the syntax of Yuneta's `ycommand`: a verb and its parameters.
//!
//! ```text
//! line  = verb { key "=" value }
//! value = "$$(" path ")"  |  "…" or '…'  |  anything up to the next space; braces and brackets hold spaces together
//! ```

use std::collections::BTreeMap;

/// Longest line: longer than people type, and short enough to be harmless.
const LINE_MAX_BYTES: usize = 64 * 1024;

/// A verb and its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct YunetaLine {
    pub(super) verb: String,
    pub(super) parameters: BTreeMap<String, ParameterValue>,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParameterValue {
    /// The text itself.
    Text(String),
    /// The content of this file.
    File(String),
}

impl YunetaLine {
    /// Parses a line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LINE_MAX_BYTES {
            return Err(format!("the line has {} bytes; {LINE_MAX_BYTES} are the most", text.len()));
        }
        let mut rest = text.trim();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let mut line = Self { verb: rest[..end].to_owned(), parameters: BTreeMap::new() };
        if line.verb.is_empty() || line.verb.contains('=') {
            return Err("expected a verb first, such as `list-yunos`".to_owned());
        }
        rest = rest[end..].trim_start();
        while !rest.is_empty() {
            let (key, after) = rest.split_once('=').ok_or_else(|| format!("{rest:?} is not KEY=VALUE"))?;
            let key = key.trim_end();
            if key.is_empty() || key.contains(char::is_whitespace) {
                return Err(format!("{key:?} is not a key: expected KEY=VALUE"));
            }
            let (value, left) = value(after).map_err(|why| format!("{key}: {why}"))?;
            if line.parameters.insert(key.to_owned(), value).is_some() {
                return Err(format!("{key} is given twice"));
            }
            rest = left.trim_start();
        }
        Ok(line)
    }

    /// The text of a parameter.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.parameters.get(key) {
            None => Ok(None),
            Some(ParameterValue::Text(text)) => Ok(Some(text)),
            Some(ParameterValue::File(_)) => Err(format!("{key} cannot come from a file")),
        }
    }

    /// The file that one of these parameters names.
    pub(super) fn file(&self, keys: &[&str]) -> Result<&str, String> {
        let wanted = || format!("expected {}=$$(FILE)", keys[0]);
        match keys.iter().find_map(|key| self.parameters.get(*key)) {
            Some(ParameterValue::File(path)) => Ok(path),
            Some(ParameterValue::Text(_)) => Err(format!("{}: contents come from a file here", wanted())),
            None => Err(wanted()),
        }
    }
}

/// The value at the beginning of a text, and the rest.
fn value(text: &str) -> Result<(ParameterValue, &str), String> {
    if let Some(path) = text.strip_prefix("$$(") {
        let end = path.find(')').ok_or("$$( has no )")?;
        if path[..end].trim().is_empty() {
            return Err("$$() names no file".to_owned());
        }
        return Ok((ParameterValue::File(path[..end].trim().to_owned()), &path[end + 1..]));
    }
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let end = inner.find(quote).ok_or_else(|| format!("{quote} is not closed"))?;
            return Ok((ParameterValue::Text(inner[..end].to_owned()), &inner[end + 1..]));
        }
    }
    let mut depth = 0_usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            letter if letter.is_whitespace() && depth == 0 => {
                return Ok((ParameterValue::Text(text[..at].to_owned()), &text[at..]));
            }
            _ => {}
        }
    }
    if depth > 0 { Err("a brace is not closed".to_owned()) } else { Ok((ParameterValue::Text(text.to_owned()), "")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, verb: &str, parameters: &[(&str, ParameterValue)]) {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        assert_eq!(YunetaLine::parse(text), Ok(YunetaLine { verb: verb.to_owned(), parameters }), "{text}");
    }

    fn text(text: &str) -> ParameterValue {
        ParameterValue::Text(text.to_owned())
    }

    #[test]
    fn command_lines_parse() {
        check("list-yunos", "list-yunos", &[]);
        check(
            "install-binary content64=$$(my_role)",
            "install-binary",
            &[("content64", ParameterValue::File("my_role".to_owned()))],
        );
        check(
            "  update-config  id=a.b version=1   zcontent=$$( dir/a b.json ) ",
            "update-config",
            &[
                ("id", text("a.b")),
                ("version", text("1")),
                ("zcontent", ParameterValue::File("dir/a b.json".to_owned())),
            ],
        );
        check("x a=\"b c\" d='e \"f'", "x", &[("a", text("b c")), ("d", text("e \"f"))]);
        check("x kw={\"a b\": [1, 2]} e=", "x", &[("kw", text("{\"a b\": [1, 2]}")), ("e", text(""))]);
        check("x a=b=c", "x", &[("a", text("b=c"))]);
    }

    #[test]
    fn invalid_lines_are_refused() {
        for text in
            ["", "  ", "a=b", "x y", "x =1", "x a=1 a=2", "x a=$$(b", "x a=$$()", "x a=\"b", "x a={b", "x a b=1"]
        {
            assert!(YunetaLine::parse(text).is_err(), "{text}");
        }
        assert!(YunetaLine::parse(&format!("x a={}", "b".repeat(LINE_MAX_BYTES))).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics_the_parser(text in ".{0,60}") {
            let _ = YunetaLine::parse(&text);
        }
    }
}
