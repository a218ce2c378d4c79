//! The agents themselves: what they cost, and whether they keep up.

use super::{HOSTNAME, HOSTS, host_variable};
use crate::{
    panel::{Dashboard, Link, Row, Unit, bars, lines, number, row},
    query::{Fold, Query, of, rate},
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

fn on(query: Query) -> Query {
    query.only(&[HOSTS])
}

fn now() -> Row {
    let greatest = |query: Query| on(query).fold(Fold::Max, &[]);
    row(
        "Now",
        vec![
            number("Agents", Unit::Count, "How many agents tell of themselves.")
                .ask(on(of("muster_agent_memory", "resident_bytes")).fold(Fold::Count, &[])),
            number("Most memory", Unit::Bytes, "What the largest agent has in memory.")
                .ask(greatest(of("muster_agent_memory", "resident_bytes"))),
            number("Most processor", Unit::Ratio, "The share of one processor that the busiest agent uses.")
                .ask(greatest(of("muster_agent_cpu", "busy_ratio"))),
            number("Largest store", Unit::Bytes, "The size of the largest agent's store on disk.")
                .ask(greatest(of("muster_agent_store", "size_bytes"))),
            number("Longest queue", Unit::Count, "The most that waits in any queue of any agent.")
                .ask(greatest(of("muster_agent_queue", "length"))),
            number(
                "Longest unlooked at",
                Unit::Seconds,
                "The longest time since an agent last looked at all its units.",
            )
            .ask(greatest(of("muster_agent_reconcile", "age_seconds"))),
        ],
    )
}

fn cost() -> Row {
    let half = |query: Query| on(query).fold(Fold::Percentile(50), &[]).named("median");
    let most = |query: Query| on(query).fold(Fold::Max, &[]).named("greatest");
    let memory = || of("muster_agent_memory", "resident_bytes");
    let cpu = || of("muster_agent_cpu", "busy_ratio");
    let store = || of("muster_agent_store", "size_bytes");
    row(
        "What they cost",
        vec![
            lines("Memory", Unit::Bytes, "What agents have in memory.").ask(half(memory())).ask(most(memory())),
            lines("Processor", Unit::Ratio, "The share of one processor that agents use.")
                .ask(half(cpu()))
                .ask(most(cpu())),
            lines("Store", Unit::Bytes, "The size of agents' stores on disk.").ask(half(store())).ask(most(store())),
            bars("Most memory", Unit::Bytes, "The ten largest agents.")
                .wide(12)
                .link(Link::Host)
                .ask(on(memory()).fold(Fold::Max, HOSTNAME).top().named("{hostname}")),
        ],
    )
}

fn work() -> Row {
    let by_queue = |fold| on(of("muster_agent_queue", "length")).fold(fold, &["queue"]);
    row(
        "Whether they keep up",
        vec![
            lines("Queues", Unit::Count, "What waits in all agents together: a host that is offline keeps what it has to say.")
                .ask(by_queue(Fold::Sum).named("{queue}")),
            bars("Longest queues", Unit::Count, "The agents with the most that waits.")
                .wide(12)
                .link(Link::Host)
                .ask(
                    on(of("muster_agent_queue", "length"))
                        .fold(Fold::Max, &["hostname", "queue"])
                        .top()
                        .named("{hostname} {queue}"),
                ),
            lines("Connections made again", Unit::PerSecond, "How often agents connect anew: all of them at once is the broker, one of them its network.")
                .ask(on(rate("muster_agent_link", "reconnects_total")).fold(Fold::Sum, &[]).named("all agents")),
            lines("Looking at units", Unit::Seconds, "How long it is since agents last looked at all their units, and how long that took; the longest of each.")
                .ask(on(of("muster_agent_reconcile", "age_seconds")).fold(Fold::Max, &[]).named("since then"))
                .ask(on(of("muster_agent_reconcile", "duration_seconds")).fold(Fold::Max, &[]).named("took")),
        ],
    )
}
