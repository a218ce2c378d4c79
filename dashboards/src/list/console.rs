//! Dashboard of the console itself.

use crate::{
    panel::{Dashboard, PanelRow, ValueUnit, lines, number, row, stacked},
    query::{PanelQuery, SeriesFold, of, rate},
};

/// The console, if there are several.
const INSTANCE: &[&str] = &["instance"];

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "console",
        title: "muster: console",
        description: "What the console does and what it costs: members, commands, measurements, and where it sends them on.",
        since: "now-6h",
        variables: Vec::new(),
        rows: vec![now(), work(), rollouts(), store(), external()],
    }
}

fn now() -> PanelRow {
    let sum = |query: PanelQuery| query.fold(SeriesFold::Sum, &[]);
    row(
        "Now",
        vec![
            number("Members", ValueUnit::Count, "Hosts that have joined.")
                .ask(sum(of("muster_console_hosts", "count"))),
            number("Open commands", ValueUnit::Count, "Commands that some host has not answered yet.")
                .ask(sum(of("muster_console_commands", "open"))),
            number("Measurements", ValueUnit::PerSecond, "How many values are stored per second.")
                .ask(sum(rate("muster_console_points", "received_total"))),
            number("Series", ValueUnit::Count, "How many series the store knows.")
                .ask(sum(of("muster_console_series", "count"))),
            number("Store", ValueUnit::Bytes, "The size of the store for measurements.")
                .ask(sum(of("muster_console_store", "bytes"))),
            number("Memory", ValueUnit::Bytes, "What the console has in memory.")
                .ask(sum(of("muster_console_memory", "resident_bytes"))),
        ],
    )
}

fn work() -> PanelRow {
    row(
        "Members and work",
        vec![
            stacked(
                "Hosts",
                ValueUnit::Count,
                "Members by how they are: connected, not connected, or never seen since they joined.",
            )
            .ask(of("muster_console_hosts", "count").fold(SeriesFold::Sum, &["state"]).named("{state}")),
            lines("Open commands", ValueUnit::Count, "Commands that some host has not answered yet.")
                .ask(of("muster_console_commands", "open").each(INSTANCE).named("open")),
            stacked("Alerts", ValueUnit::Count, "Alerts that hold, by severity.")
                .ask(of("muster_console_alerts", "active").fold(SeriesFold::Sum, &["severity"]).named("{severity}")),
            lines("Processor", ValueUnit::Ratio, "The share of one processor that the console uses.")
                .ask(of("muster_console_cpu", "busy_ratio").each(INSTANCE).named("console")),
        ],
    )
}

fn rollouts() -> PanelRow {
    row(
        "Rollouts",
        vec![
            stacked("Rollouts", ValueUnit::Count, "Deployments, by how the last rollout of each goes.")
                .ask(of("muster_console_rollouts", "count").fold(SeriesFold::Sum, &["phase"]).named("{phase}")),
            stacked(
                "Hosts by outcome",
                ValueUnit::Count,
                "Hosts of the last rollout of each deployment, by how they have ended; none: they have not ended yet.",
            )
            .ask(of("muster_console_rollout_hosts", "count").fold(SeriesFold::Sum, &["outcome"]).named("{outcome}")),
            lines(
                "Changing and unavailable",
                ValueUnit::Count,
                "Hosts that change now, and those that were changed and are not verified since.",
            )
            .ask(of("muster_console_rollout", "in_flight").each(INSTANCE).named("changing"))
            .ask(of("muster_console_rollout", "unavailable").each(INSTANCE).named("unavailable")),
            lines("Admitted", ValueUnit::PerSecond, "How many hosts are told in a second to begin.")
                .ask(rate("muster_console_rollout", "admitted_total").each(INSTANCE).named("admitted")),
        ],
    )
}

fn store() -> PanelRow {
    row(
        "Measurements",
        vec![
            lines("Values stored", ValueUnit::PerSecond, "How many values are stored per second.")
                .ask(rate("muster_console_points", "received_total").each(INSTANCE).named("values")),
            lines("Series", ValueUnit::Count, "How many series the store knows.")
                .ask(of("muster_console_series", "count").each(INSTANCE).named("series")),
            lines("Size of the store", ValueUnit::Bytes, "What the measurements take on disk.")
                .ask(of("muster_console_store", "bytes").each(INSTANCE).named("store")),
            lines("Memory", ValueUnit::Bytes, "What the console has in memory.")
                .ask(of("muster_console_memory", "resident_bytes").each(INSTANCE).named("console")),
        ],
    )
}

fn external() -> PanelRow {
    let by_store = |query: PanelQuery, name| query.fold(SeriesFold::Sum, &["store"]).named(name);
    row(
        "Sent on to other stores",
        vec![
            lines("Waiting", ValueUnit::Bytes, "What waits on disk until another store takes it.")
                .ask(by_store(of("muster_console_external", "waiting_bytes"), "{store}")),
            lines("Lines that wait", ValueUnit::Count, "How many lines wait until another store takes them.")
                .ask(by_store(of("muster_console_external", "waiting"), "{store}")),
            lines("Sent", ValueUnit::PerSecond, "Lines that another store has taken.")
                .ask(by_store(rate("muster_console_external", "sent_total"), "{store}")),
            lines(
                "Tried again",
                ValueUnit::PerSecond,
                "How often another store did not take what it was sent, and is asked again.",
            )
            .ask(by_store(rate("muster_console_external", "retried_total"), "{store}")),
            lines(
                "Lost",
                ValueUnit::PerSecond,
                "Lines that an external store refuses, which are set aside, and lines for which there was no room.",
            )
            .wide(24)
            .bad(0.000_001)
            .ask(by_store(rate("muster_console_external", "quarantined_total"), "{store}: set aside"))
            .ask(by_store(rate("muster_console_external", "dropped_total"), "{store}: dropped")),
        ],
    )
}
