//! Texts of the product and the documents are plain technical English: they have none of the phrases of a table.

use std::fmt::Write as _;

use crate::{documents, literals, sources};

/// A row of the table.
struct Phrase {
    phrase: &'static str,
    instead: &'static str,
    /// What has the phrase in it, and may be said.
    but: Vec<&'static str>,
}

fn table() -> Vec<Phrase> {
    let rows = include_str!("phrases.txt").lines().filter(|line| !line.starts_with('#'));
    let phrase = |row: &'static str| {
        let mut cells = row.split(" | ");
        let (phrase, instead) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        Phrase { phrase, instead, but: cells.next().map(|but| but.split(", ").collect()).unwrap_or_default() }
    };
    rows.map(phrase).collect()
}

/// Whether a text has a phrase, as whole words and in any case.
fn has(text: &str, phrase: &Phrase) -> bool {
    let text = phrase.but.iter().fold(text.to_lowercase(), |text, but| text.replace(but, ""));
    let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase.phrase).any(|(at, found)| {
        let before = is_word(found.chars().next()) && is_word(text[..at].chars().next_back());
        let behind = is_word(found.chars().next_back()) && is_word(text[at + found.len()..].chars().next());
        !before && !behind
    })
}

/// A text in one line: without the line ends that a literal escapes, or that wrap a paragraph.
fn in_one_line(text: &str) -> String {
    text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What people read of a source file, with the number of the line: string literals, and the comments of help (`help`).
fn texts(code: &str, help: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> =
        literals(code).into_iter().map(|(line, text)| (line, in_one_line(text))).collect();
    if help {
        let comments =
            (1..).zip(code.lines()).filter_map(|(line, text)| Some((line, text.trim().strip_prefix("///")?)));
        found.extend(comments.map(|(line, text)| (line, in_one_line(text))));
    }
    found
}

#[test]
fn texts_are_plain_technical_english() {
    let table = table();
    assert!(table.iter().all(|row| !row.phrase.is_empty() && !row.instead.is_empty()), "a row has no second cell");
    let mut found = String::new();
    let mut check = |place: &str, line: usize, text: &str| {
        for phrase in table.iter().filter(|phrase| has(text, phrase)) {
            let _ = writeln!(found, "{place}:{line}: {:?}, say {:?}: {text}", phrase.phrase, phrase.instead);
        }
    };
    for folder in ["src", "broker/src", "topics/src", "dashboards"] {
        for (path, code) in sources(folder) {
            let is_sample = path.iter().any(|part| part == "samples" || part == "model");
            if !is_sample {
                // What clap and the API's documents print.
                let help = ["src/api", "src/role"].iter().any(|part| path.starts_with(part));
                for (line, text) in texts(&code, help) {
                    check(&path.display().to_string(), line, &text);
                }
            }
        }
    }
    for document in documents::all().iter().filter(|document| !document.path.starts_with("docs/reference")) {
        // A phrase may be wrapped.
        let lines: Vec<&str> = document.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let next = lines.get(index + 1).map_or("", |next| next.trim());
            let wrapped = in_one_line(&format!("{line} {next}"));
            for phrase in table.iter().filter(|phrase| has(line, phrase) || has(&wrapped, phrase) && !has(next, phrase))
            {
                let _ =
                    writeln!(found, "{}:{}: {:?}, say {:?}", document.path, index + 1, phrase.phrase, phrase.instead);
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

#[test]
fn phrases_are_found_as_whole_words() {
    let phrase = |phrase, but: &[&'static str]| Phrase { phrase, instead: "", but: but.to_vec() };
    for (text, is_found) in [("It is no file", true), ("there is no file", false), ("it is not one", false)] {
        assert_eq!(has(text, &phrase("is no", &["there is no"])), is_found, "{text}");
    }
    assert!(has("say --yes", &phrase("say --", &[])) && !has("essay --yes", &phrase("say --", &[])));
    let code = "a(\"one \\\n   two\");\n/// three\n// four\n";
    assert_eq!(texts(code, true), [(1, "one two".to_owned()), (3, "three".to_owned())]);
}
