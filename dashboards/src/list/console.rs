//! The console itself.

use crate::{
    panel::{Dashboard, Row, Unit, lines, number, row, stacked},
    query::{Fold, Query, of, rate},
};

/// Which console, should there be several.
const INSTANCE: &[&str] = &["instance"];

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "console",
        title: "muster: console",
        description: "What the console does and what it costs: members, commands, measurements, and where it sends them on.",
        since: "now-6h",
        variables: Vec::new(),
        rows: vec![now(), work(), store(), external()],
    }
}

fn now() -> Row {
    let sum = |query: Query| query.fold(Fold::Sum, &[]);
    row(
        "Now",
        vec![
            number("Members", Unit::Count, "Hosts that have joined.").ask(sum(of("muster_console_hosts", "count"))),
            number("Open commands", Unit::Count, "Commands that some host has not answered yet.")
                .ask(sum(of("muster_console_commands", "open"))),
            number("Measurements", Unit::PerSecond, "How many values are taken in in a second.")
                .ask(sum(rate("muster_console_points", "received_total"))),
            number("Series", Unit::Count, "How many series the store knows.")
                .ask(sum(of("muster_console_series", "count"))),
            number("Store", Unit::Bytes, "The size of the store for measurements.")
                .ask(sum(of("muster_console_store", "bytes"))),
            number("Memory", Unit::Bytes, "What the console has in memory.")
                .ask(sum(of("muster_console_memory", "resident_bytes"))),
        ],
    )
}

fn work() -> Row {
    row(
        "Members and work",
        vec![
            stacked(
                "Hosts",
                Unit::Count,
                "Members by how they are: connected, not connected, or never seen since they joined.",
            )
            .ask(of("muster_console_hosts", "count").fold(Fold::Sum, &["state"]).named("{state}")),
            lines("Open commands", Unit::Count, "Commands that some host has not answered yet.")
                .ask(of("muster_console_commands", "open").each(INSTANCE).named("open")),
            stacked("Alerts", Unit::Count, "Alerts that hold, by severity.")
                .ask(of("muster_console_alerts", "active").fold(Fold::Sum, &["severity"]).named("{severity}")),
            lines("Processor", Unit::Ratio, "The share of one processor that the console uses.")
                .ask(of("muster_console_cpu", "busy_ratio").each(INSTANCE).named("console")),
        ],
    )
}

fn store() -> Row {
    row(
        "Measurements",
        vec![
            lines("Values taken in", Unit::PerSecond, "How many values are taken in in a second.")
                .ask(rate("muster_console_points", "received_total").each(INSTANCE).named("values")),
            lines("Series", Unit::Count, "How many series the store knows.")
                .ask(of("muster_console_series", "count").each(INSTANCE).named("series")),
            lines("Size of the store", Unit::Bytes, "What the measurements take on disk.")
                .ask(of("muster_console_store", "bytes").each(INSTANCE).named("store")),
            lines("Memory", Unit::Bytes, "What the console has in memory.")
                .ask(of("muster_console_memory", "resident_bytes").each(INSTANCE).named("console")),
        ],
    )
}

fn external() -> Row {
    let by_store = |query: Query, name| query.fold(Fold::Sum, &["store"]).named(name);
    row(
        "Sent on to other stores",
        vec![
            lines("Waiting", Unit::Bytes, "What waits on disk until another store takes it.")
                .ask(by_store(of("muster_console_external", "waiting_bytes"), "{store}")),
            lines("Lines that wait", Unit::Count, "How many lines wait until another store takes them.")
                .ask(by_store(of("muster_console_external", "waiting"), "{store}")),
            lines("Sent", Unit::PerSecond, "Lines that another store has taken.")
                .ask(by_store(rate("muster_console_external", "sent_total"), "{store}")),
            lines("Tried again", Unit::PerSecond, "How often another store did not take what it was sent, and is asked again.")
                .ask(by_store(rate("muster_console_external", "retried_total"), "{store}")),
            lines("Lost", Unit::PerSecond, "Lines that another store refuses, and that are set aside for somebody to look at; and those for which there was no room.")
                .wide(24)
                .bad(0.000_001)
                .ask(by_store(rate("muster_console_external", "quarantined_total"), "{store}: set aside"))
                .ask(by_store(rate("muster_console_external", "dropped_total"), "{store}: dropped")),
        ],
    )
}
