//! Files of documents, as `muster unit apply` and `muster deployment apply` take them.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use muster_api::ApplyDocument;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::{
    canonical::{self, CanonicalError},
    diagnostic::Diagnostic,
};
use serde::Deserialize as _;
use serde_json::Value;

/// Largest file: what the console accepts for all of them together.
const FILE_MAX_BYTES: u64 = 2 * 1024 * 1024;

/// The endings of documents in a folder.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Reads all documents of all files and folders, for `muster NOUN apply`.
///
/// # Errors
/// If a file cannot be read or has no documents, with all that are wrong; and if there is no document at all.
pub fn read_all(given: &[PathBuf], noun: &str) -> Result<Vec<ApplyDocument>, Failure> {
    let (mut documents, mut wrong) = (Vec::new(), Vec::new());
    for file in files(given, &mut wrong) {
        let file = file.as_path();
        let name = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
        match read_file(file).and_then(|text| parse(&text).map_err(Diagnostic::new)) {
            Ok(found) => {
                let several = found.len() > 1;
                documents.extend(found.into_iter().enumerate().map(|(index, content)| {
                    let source = if several { format!("{name}, document {}", index + 1) } else { name.clone() };
                    ApplyDocument { source, content }
                }));
            }
            Err(fault) => wrong.push(fault.within(name)),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::told(FailureKind::Usage, together(wrong)));
    }
    if documents.is_empty() {
        return Err(Failure::new(FailureKind::Usage, "there is no document")
            .hint(format!("`muster {noun} apply --help` describes one")));
    }
    Ok(documents)
}

/// Tells all that is wrong, line by line; the hints stand apart.
fn together(mut wrong: Vec<Diagnostic>) -> Diagnostic {
    match wrong.pop() {
        Some(one) if wrong.is_empty() => one,
        last => {
            let title = format!("{} are wrong", counted(wrong.len() + 1, "document"));
            Diagnostic::listed(title, wrong.into_iter().chain(last)).unwrap_or_default()
        }
    }
}

/// The files that are meant: a folder stands for the documents in it, by name.
fn files(given: &[PathBuf], wrong: &mut Vec<Diagnostic>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        match in_folder(path) {
            Ok(found) if found.is_empty() => {
                let problem = Diagnostic::new("no file in this folder ends with .yaml, .yml or .json");
                wrong.push(problem.within(path.display()));
            }
            Ok(found) => files.extend(found),
            Err(error) => wrong.push(Diagnostic::of_error(&error).within(path.display())),
        }
    }
    files
}

fn in_folder(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_document = path.extension().and_then(|ending| ending.to_str()).is_some_and(|it| ENDINGS.contains(&it));
        if is_document && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn read_file(file: &Path) -> Result<String, Diagnostic> {
    let mut bytes = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Diagnostic::of_error(&error))?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(Diagnostic::new(format!("it has more than {FILE_MAX_BYTES} bytes")));
    }
    muster_base::files::text(bytes).map_err(|error| Diagnostic::of_error(&error))
}

/// Parses documents: JSON, or YAML with `---` between them. Empty documents are skipped.
pub(super) fn parse(text: &str) -> Result<Vec<Value>, String> {
    // This type refuses duplicate keys in both formats.
    let mut documents: Vec<serde_norway::Value> = Vec::new();
    // Almost all JSON is valid YAML, but a JSON parser has better error messages.
    if text.trim_start().starts_with('{') && !text.contains("\n---") {
        for document in serde_json::Deserializer::from_str(text).into_iter() {
            documents.push(document.map_err(|error| error.to_string())?);
        }
    } else {
        for document in serde_norway::Deserializer::from_str(text) {
            documents.push(serde_norway::Value::deserialize(document).map_err(|error| error.to_string())?);
        }
    }
    // Merge keys (`<<`) refer to other parts of the document.
    documents.iter_mut().try_for_each(|document| document.apply_merge()).map_err(|error| error.to_string())?;
    let documents = documents.into_iter().filter(|document| !document.is_null());
    documents.map(|document| as_json(document).map_err(|error| error.to_string())).collect()
}

/// Converts a document, if hosts could read what is in it.
fn as_json(document: serde_norway::Value) -> Result<Value, CanonicalError> {
    canonical::parse(&serde_json::to_vec(&document)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn folder_stands_for_its_documents_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in
            [("b.yml", "b: 1"), ("a.yaml", "a: 1\n---\na: 2"), ("c.json", "{\"c\": 1}"), ("notes", "[")]
        {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        std::fs::create_dir(folder.path().join("more.yaml")).unwrap();
        let read = read_all(&[folder.path().to_owned()], "unit").unwrap();
        let contents: Vec<_> = read.iter().map(|one| one.content.clone()).collect();
        assert_eq!(contents, [json!({"a": 1}), json!({"a": 2}), json!({"b": 1}), json!({"c": 1})]);
        assert!(read[1].source.ends_with("a.yaml, document 2"), "{}", read[1].source);
        let empty = read_all(&[folder.path().join("more.yaml"), folder.path().join("none")], "unit").unwrap_err();
        let cause = empty.cause().unwrap();
        assert!(cause.contains("more.yaml: no file in this folder") && cause.contains("none: No such file"), "{cause}");
    }

    #[test]
    fn documents_in_yaml_and_json() {
        for (text, wanted) in [
            ("", vec![]),
            ("# nothing\n", vec![]),
            ("unit: a/b\nenv: {A: '1'}\n", vec![json!({"unit": "a/b", "env": {"A": "1"}})]),
            ("---\na: 1\n---\nb: 2\n---\n", vec![json!({"a": 1}), json!({"b": 2})]),
            ("{\"a\": 1}", vec![json!({"a": 1})]),
            ("{\"a\": 1}\n{\"b\": 2}", vec![json!({"a": 1}), json!({"b": 2})]),
            ("{a: 1}\n---\n{b: 2}\n", vec![json!({"a": 1}), json!({"b": 2})]),
            ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", vec![json!({"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}})]),
            ("y:\n  <<: [{a: 1}, {a: 2, c: 3}]\n", vec![json!({"y": {"a": 1, "c": 3}})]),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        for (text, words) in [
            ("a: 1\na: 2\n", "duplicate"),
            ("a: [1\n", "line"),
            ("{\"a\": 1,}", "line 1"),
            ("? [a]\n: 1\n", "key"),
            ("a: {<<: 5}\n", "merg"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
