//! String literals of queries: three kinds of quotes, with Go's escapes, except between
//! backquotes. (`strutil.Unquote` of Prometheus.)

use std::fmt::Write as _;

/// Why a text does not begin with a valid string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct StringError {
    /// The position, in bytes from the beginning of the string.
    pub offset: usize,
    /// What is wrong.
    pub problem: String,
}

/// Parses the string at the beginning of a text: its value, and its length in bytes with the quotes.
///
/// # Errors
/// If there is none, if it has no end, or if it is not UTF-8.
pub fn read(text: &str) -> Result<(String, usize), StringError> {
    let error = |offset: usize, problem: &str| Err(StringError { offset, problem: problem.to_owned() });
    let quote = match text.chars().next() {
        Some(quote @ ('"' | '\'' | '`')) => quote,
        _ => return error(0, "expected a value in quotes"),
    };
    let mut value: Vec<u8> = Vec::new();
    let mut at = 1;
    while let Some(c) = text[at..].chars().next() {
        match c {
            c if c == quote => {
                let Ok(value) = String::from_utf8(value) else { return error(0, "this string is not UTF-8") };
                return Ok((value, at + 1));
            }
            '\n' if quote != '`' => return error(at, "a line break is written \\n"),
            '\\' if quote != '`' => {
                let Some(length) = unescape(&text[at + 1..], quote, &mut value) else {
                    return error(at, "no such escape: a backslash is written twice");
                };
                at += 1 + length;
            }
            c => {
                value.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                at += c.len_utf8();
            }
        }
    }
    error(0, "this quote is never closed")
}

/// Appends the value of an escape sequence, and returns its length after the backslash, in bytes.
fn unescape(text: &str, quote: char, value: &mut Vec<u8>) -> Option<usize> {
    let c = text.chars().next()?;
    let simple = match c {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(11),
        '\\' => Some(b'\\'),
        c if c == quote => u8::try_from(c).ok(),
        _ => None,
    };
    if let Some(byte) = simple {
        value.push(byte);
        return Some(1);
    }
    let number = |from: usize, digits: usize, radix: u32| {
        let text = text.get(from..from + digits)?;
        text.chars().all(|c| c.is_digit(radix)).then(|| u32::from_str_radix(text, radix).ok()).flatten()
    };
    match c {
        // A byte, which may be part of a character.
        'x' => {
            value.push(u8::try_from(number(1, 2, 16)?).ok()?);
            Some(3)
        }
        '0'..='7' => {
            value.push(u8::try_from(number(0, 3, 8)?).ok()?);
            Some(3)
        }
        'u' | 'U' => {
            let digits = if c == 'u' { 4 } else { 8 };
            let c = char::from_u32(number(1, digits, 16)?)?;
            value.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            Some(1 + digits)
        }
        _ => None,
    }
}

/// Quotes a value, so that [`read`] returns it.
#[must_use]
pub fn quote(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '"' | '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Rewrites all strings of a query in a form that all parsers of the language understand alike. The parser used here
/// interprets escape sequences between backquotes, takes bytes for characters, and compiles regular expressions of
/// another dialect; the strings after `=~` and `!~` are therefore encoded by [`hide`].
pub(crate) fn normalise(query: &str) -> Result<String, StringError> {
    let mut out = String::with_capacity(query.len() + 16);
    let (mut at, mut behind) = (0, TextBefore::Anything);
    while let Some(c) = query[at..].chars().next() {
        let rest = &query[at..];
        let length = match c {
            '#' => {
                let length = rest.find('\n').unwrap_or(rest.len());
                out.push_str(&rest[..length]);
                length
            }
            '"' | '\'' | '`' => {
                let (value, length) = read(rest).map_err(|error| StringError { offset: at + error.offset, ..error })?;
                out.push_str(&quote(&if behind == TextBefore::PatternSign { hide(&value) } else { value }));
                length
            }
            c => {
                out.push(c);
                c.len_utf8()
            }
        };
        behind = match c {
            '#' => behind,
            c if c.is_ascii_whitespace() => behind,
            '=' | '!' => TextBefore::FirstSign,
            '~' if behind == TextBefore::FirstSign => TextBefore::PatternSign,
            _ => TextBefore::Anything,
        };
        at += length;
    }
    Ok(out)
}

/// The token before a position in a query.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextBefore {
    Anything,
    /// `=` or `!`.
    FirstSign,
    /// `=~` or `!~`.
    PatternSign,
}

/// Encodes a pattern with letters, digits and `_` only, which is a valid expression in any dialect.
fn hide(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() * 2);
    for byte in pattern.bytes() {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "_{byte:02x}");
        }
    }
    out
}

/// Decodes a [hidden](hide) pattern.
pub(crate) fn reveal(hidden: &str) -> Option<String> {
    let mut out = Vec::with_capacity(hidden.len());
    let mut rest = hidden;
    while let Some(c) = rest.chars().next() {
        let length = if c == '_' {
            out.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            3
        } else {
            out.push(u8::try_from(c).ok()?);
            1
        };
        rest = rest.get(length..)?;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_of_every_kind_are_read() {
        for (text, value) in [
            (r#""a\"b\\c\n""#, "a\"b\\c\n"),
            (r"'a\'b'", "a'b"),
            (r"`hunt\w+`", r"hunt\w+"),
            (r"`x\`", r"x\"),
            ("`two\nlines`", "two\nlines"),
            (r#""\x41\101\u00e9\U0001F600""#, "AAé😀"),
            (r#""\xc3\xa9""#, "é"),
            (r#""\a\b\f\r\t\v""#, "\x07\x08\x0c\r\t\x0b"),
            ("''", ""),
        ] {
            assert_eq!(read(text).map(|(value, _)| value).as_deref(), Ok(value), "{text}");
            assert_eq!(read(&format!("{text}}} + 1")).map(|(_, length)| length), Ok(text.len()), "{text}");
        }
        for text in
            ["", "a", "\"", "'a\"", "\"\n\"", r#""\q""#, r#""\'""#, r#""\x4""#, r#""\xff""#, r#""\777""#, r#""\ud800""#]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn queries_keep_all_but_their_quotes() {
        assert_eq!(
            normalise("m{a=~ `x\\d`,b=`\\d`} # it's `odd\n+ count_values('v', é)").unwrap(),
            "m{a=~ \"x_5cd\",b=\"\\\\d\"} # it's `odd\n+ count_values(\"v\", é)"
        );
        assert_eq!(normalise("m{a=\"b}").unwrap_err().offset, 4);
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_read_again(value in any::<String>()) {
            let text = quote(&value);
            prop_assert_eq!(read(&text), Ok((value.clone(), text.len())));
            let hidden = hide(&value);
            prop_assert!(hidden.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
            prop_assert_eq!(reveal(&hidden), Some(value));
        }

        #[test]
        fn no_text_panics_the_parser(text in any::<String>(), escapes in "[`'\"\\\\xu0-9a-f]{0,20}") {
            let _ = (reveal(&text), read(&text), normalise(&text), read(&escapes), normalise(&escapes));
        }
    }
}
