//! Dashboard of alerts: active ones, and their history.

use super::filters::{HOSTNAME, HOSTS, host_variable};
use crate::{
    panel::{Dashboard, PanelLink, PanelRow, ValueUnit, bars, number, row, stacked, states, table},
    query::{PanelQuery, SeriesFilter, SeriesFold, of},
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "alerts",
        title: "muster: alerts",
        description: "What needs attention, on which hosts, and since when.",
        since: "now-24h",
        variables: vec![host_variable(true)],
        rows: vec![now(), course()],
    }
}

fn alerts() -> PanelQuery {
    of("muster_alert", "active").only(&[HOSTS])
}

fn now() -> PanelRow {
    let severe = |severity| alerts().only(&[SeriesFilter::Is("severity", severity)]).fold(SeriesFold::Sum, &[]);
    row(
        "Now",
        vec![
            number("Critical", ValueUnit::Count, "Somebody should look now.").wide(8).bad(1.0).ask(severe("critical")),
            number("Warning", ValueUnit::Count, "Somebody should look today.")
                .wide(8)
                .look(1.0, 1e9)
                .ask(severe("warning")),
            number("Info", ValueUnit::Count, "Good to know.").wide(8).ask(severe("info")),
            bars("By rule", ValueUnit::Count, "Which rules have raised the most alerts that hold.")
                .wide(12)
                .ask(alerts().fold(SeriesFold::Sum, &["rule"]).top().named("{rule}")),
            bars("By host", ValueUnit::Count, "Which hosts have the most alerts that hold.")
                .wide(12)
                .link(PanelLink::Host)
                .ask(alerts().fold(SeriesFold::Sum, HOSTNAME).top().named("{hostname}")),
            table(
                "Alerts that hold",
                ValueUnit::Flag,
                "What they are about: a unit, a file system, or the host itself.",
            )
            .link(PanelLink::Host)
            .ask(
                alerts().above(0.0).fold(SeriesFold::Max, &["severity", "hostname", "rule", "subject"]).named("Holds"),
            ),
        ],
    )
}

fn course() -> PanelRow {
    row(
        "Over time",
        vec![
            stacked("By severity", ValueUnit::Count, "How many alerts held.")
                .ask(alerts().fold(SeriesFold::Sum, &["severity"]).named("{severity}")),
            stacked("By rule", ValueUnit::Count, "How many alerts of each rule held.")
                .ask(alerts().fold(SeriesFold::Sum, &["rule"]).named("{rule}")),
            states("Each", "When which alert held. Choose hosts above if these are too many.").ask(
                alerts().fold(SeriesFold::Max, &["hostname", "rule", "subject"]).named("{hostname}: {rule} {subject}"),
            ),
        ],
    )
}
