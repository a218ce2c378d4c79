//! Dashboard of all hosts at a glance.

use super::filters::{EVERY_UNIT, HOSTNAME, UNIT_OF_HOST};
use crate::{
    panel::{Dashboard, PanelLink, PanelRow, ValueUnit, bars, lines, number, row, table},
    query::{PanelQuery, SeriesFold, not, of, rate, share},
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "muster: fleet",
        description: "All hosts at a glance: who is there, what is wrong, who is busiest. Names lead to a host's own page.",
        since: "now-6h",
        variables: Vec::new(),
        rows: vec![now(), course(), greatest(), hosts()],
    }
}

fn now() -> PanelRow {
    let online = "Hosts that are connected, as the console sees it.";
    let offline = "Hosts that have joined and are not connected.";
    row(
        "Now",
        vec![
            number("Hosts online", ValueUnit::Count, online)
                .ask(of("muster_host", "online").fold(SeriesFold::Sum, &[])),
            number("Hosts offline", ValueUnit::Count, offline)
                .bad(1.0)
                .ask(not("muster_host", "online").fold(SeriesFold::Sum, &[])),
            number("Alerts", ValueUnit::Count, "Alerts that hold now, whatever their severity.")
                .bad(1.0)
                .ask(of("muster_alert", "active").fold(SeriesFold::Sum, &[])),
            number("Units", ValueUnit::Count, "Units that the hosts have, whether they run or not.")
                .ask(of(EVERY_UNIT.0, EVERY_UNIT.1).fold(SeriesFold::Count, &[])),
            number("Processors", ValueUnit::Ratio, "The mean share of all hosts' processors that is busy.")
                .look(0.8, 0.95)
                .ask(of("muster_host_cpu", "busy_ratio").fold(SeriesFold::Avg, &[])),
            number("Memory", ValueUnit::Ratio, "The mean share of all hosts' memory that is used.")
                .look(0.85, 0.95)
                .ask(share("muster_host_memory", "used_bytes", "total_bytes").fold(SeriesFold::Avg, &[])),
        ],
    )
}

/// The distribution of a value over the hosts, which is easier to read than ten thousand lines.
fn spread(query: &PanelQuery) -> Vec<PanelQuery> {
    vec![
        query.clone().fold(SeriesFold::Percentile(50), &[]).named("median"),
        query.clone().fold(SeriesFold::Percentile(95), &[]).named("95 of 100 are below"),
        query.clone().fold(SeriesFold::Max, &[]).named("greatest"),
    ]
}

fn course() -> PanelRow {
    let cpu = spread(&of("muster_host_cpu", "busy_ratio"));
    let memory = spread(&share("muster_host_memory", "used_bytes", "total_bytes"));
    let mut processors = lines(
        "Processors",
        ValueUnit::Ratio,
        "How busy the hosts' processors are: half of the hosts are below the median.",
    );
    processors.queries = cpu;
    let mut memories = lines("Memory", ValueUnit::Ratio, "How full the hosts' memory is.");
    memories.queries = memory;
    row(
        "Over time",
        vec![
            lines("Hosts", ValueUnit::Count, "How many hosts are connected, and how many are not.")
                .ask(of("muster_host", "online").fold(SeriesFold::Sum, &[]).named("online"))
                .ask(not("muster_host", "online").fold(SeriesFold::Sum, &[]).named("offline")),
            lines("Alerts", ValueUnit::Count, "How many alerts hold, by severity.")
                .ask(of("muster_alert", "active").fold(SeriesFold::Sum, &["severity"]).named("{severity}")),
            processors,
            memories,
            lines("Network", ValueUnit::BytesPerSecond, "What all hosts together receive and send.")
                .ask(rate("muster_host_network", "receive_bytes_total").fold(SeriesFold::Sum, &[]).named("received"))
                .ask(rate("muster_host_network", "transmit_bytes_total").fold(SeriesFold::Sum, &[]).named("sent")),
            lines(
                "Disks",
                ValueUnit::BytesPerSecond,
                "What all hosts together read from their disks and write to them.",
            )
            .ask(rate("muster_host_disk_io", "read_bytes_total").fold(SeriesFold::Sum, &[]).named("read"))
            .ask(rate("muster_host_disk_io", "written_bytes_total").fold(SeriesFold::Sum, &[]).named("written")),
        ],
    )
}

fn greatest() -> PanelRow {
    row(
        "Who to look at",
        vec![
            bars("Busiest processors", ValueUnit::Ratio, "The ten hosts whose processors are busiest.")
                .look(0.8, 0.95)
                .link(PanelLink::Host)
                .ask(of("muster_host_cpu", "busy_ratio").fold(SeriesFold::Max, HOSTNAME).top().named("{hostname}")),
            bars("Fullest memory", ValueUnit::Ratio, "The ten hosts with the least memory left.")
                .look(0.85, 0.95)
                .link(PanelLink::Host)
                .ask(
                    share("muster_host_memory", "used_bytes", "total_bytes")
                        .fold(SeriesFold::Max, HOSTNAME)
                        .top()
                        .named("{hostname}"),
                ),
            bars("Fullest file systems", ValueUnit::Ratio, "The ten file systems with the least room left.")
                .look(0.85, 0.95)
                .link(PanelLink::Host)
                .ask(
                    share("muster_host_disk", "used_bytes", "total_bytes")
                        .fold(SeriesFold::Max, &["hostname", "mount"])
                        .top()
                        .named("{hostname} {mount}"),
                ),
        ],
    )
}

fn hosts() -> PanelRow {
    let host = |query: PanelQuery, column, unit| query.fold(SeriesFold::Max, HOSTNAME).named(column).unit(unit);
    row(
        "Hosts and units",
        vec![
            table("Hosts", ValueUnit::Count, "All hosts in their present state. A name leads to the host's own page.")
                .link(PanelLink::Host)
                .ask(host(of("muster_host", "online"), "Online", ValueUnit::Flag))
                .ask(host(of("muster_host_cpu", "busy_ratio"), "Processor", ValueUnit::Ratio))
                .ask(host(share("muster_host_memory", "used_bytes", "total_bytes"), "Memory", ValueUnit::Ratio))
                .ask(host(share("muster_host_disk", "used_bytes", "total_bytes"), "Fullest disk", ValueUnit::Ratio))
                .ask(host(of("muster_host_load", "5m"), "Load", ValueUnit::Count))
                .ask(host(of("muster_host_uptime", "seconds"), "Uptime", ValueUnit::Seconds)),
            table(
                "Units that were started again",
                ValueUnit::Count,
                "How often units were started again by themselves since they last were up for five minutes.",
            )
            .link(PanelLink::Unit)
            .ask(
                of("muster_unit_restart", "attempts")
                    .above(0.0)
                    .fold(SeriesFold::Max, UNIT_OF_HOST)
                    .top()
                    .named("Attempts"),
            ),
        ],
    )
}
