//! Selectors of series. A plain selector is written as in PromQL,
//! `name{label="value", other!="value", third=~"regex", fourth!~"regex"}`; the name may be written as
//! the label `__name__`, and must be if it contains anything but letters, digits, `_` and `:`.
//!
//! As there, a label that a series does not have is an empty value, regular expressions match whole
//! values, and a selector that an empty set of labels would satisfy is refused.
//!
//! **Invariant: a selector from outside costs a bounded amount.** Its length, the number of its matchers and the
//! size of its compiled expressions ([`muster_promql::matcher`]) have limits, and matching takes time linear in the value.

use std::{collections::BTreeMap, fmt};

use muster_promql::{
    matcher::{MatchOperator, Matcher, Pattern},
    text,
};

use super::batch::NAME_LABEL;

/// Longest selector, in bytes: enough for a regular expression with a hundred hosts.
const SELECTOR_MAX_BYTES: usize = 8 * 1024;
/// Largest number of matchers.
const MATCHERS_MAX: usize = 32;

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {problem}")]
pub struct SelectorError {
    /// The position in characters, counted from 1.
    pub position: usize,
    /// What is wrong.
    pub problem: String,
}

/// A selector of series.
#[derive(Debug)]
pub struct SeriesSelector {
    matchers: Vec<Matcher>,
}

impl SeriesSelector {
    /// A selector from matchers that were parsed and compiled elsewhere. The name is the label `__name__`.
    ///
    /// # Errors
    /// If there are too many, or one is too long. The position of the error is the number of the matcher.
    pub fn of<'a>(matchers: impl IntoIterator<Item = &'a Matcher>) -> Result<Self, SelectorError> {
        let mut selector = Self { matchers: Vec::new() };
        for (index, matcher) in matchers.into_iter().enumerate() {
            if index == MATCHERS_MAX || matcher.test.text().len() > SELECTOR_MAX_BYTES {
                let problem = format!("at most {MATCHERS_MAX} matchers of {SELECTOR_MAX_BYTES} bytes are allowed");
                return Err(SelectorError { position: index + 1, problem });
            }
            selector.matchers.push(matcher.clone());
        }
        Ok(selector)
    }

    /// Parses a selector.
    ///
    /// # Errors
    /// If the text is invalid, or would match all series.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > SELECTOR_MAX_BYTES {
            let problem = format!("a selector may have at most {SELECTOR_MAX_BYTES} bytes");
            return Err(SelectorError { position: 1, problem });
        }
        let mut parser = SelectorParser { text, at: 0 };
        let selector = parser.selector()?;
        if selector.matchers.iter().all(|matcher| matcher.test.accepts("")) {
            let problem = "expected a name, or a matcher that an empty value does not satisfy".to_owned();
            return Err(SelectorError { position: 1, problem });
        }
        Ok(selector)
    }

    /// Labels that must have a given value; any of them can be used to find the series.
    pub(crate) fn equalities(&self) -> impl Iterator<Item = (&str, &str)> {
        self.matchers.iter().filter_map(|matcher| match &matcher.test {
            MatchOperator::Equal(value) if !value.is_empty() => Some((matcher.label.as_str(), value.as_str())),
            _ => None,
        })
    }

    /// Whether a series matches.
    pub fn accepts(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.matchers.iter().all(|matcher| {
            let value = match matcher.label.as_str() {
                NAME_LABEL => name,
                label => labels.get(label).map_or("", String::as_str),
            };
            matcher.test.accepts(value)
        })
    }
}

/// Compiles an expression with the limits of PromQL.
fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|problem| format!("the regular expression: {problem}"))
}

/// As it could be written: parsing it returns the same selector.
impl fmt::Display for SeriesSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, matcher) in self.matchers.iter().enumerate() {
            let (operator, value) = (matcher.test.operator(), matcher.test.text());
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}{operator}{}", matcher.label, text::quote(value))?;
        }
        f.write_str("}")
    }
}

/// Parses from left to right, with one character of lookahead.
struct SelectorParser<'a> {
    text: &'a str,
    /// In bytes, always at a character boundary.
    at: usize,
}

impl SelectorParser<'_> {
    fn selector(&mut self) -> Result<SeriesSelector, SelectorError> {
        let mut matchers = Vec::new();
        self.blanks();
        let name = self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.error_at(self.at - name.len(), "a name does not begin with a digit"));
        }
        if !name.is_empty() {
            matchers.push(Matcher { label: NAME_LABEL.to_owned(), test: MatchOperator::Equal(name) });
        }
        self.blanks();
        let braced = self.take('{');
        if braced {
            self.matchers(&mut matchers)?;
            self.blanks();
        }
        match self.peek() {
            None if matchers.is_empty() && !braced => Err(self.error("expected a name or '{'")),
            None => Ok(SeriesSelector { matchers }),
            Some('[') => Err(self.error("only a plain selector is supported: set the range with start and end")),
            Some('(') => Err(self.error("only a plain selector is supported, without functions")),
            Some(c) => Err(self.error(&format!("expected the end, found {c:?}"))),
        }
    }

    /// Parses matchers after the opening brace, up to and including the closing one.
    fn matchers(&mut self, matchers: &mut Vec<Matcher>) -> Result<(), SelectorError> {
        loop {
            self.blanks();
            if self.take('}') {
                return Ok(());
            }
            let start = self.at;
            let matcher = self.matcher()?;
            let named = matcher.label == NAME_LABEL && matchers.iter().any(|other| other.label == NAME_LABEL);
            if named && matches!(matcher.test, MatchOperator::Equal(_)) {
                return Err(self.error_at(start, "the name occurs twice"));
            }
            if matchers.len() == MATCHERS_MAX {
                return Err(self.error_at(start, &format!("at most {MATCHERS_MAX} matchers are allowed")));
            }
            matchers.push(matcher);
            self.blanks();
            if !self.take(',') && self.peek() != Some('}') {
                return Err(self.error("expected ',' or '}'"));
            }
        }
    }

    fn matcher(&mut self) -> Result<Matcher, SelectorError> {
        let label = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        if label.is_empty() || label.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.error_at(self.at - label.len(), "expected the name of a label"));
        }
        self.blanks();
        let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| self.text[self.at..].starts_with(operator));
        let operator = operator.ok_or_else(|| self.error("expected one of = != =~ !~"))?;
        self.at += operator.len();
        self.blanks();
        let start = self.at;
        let value = self.string()?;
        let pattern = |parser: &Self| pattern(&value).map_err(|problem| parser.error_at(start, &problem));
        let test = match operator {
            "=~" => MatchOperator::Match(pattern(self)?),
            "!~" => MatchOperator::NotMatch(pattern(self)?),
            "!=" => MatchOperator::NotEqual(value),
            _ => MatchOperator::Equal(value),
        };
        Ok(Matcher { label, test })
    }

    /// Parses a string in one of three kinds of quotes.
    fn string(&mut self) -> Result<String, SelectorError> {
        let (value, length) =
            text::read(&self.text[self.at..]).map_err(|error| self.error_at(self.at + error.offset, &error.problem))?;
        self.at += length;
        Ok(value)
    }

    fn word(&mut self, fits: impl Fn(char) -> bool) -> String {
        let rest = &self.text[self.at..];
        let word = &rest[..rest.find(|c| !fits(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word.to_owned()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn error(&self, problem: &str) -> SelectorError {
        self.error_at(self.at, problem)
    }

    fn error_at(&self, at: usize, problem: &str) -> SelectorError {
        SelectorError { position: self.text[..at].chars().count() + 1, problem: problem.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn selectors_are_understood() {
        for (text, canonical) in [
            ("up", r#"{__name__="up"}"#),
            (" a:b_1 { } ", r#"{__name__="a:b_1"}"#),
            (r#"m{host="h",}"#, r#"{__name__="m",host="h"}"#),
            (r#"{__name__="x y", a!='b', c=~`d\.e`, f!~"g.*"}"#, r#"{__name__="x y",a!="b",c=~"d\\.e",f!~"g.*"}"#),
            (r#"m{l="\"\\\n\t\u00e9\U0001F600'"}"#, r#"{__name__="m",l="\"\\\n\té😀'"}"#),
            ("{a\n=\n'é'}", r#"{a="é"}"#),
            (r#"{__name__=~"a|b",__name__!="c"}"#, r#"{__name__=~"a|b",__name__!="c"}"#),
            (r#"m{l=""}"#, r#"{__name__="m",l=""}"#),
        ] {
            let selector = SeriesSelector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(selector.to_string(), canonical, "{text}");
            assert_eq!(SeriesSelector::parse(canonical).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn errors_name_the_place() {
        let long = "x".repeat(SELECTOR_MAX_BYTES + 1);
        let many = format!("m{{{}}}", "a='b',".repeat(MATCHERS_MAX));
        for (text, position, problem) in [
            ("", 1, "expected a name or '{'"),
            ("  ", 3, "expected a name or '{'"),
            ("1m", 1, "digit"),
            ("m{", 3, "name of a label"),
            ("m{l", 4, "= != =~ !~"),
            ("m{l=", 5, "a value in quotes"),
            ("m{l=x}", 5, "a value in quotes"),
            ("m{é='x'}", 3, "name of a label"),
            ("m{l='é}", 5, "never closed"),
            ("m{l='é' m='x'}", 9, "',' or '}'"),
            ("m{l='a',,}", 9, "name of a label"),
            ("m{l='a\nb'}", 7, "line break"),
            (r"m{l='é\d'}", 7, "backslash is written twice"),
            (r"m{l='\u12'}", 6, "no such escape"),
            (r"m{l='\ud800'}", 6, "no such escape"),
            ("m{l=~'a('}", 6, "the regular expression: unclosed group"),
            ("m{l=~'a)|(b'}", 6, "unopened group"),
            (r"m{l=~'(\\w{200}){200}'}", 6, "the regular expression"),
            ("m{__name__='n'}", 3, "twice"),
            ("rate(m[5m])", 5, "without functions"),
            ("m[5m]", 2, "start and end"),
            ("m{} 5", 5, "expected the end"),
            ("{}", 1, "a name, or a matcher"),
            ("{a=~'.*',b!='c'}", 1, "a name, or a matcher"),
            (&long, 1, "at most"),
            (&many, 189, "at most 32"),
        ] {
            let error = SeriesSelector::parse(text).expect_err(text);
            assert!(error.problem.contains(problem), "{text}: {error}");
            assert_eq!(error.position, position, "{text}: {error}");
        }
    }

    #[test]
    fn series_are_chosen_as_in_promql() {
        let labels = BTreeMap::from([("host".to_owned(), "h1".to_owned()), ("unit".to_owned(), "a\nb".to_owned())]);
        for (selector, chosen) in [
            ("m", true),
            ("n", false),
            ("m{host='h1'}", true),
            ("m{host='h'}", false),
            ("m{host!='h2'}", true),
            ("m{host!='h1'}", false),
            ("m{host=~'h[0-9]'}", true),
            ("m{host=~'h'}", false),
            ("m{host=~'x|h1'}", true),
            ("m{host=~'h|h1'}", true),
            ("m{host=~'(?i)H1'}", true),
            ("m{host=~'h1$$'}", true),
            ("m{host!~'h.'}", false),
            ("m{host!~'h'}", true),
            ("m{unit=~'a.b'}", true),
            ("m{other=''}", true),
            ("m{other!=''}", false),
            ("m{other=~'.*'}", true),
            ("m{other=~'.+'}", false),
            ("{__name__=~'m.?',host='h1'}", true),
            ("{host='h1',host!='h2'}", true),
        ] {
            assert_eq!(SeriesSelector::parse(selector).unwrap().accepts("m", &labels), chosen, "{selector}");
        }
    }

    #[test]
    fn only_equalities_lead_to_series() {
        let selector = SeriesSelector::parse("m{a='1',b='',c!='2',d=~'3'}").unwrap();
        assert_eq!(selector.equalities().collect::<Vec<_>>(), [(NAME_LABEL, "m"), ("a", "1")]);
    }

    #[test]
    fn matchers_make_the_same_selector() {
        let of = |label: &str, test: MatchOperator| Matcher { label: label.to_owned(), test };
        let pattern = |text| Pattern::new(text).unwrap();
        let matchers = [
            of(NAME_LABEL, MatchOperator::Equal("m".to_owned())),
            of("a", MatchOperator::NotEqual("1".to_owned())),
            of("b", MatchOperator::Match(pattern("2|3"))),
            of("c", MatchOperator::NotMatch(pattern("4"))),
        ];
        let selector = SeriesSelector::of(&matchers).unwrap();
        assert_eq!(selector.to_string(), SeriesSelector::parse(r#"m{a!="1",b=~"2|3",c!~"4"}"#).unwrap().to_string());
        let labels = |b: &str| BTreeMap::from([("b".to_owned(), b.to_owned())]);
        assert_eq!(["3", "23"].map(|b| selector.accepts("m", &labels(b))), [true, false]);
        let long = of("c", MatchOperator::Equal("x".repeat(SELECTOR_MAX_BYTES + 1)));
        assert_eq!(SeriesSelector::of([&matchers[0], &long]).unwrap_err().position, 2);
        assert!(SeriesSelector::of([&matchers[0]; MATCHERS_MAX + 1]).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in any::<String>(), likely in r#"[a-c{}=!~,"'`\\. \né(|)*+?\[\]u0-9-]{0,40}"#) {
            let _ = SeriesSelector::parse(&text);
            let _ = SeriesSelector::parse(&likely);
            let _ = SeriesSelector::parse(&format!("m{{l=~`{likely}`}}"));
            let _ = SeriesSelector::parse(&format!("m{{l=\"{likely}"));
        }

        #[test]
        fn what_is_quoted_is_read_back(value in any::<String>()) {
            let text = format!("{{a!={},__name__=\"m\"}}", text::quote(&value));
            let selector = SeriesSelector::parse(&text).unwrap();
            prop_assert_eq!(selector.to_string(), text);
            prop_assert!(!selector.accepts("m", &BTreeMap::from([("a".to_owned(), value)])));
        }
    }
}
