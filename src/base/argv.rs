//! Parses a typed text into a program and its arguments. No shell is involved, nor imitated:
//! nothing is expanded.
//!
//! One line is split at blanks; `'…'` and `"…"` keep their content together, and a backslash
//! (outside of `'…'`) takes the next character literally. Of several lines each is one argument,
//! exactly as it stands.

/// The rule, as the web form explains it.
pub const RULE: &str = "One line is split at blanks; quotes '…' or \"…\" keep words together, and a \
                               backslash takes the next character unchanged. With several lines, each line is \
                               one argument, taken unchanged. No shell is involved unless it is asked for.";

/// Why a text is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// The text is empty.
    #[error("the command is empty")]
    Empty,
    /// A quote is never closed.
    #[error("the quote {0} is not closed")]
    Quote(char),
    /// A backslash is the last character.
    #[error("the line ends with a backslash")]
    Backslash,
}

/// Splits a text into words, by the rule of the module.
pub fn split(text: &str) -> Result<Vec<String>, ArgvError> {
    let text = text.replace("\r\n", "\n");
    let lines: Vec<&str> = text.trim_matches('\n').split('\n').collect();
    let argv = match lines.as_slice() {
        [line] => split_line(line)?,
        lines => lines.iter().map(|line| (*line).to_owned()).collect(),
    };
    if argv.first().is_none_or(|program| program.trim().is_empty()) { Err(ArgvError::Empty) } else { Ok(argv) }
}

fn split_line(line: &str) -> Result<Vec<String>, ArgvError> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => {
                word.get_or_insert_default().push(chars.next().ok_or(ArgvError::Backslash)?);
            }
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(open) => Err(ArgvError::Quote(open)),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use muster_topics::argv::join;

    use super::*;

    #[track_caller]
    fn check(text: &str, wanted: Result<&[&str], ArgvError>) {
        let wanted = wanted.map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(split(text), wanted, "{text:?}");
    }

    #[test]
    fn one_line_is_split_at_blanks() {
        check("uname -a", Ok(&["uname", "-a"]));
        check("  uname \t -a  ", Ok(&["uname", "-a"]));
        check("sh -c 'echo \"a b\" | wc'", Ok(&["sh", "-c", "echo \"a b\" | wc"]));
        check(r#"echo "it's" a\ b \' "" ''"#, Ok(&["echo", "it's", "a b", "'", "", ""]));
        check(r#"echo 'a\b' "a\"b\\c""#, Ok(&["echo", r"a\b", r#"a"b\c"#]));
        check("echo a'b 'c$HOME `x` *", Ok(&["echo", "ab c$HOME", "`x`", "*"]));
        check("uname -a\r\n", Ok(&["uname", "-a"]));
    }

    #[test]
    fn each_of_several_lines_is_an_argument() {
        check("sh\n-c\necho 'a\n", Ok(&["sh", "-c", "echo 'a"]));
        check("sh\r\n-c\r\n  two words ", Ok(&["sh", "-c", "  two words "]));
        check("echo\n\nend", Ok(&["echo", "", "end"]));
    }

    #[test]
    fn invalid_command_line_is_refused_with_reason() {
        for empty in ["", " ", "\n", "\r\n \r\n", "''", "  \nx"] {
            check(empty, Err(ArgvError::Empty));
        }
        check("echo 'a", Err(ArgvError::Quote('\'')));
        check("echo \"a\\\"", Err(ArgvError::Quote('"')));
        check("echo a\\", Err(ArgvError::Backslash));
    }

    proptest! {
        #[test]
        fn joined_arguments_split_to_the_same(first in "[^\\s]{1,8}", rest in prop::collection::vec("[^\r\n]{0,8}", 0..5)) {
            let argv: Vec<String> = std::iter::once(first).chain(rest).collect();
            prop_assert_eq!(split(&join(&argv)), Ok(argv));
        }

        #[test]
        fn no_text_panics_the_parser(text in ".{0,64}") {
            let _ = split(&text);
        }
    }
}
