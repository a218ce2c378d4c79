//! Configs: merges several into one, masks secrets, and compares two.
//!
//! A secret value is written as `{"$secret": VALUE}`, at any place of a value. Programs find the bare
//! value in the merged file; everything that is shown has [`MASK`] in its place. `{"$secret": {"name": NAME}}` is a
//! reference to a secret of the unit's realm, whose value its host puts there ([`with_values`]); it hides nothing itself.
//!
//! A text may be a template, which the unit's host renders: `{"$template": TEXT}` ([`crate::render::config`]). Until then it is
//! one value, as a secret is.
//!
//! **Invariant: a secret is one value.** It is never merged or traversed: a value that overrides it replaces it
//! as a whole, or a part of it would remain without its mark.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{diagnostic::Diagnostic, name::Name, unit::MASK};
use serde_json::{Map, Value};

use super::{mask::SecretMask, merge_patch};

/// The only key of an object that holds a secret value.
pub const SECRET: &str = "$secret";

/// The only key of a reference.
const NAME: &str = "name";

/// The one key that may accompany [`SECRET`] in a stored document: a salt for the document's hash, without a meaning of
/// its own.
pub const SALT: &str = "$salt";

/// The only key of an object that holds a template.
pub const TEMPLATE: &str = "$template";

/// Merges documents in their order, each as a merge patch of those before. The first document is taken as it is. Without documents, the result is empty.
#[must_use]
pub fn merge(documents: impl IntoIterator<Item = Value>) -> Value {
    let mut documents = documents.into_iter();
    let Some(mut merged) = documents.next() else { return Value::Object(Map::new()) };
    for patch in documents {
        merge_patch::apply_to_parts(&mut merged, patch, &|object| is_secret(object) || template(object).is_some());
    }
    merged
}

/// An object counts as a secret if it has the key at all, so that a mistake hides too much rather than too little.
fn is_secret(object: &Map<String, Value>) -> bool {
    object.contains_key(SECRET)
}

/// Returns the template in an object that holds one. Others with that key are data: nobody looks for secrets in them.
fn template(object: &Map<String, Value>) -> Option<&str> {
    object.get(TEMPLATE).filter(|_| object.len() == 1)?.as_str()
}

/// Returns all templates of a document: JSON pointer and text.
#[must_use]
pub fn templates(document: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk_objects(document, &mut String::new(), &mut |pointer, object| {
        found.extend(template(object).map(|text| (pointer.to_owned(), text.to_owned())));
    });
    found
}

/// Returns the document with something in place of each template, of which `with` is given the JSON pointer and the text.
///
/// # Errors
/// The first of `with`.
pub fn map_templates<E>(document: &Value, with: &mut dyn FnMut(&str, &str) -> Result<Value, E>) -> Result<Value, E> {
    let mut mapped = document.clone();
    for (pointer, text) in templates(document) {
        if let Some(place) = mapped.pointer_mut(&pointer) {
            *place = with(&pointer, &text)?;
        }
    }
    Ok(mapped)
}

/// Checks that templates are written correctly, as far as the object goes; returns each mistake with its JSON pointer.
#[must_use]
pub fn check_templates(document: &Value) -> Vec<String> {
    let mut mistakes = Vec::new();
    walk_objects(document, &mut String::new(), &mut |pointer, object| {
        let at = if pointer.is_empty() { "the whole document" } else { pointer };
        match object.get(TEMPLATE) {
            Some(_) if object.len() > 1 => {
                mistakes.push(format!("{at}: \"{TEMPLATE}\" must be the only key"));
            }
            Some(Value::String(_)) | None => {}
            Some(_) => {
                mistakes
                    .push(format!("{at}: a template must be a text, such as {{\"{TEMPLATE}\": \"{{{{ realm }}}}\"}}"));
            }
        }
    });
    mistakes
}

/// Visits all objects that are no secrets, outer ones first.
fn walk_objects(value: &Value, pointer: &mut String, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
    let length = pointer.len();
    match value {
        Value::Object(object) if is_secret(object) => {}
        Value::Object(object) => {
            visit(pointer, object);
            for (key, value) in object {
                push(pointer, key);
                walk_objects(value, pointer, visit);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                push(pointer, &index.to_string());
                walk_objects(value, pointer, visit);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

/// Checks that secrets are written correctly; returns each mistake with its JSON pointer.
#[must_use]
pub fn check_secrets(document: &Value) -> Vec<Diagnostic> {
    let mut mistakes = Vec::new();
    walk(document, &mut String::new(), &mut |pointer, secret| {
        let at = if pointer.is_empty() { "the whole document" } else { pointer };
        match secret.get(SECRET) {
            _ if secret.len() > 1 => {
                mistakes.push(format!("{at}: \"{SECRET}\" must be the only key").into());
            }
            Some(Value::String(text)) if text == MASK => mistakes.push(
                Diagnostic::new(format_args!("{at}: {MASK} is the mask of a secret, not its value"))
                    .with_hint("write the secret's value"),
            ),
            Some(Value::Object(reference)) => {
                mistakes.extend(check_reference(reference).map(|what| format!("{at}: {what}").into()));
            }
            Some(Value::Array(_) | Value::Null) => {
                mistakes.push(Diagnostic::new(format_args!(
                    "{at}: a secret is a text, a number or a boolean, or {{\"{NAME}\": NAME}}, which names one of the unit's realm"
                )));
            }
            _ => {}
        }
    });
    mistakes
}

fn check_reference(reference: &Map<String, Value>) -> Option<String> {
    match (reference.get(NAME).and_then(Value::as_str), reference.len()) {
        (Some(name), 1) => name.parse::<Name>().err().map(|error| format!("the secret's name: {error}")),
        _ => Some(format!(
            "a reference to a secret has only the key \"{NAME}\", such as {{\"{NAME}\": \"db-password\"}}"
        )),
    }
}

/// Returns the name in the content of a [`SECRET`], if it is a reference.
fn reference(secret: &Map<String, Value>) -> Option<Name> {
    match secret.get(SECRET)? {
        // Anything beside the name might be a value.
        Value::Object(reference) if secret.len() == 1 && reference.len() == 1 => {
            reference.get(NAME)?.as_str()?.parse().ok()
        }
        _ => None,
    }
}

/// Returns the names of all secrets that documents refer to.
#[must_use]
pub fn references<'a>(documents: impl IntoIterator<Item = &'a Value>) -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for document in documents {
        walk(document, &mut String::new(), &mut |_, secret| names.extend(reference(secret)));
    }
    names
}

/// Returns a document with each reference replaced by the value of its secret, which is marked as one.
///
/// # Errors
/// The first name without a value.
pub fn with_values(document: &Value, values: &BTreeMap<Name, impl AsRef<str>>) -> Result<Value, Name> {
    if let Some(missing) = references([document]).into_iter().find(|name| !values.contains_key(name)) {
        return Err(missing);
    }
    Ok(map_secrets(document, &|secret| match reference(secret).and_then(|name| values.get(&name)) {
        Some(value) => Value::from(Map::from_iter([(SECRET.to_owned(), value.as_ref().into())])),
        None => Value::Object(secret.clone()),
    }))
}

/// Whether a document has a secret value in it.
#[must_use]
pub fn has_secret_value(document: &Value) -> bool {
    let mut has_any = false;
    walk(document, &mut String::new(), &mut |_, secret| has_any |= reference(secret).is_none());
    has_any
}

/// Returns the document with a salt beside its first secret value, so that its hash cannot be matched against guesses;
/// `None` if it has none.
#[must_use]
pub fn salted(document: &Value, salt: &str) -> Option<Value> {
    let mut first = None;
    walk(document, &mut String::new(), &mut |pointer, secret| {
        if reference(secret).is_none() {
            first.get_or_insert_with(|| pointer.to_owned());
        }
    });
    let mut salted = document.clone();
    salted.pointer_mut(&first?)?.as_object_mut()?.insert(SALT.to_owned(), salt.into());
    Some(salted)
}

/// Returns the document without what [`salted`] added.
#[must_use]
pub fn unsalted(document: &Value) -> Value {
    map_secrets(document, &|secret| {
        let mut secret = secret.clone();
        secret.remove(SALT);
        Value::Object(secret)
    })
}

/// Returns the document with every secret value masked, for pages, lists, diffs and logs.
#[must_use]
pub fn masked(document: &Value) -> Value {
    map_secrets(document, &|secret| {
        let shown = match reference(secret) {
            Some(_) => secret.get(SECRET).cloned().unwrap_or_default(),
            None => MASK.into(),
        };
        Value::from(Map::from_iter([(SECRET.to_owned(), shown)]))
    })
}

/// Returns the document as programs read it, with the bare values of secrets.
#[must_use]
pub fn revealed(document: &Value) -> Value {
    map_secrets(document, &|secret| secret.get(SECRET).cloned().unwrap_or_default())
}

fn map_secrets(value: &Value, with: &dyn Fn(&Map<String, Value>) -> Value) -> Value {
    match value {
        Value::Object(object) if is_secret(object) => with(object),
        Value::Object(object) => {
            Value::Object(object.iter().map(|(key, value)| (key.clone(), map_secrets(value, with))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| map_secrets(item, with)).collect()),
        plain => plain.clone(),
    }
}

/// Returns all secrets of a document: JSON pointer and bare value.
#[must_use]
pub fn secrets(document: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    walk(document, &mut String::new(), &mut |pointer, secret| {
        found.push((pointer.to_owned(), secret.get(SECRET).cloned().unwrap_or_default()));
    });
    found
}

fn walk(value: &Value, pointer: &mut String, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
    let length = pointer.len();
    match value {
        Value::Object(object) if is_secret(object) => visit(pointer, object),
        Value::Object(object) => {
            for (key, value) in object {
                push(pointer, key);
                walk(value, pointer, visit);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                push(pointer, &index.to_string());
                walk(value, pointer, visit);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

/// Appends one step to a JSON pointer (RFC 6901).
fn push(pointer: &mut String, key: &str) {
    pointer.push('/');
    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
}

/// Masks a document that has bare values of secrets, such as one read from a host's disk: every value at a secret's
/// place, and every text that contains a secret, wherever it was moved.
#[must_use]
pub fn mask_revealed(document: &Value, secrets: &[(String, Value)]) -> Value {
    let mut masked = document.clone();
    for (pointer, _) in secrets {
        if let Some(value) = masked.pointer_mut(pointer) {
            *value = MASK.into();
        }
    }
    let texts: Vec<&str> = secrets.iter().filter_map(|(_, secret)| secret.as_str()).collect();
    mask_texts(&mut masked, &texts, &SecretMask::of(texts.iter().copied()));
    masked
}

fn mask_texts(value: &mut Value, secrets: &[&str], mask: &SecretMask) {
    match value {
        Value::Object(object) => object.values_mut().for_each(|value| mask_texts(value, secrets, mask)),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_texts(item, secrets, mask)),
        Value::String(text) if secrets.contains(&text.as_str()) || mask.is_in(text) => *value = MASK.into(),
        _ => {}
    }
}

/// One place in which two documents differ; secrets are masked.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentDifference {
    /// The place, as a JSON pointer.
    pub pointer: String,
    /// The value in the first document; `None` if it has none.
    pub from: Option<Value>,
    /// The value in the second document.
    pub to: Option<Value>,
}

/// Returns the differences of two documents by JSON pointer. A changed secret is reported without its values.
#[must_use]
pub fn differences(from: &Value, to: &Value) -> Vec<DocumentDifference> {
    let mut found = Vec::new();
    compare(Some(from), Some(to), &mut String::new(), &mut found);
    found
}

fn compare(from: Option<&Value>, to: Option<&Value>, pointer: &mut String, found: &mut Vec<DocumentDifference>) {
    if from == to {
        return;
    }
    let length = pointer.len();
    match (from, to) {
        (Some(Value::Object(one)), Some(Value::Object(other))) if !is_secret(one) && !is_secret(other) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                push(pointer, key);
                compare(one.get(key), other.get(key), pointer, found);
                pointer.truncate(length);
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            for index in 0..one.len().max(other.len()) {
                push(pointer, &index.to_string());
                compare(one.get(index), other.get(index), pointer, found);
                pointer.truncate(length);
            }
        }
        _ => found.push(DocumentDifference { pointer: pointer.clone(), from: from.map(masked), to: to.map(masked) }),
    }
}

#[cfg(test)]
mod salt_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn salt_is_added_once_and_never_shown() {
        let document = json!({"a": [{"$secret": 1}], "b": {"$secret": "x"}, "c": 2});
        let with = salted(&document, "s").unwrap();
        assert_eq!(with, json!({"a": [{"$secret": 1, "$salt": "s"}], "b": {"$secret": "x"}, "c": 2}));
        assert_eq!(unsalted(&with), document);
        assert_eq!(revealed(&with), revealed(&document));
        assert_eq!(masked(&with), masked(&document));
        assert_eq!(secrets(&with), secrets(&document));
        assert_eq!(salted(&json!({"$secret": 1}), "s").unwrap(), json!({"$secret": 1, "$salt": "s"}));
        assert_eq!(salted(&json!({"a": 1}), "s"), None);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(documents: &[Value], merged: Value) {
        assert_eq!(merge(documents.iter().cloned()), merged, "{documents:?}");
    }

    #[test]
    fn later_config_overrides_earlier() {
        // The examples of the standard (RFC 7386, appendix A).
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            check(&[target, patch], result);
        }
        check(&[], json!({}));
        check(&[json!({"a": null})], json!({"a": null}));
        check(&[json!({"a": 1}), json!({"b": 2}), json!({"a": null, "c": 3})], json!({"b": 2, "c": 3}));
    }

    #[test]
    fn secret_is_replaced_as_a_whole() {
        let secret = |text: &str| json!({"p": {SECRET: text}});
        check(&[secret("a"), secret("b")], secret("b"));
        check(&[secret("a"), json!({"p": {"x": 1}})], json!({"p": {"x": 1}}));
        check(&[json!({"p": {"x": 1}}), secret("a")], secret("a"));
        check(&[secret("a"), json!({"p": null})], json!({}));
    }

    #[test]
    fn secrets_are_masked_and_revealed() {
        let document = json!({"db": {"user": "u", "password": {SECRET: "hunter2"}}, "keys": [{SECRET: 7}, "x"]});
        let mask = json!({SECRET: MASK});
        assert_eq!(masked(&document), json!({"db": {"user": "u", "password": mask}, "keys": [mask, "x"]}));
        assert_eq!(revealed(&document), json!({"db": {"user": "u", "password": "hunter2"}, "keys": [7, "x"]}));
        let all = [("/db/password".to_owned(), json!("hunter2")), ("/keys/0".to_owned(), json!(7))];
        assert_eq!(secrets(&document), all);
        assert_eq!(check_secrets(&document), []);
        assert_eq!(masked(&json!({SECRET: "a", "b": "c"})), mask);
    }

    #[test]
    fn references_are_shown_and_replaced_by_their_values() {
        let document =
            json!({"db": {"password": {SECRET: {"name": "db"}}}, "keys": [{SECRET: 7}, {SECRET: {"name": "api"}}]});
        let name = |text: &str| text.parse::<Name>().unwrap();
        assert_eq!(check_secrets(&document), []);
        assert_eq!(references([&document, &json!(1)]), [name("api"), name("db")].into());
        let shown = masked(&document);
        assert_eq!((&shown["db"], &shown["keys"][0]), (&document["db"], &json!({SECRET: MASK})));
        let mut values = BTreeMap::from([(name("db"), "hunter2".to_owned())]);
        assert_eq!(with_values(&document, &values), Err(name("api")));
        values.insert(name("api"), "k".to_owned());
        let whole = with_values(&document, &values).unwrap();
        assert_eq!(revealed(&whole), json!({"db": {"password": "hunter2"}, "keys": [7, "k"]}));
        assert!(!masked(&whole).to_string().contains("hunter2"));
        // What is no reference may be a value.
        let mistake = json!({SECRET: {"name": "db", "password": "hunter2"}});
        assert_eq!((masked(&mistake), references([&mistake])), (json!({SECRET: MASK}), BTreeSet::new()));
        // Only a value needs a salt.
        assert_eq!(salted(&json!({SECRET: {"name": "db"}}), "s"), None);
        let both = json!({"a": {SECRET: {"name": "db"}}, "b": {SECRET: 1}});
        assert_eq!(salted(&both, "s").unwrap()["b"], json!({SECRET: 1, SALT: "s"}));
    }

    #[test]
    fn malformed_secrets_are_refused() {
        for (document, complaint) in [
            (json!({"a": {SECRET: {"name": "Db 1"}}}), "/a: the secret's name"),
            (json!({"a": {SECRET: {"name": "db", "version": 2}}}), "/a: a reference to a secret has only the key"),
            (json!({"a": {SECRET: {}}}), "/a: a reference to a secret has only the key"),
            (json!({"a": {SECRET: [1]}}), "/a: a secret is"),
            (json!({"a": {SECRET: "x", "b": 1}}), "/a: \"$secret\" must be the only key"),
            (json!({"a/b": [{SECRET: MASK}]}), "/a~1b/0: *** is the mask"),
            (json!({SECRET: {SECRET: "x"}}), "the whole document: a reference"),
            (json!({"a": {SECRET: null}}), "/a: a secret is"),
        ] {
            let mistakes = check_secrets(&document);
            assert!(mistakes.len() == 1 && mistakes[0].cause.starts_with(complaint), "{mistakes:?}");
        }
    }

    #[test]
    fn hand_edited_file_is_masked() {
        let secrets = [("/password".to_owned(), json!("hunter2-hunter2")), ("/pin".to_owned(), json!("42"))];
        for (document, shown) in [
            (json!({"password": "hunter2-hunter2", "a": 1}), json!({"password": MASK, "a": 1})),
            (json!({"password": "other"}), json!({"password": MASK})),
            (json!({"url": "https://u:hunter2-hunter2@h/"}), json!({"url": MASK})),
            (json!({"list": ["42", "n42"]}), json!({"list": [MASK, "n42"]})),
        ] {
            assert_eq!(mask_revealed(&document, &secrets), shown);
        }
    }

    #[test]
    fn differences_are_listed_without_secrets() {
        let from = json!({"a": 1, "b": {"c": [1, 2]}, "p": {SECRET: "old"}, "same": {SECRET: "s"}});
        let to = json!({"b": {"c": [1, 3, 4]}, "d": true, "p": {SECRET: "new"}, "same": {SECRET: "s"}});
        let mask = json!({SECRET: MASK});
        let all: Vec<_> = differences(&from, &to).into_iter().map(|one| (one.pointer, one.from, one.to)).collect();
        assert_eq!(
            all,
            [
                ("/a".to_owned(), Some(json!(1)), None),
                ("/b/c/1".to_owned(), Some(json!(2)), Some(json!(3))),
                ("/b/c/2".to_owned(), None, Some(json!(4))),
                ("/d".to_owned(), None, Some(json!(true))),
                ("/p".to_owned(), Some(mask.clone()), Some(mask)),
            ]
        );
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
            "hunter[0-9]{8}".prop_map(|text| json!({SECRET: text})),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-c~/]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn masked_document_contains_no_secret(documents in proptest::collection::vec(document(), 1..4)) {
            let merged = merge(documents.iter().cloned());
            let secrets = secrets(&merged);
            let shown = [
                masked(&merged).to_string(),
                mask_revealed(&revealed(&merged), &secrets).to_string(),
                format!("{:?}", differences(&documents[0], &merged)),
            ];
            prop_assert!(shown.iter().all(|text| !text.contains("hunter")), "{shown:?}");
        }

        #[test]
        fn merge_is_idempotent(one in document(), other in document()) {
            let once = merge([one, other.clone()]);
            prop_assert_eq!(merge([once.clone(), other]), once);
        }

        #[test]
        fn masking_commutes_with_merging(documents in proptest::collection::vec(document(), 1..4)) {
            prop_assert_eq!(merge(documents.iter().map(masked)), masked(&merge(documents)));
        }

        #[test]
        fn each_difference_has_the_right_place(one in document(), other in document()) {
            let found = differences(&one, &other);
            prop_assert_eq!(found.is_empty(), one == other);
            for difference in found {
                prop_assert_eq!(one.pointer(&difference.pointer).map(masked), difference.from);
                prop_assert_eq!(other.pointer(&difference.pointer).map(masked), difference.to);
            }
        }
    }
}
