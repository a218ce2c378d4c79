//! JSON merge patches (RFC 7396): objects are merged by their keys, `null` removes a key, and any other value replaces.

use serde_json::{Map, Value};

/// Returns the patch that turns `old` into `new`. No object in `new` may hold a null, which the format cannot express.
#[must_use]
pub fn diff(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let removed = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let changed =
        changed.map(|(key, value)| (key.clone(), old.get(key).map_or_else(|| value.clone(), |o| diff(o, value))));
    Value::Object(removed.chain(changed).collect())
}

/// Applies a patch. The recursion is as deep as the patch, which `serde_json` limits to 128.
pub fn apply(target: &mut Value, patch: Value) {
    apply_to_parts(target, patch, &|_| false);
}

/// Applies a patch in which some objects are one value: they are neither merged nor traversed, but replaced.
pub fn apply_to_parts(target: &mut Value, patch: Value, is_whole: &impl Fn(&Map<String, Value>) -> bool) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if is_whole(&patch) {
        *target = Value::Object(patch);
        return;
    }
    let mut into = match target.take() {
        Value::Object(object) if !is_whole(&object) => object,
        _ => Map::new(),
    };
    for (key, value) in patch {
        if value.is_null() {
            into.remove(&key);
        } else {
            apply_to_parts(into.entry(key).or_insert(Value::Null), value, is_whole);
        }
    }
    *target = Value::Object(into);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn rfc_7396_examples_apply() {
        // RFC 7396, appendix A, restricted to objects and nulls.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
        ] {
            let mut patched = target;
            apply(&mut patched, patch);
            assert_eq!(patched, result);
        }
    }

    /// Documents without nulls in objects, as states are.
    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-e]", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn patch_turns_old_into_new(old in document(), new in document()) {
            let mut patched = old.clone();
            apply(&mut patched, diff(&old, &new));
            prop_assert_eq!(&patched, &new);
            if old.is_object() {
                prop_assert_eq!(diff(&old, &old), json!({}));
            }
        }
    }
}
