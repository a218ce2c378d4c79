//! Validates a config against a JSON Schema.
//!
//! All drafts from 4 to 2020-12. References lead within the schema or to the drafts' own documents: nothing is ever
//! downloaded. `format` and the `content…` keywords are annotations, as the standard says.

use std::error::Error;

use boon::{Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use muster_topics::diagnostic::Diagnostic;
use serde_json::Value;

use super::config;

/// The URI of the schema, for references within it.
const HERE: &str = "muster:config-schema";

/// The most complaints that are reported; further ones appear once these are fixed.
const COMPLAINTS_MAX: usize = 20;

/// A loader that fetches nothing.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        Err(Box::new(NotFetched(url.to_owned())))
    }
}

/// A document that a schema refers to.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not fetched")]
struct NotFetched(String);

/// Checks that a document is a schema.
///
/// # Errors
/// If it is not, with the reason.
pub fn check_schema(schema: &Value) -> Result<(), Diagnostic> {
    compile(schema).map(drop)
}

fn compile(schema: &Value) -> Result<(Schemas, SchemaIndex), Diagnostic> {
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(Nowhere));
    compiler.add_resource(HERE, schema.clone()).map_err(|error| told(&error))?;
    let mut schemas = Schemas::new();
    let index = compiler.compile(HERE, &mut schemas).map_err(|error| match &error {
        boon::CompileError::ValidationError { src, .. } => {
            let mut complaints = Vec::new();
            collect(src, (&[], &[]), &mut complaints);
            complaints.join("; ").into()
        }
        _ => told(&error),
    })?;
    Ok((schemas, index))
}

/// Formats an error with its sources, which its own message may omit.
fn told(error: &boon::CompileError) -> Diagnostic {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let told = Diagnostic::new(format!("{error}{source}").replace(HERE, "the schema"));
    match error.source().is_some_and(|source| source.is::<NotFetched>()) {
        true => told.with_hint("put it into the schema itself, below \"$defs\""),
        false => told,
    }
}

/// Returns where a config violates a schema, with JSON pointers and without secrets. What the config refers to by name, and
/// what is still a template, has no value yet, and is not checked.
#[must_use]
pub fn check(schema: &Value, document: &Value) -> Vec<Diagnostic> {
    let (schemas, index) = match compile(schema) {
        Ok(compiled) => compiled,
        Err(error) => return vec![error.within("the schema is not valid")],
    };
    let secrets = config::secrets(document);
    let (unknown, known): (Vec<_>, Vec<_>) = secrets.into_iter().partition(|(_, value)| value.is_object());
    let [mut unknown, known] =
        [unknown, known].map(|list| list.into_iter().map(|(pointer, _)| pointer).collect::<Vec<_>>());
    let mut bare = config::revealed(document);
    for (pointer, text) in config::templates(document) {
        bare.pointer_mut(&pointer).into_iter().for_each(|place| *place = text.as_str().into());
        unknown.push(pointer);
    }
    let mut complaints = Vec::new();
    if let Err(error) = schemas.validate(&bare, index) {
        collect(&error, (&known, &unknown), &mut complaints);
    }
    complaints.truncate(COMPLAINTS_MAX);
    complaints.into_iter().map(Diagnostic::from).collect()
}

/// Collects the leaf causes of an error.
fn collect(error: &ValidationError<'_, '_>, (secrets, unknown): (&[String], &[String]), complaints: &mut Vec<String>) {
    if !error.causes.is_empty() {
        error.causes.iter().for_each(|cause| collect(cause, (secrets, unknown), complaints));
        return;
    }
    let pointer = error.instance_location.to_string();
    if unknown.contains(&pointer) {
        return;
    }
    let what = if secrets.contains(&pointer) { discreet(&error.kind) } else { error.kind.to_string() };
    let at = if pointer.is_empty() { "the whole" } else { &pointer };
    let complaint = format!("{at}: {what}");
    if !complaints.contains(&complaint) {
        complaints.push(complaint);
    }
}

/// Formats an error without the value or its length.
fn discreet(kind: &ErrorKind<'_, '_>) -> String {
    match kind {
        ErrorKind::Pattern { want, .. } => format!("does not match pattern {want:?}"),
        ErrorKind::MinLength { want, .. } => format!("has less than {want} characters"),
        ErrorKind::MaxLength { want, .. } => format!("has more than {want} characters"),
        ErrorKind::Minimum { want, .. } => format!("is less than {want}"),
        ErrorKind::Maximum { want, .. } => format!("is more than {want}"),
        // Messages of these contain what is expected, not the value.
        ErrorKind::Type { .. } | ErrorKind::Enum { .. } | ErrorKind::Const { .. } => kind.to_string(),
        _ => "does not match the schema".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_says(schema: &Value, document: &Value, words: &[&str]) {
        let complaints = check(schema, document);
        assert_eq!(complaints.len(), words.len(), "{complaints:#?}");
        for (complaint, words) in complaints.iter().zip(words) {
            assert!(complaint.cause.starts_with(words), "{complaint:?} instead of {words:?}");
        }
    }

    #[test]
    fn each_error_has_its_pointer() {
        let schema = json!({
            "type": "object",
            "properties": {
                "port": {"type": "integer", "minimum": 1},
                "hosts": {"type": "array", "items": {"$ref": "#/$defs/host"}},
                "mode": {"enum": ["slow", "fast"]},
            },
            "required": ["port"],
            "additionalProperties": false,
            "$defs": {"host": {"type": "object", "required": ["name"]}},
        });
        check_says(&schema, &json!({"port": 1, "hosts": [{"name": "a"}], "mode": "fast"}), &[]);
        check_says(&schema, &json!({"port": 0}), &["/port: "]);
        check_says(&schema, &json!([]), &["the whole: want object, but got array"]);
        let all = json!({"hosts": [{"name": "a"}, {}, 7], "mode": "x", "a/b": 1});
        let complaints = check(&schema, &all);
        for words in
            ["the whole: missing properties 'port'", "/hosts/1: missing", "/hosts/2: want object", "/mode: value"]
        {
            assert!(complaints.iter().any(|complaint| complaint.cause.starts_with(words)), "{words}: {complaints:#?}");
        }
        assert!(complaints.iter().any(|complaint| complaint.cause.contains("a/b")), "{complaints:#?}");
    }

    #[test]
    fn what_is_referred_to_is_not_checked() {
        let schema = json!({"properties": {"p": {"type": "string"}, "n": {"type": "integer"}}, "required": ["p"]});
        check_says(&schema, &json!({"p": {"$secret": {"name": "db"}}}), &[]);
        check_says(&schema, &json!({"p": {"$secret": {"name": "db"}}, "n": "x"}), &["/n"]);
        check_says(&schema, &json!({"n": {"$secret": {"name": "db"}}}), &["the whole: "]);
        check_says(&schema, &json!({"p": {"$template": "{{ realm }}"}, "n": "x"}), &["/n"]);
    }

    #[test]
    fn secrets_are_validated_and_masked() {
        for (rule, words) in [
            (json!({"type": "integer"}), "/p: want integer, but got string"),
            (json!({"minLength": 20}), "/p: has less than 20"),
            (json!({"maxLength": 3}), "/p: has more than 3"),
            (json!({"pattern": "^x"}), "/p: does not match"),
            (json!({"const": "y"}), "/p: value must be 'y'"),
            (json!({"not": {}}), "/p: does not match the schema"),
        ] {
            let schema = json!({"properties": {"p": rule}});
            check_says(&schema, &json!({"p": {"$secret": "hunter2"}}), &[words]);
            assert!(!check(&schema, &json!({"p": {"$secret": "hunter2"}}))[0].cause.contains("hunter2"));
        }
        let schema = json!({"properties": {"n": {"minimum": 5, "maximum": 6}}});
        check_says(&schema, &json!({"n": {"$secret": 4}}), &["/n: is less than 5"]);
        check_says(&schema, &json!({"n": {"$secret": 7}}), &["/n: is more than 6"]);
        check_says(&schema, &json!({"n": {"$secret": 5}}), &[]);
    }

    #[test]
    fn invalid_schema_is_refused() {
        for (schema, words) in [
            (json!({"type": "colour"}), "/type"),
            (json!({"properties": []}), "/properties"),
            (json!(7), "want"),
            (json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
            (json!({"$ref": "https://example.org/schema.json"}), "is not fetched"),
            (json!({"$ref": "file:///etc/passwd"}), "is not fetched"),
            (json!({"pattern": "("}), "pattern"),
        ] {
            let error = check_schema(&schema).unwrap_err();
            assert!(error.cause.contains(words), "{schema}: {error}");
            assert!(!error.cause.contains(HERE), "{error}");
        }
        check_schema(&json!(true)).unwrap();
        check_schema(&json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})).unwrap();
    }

    #[test]
    fn recursive_schema_terminates() {
        let schema = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert!(check_schema(&schema).is_err() || check(&schema, &json!({})).len() == 1);
        let tree = json!({"properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}});
        check_says(&tree, &json!({"left": {"left": {"n": "x"}}}), &["/left/left/n: want integer"]);
    }

    #[test]
    fn errors_are_limited() {
        let document: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(check(&json!({"items": {"type": "integer"}}), &json!(document)).len(), COMPLAINTS_MAX);
    }
}
