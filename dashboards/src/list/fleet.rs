//! All hosts at a glance.

use super::{EVERY_UNIT, HOSTNAME, UNIT_OF_HOST};
use crate::{
    panel::{Dashboard, Link, Row, Unit, bars, lines, number, row, table},
    query::{Fold, Query, not, of, rate, share},
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

fn now() -> Row {
    let online = "Hosts that are connected, as the console sees it.";
    let offline = "Hosts that have joined and are not connected.";
    row(
        "Now",
        vec![
            number("Hosts online", Unit::Count, online).ask(of("muster_host", "online").fold(Fold::Sum, &[])),
            number("Hosts offline", Unit::Count, offline)
                .bad(1.0)
                .ask(not("muster_host", "online").fold(Fold::Sum, &[])),
            number("Alerts", Unit::Count, "Alerts that hold now, whatever their severity.")
                .bad(1.0)
                .ask(of("muster_alert", "active").fold(Fold::Sum, &[])),
            number("Units", Unit::Count, "Units that the hosts have, whether they run or not.")
                .ask(of(EVERY_UNIT.0, EVERY_UNIT.1).fold(Fold::Count, &[])),
            number("Processors", Unit::Ratio, "The mean share of all hosts' processors that is busy.")
                .look(0.8, 0.95)
                .ask(of("muster_host_cpu", "busy_ratio").fold(Fold::Avg, &[])),
            number("Memory", Unit::Ratio, "The mean share of all hosts' memory that is used.")
                .look(0.85, 0.95)
                .ask(share("muster_host_memory", "used_bytes", "total_bytes").fold(Fold::Avg, &[])),
        ],
    )
}

/// How a value is spread over the hosts: ten thousand lines say less.
fn spread(query: &Query) -> Vec<Query> {
    vec![
        query.clone().fold(Fold::Percentile(50), &[]).named("median"),
        query.clone().fold(Fold::Percentile(95), &[]).named("95 of 100 are below"),
        query.clone().fold(Fold::Max, &[]).named("greatest"),
    ]
}

fn course() -> Row {
    let cpu = spread(&of("muster_host_cpu", "busy_ratio"));
    let memory = spread(&share("muster_host_memory", "used_bytes", "total_bytes"));
    let mut processors =
        lines("Processors", Unit::Ratio, "How busy the hosts' processors are: half of the hosts are below the median.");
    processors.queries = cpu;
    let mut memories = lines("Memory", Unit::Ratio, "How full the hosts' memory is.");
    memories.queries = memory;
    row(
        "Over time",
        vec![
            lines("Hosts", Unit::Count, "How many hosts are connected, and how many are not.")
                .ask(of("muster_host", "online").fold(Fold::Sum, &[]).named("online"))
                .ask(not("muster_host", "online").fold(Fold::Sum, &[]).named("offline")),
            lines("Alerts", Unit::Count, "How many alerts hold, by severity.")
                .ask(of("muster_alert", "active").fold(Fold::Sum, &["severity"]).named("{severity}")),
            processors,
            memories,
            lines("Network", Unit::BytesPerSecond, "What all hosts together receive and send.")
                .ask(rate("muster_host_network", "receive_bytes_total").fold(Fold::Sum, &[]).named("received"))
                .ask(rate("muster_host_network", "transmit_bytes_total").fold(Fold::Sum, &[]).named("sent")),
            lines("Disks", Unit::BytesPerSecond, "What all hosts together read from their disks and write to them.")
                .ask(rate("muster_host_disk_io", "read_bytes_total").fold(Fold::Sum, &[]).named("read"))
                .ask(rate("muster_host_disk_io", "written_bytes_total").fold(Fold::Sum, &[]).named("written")),
        ],
    )
}

fn greatest() -> Row {
    row(
        "Who to look at",
        vec![
            bars("Busiest processors", Unit::Ratio, "The ten hosts whose processors are busiest.")
                .look(0.8, 0.95)
                .link(Link::Host)
                .ask(of("muster_host_cpu", "busy_ratio").fold(Fold::Max, HOSTNAME).top().named("{hostname}")),
            bars("Fullest memory", Unit::Ratio, "The ten hosts with the least memory left.")
                .look(0.85, 0.95)
                .link(Link::Host)
                .ask(
                    share("muster_host_memory", "used_bytes", "total_bytes")
                        .fold(Fold::Max, HOSTNAME)
                        .top()
                        .named("{hostname}"),
                ),
            bars("Fullest file systems", Unit::Ratio, "The ten file systems with the least room left.")
                .look(0.85, 0.95)
                .link(Link::Host)
                .ask(
                    share("muster_host_disk", "used_bytes", "total_bytes")
                        .fold(Fold::Max, &["hostname", "mount"])
                        .top()
                        .named("{hostname} {mount}"),
                ),
        ],
    )
}

fn hosts() -> Row {
    let host = |query: Query, column, unit| query.fold(Fold::Max, HOSTNAME).named(column).unit(unit);
    row(
        "Hosts and units",
        vec![
            table("Hosts", Unit::Count, "All hosts, as they are now. A name leads to the host's own page.")
                .link(Link::Host)
                .ask(host(of("muster_host", "online"), "Online", Unit::Flag))
                .ask(host(of("muster_host_cpu", "busy_ratio"), "Processor", Unit::Ratio))
                .ask(host(share("muster_host_memory", "used_bytes", "total_bytes"), "Memory", Unit::Ratio))
                .ask(host(share("muster_host_disk", "used_bytes", "total_bytes"), "Fullest disk", Unit::Ratio))
                .ask(host(of("muster_host_load", "5m"), "Load", Unit::Count))
                .ask(host(of("muster_host_uptime", "seconds"), "Uptime", Unit::Seconds)),
            table(
                "Units that were started again",
                Unit::Count,
                "How often units were started again by themselves since they last were up for five minutes.",
            )
            .link(Link::Unit)
            .ask(
                of("muster_unit_restart", "attempts").above(0.0).fold(Fold::Max, UNIT_OF_HOST).top().named("Attempts"),
            ),
        ],
    )
}
