//! Dashboard of one host.

use super::filters::{HOSTNAME, ONE_HOST, UNIT_OF_HOST, host_variable};
use crate::{
    panel::{Dashboard, PanelLink, PanelRow, ValueUnit, lines, number, row, stacked, states, table},
    query::{PanelQuery, SeriesFold, of, rate, share},
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "host",
        title: "muster: host",
        description: "What one host does: processor, memory, disks, network, and the units that it has.",
        since: "now-1h",
        variables: vec![host_variable(false)],
        rows: vec![now(), processor(), memory(), disks(), network(), rest(), units(), containers()],
    }
}

fn on(query: PanelQuery) -> PanelQuery {
    query.only(&[ONE_HOST])
}

fn now() -> PanelRow {
    let of_host = |query: PanelQuery, fold| on(query).fold(fold, &[]);
    row(
        "Now",
        vec![
            number("Online", ValueUnit::Flag, "Whether the host is connected, as the console sees it.")
                .ask(of_host(of("muster_host", "online"), SeriesFold::Max)),
            number("Alerts", ValueUnit::Count, "Alerts of this host that hold now.")
                .bad(1.0)
                .ask(of_host(of("muster_alert", "active"), SeriesFold::Sum)),
            number("Up for", ValueUnit::Seconds, "How long the host has been up.")
                .ask(of_host(of("muster_host_uptime", "seconds"), SeriesFold::Max)),
            number("Processor", ValueUnit::Ratio, "The share of all processors' time that is used.")
                .look(0.8, 0.95)
                .ask(of_host(of("muster_host_cpu", "busy_ratio"), SeriesFold::Max)),
            number("Memory", ValueUnit::Ratio, "The share of memory that is not available.")
                .look(0.85, 0.95)
                .ask(of_host(share("muster_host_memory", "used_bytes", "total_bytes"), SeriesFold::Max)),
            number("Fullest file system", ValueUnit::Ratio, "The file system with the least room left.")
                .look(0.85, 0.95)
                .ask(of_host(share("muster_host_disk", "used_bytes", "total_bytes"), SeriesFold::Max)),
        ],
    )
}

fn processor() -> PanelRow {
    let mode = |field, name| on(of("muster_host_cpu", field)).each(HOSTNAME).named(name);
    let load = |field, name| on(of("muster_host_load", field)).each(HOSTNAME).named(name);
    let pressure = |field, name| on(rate("muster_host_pressure", field)).each(&["hostname", "resource"]).named(name);
    row(
        "Processor",
        vec![
            stacked("Processor by mode", ValueUnit::Ratio, "What the processors' time goes to. Steal is time that a hypervisor gave to others.")
                .ask(mode("user_ratio", "user"))
                .ask(mode("system_ratio", "system"))
                .ask(mode("iowait_ratio", "waiting for disks"))
                .ask(mode("steal_ratio", "steal")),
            lines("Processor by core", ValueUnit::Ratio, "How busy each logical processor is: one that is always at 1 is a program that cannot use two.")
                .ask(on(of("muster_host_cpu_core", "busy_ratio")).each(&["hostname", "core"]).named("core {core}")),
            lines("Load", ValueUnit::Count, "How many tasks run, or wait for a processor or a disk: the mean of 1, 5 and 15 minutes.")
                .ask(load("1m", "1 minute"))
                .ask(load("5m", "5 minutes"))
                .ask(load("15m", "15 minutes")),
            lines("Pressure", ValueUnit::Ratio, "The share of time in which some task, or all of them, had to wait for a resource. Kernels without PSI have none.")
                .ask(pressure("some_seconds_total", "{resource}: some"))
                .ask(pressure("full_seconds_total", "{resource}: all")),
            lines(
                "Limits of the kernel",
                ValueUnit::Ratio,
                "Open files, processes, local TCP ports and connections that the firewall tracks: how much of what there can be is in use.",
            )
            .wide(24)
            .bad(0.9)
            .ask(
                on(share("muster_host_resource", "used", "limit")).each(&["hostname", "resource"]).named("{resource}"),
            ),
        ],
    )
}

fn memory() -> PanelRow {
    let memory = |field, name| on(of("muster_host_memory", field)).each(HOSTNAME).named(name);
    let swap = |field, name| on(of("muster_host_swap", field)).each(HOSTNAME).named(name);
    row(
        "Memory",
        vec![
            lines(
                "Memory",
                ValueUnit::Bytes,
                "What is used cannot be given to programs; what is available can, also if caches are in it now.",
            )
            .ask(memory("used_bytes", "used"))
            .ask(memory("available_bytes", "available"))
            .ask(memory("total_bytes", "total")),
            lines("Swap", ValueUnit::Bytes, "Memory on disk (swap).")
                .ask(swap("used_bytes", "used"))
                .ask(swap("total_bytes", "total")),
        ],
    )
}

fn disks() -> PanelRow {
    let mount = |part, whole| on(share("muster_host_disk", part, whole)).each(&["hostname", "mount"]).named("{mount}");
    let device = |counter, name| on(rate("muster_host_disk_io", counter)).each(&["hostname", "device"]).named(name);
    row(
        "Disks",
        vec![
            lines("File systems", ValueUnit::Ratio, "How full each file system is.")
                .bad(0.9)
                .ask(mount("used_bytes", "total_bytes")),
            lines(
                "Inodes",
                ValueUnit::Ratio,
                "How many of each file system's inodes are used: without one no file can be made.",
            )
            .bad(0.9)
            .ask(mount("used_inodes", "inodes")),
            lines(
                "File systems that do not answer",
                ValueUnit::Count,
                "1 while a file system does not answer: its server or device is gone, and what uses it hangs.",
            )
            .wide(24)
            .bad(1.0)
            .ask(on(of("muster_host_disk", "unresponsive")).each(&["hostname", "mount"]).named("{mount}")),
            lines("Throughput", ValueUnit::BytesPerSecond, "What is read from each disk and written to it.")
                .ask(device("read_bytes_total", "{device} read"))
                .ask(device("written_bytes_total", "{device} written")),
            lines("Operations", ValueUnit::PerSecond, "How many times each disk is read and written.")
                .ask(device("reads_total", "{device} reads"))
                .ask(device("writes_total", "{device} writes")),
            lines("Disks at work", ValueUnit::Ratio, "The share of time in which each disk had something to do.")
                .wide(24)
                .ask(device("busy_seconds_total", "{device}")),
        ],
    )
}

fn network() -> PanelRow {
    let of_each = |counter, name| on(rate("muster_host_network", counter)).each(&["hostname", "interface"]).named(name);
    row(
        "Network",
        vec![
            lines("Throughput", ValueUnit::BytesPerSecond, "What each interface receives and sends.")
                .ask(of_each("receive_bytes_total", "{interface} received"))
                .ask(of_each("transmit_bytes_total", "{interface} sent")),
            lines("Packets", ValueUnit::PerSecond, "How many packets each interface receives and sends.")
                .ask(of_each("receive_packets_total", "{interface} received"))
                .ask(of_each("transmit_packets_total", "{interface} sent")),
            lines(
                "Errors and drops",
                ValueUnit::PerSecond,
                "Packets that were damaged, or for which there was no room.",
            )
            .wide(24)
            .ask(of_each("receive_errors_total", "{interface} received with errors"))
            .ask(of_each("transmit_errors_total", "{interface} not sent for errors"))
            .ask(of_each("receive_drops_total", "{interface} received and dropped"))
            .ask(of_each("transmit_drops_total", "{interface} dropped before sending")),
        ],
    )
}

fn rest() -> PanelRow {
    row(
        "Heat, clock, alerts",
        vec![
            lines("Temperature", ValueUnit::Celsius, "The warmest sensor, where there is any.")
                .look(80.0, 95.0)
                .ask(on(of("muster_host_temperature", "celsius")).fold(SeriesFold::Max, HOSTNAME).named("warmest")),
            lines("Clock", ValueUnit::Seconds, "How far the host's clock is from the console's.")
                .ask(on(of("muster_host_clock", "offset_seconds")).each(HOSTNAME).named("ahead")),
            states("Alerts", "When which alert held.").ask(
                on(of("muster_alert", "active"))
                    .fold(SeriesFold::Max, &["rule", "severity", "subject"])
                    .named("{rule} {subject} ({severity})"),
            ),
        ],
    )
}

fn units() -> PanelRow {
    let of_unit =
        |query: PanelQuery, column, unit| on(query).fold(SeriesFold::Max, UNIT_OF_HOST).named(column).unit(unit);
    row(
        "Units",
        vec![
            table(
                "Units",
                ValueUnit::Count,
                "The units of this host in their present state. A name leads to the unit's own page.",
            )
            .link(PanelLink::Unit)
            .ask(of_unit(of("muster_unit_restart", "attempts"), "Started again", ValueUnit::Count))
            .ask(of_unit(of("muster_unit_cpu", "busy_ratio"), "Processor", ValueUnit::Ratio))
            .ask(of_unit(of("muster_unit_memory", "resident_bytes"), "Memory", ValueUnit::Bytes)),
        ],
    )
}

fn containers() -> PanelRow {
    let each = |measurement, field| on(of(measurement, field)).each(&["hostname", "container"]).named("{container}");
    let carried =
        |field, name| on(rate("muster_container_network", field)).each(&["hostname", "container"]).named(name);
    row(
        "Other containers",
        vec![
            lines(
                "Processor of other containers",
                ValueUnit::Ratio,
                "Containers that no unit keeps: the share of all processors' time that each uses.",
            )
            .ask(each("muster_container_cpu", "busy_ratio")),
            lines("Memory of other containers", ValueUnit::Bytes, "The memory that each holds.")
                .ask(each("muster_container_memory", "resident_bytes")),
            lines("Processes of other containers", ValueUnit::Count, "How many processes and threads each has.")
                .ask(each("muster_container_processes", "count")),
            lines(
                "Network of other containers",
                ValueUnit::BytesPerSecond,
                "What each receives and sends, of those that have a network of their own.",
            )
            .ask(carried("receive_bytes_total", "{container} received"))
            .ask(carried("transmit_bytes_total", "{container} sent")),
            lines("Written by other containers", ValueUnit::Bytes, "What each has written over its image.")
                .ask(each("muster_container_disk", "used_bytes")),
        ],
    )
}
