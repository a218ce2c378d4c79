//! Alerts: those that hold, and when which did.

use super::{HOSTNAME, HOSTS, host_variable};
use crate::{
    panel::{Dashboard, Link, Row, Unit, bars, number, row, stacked, states, table},
    query::{Fold, Only, Query, of},
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "alerts",
        title: "muster: alerts",
        description: "What somebody should look at, on which hosts, and since when.",
        since: "now-24h",
        variables: vec![host_variable(true)],
        rows: vec![now(), course()],
    }
}

fn alerts() -> Query {
    of("muster_alert", "active").only(&[HOSTS])
}

fn now() -> Row {
    let severe = |severity| alerts().only(&[Only::Is("severity", severity)]).fold(Fold::Sum, &[]);
    row(
        "Now",
        vec![
            number("Critical", Unit::Count, "Somebody should look now.").wide(8).bad(1.0).ask(severe("critical")),
            number("Warning", Unit::Count, "Somebody should look today.").wide(8).look(1.0, 1e9).ask(severe("warning")),
            number("Info", Unit::Count, "Good to know.").wide(8).ask(severe("info")),
            bars("By rule", Unit::Count, "Which rules have raised the most alerts that hold.")
                .wide(12)
                .ask(alerts().fold(Fold::Sum, &["rule"]).top().named("{rule}")),
            bars("By host", Unit::Count, "Which hosts have the most alerts that hold.")
                .wide(12)
                .link(Link::Host)
                .ask(alerts().fold(Fold::Sum, HOSTNAME).top().named("{hostname}")),
            table("Alerts that hold", Unit::Flag, "What they are about: a unit, a file system, or the host itself.")
                .link(Link::Host)
                .ask(alerts().above(0.0).fold(Fold::Max, &["severity", "hostname", "rule", "subject"]).named("Holds")),
        ],
    )
}

fn course() -> Row {
    row(
        "Over time",
        vec![
            stacked("By severity", Unit::Count, "How many alerts held.")
                .ask(alerts().fold(Fold::Sum, &["severity"]).named("{severity}")),
            stacked("By rule", Unit::Count, "How many alerts of each rule held.")
                .ask(alerts().fold(Fold::Sum, &["rule"]).named("{rule}")),
            states("Each", "When which alert held. Choose hosts above if these are too many.")
                .ask(alerts().fold(Fold::Max, &["hostname", "rule", "subject"]).named("{hostname}: {rule} {subject}")),
        ],
    )
}
