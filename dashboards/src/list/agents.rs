//! Dashboard of the agents themselves: their cost, and their backlog.

use super::filters::{HOSTNAME, HOSTS, host_variable};
use crate::{
    panel::{Dashboard, PanelLink, PanelRow, ValueUnit, bars, lines, number, row},
    query::{PanelQuery, SeriesFold, of, rate},
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "agents",
        title: "muster: agents",
        description: "What the agents cost their hosts, and whether they keep up with what they are asked.",
        since: "now-6h",
        variables: vec![host_variable(true)],
        rows: vec![now(), cost(), work()],
    }
}

fn on(query: PanelQuery) -> PanelQuery {
    query.only(&[HOSTS])
}

fn now() -> PanelRow {
    let greatest = |query: PanelQuery| on(query).fold(SeriesFold::Max, &[]);
    row(
        "Now",
        vec![
            number("Agents", ValueUnit::Count, "How many agents report their own measurements.")
                .ask(on(of("muster_agent_memory", "resident_bytes")).fold(SeriesFold::Count, &[])),
            number("Most memory", ValueUnit::Bytes, "What the largest agent has in memory.")
                .ask(greatest(of("muster_agent_memory", "resident_bytes"))),
            number("Most processor", ValueUnit::Ratio, "The share of one processor that the busiest agent uses.")
                .ask(greatest(of("muster_agent_cpu", "busy_ratio"))),
            number("Largest store", ValueUnit::Bytes, "The size of the largest agent's store on disk.")
                .ask(greatest(of("muster_agent_store", "size_bytes"))),
            number("Longest queue", ValueUnit::Count, "The most that waits in any queue of any agent.")
                .ask(greatest(of("muster_agent_queue", "length"))),
            number(
                "Longest unlooked at",
                ValueUnit::Seconds,
                "The longest time since an agent last looked at all its units.",
            )
            .ask(greatest(of("muster_agent_reconcile", "age_seconds"))),
        ],
    )
}

fn cost() -> PanelRow {
    let half = |query: PanelQuery| on(query).fold(SeriesFold::Percentile(50), &[]).named("median");
    let most = |query: PanelQuery| on(query).fold(SeriesFold::Max, &[]).named("greatest");
    let memory = || of("muster_agent_memory", "resident_bytes");
    let cpu = || of("muster_agent_cpu", "busy_ratio");
    let store = || of("muster_agent_store", "size_bytes");
    row(
        "What they cost",
        vec![
            lines("Memory", ValueUnit::Bytes, "What agents have in memory.").ask(half(memory())).ask(most(memory())),
            lines("Processor", ValueUnit::Ratio, "The share of one processor that agents use.")
                .ask(half(cpu()))
                .ask(most(cpu())),
            lines("Store", ValueUnit::Bytes, "The size of agents' stores on disk.")
                .ask(half(store()))
                .ask(most(store())),
            bars("Most memory", ValueUnit::Bytes, "The ten largest agents.")
                .wide(12)
                .link(PanelLink::Host)
                .ask(on(memory()).fold(SeriesFold::Max, HOSTNAME).top().named("{hostname}")),
        ],
    )
}

fn work() -> PanelRow {
    let by_queue = |fold| on(of("muster_agent_queue", "length")).fold(fold, &["queue"]);
    row(
        "Whether they keep up",
        vec![
            lines("Queues", ValueUnit::Count, "What waits in all agents together: a host that is offline keeps what it has to say.")
                .ask(by_queue(SeriesFold::Sum).named("{queue}")),
            bars("Longest queues", ValueUnit::Count, "The agents with the most that waits.")
                .wide(12)
                .link(PanelLink::Host)
                .ask(
                    on(of("muster_agent_queue", "length"))
                        .fold(SeriesFold::Max, &["hostname", "queue"])
                        .top()
                        .named("{hostname} {queue}"),
                ),
            lines("Connections made again", ValueUnit::PerSecond, "How often agents reconnect: if all do at once, the cause is the broker; if one does, its network.")
                .ask(on(rate("muster_agent_link", "reconnects_total")).fold(SeriesFold::Sum, &[]).named("all agents")),
            lines("Looking at units", ValueUnit::Seconds, "How long it is since agents last looked at all their units, and how long that took; the longest of each.")
                .ask(on(of("muster_agent_reconcile", "age_seconds")).fold(SeriesFold::Max, &[]).named("since then"))
                .ask(on(of("muster_agent_reconcile", "duration_seconds")).fold(SeriesFold::Max, &[]).named("took")),
        ],
    )
}
