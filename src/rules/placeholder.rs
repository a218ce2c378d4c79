//! Placeholders in arguments of units: `{config}`, `{port:NAME}`, `{address:NAME}`, `{endpoint:NAME}`.
//!
//! A word in braces, with or without a colon and a name, is a placeholder; an unknown one is refused
//! before anything runs. Doubled braces, `{{word}}`, stand for the text itself. Other braces are text: `{}`,
//! `${HOME}`, `{"a": 1}`, `{ print $1 }`.

/// A placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placeholder<'a> {
    /// The kind of value.
    pub what: &'a str,
    /// The name of the value; `None` without a colon.
    pub name: Option<&'a str>,
}

impl std::fmt::Display for Placeholder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name {
            Some(name) => write!(f, "{{{}:{name}}}", self.what),
            None => write!(f, "{{{}}}", self.what),
        }
    }
}

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextPiece<'a> {
    Text(&'a str),
    Placeholder(Placeholder<'a>),
}

/// Returns a text with its placeholders filled in. A placeholder without a value is left unchanged.
pub fn fill(text: &str, value: impl Fn(&Placeholder<'_>) -> Option<String>) -> String {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            TextPiece::Text(text) => filled.push_str(text),
            TextPiece::Placeholder(placeholder) => {
                filled.push_str(&value(&placeholder).unwrap_or_else(|| placeholder.to_string()));
            }
        }
    }
    filled
}

/// Returns the placeholders of a text.
#[must_use]
pub fn all(text: &str) -> Vec<Placeholder<'_>> {
    let placeholder = |piece| if let TextPiece::Placeholder(placeholder) = piece { Some(placeholder) } else { None };
    pieces(text).into_iter().filter_map(placeholder).collect()
}

fn pieces(text: &str) -> Vec<TextPiece<'_>> {
    let (mut pieces, mut begin, mut from) = (Vec::new(), 0, 0);
    while let Some(open) = text[from..].find('{').map(|at| from + at) {
        // Double braces escape a placeholder: the text keeps single ones.
        let doubled = look(&text[open + 1..]).filter(|(_, length)| text[open + 1 + length..].starts_with('}'));
        if let Some((_, length)) = doubled {
            pieces.push(TextPiece::Text(&text[begin..open]));
            pieces.push(TextPiece::Text(&text[open + 1..open + 1 + length]));
            begin = open + length + 2;
            from = begin;
            continue;
        }
        match look(&text[open..]).filter(|_| !text[..open].ends_with('$')) {
            Some((placeholder, length)) => {
                pieces.push(TextPiece::Text(&text[begin..open]));
                pieces.push(TextPiece::Placeholder(placeholder));
                begin = open + length;
                from = begin;
            }
            None => from = open + 1,
        }
    }
    pieces.push(TextPiece::Text(&text[begin..]));
    pieces
}

/// Parses a placeholder at the beginning of a text; returns it with its length.
fn look(text: &str) -> Option<(Placeholder<'_>, usize)> {
    let close = text.find('}')?;
    let inside = text.get(1..close).filter(|_| text.starts_with('{'))?;
    let is_word = |word: &str| {
        let begins = word.starts_with(|first: char| first.is_ascii_lowercase());
        begins && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let is_name = |name: &str| {
        let begins = name.starts_with(|first: char| first.is_ascii_alphabetic());
        begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    };
    let (what, name) = inside.split_once(':').map_or((inside, None), |(what, name)| (what, Some(name)));
    let is_known = matches!(what, "port" | "address" | "endpoint");
    let is_one = is_word(what) && name.is_none_or(|name| is_known || is_name(name));
    is_one.then_some((Placeholder { what, name }, close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_in_braces_are_placeholders() {
        let value = |placeholder: &Placeholder<'_>| match (placeholder.what, placeholder.name) {
            ("config", None) => Some("/c".to_owned()),
            ("port", Some(name)) => Some(format!("<{name}>")),
            _ => None,
        };
        for (text, filled, count) in [
            ("", "", 0),
            ("-p{port:web} {config}", "-p<web> /c", 2),
            ("{port:a}{port:b-c}", "<a><b-c>", 2),
            ("{hostname} {fact:cpus}", "{hostname} {fact:cpus}", 2),
            // Double braces escape a placeholder.
            ("{{config}} {{fact:cpus}}", "{config} {fact:cpus}", 0),
            ("{{config}", "{/c", 1),
            ("{{{config}}}", "{{config}}", 0),
            // Other texts with braces.
            (
                "{} {0} {a,b} ${HOME} ${home} {\"a\": 1} { print $1 } {a:1} {user:.name} {",
                "{} {0} {a,b} ${HOME} ${home} {\"a\": 1} { print $1 } {a:1} {user:.name} {",
                0,
            ),
            ("{{ name }} {{.Name}}", "{{ name }} {{.Name}}", 0),
            ("é{config}é", "é/cé", 1),
        ] {
            assert_eq!(fill(text, value), filled, "{text}");
            assert_eq!(all(text).len(), count, "{text}");
        }
    }
}
