//! Queries in Prometheus's language.

use crate::query::{Fold, Only, Query, Value};

/// The text of a query, with Grafana's variables in it.
#[must_use]
pub fn text(query: &Query) -> String {
    let mut text = match query.value {
        Value::Field(field) if query.per_second => format!("rate({}[$__rate_interval])", selector(query, field)),
        Value::Field(field) => selector(query, field),
        Value::Share(part, whole) => format!("{} / {}", selector(query, part), selector(query, whole)),
        Value::Not(flag) => format!("1 - {}", selector(query, flag)),
    };
    if let Some(least) = query.above {
        text = match query.value {
            Value::Field(_) => format!("{text} > {least}"),
            Value::Share(..) | Value::Not(_) => format!("({text}) > {least}"),
        };
    }
    if let Some(fold) = query.fold {
        let by = if query.by.is_empty() { String::new() } else { format!(" by ({}) ", query.by.join(", ")) };
        text = match fold {
            Fold::Sum => format!("sum{by}({text})"),
            Fold::Avg => format!("avg{by}({text})"),
            Fold::Max => format!("max{by}({text})"),
            Fold::Min => format!("min{by}({text})"),
            Fold::Count => format!("count{by}({text})"),
            Fold::Percentile(of_hundred) => {
                format!("quantile{by}({}, {text})", f64::from(of_hundred) / 100.0)
            }
        };
    }
    match query.top {
        Some(count) => format!("topk({count}, {text})"),
        None => text,
    }
}

fn selector(query: &Query, field: &str) -> String {
    let matchers: Vec<String> = query
        .only
        .iter()
        .map(|only| match only {
            Only::Variable { label, name, many: true } => format!("{label}=~\"${name}\""),
            Only::Variable { label, name, many: false } => format!("{label}=\"${name}\""),
            Only::Is(label, value) => format!("{label}=\"{value}\""),
        })
        .collect();
    let matchers = if matchers.is_empty() { String::new() } else { format!("{{{}}}", matchers.join(",")) };
    format!("{}_{field}{matchers}", query.measurement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{not, of, rate, share};

    #[test]
    fn each_step_has_its_text() {
        let host = Only::Variable { label: "hostname", name: "host", many: false };
        let realm = Only::Variable { label: "realm", name: "realm", many: true };
        for (query, wanted) in [
            (of("m", "f"), "m_f"),
            (of("m", "f").only(&[host, Only::Is("a", "b")]), "m_f{hostname=\"$host\",a=\"b\"}"),
            (rate("m", "f_total").fold(Fold::Sum, &["a", "b"]), "sum by (a, b) (rate(m_f_total[$__rate_interval]))"),
            (share("m", "p", "w").only(&[realm]).top(), "topk(10, m_p{realm=~\"$realm\"} / m_w{realm=~\"$realm\"})"),
            (share("m", "p", "w").above(0.5).fold(Fold::Count, &[]), "count((m_p / m_w) > 0.5)"),
            (of("m", "f").above(0.0).fold(Fold::Max, &["a"]), "max by (a) (m_f > 0)"),
            (not("m", "f").fold(Fold::Percentile(95), &[]), "quantile(0.95, 1 - m_f)"),
        ] {
            assert_eq!(text(&query), wanted);
        }
    }
}
