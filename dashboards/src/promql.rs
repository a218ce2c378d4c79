//! Queries in Prometheus's language.

use muster_topics::catalogue::REPEAT_S;

use crate::query::{PanelQuery, QueryValue, SeriesFilter, SeriesFold};

/// The text of a query with Grafana's variables.
#[must_use]
pub fn text(query: &PanelQuery) -> String {
    let mut text = match query.value {
        QueryValue::Field(field) if query.per_second => format!("rate({}[{}])", selector(query, field), window(query)),
        QueryValue::Field(field) => selector(query, field),
        QueryValue::Share(part, whole) => format!("{} / {}", selector(query, part), selector(query, whole)),
        QueryValue::Not(flag) => format!("1 - {}", selector(query, flag)),
        QueryValue::All => selector(query, ".+"),
    };
    if let Some(least) = query.above {
        text = match query.value {
            QueryValue::Field(_) | QueryValue::All => format!("{text} > {least}"),
            QueryValue::Share(..) | QueryValue::Not(_) => format!("({text}) > {least}"),
        };
    }
    if let Some(fold) = query.fold {
        let by = if query.by.is_empty() { String::new() } else { format!(" by ({}) ", query.by.join(", ")) };
        text = match fold {
            SeriesFold::Sum => format!("sum{by}({text})"),
            SeriesFold::Avg => format!("avg{by}({text})"),
            SeriesFold::Max => format!("max{by}({text})"),
            SeriesFold::Min => format!("min{by}({text})"),
            SeriesFold::Count => format!("count{by}({text})"),
            SeriesFold::Percentile(of_hundred) => {
                format!("quantile{by}({}, {text})", f64::from(of_hundred) / 100.0)
            }
        };
    }
    match query.top {
        Some(count) => format!("topk({count}, {text})"),
        None => text,
    }
}

/// Smallest step of a query, from which Grafana computes the window of rates: four steps. A rate needs two values, and
/// four steps contain two even if one is late. `None` if values are not written that often.
#[must_use]
pub fn step_s(query: &PanelQuery) -> Option<u32> {
    let every_s = query.every_s();
    (query.per_second && every_s < REPEAT_S).then(|| every_s.max(15))
}

fn window(query: &PanelQuery) -> &'static str {
    // Written when it changes, and every four minutes.
    if step_s(query).is_none() { "15m" } else { "$__rate_interval" }
}

fn selector(query: &PanelQuery, field: &str) -> String {
    let mut matchers: Vec<String> = query
        .only
        .iter()
        .map(|only| match only {
            SeriesFilter::Variable { label, name, many: true } => format!("{label}=~\"${name}\""),
            SeriesFilter::Variable { label, name, many: false } => format!("{label}=\"${name}\""),
            SeriesFilter::Is(label, value) => format!("{label}=\"{value}\""),
        })
        .collect();
    if query.value == QueryValue::All {
        matchers.insert(0, format!("__name__=~\"{}_{field}\"", query.measurement));
        return format!("{{{}}}", matchers.join(","));
    }
    let matchers = if matchers.is_empty() { String::new() } else { format!("{{{}}}", matchers.join(",")) };
    format!("{}_{field}{matchers}", query.measurement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{all, not, of, rate, share};

    #[test]
    fn each_step_has_its_text() {
        let host = SeriesFilter::Variable { label: "hostname", name: "host", many: false };
        let realm = SeriesFilter::Variable { label: "realm", name: "realm", many: true };
        for (query, wanted) in [
            (of("m", "f"), "m_f"),
            (all("m").only(&[realm]), "{__name__=~\"m_.+\",realm=~\"$realm\"}"),
            (rate("muster_agent_link", "reconnects_total"), "rate(muster_agent_link_reconnects_total[15m])"),
            (of("m", "f").only(&[host, SeriesFilter::Is("a", "b")]), "m_f{hostname=\"$host\",a=\"b\"}"),
            (
                rate("muster_host_disk_io", "reads_total").fold(SeriesFold::Sum, &["a", "b"]),
                "sum by (a, b) (rate(muster_host_disk_io_reads_total[$__rate_interval]))",
            ),
            (share("m", "p", "w").only(&[realm]).top(), "topk(10, m_p{realm=~\"$realm\"} / m_w{realm=~\"$realm\"})"),
            (share("m", "p", "w").above(0.5).fold(SeriesFold::Count, &[]), "count((m_p / m_w) > 0.5)"),
            (of("m", "f").above(0.0).fold(SeriesFold::Max, &["a"]), "max by (a) (m_f > 0)"),
            (not("m", "f").fold(SeriesFold::Percentile(95), &[]), "quantile(0.95, 1 - m_f)"),
        ] {
            assert_eq!(text(&query), wanted);
        }
    }
}
