//! What was measured, beside what it should be.

use crate::{common::spread::Spread, subject::Kind};

/// The unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Kilobytes,
    /// Per second, where more is better. For all other units less is better.
    Rate,
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Kilobytes => "KB",
            Self::Rate => "/s",
            Self::Count => "",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => format!("{value:.3}"),
            Self::Milliseconds | Self::Kilobytes => format!("{value:.1}"),
            Self::Microseconds | Self::Rate | Self::Count => format!("{value:.0}"),
        }
    }
}

/// The budget of the embedded broker.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Budget {
    None,
    /// At least this many times as fast as the peer in the same run.
    Peer(f64),
    /// At most this many times as long as the handshakes alone in the same run.
    Bare(f64),
    /// At most this.
    AtMost(f64),
}

/// One row of the table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Metric {
    what: String,
    unit: Unit,
    budget: Budget,
}

impl Metric {
    pub(crate) fn new(what: String, unit: Unit, budget: Budget) -> Self {
        Self { what, unit, budget }
    }
}

/// A figure of one round.
pub(crate) type Sample = (Metric, f64);

/// All figures.
#[derive(Default)]
pub(crate) struct Table(Vec<(Metric, Vec<(Kind, f64)>)>);

impl Table {
    pub(crate) fn put(&mut self, kind: Kind, (metric, value): Sample) {
        match self.0.iter_mut().find(|(known, _)| *known == metric) {
            Some((_, values)) => values.push((kind, value)),
            None => self.0.push((metric, vec![(kind, value)])),
        }
    }

    /// Prints all rows; returns whether a budget was missed.
    pub(crate) fn print(&self) -> bool {
        println!("{:<58} {:<3} {:<11} {:>10} {:>10} {:>10}", "", "", "", "min", "median", "max");
        let mut missed = false;
        for (metric, values) in &self.0 {
            for kind in Kind::ALL {
                let Some(found) = spread(values, kind) else { continue };
                let what = if values[0].0 == kind { metric.what.as_str() } else { "" };
                let [min, median, max] =
                    [found.least(), found.median(), found.most()].map(|value| metric.unit.show(value));
                let verdict = if kind == Kind::Muster { metric.verdict(found.median(), values) } else { None };
                missed |= verdict.as_ref().is_some_and(|(met, _)| !met);
                let verdict = verdict.map_or_else(String::new, |(met, bound)| {
                    format!("  {bound}  {}", if met { "ok" } else { "MISSED" })
                });
                let (name, unit) = (kind.name(), metric.unit.name());
                println!("{what:<58} {unit:<3} {name:<11} {min:>10} {median:>10} {max:>10}{verdict}");
            }
        }
        missed
    }
}

impl Metric {
    /// Whether the budget is met, and its value. `None` if the other side is missing.
    fn verdict(&self, measured: f64, values: &[(Kind, f64)]) -> Option<(bool, String)> {
        let show = |bound| self.unit.show(bound);
        let (met, bound) = match self.budget {
            Budget::None => return None,
            Budget::AtMost(bound) => (measured <= bound, format!("≤ {}", show(bound))),
            Budget::Bare(factor) => {
                let bound = spread(values, Kind::Bare)?.median() * factor;
                (measured <= bound, format!("≤ {} ({factor} × the handshakes)", show(bound)))
            }
            Budget::Peer(factor) => {
                let peer = spread(values, Kind::Mosquitto)?.median();
                if self.unit == Unit::Rate {
                    (measured >= peer * factor, format!("≥ {} ({factor} × mosquitto)", show(peer * factor)))
                } else {
                    (measured <= peer / factor, format!("≤ {} (mosquitto / {factor})", show(peer / factor)))
                }
            }
        };
        Some((met, bound))
    }
}

/// The distribution of the values of one server, if there are any.
fn spread(values: &[(Kind, f64)], kind: Kind) -> Option<Spread<f64>> {
    let own: Vec<f64> = values.iter().filter(|(whose, _)| *whose == kind).map(|(_, value)| *value).collect();
    (!own.is_empty()).then(|| Spread::of(own))
}
