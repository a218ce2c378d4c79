//! Which verbs of `muster unit` the nouns of one kind list.

use clap::Command;
use muster_topics::verb_table::KindName;

/// A verb of `muster yuno`, hidden if yunos do not have it.
#[must_use]
pub fn of_yunos(verb: Command) -> Command {
    of_kind(verb, KindName::Yuno)
}

/// A verb of `muster container`, hidden if containers do not have it.
#[must_use]
pub fn of_containers(verb: Command) -> Command {
    of_kind(verb, KindName::Container)
}

fn of_kind(verb: Command, kind: KindName) -> Command {
    let is_there = kind.has(verb.get_name());
    verb.hide(!is_there)
}

/// The verb of `muster unit` that a verb of a noun of one kind stands for: `unit stop` for `yuno stop`. `None` for one that
/// the noun has by itself, and for any other verb.
#[must_use]
pub fn alias_of(path: &str) -> Option<String> {
    let (noun, word) = path.split_once(' ')?;
    let kind: KindName = noun.parse().ok()?;
    match word {
        "create" => Some(format!("unit create {kind}")),
        "play" | "pause" | "command" | "stats" | "clone" | "adopt" => None,
        word => Some(format!("unit {word}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use clap::{CommandFactory as _, Parser};
    use muster_topics::verb_table::UNIT_VERBS;

    use super::*;
    use crate::Verb;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        _verb: Verb,
    }

    /// The verbs that a noun lists.
    fn listed(noun: &str) -> BTreeSet<String> {
        let line = Line::command();
        let noun = line.find_subcommand(noun).unwrap();
        noun.get_subcommands().filter(|verb| !verb.is_hide_set()).map(|verb| verb.get_name().to_owned()).collect()
    }

    #[test]
    fn nouns_list_the_verbs_that_their_kinds_have() {
        let of_unit = listed("unit");
        for row in UNIT_VERBS {
            let is_own = alias_of(&format!("yuno {}", row.word)).is_none();
            assert_eq!(of_unit.contains(row.word), !is_own, "unit {}", row.word);
            for kind in [KindName::Yuno, KindName::Container] {
                // Documents say of which kind their units are.
                let has = kind.has(row.word) && row.word != "apply";
                assert_eq!(listed(kind.as_str()).contains(row.word), has, "{kind} {}", row.word);
            }
        }
        for noun in ["unit", "yuno", "container"] {
            for word in listed(noun) {
                assert!(UNIT_VERBS.iter().any(|row| row.word == word), "{noun} {word} is not in the table");
            }
        }
    }

    #[test]
    fn aliases_stand_for_verbs_of_units() {
        assert_eq!(alias_of("yuno stop").as_deref(), Some("unit stop"));
        assert_eq!(alias_of("container create").as_deref(), Some("unit create container"));
        for own in ["yuno play", "container adopt", "host ls", "yuno"] {
            assert_eq!(alias_of(own), None, "{own}");
        }
    }

    /// The table of docs/units.md: a row for each verb, a column for each kind.
    fn table() -> String {
        let mut text = String::from("| verb | yuno | container | files | packages |\n|---|---|---|---|---|\n");
        for row in UNIT_VERBS {
            let marks = KindName::ALL.map(|kind| if kind.has(row.word) { " x |" } else { " |" });
            text.push_str(&format!("| `{}` |{}\n", row.word, marks.concat()));
        }
        text
    }

    #[test]
    fn page_about_units_shows_the_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/units.md");
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains(&table()), "docs/units.md has not this table:\n{}", table());
    }
}
