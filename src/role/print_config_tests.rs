//! Tests of `--print-config` of each role.

use std::collections::BTreeSet;

use muster_base::config::print;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

/// Every key that a configuration can have, from its type alone.
fn keys_of_type(schema: &Json, root: &Json, path: &str, keys: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        return keys_of_type(target, root, path, keys);
    }
    if let Some(all) = schema["anyOf"].as_array() {
        return all.iter().for_each(|one| keys_of_type(one, root, path, keys));
    }
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        keys.insert(below(name));
        keys_of_type(schema, root, &below(name), keys);
    }
    let of_pattern = schema["patternProperties"].as_object().into_iter().flat_map(serde_json::Map::values);
    for values in of_pattern.chain(schema.get("additionalProperties").filter(|values| values.is_object())) {
        keys.insert(below("*"));
        keys_of_type(values, root, &below("*"), keys);
    }
    if schema["items"].is_object() {
        keys_of_type(&schema["items"], root, path, keys);
    }
}

/// Every key in a document; `open` are tables with keys of the user's own choice.
fn keys_of_text(table: &toml::Table, open: &BTreeSet<String>, path: &str, keys: &mut BTreeSet<String>) {
    for (name, value) in table {
        let name = if open.contains(path) { "*" } else { name };
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        keys.insert(below.clone());
        match value {
            toml::Value::Table(table) => keys_of_text(table, open, &below, keys),
            toml::Value::Array(all) => {
                all.iter().filter_map(toml::Value::as_table).for_each(|one| keys_of_text(one, open, &below, keys));
            }
            _ => {}
        }
    }
}

/// A printed configuration with the keys in force that are comments in it.
fn uncommented(text: &str) -> String {
    let is_key = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        let is_key = line.contains(" = ") && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        is_key || (line.starts_with('[') && line.ends_with(']'))
    };
    let lines = text.lines().map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Prints a configuration, in which these TOML lines are in force.
#[track_caller]
fn check<T: DeserializeOwned + Serialize + JsonSchema + Default>(lines: &str) -> String {
    let config: T = toml::from_str(lines).unwrap();
    let text = print(&config).unwrap();
    // What is in force is what is printed.
    let mut wanted = serde_json::to_value(&config).unwrap();
    let again: T = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    if wanted.get("join").is_some() {
        assert!(text.contains("\n# join = \"***\"\n"), "{text}");
        wanted.as_object_mut().unwrap().remove("join");
    }
    assert_eq!(serde_json::to_value(&again).unwrap(), wanted, "{text}");

    // Every key of the type is there, and every key has something said about it.
    let schema = schemars::schema_for!(T);
    let (mut of_type, mut of_text) = (BTreeSet::new(), BTreeSet::new());
    keys_of_type(schema.as_value(), schema.as_value(), "", &mut of_type);
    let open = of_type.iter().filter_map(|key| key.strip_suffix(".*").map(str::to_owned)).collect();
    let table: toml::Table = toml::from_str(&uncommented(&text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    keys_of_text(&table, &open, "", &mut of_text);
    assert_eq!(of_text, of_type, "{text}");
    let mut last = "";
    for line in text.lines() {
        let key = line.trim_start_matches("# ");
        let is_key = uncommented(line) != line || !line.starts_with('#');
        // Names of the user's own choice are theirs to explain.
        let name = key.split(" = ").next().unwrap_or_default();
        let is_free = !key.contains(" = ") || !of_type.iter().any(|key| key.rsplit('.').next() == Some(name));
        assert!(!is_key || is_free || last.starts_with('#'), "nothing is said about {key:?}\n{text}");
        last = if is_key && !is_free { "" } else { line };
    }
    text
}

#[test]
fn an_agents_configuration_has_every_key_with_its_reason() {
    use muster_agent::config::Config;
    let text = check::<Config>("");
    for words in [
        "\n# join = \"…\"\n",
        "\n# policy_file = ",
        "\n# lxc_dir = ",
        "\n# memory_bytes = ",
        "\n[labels]\n# NAME = \"…\"\n",
        "\n# [alerts.rules.NAME]\n",
        "\n# local_listen = ",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    // As they are declared, for what is said of one often goes on from the one before.
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}"));
    assert!(place("\nparallel_max") < place("\nqueue_max") && place("\n[exec]") < place("\n[containers]"));
    let digest = muster_topics::name::Digest::of(b"authority");
    let token = muster_topics::join::JoinToken {
        url: "https://192.0.2.1:7443".to_owned(),
        authority: digest,
        secret: "very-secret".to_owned(),
    };
    let text = check::<Config>(&format!(
        "data_dir = \"/srv/agent\"\njoin = \"{token}\"\nlocal_listen = \"127.0.0.1:7070\"\n[labels]\nshop = \"7 \\\"a\\\"\"\n[exec.limits]\ncpu = \
         1.5\n[metrics.every_s]\ncores = \"off\"\n[alerts.rules.full]\nmetric = \"disk_used\"\nthreshold = 0.8\n"
    ));
    for words in [
        "# Default: \"/var/lib/muster/agent\"\ndata_dir = \"/srv/agent\"",
        "# Default: not set\nlocal_listen = ",
        "[alerts.rules.full]",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(!text.contains("muster1.") && !text.contains("very-secret"), "{text}");
}

#[test]
fn a_consoles_configuration_has_every_key_with_its_reason() {
    use muster_console::config::Config;
    let text = check::<Config>("");
    for words in
        ["\npublic_names = []\n", "\nbroker_public_urls = []\n", "\n# [[metric_stores]]\n", "\n# [[alert_outlets]]\n"]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let store = "[[metric_stores]]\nkind = \"influxdb1\"\nurl = \"http://h\"\n";
    check::<Config>(&format!(
        "public_names = [\"a\", \"b\"]\n{store}name = \"one\"\n{store}name = \"two\"\nqueue_max_bytes = 5\n\
         [[alert_outlets]]\nkind = \"webhook\"\nurl = \"http://w\"\n"
    ));
}

#[test]
fn a_brokers_configuration_has_every_key_with_its_reason() {
    use crate::role::embedded_broker::Config;
    let text = check::<Config>("");
    for key in ["revoked_file", "plain_listen", "websocket_listen", "monitor_listen"] {
        assert!(text.contains(&format!("\n# {key} = ")), "{key} is not in\n{text}");
    }
    check::<Config>("plain_listen = \"127.0.0.1:1883\"\nrevoked_file = \"/r.pem\"\nclients_max = 5\n");
}
