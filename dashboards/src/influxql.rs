//! Queries in InfluxQL, as InfluxDB 1, 2 and 3 understand it.
//!
//! A series' value in an interval is its last one; its present value is the last one of five minutes, as in PromQL. Aggregations read
//! from a subquery with a value of each series.

use muster_topics::catalogue::measurement;

use crate::query::{PanelQuery, QueryValue, SeriesFilter, SeriesFold};

/// The form of a query's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultForm {
    /// Values over time.
    Range,
    /// The current value.
    Now,
}

impl ResultForm {
    /// The time range of the form.
    fn when(self) -> &'static str {
        match self {
            Self::Range => "$timeFilter",
            Self::Now => "time > ${__to}ms - 5m AND time <= ${__to}ms",
        }
    }
}

/// The text of a query with Grafana's variables; `column` is the name of its column.
#[must_use]
pub fn text(query: &PanelQuery, form: ResultForm, column: &str) -> String {
    let labels = |labels: &[&str]| labels.iter().map(|label| format!("\"{label}\"")).collect::<Vec<_>>();
    let by = labels(query.by);
    let tags = labels(measurement(query.measurement).map(|one| one.labels).unwrap_or_default());
    let fold = query.fold.map(|fold| match fold {
        SeriesFold::Sum => "sum(\"v\")".to_owned(),
        SeriesFold::Avg => "mean(\"v\")".to_owned(),
        SeriesFold::Max => "max(\"v\")".to_owned(),
        SeriesFold::Min => "min(\"v\")".to_owned(),
        SeriesFold::Count => "count(\"v\")".to_owned(),
        SeriesFold::Percentile(of_hundred) => format!("percentile(\"v\", {of_hundred})"),
    });
    // The current rate is the last of several.
    let last = (form == ResultForm::Now && query.per_second).then(|| "last(\"v\")".to_owned());
    let when = form.when();
    let kept = query.above.map(|least| format!(" AND \"v\" > {least}")).unwrap_or_default();
    let text = match (fold, last) {
        (None, None) if query.above.is_none() => innermost(query, form, &by, column),
        (None, last) => {
            let inner = innermost(query, form, &tags, "v");
            let value = last.unwrap_or_else(|| "last(\"v\")".to_owned());
            format!("SELECT {value} AS \"{column}\" FROM ({inner}) WHERE {when}{kept}{}", grouped(form, &by))
        }
        (Some(fold), last) => {
            let mut inner = innermost(query, form, &tags, "v");
            if let Some(last) = last {
                inner = format!("SELECT {last} AS \"v\" FROM ({inner}) WHERE {when}{}", grouped(form, &tags));
            }
            format!("SELECT {fold} AS \"{column}\" FROM ({inner}) WHERE {when}{kept}{}", grouped(form, &by))
        }
    };
    match query.top {
        Some(count) => {
            let labels = by.iter().map(|label| format!(", {label}")).collect::<String>();
            format!("SELECT top(\"{column}\", {count}) AS \"{column}\"{labels} FROM ({text}) WHERE {when}")
        }
        None => text,
    }
}

/// The values of each series.
fn innermost(query: &PanelQuery, form: ResultForm, by: &[String], column: &str) -> String {
    let value = match query.value {
        QueryValue::Field(field) if query.per_second => format!("non_negative_derivative(last(\"{field}\"), 1s)"),
        QueryValue::Field(field) => format!("last(\"{field}\")"),
        QueryValue::Share(part, whole) => format!("last(\"{part}\") / last(\"{whole}\")"),
        QueryValue::Not(flag) => format!("1 - last(\"{flag}\")"),
        QueryValue::All => "last(*)".to_owned(),
    };
    let only: String = query
        .only
        .iter()
        .map(|only| match only {
            SeriesFilter::Variable { label, name, .. } => format!(" AND \"{label}\" =~ /^${name}$/"),
            SeriesFilter::Is(label, wanted) => format!(" AND \"{label}\" = '{wanted}'"),
        })
        .collect();
    let when = form.when();
    let mut grouped = match form {
        // A rate needs values over time, even if only the last one is shown.
        ResultForm::Now if query.per_second => self::grouped(ResultForm::Range, by).replace("$__interval", "30s"),
        form => self::grouped(form, by),
    };
    // A value that is written when it changes, and every few minutes, is valid until the next.
    if query.every_s() >= INTERVAL_MAX_S && query.value != QueryValue::All {
        grouped = grouped.replace("fill(none)", "fill(previous)");
    }
    let named = if query.value == QueryValue::All { String::new() } else { format!(" AS \"{column}\"") };
    format!("SELECT {value}{named} FROM \"{}\" WHERE {when}{only}{grouped}", query.measurement)
}

/// Upper limit of [`interval_s`].
const INTERVAL_MAX_S: u32 = 120;

/// Smallest interval for the queries of one panel: it contains two values of each, so that sums are complete.
#[must_use]
pub fn interval_s(queries: &[PanelQuery]) -> u32 {
    let often = queries.iter().map(PanelQuery::every_s).filter(|every_s| 2 * every_s <= INTERVAL_MAX_S);
    often.max().map_or(60, |every_s| (2 * every_s).max(30))
}

fn grouped(form: ResultForm, by: &[String]) -> String {
    let time = (form == ResultForm::Range).then(|| "time($__interval)".to_owned());
    let groups: Vec<String> = time.into_iter().chain(by.iter().cloned()).collect();
    match (groups.is_empty(), form) {
        (true, _) => String::new(),
        (false, ResultForm::Range) => format!(" GROUP BY {} fill(none)", groups.join(", ")),
        (false, ResultForm::Now) => format!(" GROUP BY {}", groups.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{of, rate};

    #[test]
    fn each_form_has_its_text() {
        const NOW: &str = "time > ${__to}ms - 5m AND time <= ${__to}ms";
        let host = SeriesFilter::Variable { label: "hostname", name: "host", many: false };
        let load = of("muster_host_load", "1m").only(&[host]);
        assert_eq!(
            text(&load, ResultForm::Range, "v"),
            "SELECT last(\"1m\") AS \"v\" FROM \"muster_host_load\" WHERE $timeFilter AND \"hostname\" =~ /^$host$/ \
             GROUP BY time($__interval) fill(none)"
        );
        assert_eq!(
            text(&load.fold(SeriesFold::Avg, &["hostname"]), ResultForm::Now, "v"),
            "SELECT mean(\"v\") AS \"v\" FROM (SELECT last(\"1m\") AS \"v\" FROM \"muster_host_load\" WHERE {NOW} AND \
             \"hostname\" =~ /^$host$/ GROUP BY \"host\", \"hostname\") WHERE {NOW} GROUP BY \"hostname\""
                .replace("{NOW}", NOW)
        );
        assert_eq!(
            text(&rate("muster_agent_link", "reconnects_total").fold(SeriesFold::Sum, &["hostname"]).top(), ResultForm::Now, "v"),
            "SELECT top(\"v\", 10) AS \"v\", \"hostname\" FROM (SELECT sum(\"v\") AS \"v\" FROM (SELECT last(\"v\") AS \"v\" FROM \
             (SELECT non_negative_derivative(last(\"reconnects_total\"), 1s) AS \"v\" FROM \"muster_agent_link\" WHERE {NOW} \
             GROUP BY time(30s), \"host\", \"hostname\" fill(previous)) WHERE {NOW} GROUP BY \"host\", \"hostname\") WHERE {NOW} \
             GROUP BY \"hostname\") WHERE {NOW}"
                .replace("{NOW}", NOW)
        );
    }
}
