//! Pages of generated documents, in Markdown whose lines are short enough to be read as text.

use std::fmt::Write as _;

/// The longest line of a document, in characters.
pub const COLUMNS: usize = 100;

/// A page that is made from the sources.
#[derive(Debug)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a page: its title, and what it is made from by which command.
    #[must_use]
    pub fn new(title: &str, source: &str, command: &str) -> Self {
        let mut page = Self { text: format!("# {title}\n\n") };
        page.raw("<!-- Generated; do not edit.");
        page.raw(&format!("Made from: {source}."));
        page.raw(&format!("Written by: MUSTER_REWRITE=1 {command} -->"));
        page
    }

    /// Adds a heading; 2 is the level below the title.
    pub fn heading(&mut self, level: usize, title: &str) {
        let _ = write!(self.text, "\n{} {title}\n", "#".repeat(level));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = write!(self.text, "\n{}\n", wrap(&escape(text), "", ""));
    }

    /// Adds an item of a list; the first one of a list follows [`Page::gap`].
    pub fn item(&mut self, text: &str) {
        let _ = writeln!(self.text, "{}", wrap(&escape(text), "- ", "  "));
    }

    /// Adds an empty line.
    pub fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Adds a fenced block. Lines that are too long are broken.
    pub fn block(&mut self, language: &str, text: &str) {
        let _ = writeln!(self.text, "\n```{language}");
        for line in text.trim_matches('\n').lines() {
            let indent = &line[..line.len() - line.trim_start().len()];
            let short = match line.chars().count() > COLUMNS {
                true => wrap(line.trim(), indent, &format!("{indent}  ")),
                false => line.trim_end().to_owned(),
            };
            self.raw(&short);
        }
        self.raw("```");
    }

    fn raw(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the page.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }
}

/// Replaces what Markdown would not show, except in backquotes: code is shown as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    // Links of the code's documentation lead nowhere else.
    let text = text.replace("[`", "`").replace("`]", "`");
    let parts = text.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace('<', "\\<").replace('*', "\\*"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Breaks a text into lines of at most [`COLUMNS`] characters, never within backquotes: `first` begins the first line,
/// `rest` the others.
#[must_use]
pub fn wrap(text: &str, first: &str, rest: &str) -> String {
    let mut lines = vec![first.to_owned()];
    let mut is_begin = true;
    for word in words(text) {
        let line = lines.last_mut().unwrap();
        if !is_begin && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{rest}{word}"));
            continue;
        }
        if !is_begin {
            line.push(' ');
        }
        line.push_str(&word);
        is_begin = false;
    }
    lines.join("\n")
}

/// The words of a text; what stands in backquotes is one word with what adjoins it.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in text.split_whitespace() {
        match words.last_mut().filter(|_| is_open) {
            Some(last) => {
                last.push(' ');
                last.push_str(word);
            }
            None => words.push(word.to_owned()),
        }
        is_open ^= word.matches('`').count() % 2 == 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_wrapped_outside_of_code() {
        let code = format!("`{} end`", "word ".repeat(12).trim());
        let text = wrap(&format!("{} {code}, and {}", "x".repeat(60), "y".repeat(90)), "- ", "  ");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("  `word") && lines[1].ends_with("end`, and"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
    }

    #[test]
    fn markup_is_escaped_outside_of_code() {
        assert_eq!(escape("<A> and [`<B>`] *"), "\\<A> and `<B>` \\*");
    }

    #[test]
    fn page_has_parts_in_order() {
        let mut page = Page::new("Title", "a.rs", "cargo test");
        page.heading(2, "One");
        page.paragraph("text");
        page.gap();
        page.item("an item");
        page.block("text", "\nline\n");
        let text = page.text();
        assert!(text.starts_with("# Title\n\n<!-- Generated; do not edit.\nMade from: a.rs.\n"), "{text}");
        assert!(text.ends_with("-->\n\n## One\n\ntext\n\n- an item\n\n```text\nline\n```\n"), "{text}");
    }
}
