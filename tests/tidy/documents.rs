//! README and the pages below `docs`: they are short, each is in the index, and every link leads somewhere.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use muster_test_support::markdown::COLUMNS;

/// README's length: what is read in three minutes.
const README_LINES: usize = 120;

/// A document.
pub(crate) struct Document {
    /// Its path from the top.
    pub(crate) path: String,
    pub(crate) text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> Document {
    Document { path: path.to_owned(), text: fs::read_to_string(root().join(path)).unwrap() }
}

/// README and all pages below `docs`.
pub(crate) fn all() -> Vec<Document> {
    let (mut documents, mut folders) = (vec![read("README.md")], vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => {
                    documents.push(read(path.strip_prefix(root()).unwrap().to_str().unwrap()));
                }
                _ => {}
            }
        }
    }
    documents.sort_by(|one, other| one.path.cmp(&other.path));
    documents
}

/// The lines outside of fenced blocks and comments, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let (mut lines, mut is_fenced, mut is_comment) = (Vec::new(), false, false);
    for (index, line) in text.lines().enumerate() {
        is_comment |= line.starts_with("<!--") && !is_fenced;
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !is_comment {
            lines.push((index + 1, line));
        }
        is_comment &= !line.ends_with("-->");
    }
    lines
}

/// A line without what stands in backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of links and pictures in a text.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| (number, target.to_owned())));
        let sources = line.split(" src=\"").skip(1).filter_map(|rest| rest.split_once('"'));
        found.extend(sources.map(|(target, _)| (number, target.to_owned())));
    }
    found
}

/// The anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        let Some(title) = line.strip_prefix('#').map(|line| line.trim_start_matches('#')) else { continue };
        let Some(title) = title.strip_prefix(' ') else { continue };
        let letters = title.trim().to_lowercase();
        let kept = letters.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = seen.entry(anchor.clone()).or_default();
        anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Says what is wrong with a link of a document.
fn check_link(document: &Document, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let folder = Path::new(&document.path).parent().unwrap();
    let whole = if path.is_empty() { PathBuf::from(&document.path) } else { plain(&folder.join(path)) };
    let there = root().join(&whole);
    if !there.exists() {
        return Err(format!("there is no {}", whole.display()));
    }
    let Some(anchor) = anchor else { return Ok(()) };
    let text = fs::read_to_string(&there).unwrap_or_default();
    match anchors(&text).iter().any(|known| known == anchor) {
        true => Ok(()),
        false => Err(format!("{} has no heading #{anchor}", whole.display())),
    }
}

#[test]
fn links_of_documents_lead_somewhere() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for document in all() {
        for (line, target) in links(&document.text) {
            count += 1;
            let problem = check_link(&document, &target).err();
            wrong.extend(problem.map(|problem| format!("{}:{line}: {target}: {problem}", document.path)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "{count} links were found");
}

#[test]
fn documents_are_narrow_and_readme_is_short() {
    let mut wide = Vec::new();
    for document in all() {
        for (index, line) in document.text.lines().enumerate() {
            let columns = line.chars().count();
            // What cannot be broken is as long as it is.
            let is_one_word = line.trim_start_matches([' ', '-']).split(' ').count() == 1;
            if columns > COLUMNS && !is_one_word {
                wide.push(format!("{}:{}: {columns} columns", document.path, index + 1));
            }
        }
    }
    assert!(wide.is_empty(), "at most {COLUMNS}:\n{}", wide.join("\n"));
    let lines = read("README.md").text.lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines; at most {README_LINES} are read in three minutes");
}

#[test]
fn index_has_every_page() {
    let index = read("docs/README.md");
    let linked: Vec<PathBuf> =
        links(&index.text).iter().map(|(_, target)| plain(&Path::new("docs").join(target))).collect();
    for document in all() {
        let is_linked = linked.iter().any(|path| path == Path::new(&document.path));
        let is_itself = ["README.md", "docs/README.md"].contains(&document.path.as_str());
        assert!(is_linked || is_itself, "{} is not linked from docs/README.md", document.path);
    }
}

#[test]
fn wrong_link_is_found() {
    let text = "# A `b` & c\n\n## A b  c\n\n```console\n[x](none.md)\n```\n[a](README.md#documents) `[b](c.md)` [d](https://e)\n";
    assert_eq!(anchors(text), ["a-b--c", "a-b--c-1"]);
    let targets: Vec<String> = links(text).into_iter().map(|(_, target)| target).collect();
    assert_eq!(targets, ["README.md#documents", "https://e"]);
    let document = Document { path: "docs/a.md".to_owned(), text: String::new() };
    for wrong in ["none.md", "../README.md#no-such-heading", "#here"] {
        assert!(check_link(&document, wrong).is_err(), "{wrong}");
    }
    for right in ["../README.md", "glossary.md#commands", "https://example.com", "../src/main.rs"] {
        assert_eq!(check_link(&document, right), Ok(()), "{right}");
    }
}

#[test]
fn readmes_first_commands_start_muster_and_run_what_ci_runs() {
    let readme = read("README.md").text;
    let (_, section) = readme.split_once("\n## Two commands\n").expect("a section of its own");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let commands: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(commands, ["cargo run --release -- up", "tests/run"]);
    let heading = readme.lines().position(|line| line == "## Two commands").unwrap();
    assert!(heading < 12, "they stand in line {heading} rather than near the top");
    let ci = read(".ci/run").text;
    let steps: Vec<&str> = ci.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(steps, ["set -euo pipefail", r#"exec "$(dirname "$0")/../tests/run" "$@""#]);
}
