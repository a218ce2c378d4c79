//! Panels for fields of the catalogue that no dashboard draws, so that a new metric is seen before somebody has found
//! the best place for it.

use std::collections::BTreeSet;

use muster_topics::catalogue::{Field, FieldKind, Measure, Measurement};

use super::filters::{HOSTS, ONE_HOST, REALMS, UNITS};
use crate::{
    panel::{Dashboard, Panel, ValueUnit, lines, row},
    query::{SeriesFilter, of, rate},
};

/// Adds a row with these panels to each dashboard that has any.
pub(super) fn add(dashboards: &mut [Dashboard], catalogue: &'static [Measurement]) {
    let drawn: BTreeSet<(&str, &str)> = dashboards
        .iter()
        .flat_map(|one| one.rows.iter().flat_map(|row| &row.panels).flat_map(|panel| &panel.queries))
        .flat_map(|query| query.value.fields().into_iter().map(|field| (query.measurement, field)))
        .collect();
    for dashboard in dashboards {
        let own = catalogue.iter().filter(|one| place(one).is_some_and(|(name, _)| name == dashboard.name));
        let fields = own.flat_map(|one| one.fields.iter().map(move |field| (one, field)));
        let undrawn = fields.filter(|(one, field)| !drawn.contains(&(one.name, field.name)));
        let panels: Vec<Panel> = undrawn.map(|(one, field)| panel(one, field)).collect();
        if !panels.is_empty() {
            dashboard.rows.push(row("More", panels));
        }
    }
}

/// Returns the dashboard for a measurement, and the filters of series there. `None` for the fleet's totals, which are
/// made of series that are drawn.
fn place(one: &Measurement) -> Option<(&'static str, &'static [SeriesFilter])> {
    match one.name {
        name if name.starts_with("muster_fleet_") => None,
        name if name.starts_with("muster_console_") => Some(("console", &[])),
        name if name.starts_with("muster_agent_") => Some(("agents", &[HOSTS])),
        _ if one.labels.contains(&"unit") => Some(("unit", &[HOSTS, REALMS, UNITS])),
        _ => Some(("host", &[ONE_HOST])),
    }
}

fn panel(one: &'static Measurement, field: &'static Field) -> Panel {
    let (query, unit) = match (field.kind, field.unit) {
        (FieldKind::Counter, Measure::Bytes) => (rate(one.name, field.name), ValueUnit::BytesPerSecond),
        (FieldKind::Counter, Measure::Seconds) => (rate(one.name, field.name), ValueUnit::Ratio),
        (FieldKind::Counter, _) => (rate(one.name, field.name), ValueUnit::PerSecond),
        (FieldKind::Rate, Measure::Bytes) => (of(one.name, field.name), ValueUnit::BytesPerSecond),
        (FieldKind::Rate, _) => (of(one.name, field.name), ValueUnit::PerSecond),
        (FieldKind::Gauge, Measure::Ratio) => (of(one.name, field.name), ValueUnit::Ratio),
        (FieldKind::Gauge, Measure::Bytes) => (of(one.name, field.name), ValueUnit::Bytes),
        (FieldKind::Gauge, Measure::Seconds) => (of(one.name, field.name), ValueUnit::Seconds),
        (FieldKind::Gauge, Measure::Celsius) => (of(one.name, field.name), ValueUnit::Celsius),
        (FieldKind::Gauge, Measure::Number) => (of(one.name, field.name), ValueUnit::Count),
        (FieldKind::Gauge, Measure::Flag) => (of(one.name, field.name), ValueUnit::Flag),
    };
    let shown = one.labels.iter().filter(|label| !["host", "instance", "kind"].contains(label));
    let legend = shown.fold(field.name.to_owned(), |legend, label| format!("{legend} {{{label}}}"));
    let filters = place(one).map(|(_, filters)| filters).unwrap_or_default();
    lines(one.name, unit, field.about).ask(query.only(filters).each(one.labels).named(legend))
}

#[cfg(test)]
mod tests {
    use muster_topics::catalogue::{MetricGroup, Writing};

    use super::*;
    use crate::list::drawn_dashboards;

    const fn field(name: &'static str, kind: FieldKind, unit: Measure) -> Field {
        Field { name, kind, unit, writing: Writing::Sampled(MetricGroup::Cpu), about: "Something." }
    }

    const NEW: &[Measurement] = &[
        Measurement {
            name: "muster_host_cpu",
            labels: &["host", "hostname"],
            fields: &[
                field("busy_ratio", FieldKind::Gauge, Measure::Ratio),
                field("guest_ratio", FieldKind::Gauge, Measure::Ratio),
            ],
            others: None,
        },
        Measurement {
            name: "muster_unit_faults",
            labels: &["host", "hostname", "realm", "unit", "kind"],
            fields: &[field("major_total", FieldKind::Counter, Measure::Number)],
            others: None,
        },
        Measurement {
            name: "muster_fleet_disk",
            labels: &["instance"],
            fields: &[field("used_bytes", FieldKind::Gauge, Measure::Bytes)],
            others: None,
        },
    ];

    #[test]
    fn field_that_nothing_draws_gets_a_panel() {
        let mut dashboards = drawn_dashboards();
        add(&mut dashboards, NEW);
        let more = |name: &str| {
            let found = dashboards.iter().find(|one| one.name == name).unwrap();
            let last = found.rows.last().unwrap();
            let panel = last.panels.last().unwrap();
            let query = panel.queries.last().unwrap();
            (last.title, last.panels.len(), panel.title, panel.unit, query.legend.clone(), query.per_second)
        };
        let host = ("More", 1, "muster_host_cpu", ValueUnit::Ratio, "guest_ratio {hostname}".into(), false);
        assert_eq!(more("host"), host, "not what is drawn elsewhere");
        let legend = "major_total {hostname} {realm} {unit}".into();
        assert_eq!(more("unit"), ("More", 1, "muster_unit_faults", ValueUnit::PerSecond, legend, true));
        assert_ne!(more("console").0, "More");
    }
}
