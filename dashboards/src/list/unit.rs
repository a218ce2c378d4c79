//! Dashboard of one unit, or of several beside each other.

use super::filters::{EVERY_UNIT, HOSTS, REALMS, UNIT_OF_HOST, UNITS, host_variable};
use crate::{
    panel::{Dashboard, PanelLink, PanelRow, ValueUnit, Variable, lines, number, row, stacked, table},
    query::{PanelQuery, SeriesFold, all, of, rate, share},
};

const NAME: &str = "{hostname} {realm}/{unit}";

pub(super) fn dashboard() -> Dashboard {
    let variable = |name, label, within, many| Variable { name, label, of: EVERY_UNIT, value: name, within, many };
    Dashboard {
        name: "unit",
        title: "muster: unit",
        description: "What units use of their hosts: one of them, or the same one on many hosts beside each other.",
        since: "now-1h",
        variables: vec![
            host_variable(true),
            variable("realm", "Realm", &[("hostname", "host")], true),
            variable("unit", "Unit", &[("hostname", "host"), ("realm", "realm")], true),
        ],
        rows: vec![now(), course(), each()],
    }
}

fn on(query: PanelQuery) -> PanelQuery {
    query.only(&[HOSTS, REALMS, UNITS])
}

fn now() -> PanelRow {
    let sum = |query: PanelQuery| on(query).fold(SeriesFold::Sum, &[]);
    row(
        "Now",
        vec![
            number("Units", ValueUnit::Count, "How many units are chosen.")
                .ask(on(of(EVERY_UNIT.0, EVERY_UNIT.1)).fold(SeriesFold::Count, &[])),
            number(
                "Started again",
                ValueUnit::Count,
                "How often they were started again by themselves since they last were up for five minutes.",
            )
            .bad(1.0)
            .ask(sum(of("muster_unit_restart", "attempts"))),
            number("Processor", ValueUnit::Ratio, "What they use together, each as a share of its whole host.")
                .ask(sum(of("muster_unit_cpu", "busy_ratio"))),
            number("Memory", ValueUnit::Bytes, "What they use together.")
                .ask(sum(of("muster_unit_memory", "resident_bytes"))),
            number("Processes", ValueUnit::Count, "How many processes they have together.")
                .ask(sum(of("muster_unit_processes", "count"))),
            number(
                "Nearest to its limit",
                ValueUnit::Ratio,
                "The greatest share of its memory limit that a unit uses, of those that have one.",
            )
            .look(0.85, 0.95)
            .ask(on(share("muster_unit_memory", "resident_bytes", "limit_bytes")).fold(SeriesFold::Max, &[])),
        ],
    )
}

fn course() -> PanelRow {
    let each = |query: PanelQuery, name| on(query).each(UNIT_OF_HOST).named(name);
    row(
        "Over time",
        vec![
            stacked("Processor", ValueUnit::Ratio, "The share of the whole host's processor time that each uses.")
                .ask(each(of("muster_unit_cpu", "busy_ratio"), NAME)),
            lines(
                "Held back",
                ValueUnit::Ratio,
                "The share of time in which a unit was held back by its processor limit.",
            )
            .ask(each(rate("muster_unit_cpu", "throttled_seconds_total"), NAME)),
            stacked("Memory", ValueUnit::Bytes, "What each uses.")
                .ask(each(of("muster_unit_memory", "resident_bytes"), NAME)),
            lines(
                "Memory against its limit",
                ValueUnit::Ratio,
                "The share of its memory limit that each uses, of those that have one.",
            )
            .look(0.85, 0.95)
            .ask(each(share("muster_unit_memory", "resident_bytes", "limit_bytes"), NAME)),
            lines(
                "Disk against its limit",
                ValueUnit::Ratio,
                "The share of what it may write that each has written, of containers whose disk is limited.",
            )
            .look(0.85, 0.95)
            .ask(each(share("muster_unit_disk", "used_bytes", "total_bytes"), NAME)),
            lines("Written by containers", ValueUnit::Bytes, "What each has written over its image.")
                .ask(each(of("muster_unit_disk", "used_bytes"), NAME)),
            lines(
                "Network",
                ValueUnit::BytesPerSecond,
                "What each receives and sends, of containers that have a network of their own.",
            )
            .ask(each(rate("muster_unit_network", "receive_bytes_total"), "{hostname} {realm}/{unit} received"))
            .ask(each(rate("muster_unit_network", "transmit_bytes_total"), "{hostname} {realm}/{unit} sent")),
            lines("Disks", ValueUnit::BytesPerSecond, "What each reads and writes.")
                .ask(each(rate("muster_unit_io", "read_bytes_total"), "{hostname} {realm}/{unit} read"))
                .ask(each(rate("muster_unit_io", "written_bytes_total"), "{hostname} {realm}/{unit} written")),
            lines("Processes", ValueUnit::Count, "How many processes each has.")
                .ask(each(of("muster_unit_processes", "count"), NAME)),
            lines(
                "Started again",
                ValueUnit::Count,
                "How often each was started again by itself since it last was up for five minutes.",
            )
            .ask(each(of("muster_unit_restart", "attempts"), NAME)),
            lines(
                "Their own numbers",
                ValueUnit::Count,
                "Numbers that programs report of themselves, under names of their own.",
            )
            .ask(each(all("muster_yuno"), "{hostname} {realm}/{unit} {field}")),
        ],
    )
}

fn each() -> PanelRow {
    let of_unit =
        |query: PanelQuery, column, unit| on(query).fold(SeriesFold::Max, UNIT_OF_HOST).named(column).unit(unit);
    row(
        "Each",
        vec![
            table("Units", ValueUnit::Count, "The selected units in their present state.")
                .link(PanelLink::Unit)
                .ask(of_unit(of("muster_unit_restart", "attempts"), "Started again", ValueUnit::Count))
                .ask(of_unit(of("muster_unit_cpu", "busy_ratio"), "Processor", ValueUnit::Ratio))
                .ask(of_unit(of("muster_unit_memory", "resident_bytes"), "Memory", ValueUnit::Bytes))
                .ask(of_unit(of("muster_unit_processes", "count"), "Processes", ValueUnit::Count)),
        ],
    )
}
