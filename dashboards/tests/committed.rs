//! Tests that the committed files are what the list generates, and that it queries only existing series.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use muster_dashboards::{
    QueryLanguage, files, list,
    panel::{Dashboard, Panel, PanelKind},
};
use muster_test_support::committed;
use muster_topics::catalogue::{Field, MEASUREMENTS, Measurement};
use serde_json::Value;

/// The command that writes generated files anew.
const COMMAND: &str = "cargo test -p muster-dashboards";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn committed_files_equal_generated_ones() {
    let made = files::made();
    for file in &made {
        committed::check(&folder().join(&file.path), &file.text, COMMAND);
    }
    for flavour in QueryLanguage::ALL {
        for entry in fs::read_dir(folder().join(flavour.word())).unwrap() {
            let path = entry.unwrap().path();
            let made = made.iter().any(|file| folder().join(&file.path) == path);
            assert!(made, "{} is of no dashboard any more: remove it", path.display());
        }
    }
}

/// The table of series in README.md is made of the catalogue.
#[test]
fn the_readme_has_all_series() {
    let path = folder().join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let head = "| measurement | more labels | field | what it is |\n|---|---|---|---|\n";
    let start = text.find(head).expect("the table") + head.len();
    let end = start + text[start..].find("\n\n").expect("the end of the table") + 1;
    let rows: String = MEASUREMENTS.iter().map(readme_rows).collect();
    let wanted = format!("{}{rows}{}", &text[..start], &text[end..]);
    committed::check(&path, &wanted, COMMAND);
}

fn readme_rows(one: &Measurement) -> String {
    let known = ["host", "hostname", "realm", "unit", "kind", "instance"];
    let labels: Vec<String> =
        one.labels.iter().filter(|label| !known.contains(label)).map(|label| format!("`{label}`")).collect();
    let (name, labels) = (one.name, labels.join(", "));
    if one.fields.is_empty() {
        return format!("| `{name}` | {labels} | as programs name them | What programs tell. |\n");
    }
    let field = |(index, field): (usize, &Field)| {
        let (name, labels) = if index == 0 { (format!("`{name}`"), labels.as_str()) } else { (String::new(), "") };
        format!("| {name} | {labels} | `{}` | {} |\n", field.name, field.about)
    };
    one.fields.iter().enumerate().map(field).collect()
}

fn panels(dashboards: &[Dashboard]) -> impl Iterator<Item = (&Dashboard, &Panel)> {
    dashboards
        .iter()
        .flat_map(|one| one.rows.iter().flat_map(move |row| row.panels.iter().map(move |panel| (one, panel))))
}

#[test]
fn each_panel_queries_existing_series_and_has_a_description() {
    let dashboards = list::dashboards();
    for (dashboard, panel) in panels(&dashboards) {
        let what = format!("{}: {}", dashboard.name, panel.title);
        assert!(panel.description.ends_with('.'), "{what}: no description");
        assert!(!panel.queries.is_empty() && panel.width <= 24, "{what}");
        for query in &panel.queries {
            assert_eq!(query.problem(), None, "{what}: {query:?}");
            assert_eq!(query.legend.is_empty(), panel.kind == PanelKind::Number, "{what}: {query:?}");
            if panel.kind == PanelKind::Table {
                assert_eq!(query.by, panel.queries[0].by, "{what}: rows of the same labels");
            }
        }
    }
}

#[test]
fn both_flavours_have_the_same_panels_in_the_same_places() {
    let made = files::made();
    for dashboard in list::dashboards() {
        let [promql, influxql] = QueryLanguage::ALL.map(|flavour| {
            let path = format!("{}/{}.json", flavour.word(), dashboard.name);
            let file = made.iter().find(|file| file.path == path).expect("it was made");
            let json: Value = serde_json::from_str(&file.text).unwrap();
            json
        });
        let panels = |json: &Value| {
            let panels = json["panels"].as_array().unwrap().iter();
            let shown = |panel: &Value| {
                let targets = panel["targets"].as_array().map_or(0, Vec::len);
                (panel["title"].clone(), panel["gridPos"].clone(), targets)
            };
            panels.map(shown).collect::<Vec<_>>()
        };
        assert_eq!(panels(&promql), panels(&influxql));
        assert_ne!(promql["uid"], influxql["uid"]);
        // No two panels lie upon each other.
        let mut taken = BTreeSet::new();
        for (title, place, _) in panels(&promql) {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place[key].as_u64().unwrap());
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(cell.0 < 24 && taken.insert(cell), "{}: {title}", dashboard.name);
            }
        }
    }
}
