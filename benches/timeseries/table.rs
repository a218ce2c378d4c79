//! What was measured, beside what it should be.

use std::collections::BTreeMap;

/// The subject of a figure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(crate) enum Subject {
    Muster,
    VictoriaMetrics,
    Prometheus,
    #[value(name = "influxdb")]
    InfluxDb,
}

impl Subject {
    pub(crate) const ALL: [Self; 4] = [Self::Muster, Self::VictoriaMetrics, Self::Prometheus, Self::InfluxDb];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Muster => "muster",
            Self::VictoriaMetrics => "victoria-metrics",
            Self::Prometheus => "prometheus",
            Self::InfluxDb => "influxdb",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    Bulk,
    Settle,
    Bytes,
    Raw,
    Memory,
    Slow,
    SlowSealing,
    SlowMemory,
    Hour,
    Fresh,
    Day,
    Average,
    Query,
    Fives,
}

impl Row {
    const ALL: [Self; 14] = [
        Self::Bulk,
        Self::Settle,
        Self::Bytes,
        Self::Raw,
        Self::Memory,
        Self::Slow,
        Self::SlowSealing,
        Self::SlowMemory,
        Self::Hour,
        Self::Fresh,
        Self::Day,
        Self::Average,
        Self::Query,
        Self::Fives,
    ];

    fn what(self) -> &'static str {
        match self {
            Self::Bulk => "bulk, points/s",
            Self::Settle => "  rolling up or merging that, s",
            Self::Bytes => "bytes a point, everything",
            Self::Raw => "  without summaries",
            Self::Memory => "resident after that, MB",
            Self::Slow => "1,000 hosts with 20 series each, % of a core",
            Self::SlowSealing => "  of that, sealing the hour",
            Self::SlowMemory => "  resident then, MB",
            Self::Hour => "an hour of one series, us",
            Self::Fresh => "  half an hour that is not sealed, us",
            Self::Day => "200 series x 24 h at 1 min, ms",
            Self::Average => "avg by (host) over that, ms",
            Self::Query => "  the same asked as PromQL, ms",
            Self::Fives => "the same by five minutes, from summaries, ms",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Bulk | Self::Hour | Self::Fresh => format!("{value:.0}"),
            Self::Memory | Self::SlowMemory => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }

    /// The budget of the embedded store: at least, or at most.
    fn budget(self) -> Option<(bool, f64)> {
        match self {
            Self::Bulk => Some((true, 2e6)),
            Self::Bytes => Some((false, 1.4)),
            Self::Memory => Some((false, 50.0)),
            Self::Slow => Some((false, 2.0)),
            _ => None,
        }
    }
}

/// All figures.
#[derive(Default, Debug)]
pub(crate) struct Table(BTreeMap<(Row, Subject), f64>);

impl Table {
    pub(crate) fn put(&mut self, subject: Subject, row: Row, value: f64) {
        eprintln!("{:18} {:48} {}", subject.name(), row.what(), row.show(value));
        self.0.insert((row, subject), value);
    }

    /// Prints the table; returns whether a budget was missed.
    pub(crate) fn print(&self) -> bool {
        let mut missed = false;
        let [ours, one, other, third] = Subject::ALL.map(Subject::name);
        println!("{:48} {ours:>10} {one:>18} {other:>12} {third:>10}  budget", "");
        for row in Row::ALL {
            let cell = |subject| self.0.get(&(row, subject)).map_or("-".to_owned(), |value| row.show(*value));
            let [ours, one, other, third] = Subject::ALL.map(cell);
            let verdict = match (row.budget(), self.0.get(&(row, Subject::Muster))) {
                (Some((at_least, wanted)), Some(found)) => {
                    let met = if at_least { *found >= wanted } else { *found <= wanted };
                    missed |= !met;
                    let sign = if at_least { ">=" } else { "<=" };
                    format!("{sign} {}{}", row.show(wanted), if met { "" } else { "  MISSED" })
                }
                _ => String::new(),
            };
            println!("{:48} {ours:>10} {one:>18} {other:>12} {third:>10}  {verdict}", row.what());
        }
        missed
    }
}
