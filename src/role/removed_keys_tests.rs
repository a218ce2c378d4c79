//! Each key that is gone is refused with what to do instead, in files and in the environment.

use muster_base::config::{self, REMOVED};
use muster_topics::diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// Whether a configuration has a key. That of a list of tables is one of each of them.
fn has(schema: &Json, key: &str) -> bool {
    let resolved = |mut at: Json| {
        for _ in 0..8 {
            let alternatives = ["anyOf", "allOf", "oneOf"].iter().find_map(|word| at[word].as_array()).cloned();
            let inner = alternatives.and_then(|all| all.into_iter().find(|one| one["type"] != "null"));
            let target = at["$ref"].as_str().and_then(|path| schema.pointer(path.trim_start_matches('#'))).cloned();
            at = match target.or(inner) {
                Some(next) => next,
                None if at["items"].is_object() => at["items"].clone(),
                None => break,
            };
        }
        at
    };
    let found =
        key.split('.').try_fold(resolved(schema.clone()), |at, name| at["properties"].get(name).cloned().map(resolved));
    found.is_some()
}

#[track_caller]
fn check<T: DeserializeOwned + JsonSchema>(role: &str) {
    let schema = schemars::schema_for!(T).to_value();
    assert!(has(&schema, "data_dir") && !has(&schema, "data_dri"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("role.toml");
    let rows: Vec<_> = REMOVED.iter().filter(|removed| removed.role == role).collect();
    assert!(!rows.is_empty());
    for removed in rows {
        assert!(!has(&schema, removed.key), "{} is there", removed.key);
        for successor in removed.successor.keys() {
            assert!(has(&schema, successor), "{}: there is no {successor}", removed.key);
            assert!(removed.hint().contains(&format!("`{successor}`")), "{}", removed.hint());
        }
        let text = match removed.key.rsplit_once('.') {
            Some(("metric_stores", key)) => {
                format!("[[metric_stores]]\nname = \"a\"\nkind = \"influxdb2\"\nurl = \"http://h\"\n{key} = 1\n")
            }
            Some((table, key)) => format!("[{table}]\n{key} = 1\n"),
            None => format!("{} = 1\n", removed.key),
        };
        std::fs::write(&path, text).unwrap();
        let in_file = config::load::<T>(role, Some(&path), []).err().unwrap();
        let told = Diagnostic::of(&in_file).to_string();
        let line = if removed.key.starts_with("metric_stores") { 5 } else { 1 + removed.key.matches('.').count() };
        for words in [format!("`{}` is gone", removed.key), format!("line {line}"), removed.hint()] {
            assert!(told.contains(&words), "{words} is not in {told}");
        }
        // With `_` in place of each dot, a key may have the variable of its successor.
        let variable_of = |key: &str| format!("MUSTER_{role}_{}", key.replace('.', "_")).to_uppercase();
        if removed.successor.keys().iter().any(|key| variable_of(key) == removed.variable()) {
            continue;
        }
        let variable = [(removed.variable(), "1".to_owned())];
        let told = Diagnostic::of(&config::load::<T>(role, None, variable).err().unwrap()).to_string();
        for words in [format!("{} is gone", removed.variable()), removed.hint()] {
            assert!(told.contains(&words), "{words} is not in {told}");
        }
    }
}

#[test]
fn each_removed_key_is_refused_and_has_its_successor() {
    check::<muster_agent::config::Config>("agent");
    check::<muster_console::config::Config>("console");
    check::<crate::role::embedded_broker::Config>("broker");
    let roles = ["agent", "console", "broker"];
    assert!(REMOVED.iter().all(|removed| roles.contains(&removed.role)));
}
