//! The keys of a configuration, as the JSON Schema of its type says, and the variables that set them.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value as Json;

/// The kind of value that a key takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyShape {
    /// A value. `text`: a string, so a variable needs no quotes. `list`: an array.
    Value { text: bool, list: bool },
    /// A table with these keys.
    Table(BTreeMap<String, KeyShape>),
    /// A list of tables with these keys.
    Tables(BTreeMap<String, KeyShape>),
    /// A table whose keys the user chooses.
    Open,
}

/// Reads the known keys of a type from its JSON Schema.
pub(super) fn known_keys(schema: &Json) -> KeyShape {
    key_of(schema, schema, 0)
}

fn key_of(schema: &Json, root: &Json, depth: usize) -> KeyShape {
    // A configuration's schema never contains itself; the limit only guarantees that this ends.
    if depth > 16 {
        return KeyShape::Open;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map_or(KeyShape::Open, |target| key_of(target, root, depth + 1));
    }
    let alternatives = ["anyOf", "oneOf", "allOf"].iter().find_map(|word| schema[word].as_array());
    if let Some(first) = alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null")) {
        return key_of(first, root, depth + 1);
    }
    if let Some(properties) = schema["properties"].as_object() {
        let keys = properties.iter().map(|(name, schema)| (name.clone(), key_of(schema, root, depth + 1)));
        return KeyShape::Table(keys.collect());
    }
    let is = |wanted: &str| match &schema["type"] {
        Json::String(one) => one == wanted,
        Json::Array(several) => several.iter().any(|one| one == wanted),
        _ => false,
    };
    if is("object") {
        return KeyShape::Open;
    }
    match schema["items"].is_object().then(|| key_of(&schema["items"], root, depth + 1)) {
        Some(KeyShape::Table(known)) => KeyShape::Tables(known),
        _ => KeyShape::Value { text: is("string") || schema["enum"].is_array(), list: is("array") },
    }
}

/// The paths of all keys that have a value, a list or names of the user's own choice.
pub(super) fn leaves(keys: &KeyShape) -> Vec<String> {
    let KeyShape::Table(known) = keys else { return Vec::new() };
    let of = |(name, key): (&String, &KeyShape)| match leaves(key) {
        below if below.is_empty() => vec![name.clone()],
        below => below.into_iter().map(|key| format!("{name}.{key}")).collect(),
    };
    known.iter().flat_map(of).collect()
}

/// All variables: for each name the path of the key that it sets, and the shape of that key.
pub(super) fn variables<'a>(prefix: &str, keys: &'a KeyShape) -> BTreeMap<String, (Vec<&'a str>, &'a KeyShape)> {
    fn walk<'a>(
        keys: &'a KeyShape,
        prefix: &str,
        place: &[&'a str],
        into: &mut BTreeMap<String, (Vec<&'a str>, &'a KeyShape)>,
    ) {
        if let KeyShape::Table(known) = keys {
            for (name, key) in known {
                let variable = format!("{prefix}{}", name.to_uppercase());
                let place = [place, &[name]].concat();
                walk(key, &format!("{variable}_"), &place, into);
                if !matches!(key, KeyShape::Table(_)) {
                    into.insert(variable, (place, key));
                }
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(keys, prefix, &[], &mut all);
    all
}

/// The value of a variable: the text itself for a string; a TOML array or words separated by commas for a list;
/// otherwise a TOML value.
pub(super) fn variable_value(key: &KeyShape, text: &str) -> toml::Value {
    let as_toml = || {
        let mut document = String::from("value = ");
        let _ = write!(document, "{text}");
        toml::from_str::<toml::Table>(&document).ok()?.remove("value")
    };
    let as_text = || toml::Value::String(text.to_owned());
    match key {
        KeyShape::Value { text: true, .. } => as_text(),
        KeyShape::Value { list: true, .. } if !text.trim_start().starts_with('[') => {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            toml::Value::Array(words.map(|word| toml::Value::String(word.to_owned())).collect())
        }
        _ => as_toml().unwrap_or_else(as_text),
    }
}

pub(super) fn insert(table: &mut toml::Table, place: &[&str], value: toml::Value) {
    match place {
        [] => {}
        [key] => drop(table.insert((*key).to_owned(), value)),
        [key, deeper @ ..] => {
            let inner = table.entry(*key).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(inner) = inner {
                insert(inner, deeper, value);
            }
        }
    }
}
