//! Unknown keys in a document that a person wrote: each with its place, and with similar known keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The depth limit for recursive schemas: no document is nested deeper.
const DEPTH_MAX: usize = 32;

/// A key that is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with its path: `limits.memroy_bytes`.
    pub at: String,
    /// The nearest known key, or all of them.
    pub hint: String,
}

/// Returns a hint for an unknown word: the nearest known one, or else all.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let closest = known.clone().max_by(|a, b| {
        let likeness = |other: &str| strsim::jaro_winkler(word, other);
        likeness(a).total_cmp(&likeness(b))
    });
    match closest {
        Some(closest) if strsim::jaro_winkler(word, closest) > 0.75 => format!("did you mean `{closest}`?"),
        _ => format!("known are {}", known.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// Removes every key from a document that its JSON Schema does not know, and returns them.
pub fn take_unknown(document: &mut Value, schema: &Value) -> Vec<UnknownKey> {
    let mut found = Vec::new();
    walk(document, &[schema], &KeyPath { root: schema, at: String::new(), depth: 0 }, &mut found);
    found
}

struct KeyPath<'a> {
    root: &'a Value,
    at: String,
    depth: usize,
}

impl<'a> KeyPath<'a> {
    fn below(&self, key: &str) -> Self {
        let at = if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) };
        Self { root: self.root, at, depth: self.depth + 1 }
    }
}

fn walk(value: &mut Value, schemas: &[&Value], place: &KeyPath<'_>, found: &mut Vec<UnknownKey>) {
    if place.depth > DEPTH_MAX {
        return;
    }
    let mut schemas: Vec<&Value> = schemas.to_vec();
    expand(&mut schemas, place.root);
    match value {
        Value::Object(object) => walk_object(object, &schemas, place, found),
        Value::Array(items) => {
            let wanted: Vec<&Value> =
                schemas.iter().map(|schema| &schema["items"]).filter(|one| one.is_object()).collect();
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, &wanted, &place.below(&index.to_string()), found);
            }
        }
        _ => {}
    }
}

fn walk_object(object: &mut Map<String, Value>, schemas: &[&Value], place: &KeyPath<'_>, found: &mut Vec<UnknownKey>) {
    let mut known: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (name, schema) in schemas.iter().filter_map(|schema| schema["properties"].as_object()).flatten() {
        known.entry(name).or_default().push(schema);
    }
    // Keys that the user chooses; each is validated where it is read.
    let patterns = schemas.iter().filter_map(|schema| schema["patternProperties"].as_object()).flat_map(Map::values);
    let any = schemas.iter().map(|schema| &schema["additionalProperties"]).filter(|one| one.is_object());
    let any: Vec<&Value> = any.chain(patterns).collect();
    let is_closed = any.is_empty() && schemas.iter().any(|schema| schema["additionalProperties"] == false);
    if is_closed {
        let names: Vec<String> = object.keys().filter(|name| !known.contains_key(name.as_str())).cloned().collect();
        for name in names {
            object.remove(&name);
            found.push(UnknownKey { at: place.below(&name).at, hint: nearest(&name, known.keys().copied()) });
        }
    }
    for (name, value) in object {
        walk(value, known.get(name.as_str()).unwrap_or(&any), &place.below(name), found);
    }
}

/// Follows references, and adds the alternatives of schemas.
fn expand<'a>(schemas: &mut Vec<&'a Value>, root: &'a Value) {
    let mut at = 0;
    // The number of followed references is limited, because they may be circular.
    while at < schemas.len() && schemas.len() <= DEPTH_MAX {
        let schema = schemas[at];
        let target = schema["$ref"].as_str().and_then(|reference| root.pointer(reference.strip_prefix('#')?));
        let several = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten();
        let more: Vec<&Value> = target.into_iter().chain(several).collect();
        schemas.extend(more);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mut document: Value, left: &Value, wanted: &[(&str, &str)]) {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "limits": {"$ref": "#/$defs/Limits"},
                "either": {"anyOf": [{"$ref": "#/$defs/Limits"}, {"type": "null"}]},
                "list": {"type": "array", "items": {"$ref": "#/$defs/Limits"}},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "open": {},
                "labels": {"patternProperties": {"^[a-z]+$": {"type": "string"}}, "additionalProperties": false}
            },
            "additionalProperties": false,
            "$defs": {
                "Limits": {
                    "type": "object",
                    "properties": {"memory": {}, "pids": {}, "deeper": {"$ref": "#/$defs/Limits"}},
                    "additionalProperties": false
                }
            }
        });
        let found = take_unknown(&mut document, &schema);
        let found: Vec<_> = found.iter().map(|key| (key.at.as_str(), key.hint.as_str())).collect();
        assert_eq!(found, wanted);
        assert_eq!(document, *left);
    }

    #[test]
    fn unknown_keys_are_found_with_their_places() {
        check(
            json!({"name": "a", "labels": {"tier": "x"}, "env": {"ANY": 1}, "open": {"x": 1}, "limits": {"pids": 1}}),
            &json!({"name": "a", "labels": {"tier": "x"}, "env": {"ANY": 1}, "open": {"x": 1}, "limits": {"pids": 1}}),
            &[],
        );
        check(
            json!({"nam": 1, "limits": {"memroy": 1, "pids": 2}}),
            &json!({"limits": {"pids": 2}}),
            &[("nam", "did you mean `name`?"), ("limits.memroy", "did you mean `memory`?")],
        );
        check(
            json!({"either": {"pid": 1}, "list": [{}, {"zzz": 1}], "limits": {"deeper": {"deeper": {"memry": 1}}}}),
            &json!({"either": {}, "list": [{}, {}], "limits": {"deeper": {"deeper": {}}}}),
            &[
                ("either.pid", "did you mean `pids`?"),
                ("limits.deeper.deeper.memry", "did you mean `memory`?"),
                ("list.1.zzz", "known are `deeper`, `memory`, `pids`"),
            ],
        );
    }
}
