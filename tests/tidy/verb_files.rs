//! What a verb of units costs: the files of code that name one.

use crate::sources;

/// A verb that changes one unit and takes nothing but its name. Whatever names it, each other verb of its kind needs, too.
const SAMPLE: [&str; 5] = ["UnitFreeze", "unit_freeze", "\"freeze\"", "/freeze", "unit freeze "];

/// The files that name it, each with what it alone can know. What several of them would say is a column of the table of
/// verbs instead.
const FILES: [(&str, &str); 7] = [
    ("src/cli/unit/verb.rs", "its help, and its options"),
    ("src/console/web/view/unit.rs", "its button"),
    ("src/help/examples.rs", "its examples"),
    ("src/rules/edit.rs", "what it does"),
    ("src/vocabulary_tests.rs", "that it is a word of the command line"),
    ("topics/src/verb.rs", "its fields on the wire"),
    ("topics/src/verb_table.rs", "all else that everybody has to know of it"),
];

#[test]
fn verb_of_units_is_named_by_few_files() {
    let mut found: Vec<String> = ["src", "topics/src", "broker/src"]
        .into_iter()
        .flat_map(sources)
        // The model with which the planner is tested.
        .filter(|(path, _)| !path.starts_with("src/rules/plan/model"))
        .filter(|(_, code)| SAMPLE.iter().any(|word| code.contains(word)))
        .map(|(path, _)| path.display().to_string())
        .collect();
    found.sort();
    let listed: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
    assert_eq!(found, listed, "a verb of units is named by other files than those that have to");
}
