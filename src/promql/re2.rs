//! Translates Prometheus's regular expressions to the dialect of the crate that runs them.
//!
//! Prometheus uses Go's `regexp`, whose language is RE2's (<https://github.com/google/re2/wiki/Syntax>, `regexp/syntax` of Go
//! with the flags `Perl`). The crate `regex-automata` has a similar dialect with differences:
//! `\w` matches all alphabets there, `[a&&b]` is an intersection, `\<` the beginning of a word, and `{id}` an error.
//! [`translate`] writes each part so that it keeps its meaning.
//!
//! **Invariant: no expression has another meaning than in Prometheus.** What cannot be translated is refused.
//!
//! Remaining differences: groups nest at most fifty deep rather than a thousand, repetition operators may follow each other
//! (`a**`), and some long names of Unicode's classes are known (`\p{Letter}`).

use std::fmt::Write as _;

/// Largest number of repetitions that RE2 accepts.
const REPEAT_MAX: u32 = 1_000;
/// Named character classes, such as `[[:alpha:]]`.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Translates an expression of RE2 to the syntax of `regex-automata`. Groups keep their numbers and names.
///
/// # Errors
/// If it is not valid in RE2, as far as this can be seen before compilation.
pub(crate) fn translate(text: &str) -> Result<String, String> {
    let mut translator = Translator { rest: text, out: String::with_capacity(text.len() + 16) };
    translator.expression()?;
    Ok(translator.out)
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
}

/// The meaning of an escape sequence.
enum Escape {
    /// One character.
    Literal(char),
    /// A character class, as written within brackets, and whether it is negated.
    Set(&'static str, bool),
    /// A Unicode class, and whether it is negated.
    Unicode(String, bool),
}

impl Translator<'_> {
    fn expression(&mut self) -> Result<(), String> {
        while let Some(c) = self.next() {
            match c {
                '\\' => self.escaped()?,
                '[' => self.class()?,
                '(' => self.group()?,
                '{' => self.braces()?,
                '*' | '+' | '?' | '|' | ')' | '^' | '$' | '.' => self.out.push(c),
                c => self.literal(c),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Appends a character. Writing to a `String` cannot fail, here and below.
    fn literal(&mut self, c: char) {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            self.out.push(c);
        } else {
            let _ = write!(self.out, "\\x{{{:x}}}", u32::from(c));
        }
    }

    /// Parses an escape sequence outside brackets, after the backslash.
    fn escaped(&mut self) -> Result<(), String> {
        // These assertions mean the same in both syntaxes, with ASCII words.
        for (name, written) in [("A", r"\A"), ("z", r"\z"), ("b", r"(?-u:\b)"), ("B", r"(?-u:\B)")] {
            if self.take(name) {
                self.out.push_str(written);
                return Ok(());
            }
        }
        if self.take("Q") {
            let (quoted, rest) = self.rest.split_once("\\E").unwrap_or((self.rest, ""));
            self.rest = rest;
            quoted.chars().for_each(|c| self.literal(c));
            return Ok(());
        }
        match self.escape()? {
            Escape::Literal(c) => self.literal(c),
            // These classes are not affected by case-insensitive matching.
            Escape::Set(set, negated) => {
                let _ = write!(self.out, "(?-i:[{}{set}])", if negated { "^" } else { "" });
            }
            Escape::Unicode(name, negated) => {
                let _ = write!(self.out, "\\{}{{{name}}}", if negated { 'P' } else { 'p' });
            }
        }
        Ok(())
    }

    /// Parses an escape sequence, after the backslash.
    fn escape(&mut self) -> Result<Escape, String> {
        let Some(c) = self.next() else { return Err("trailing backslash at end of expression".to_owned()) };
        let literal = |c: char| Ok(Escape::Literal(c));
        match c {
            'd' | 'D' => Ok(Escape::Set("0-9", c == 'D')),
            'w' | 'W' => Ok(Escape::Set("0-9A-Za-z_", c == 'W')),
            's' | 'S' => Ok(Escape::Set(r"\t\n\f\r\x{20}", c == 'S')),
            'p' | 'P' => self.unicode(c == 'P'),
            'a' => literal('\x07'),
            'f' => literal('\x0c'),
            'n' => literal('\n'),
            'r' => literal('\r'),
            't' => literal('\t'),
            'v' => literal('\x0b'),
            'x' => self.hexadecimal().ok_or_else(|| bad_escape("x")).map(Escape::Literal),
            // A single digit from 1 to 7 would be a reference to a group, which RE2 does not support.
            '0'..='7' => {
                let more: String = self.rest.chars().take(2).take_while(|c| ('0'..='7').contains(c)).collect();
                if c != '0' && more.is_empty() {
                    return Err(bad_escape(&c.to_string()));
                }
                self.rest = &self.rest[more.len()..];
                let code = u32::from_str_radix(&format!("{c}{more}"), 8).ok().and_then(char::from_u32);
                code.map(Escape::Literal).ok_or_else(|| bad_escape(&format!("{c}{more}")))
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => literal(c),
            c => Err(bad_escape(&c.to_string())),
        }
    }

    /// Parses two hexadecimal digits, or any number of them in braces, after `\x`.
    fn hexadecimal(&mut self) -> Option<char> {
        let digits = match self.rest.strip_prefix('{') {
            Some(rest) => {
                let (digits, rest) = rest.split_once('}')?;
                self.rest = rest;
                digits
            }
            None => {
                let digits = self.rest.get(..2)?;
                self.rest = &self.rest[2..];
                digits
            }
        };
        let is_hexadecimal = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hexadecimal.then(|| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)).flatten()
    }

    /// Parses one letter, or a name in braces, after `\p` or `\P`.
    fn unicode(&mut self, negated: bool) -> Result<Escape, String> {
        let wrong = || "invalid character class range: `\\p`".to_owned();
        let name = if self.take("{") {
            let (name, rest) = self.rest.split_once('}').ok_or_else(wrong)?;
            self.rest = rest;
            name.to_owned()
        } else {
            self.next().ok_or_else(wrong)?.to_string()
        };
        let (name, turned) = match name.strip_prefix('^') {
            Some(name) => (name.to_owned(), true),
            None => (name, false),
        };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(format!("invalid character class range: `\\p{{{name}}}`"));
        }
        Ok(Escape::Unicode(name, negated != turned))
    }

    /// Parses a class, after the opening bracket, with the same rules as `parseClass` of Go's `regexp/syntax`.
    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.take("^") {
            self.out.push('^');
        }
        let mut first = true;
        while first || !self.take("]") {
            first = false;
            if self.rest.starts_with("[:") && self.posix()? {
                continue;
            }
            let low = match self.class_item()? {
                Escape::Literal(c) => c,
                Escape::Set(set, false) => {
                    self.out.push_str(set);
                    continue;
                }
                Escape::Set(set, true) => {
                    let _ = write!(self.out, "[^{set}]");
                    continue;
                }
                Escape::Unicode(name, negated) => {
                    let _ = write!(self.out, "\\{}{{{name}}}", if negated { 'P' } else { 'p' });
                    continue;
                }
            };
            let mut high = low;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1 {
                self.next();
                match self.class_item()? {
                    Escape::Literal(c) if c >= low => high = c,
                    _ => return Err(format!("invalid character class range: `{low}-…`")),
                }
            }
            let _ = write!(self.out, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(low), u32::from(high));
        }
        self.out.push(']');
        Ok(())
    }

    fn class_item(&mut self) -> Result<Escape, String> {
        match self.next() {
            None => Err("missing closing ]".to_owned()),
            Some('\\') => self.escape(),
            Some(c) => Ok(Escape::Literal(c)),
        }
    }

    /// Parses a named class, `[:alpha:]`; returns `false` if there is none, so that these are ordinary characters.
    fn posix(&mut self) -> Result<bool, String> {
        let Some((name, rest)) = self.rest.strip_prefix("[:").and_then(|rest| rest.split_once(":]")) else {
            return Ok(false);
        };
        if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(format!("invalid character class range: `[:{name}:]`"));
        }
        self.rest = rest;
        let _ = write!(self.out, "[:{name}:]");
        Ok(true)
    }

    /// Parses a group, after the opening parenthesis.
    fn group(&mut self) -> Result<(), String> {
        self.out.push('(');
        if !self.take("?") {
            return Ok(());
        }
        if self.take("P<") {
            let (name, rest) = self.rest.split_once('>').ok_or("invalid named capture")?;
            self.rest = rest;
            let _ = write!(self.out, "?P<{name}>");
            return Ok(());
        }
        let flags: String = self.rest.chars().take_while(|c| "imsU-".contains(*c)).collect();
        self.rest = &self.rest[flags.len()..];
        match self.next() {
            Some(end @ (':' | ')')) => {
                let _ = write!(self.out, "?{flags}{end}");
                Ok(())
            }
            Some(c) => Err(format!("invalid or unsupported Perl syntax: `(?{flags}{c}`")),
            None => Err(format!("missing closing ): `(?{flags}`")),
        }
    }

    /// Parses a repetition, or an ordinary brace, after the opening brace.
    fn braces(&mut self) -> Result<(), String> {
        let Some((counts, rest)) = self.rest.split_once('}').filter(|(counts, _)| is_repetition(counts)) else {
            self.literal('{');
            return Ok(());
        };
        let count = |text: &str| match text {
            "" => Ok(None),
            text => match text.parse::<u32>() {
                Ok(count) if count <= REPEAT_MAX => Ok(Some(count)),
                _ => Err(format!("invalid repeat count: `{{{counts}}}`")),
            },
        };
        let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
        if let (Some(least), Some(most)) = (count(least)?, count(most)?)
            && least > most
        {
            return Err(format!("invalid repeat count: `{{{counts}}}`"));
        }
        let _ = write!(self.out, "{{{counts}}}");
        self.rest = rest;
        Ok(())
    }
}

/// Whether the text between braces is a repetition: `2`, `2,` or `2,5`.
fn is_repetition(counts: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    match counts.split_once(',') {
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
        None => is_number(counts),
    }
}

fn bad_escape(what: &str) -> String {
    format!("invalid escape sequence: `\\{what}`")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::matcher::Pattern;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let compiled = Pattern::new(pattern).unwrap_or_else(|problem| panic!("{pattern}: {problem}"));
        for value in matching {
            assert!(compiled.is_match(value), "{pattern} does not match {value:?}");
        }
        for value in others {
            assert!(!compiled.is_match(value), "{pattern} matches {value:?}");
        }
    }

    #[test]
    fn braces_that_repeat_nothing_are_braces() {
        check("/api/{id}/.*", &["/api/{id}/x"], &["/api/id/x"]);
        check("a{,5}", &["a{,5}"], &["a", "aaa"]);
        check("a{2}b{1,}c{0,2}", &["aab", "aabbcc"], &["ab", "aabccc"]);
        check("a{ 2}", &["a{ 2}"], &["aa"]);
        check("{a}|}", &["{a}", "}"], &["a"]);
    }

    #[test]
    fn brackets_hold_characters_and_no_sets() {
        check("[^[]+", &["abc"], &["a[b"]);
        check("[[a]+", &["[a["], &["b"]);
        check("[a&&b]+", &["a&b"], &["ab~"]);
        check("[+--c]+", &["+,-c"], &["b"]);
        check("[]a]+", &["]a"], &["b"]);
        check("[^]a]", &["b"], &["]", "a"]);
        check("[a-]+", &["a-"], &["b"]);
        check(r"[\d\-x]+", &["1-x"], &["y"]);
        check(r"[\W]+", &["é!"], &["a", "_"]);
        check("[[:alpha:][:^digit:]]", &["a", "!"], &["1"]);
        check(r"[\x41-\x{43}\n]", &["A", "C", "\n"], &["D"]);
        check(r"[\pL]+\p{Greek}\PN", &["aλx"], &["aax", "aλ1"]);
        check(r"[[:a]+", &["[:a"], &["b"]);
        check("(?i)[a-c]+é", &["aBCÉ"], &["d"]);
    }

    #[test]
    fn classes_are_those_of_ascii() {
        check(r"\w+", &["aZ_9"], &["é", "aé"]);
        check(r"\W+", &["é-"], &["a"]);
        check(r"\d", &["7"], &["٧"]);
        check(r"\s", &["\t", " "], &["\u{b}", "\u{a0}"]);
        check(r"(?i)\w", &["k"], &["\u{212a}"]);
        check(r"é\b.*", &[], &["é"]);
        check(r"a\b.*", &["aé", "a"], &["ab"]);
    }

    #[test]
    fn quoted_text_is_literal() {
        check(r"\Qa.b*\E+", &["a.b*", "a.b**"], &["axb"]);
        check(r"\Qa\\E", &[r"a\"], &["a"]);
        check(r"x\Q(", &["x("], &["x"]);
        check(r"\<a\>\@\ \-\_", &["<a>@ -_"], &["a"]);
        check(r"\101\0", &["A\0"], &["101"]);
    }

    #[test]
    fn groups_and_flags() {
        check("(?P<x>a|b)(?:c)(?i:D)(?s-i:.)", &["acd\n", "bcDx"], &["Acd!"]);
        check("a.c", &["a\nc"], &["ac"]);
        check("(?U)a+", &["aaa"], &[]);
        check("^a$|(?m)^b$", &["a", "b"], &["a\n"]);
    }

    #[test]
    fn expressions_refused_by_re2_are_refused() {
        for wrong in [
            "(",
            ")",
            "[",
            "[]",
            "[z-a]",
            r"[a-\d]",
            r"\",
            r"\8",
            r"\1",
            r"\y",
            r"\u0041",
            r"\x4",
            r"\x{110000}",
            r"\Z",
            "(?x)a",
            "(?u:a)",
            "(?=a)",
            "(?<=a)",
            "(?",
            "(?i",
            "*a",
            "a{1001}",
            "a{2,1}",
            "{2}",
            "[[:nothing:]]",
            r"\p{",
            r"\pX",
            r"\p{No-such}",
            r"[\Qa\E]",
            r"\E",
            r"\C",
        ] {
            assert!(Pattern::new(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn quoted_text_matches_itself_alone(value in "[ -~éλ\n]{0,20}", other in "[ -~]{0,5}") {
            prop_assume!(!value.contains("\\E"));
            let pattern = Pattern::new(&format!("\\Q{value}\\E")).unwrap();
            prop_assert!(pattern.is_match(&value));
            prop_assert_eq!(pattern.is_match(&other), other == value);
        }

        #[test]
        fn no_text_panics_the_translator(text in r"[ab\\\[\]{}()?*+|^$.:&~<>=!PQE1,x-]{0,30}") {
            let _ = Pattern::new(&text);
        }
    }
}
