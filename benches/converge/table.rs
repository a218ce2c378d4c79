//! What was measured, beside what it should be.

/// How many times faster than the faster peer a run in which nothing has changed should be.
const FASTER_MIN: f64 = 10.0;
/// The longest that somebody else's change may last.
const DRIFT_MAX_MS: f64 = 1_000.0;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    First,
    FirstSaid,
    Rest,
    RestMost,
    RestBusy,
    Look,
    LookMost,
    Processor,
    Memory,
    Shims,
    RunMemory,
    Drift,
    DriftMost,
    Packages,
    PackagesRest,
    PackagesRestMost,
    PackagesRestBusy,
    PackagesProcessor,
}

impl Row {
    fn what(self) -> &'static str {
        match self {
            Self::First => "first run, until everything is there, s",
            Self::FirstSaid => "first run, until it says so, s",
            Self::Rest => "nothing has changed: the same again, mean, ms",
            Self::RestMost => "  maximum, ms",
            Self::RestBusy => "  processor of all that takes part, mean, ms",
            Self::Look => "the agent looks at all files, mean, ms",
            Self::LookMost => "  maximum, ms",
            Self::Processor => "agent and shims at rest, % of a core",
            Self::Memory => "memory of the agent (PSS), MB",
            Self::Shims => "memory of all shims (PSS), MB",
            Self::RunMemory => "memory of a run, at most (PSS), MB",
            Self::Drift => "changed by somebody else -> as before, mean, ms",
            Self::DriftMost => "  maximum, ms",
            Self::Packages => "packages: first run, until it says so, s",
            Self::PackagesRest => "packages: the same again, mean, ms",
            Self::PackagesRestMost => "  maximum, ms",
            Self::PackagesRestBusy => "  processor of all that takes part, mean, ms",
            Self::PackagesProcessor => "agent and shims at rest, with packages, % of a core",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::First | Self::FirstSaid | Self::Packages => format!("{value:.2}"),
            Self::Look | Self::LookMost | Self::Processor | Self::PackagesProcessor => format!("{value:.3}"),
            _ => format!("{value:.1}"),
        }
    }
}

/// All figures, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Table(Vec<(Row, Vec<(String, f64)>)>);

impl Table {
    pub(crate) fn put(&mut self, row: Row, subject: &str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == row) {
            Some((_, values)) => values.push((subject.to_owned(), value)),
            None => self.0.push((row, vec![(subject.to_owned(), value)])),
        }
    }

    /// Prints all rows; returns whether a budget was missed.
    pub(crate) fn print(&self) -> bool {
        let mut subjects: Vec<&str> = Vec::new();
        for (subject, _) in self.0.iter().flat_map(|(_, values)| values) {
            if !subjects.contains(&subject.as_str()) {
                subjects.push(subject);
            }
        }
        let heads: String = subjects.iter().map(|subject| format!("{subject:>12}")).collect();
        println!("{:<54}{heads}", "");
        let mut missed = false;
        for (row, values) in &self.0 {
            let of = |subject: &str| values.iter().find(|(whose, _)| whose == subject).map(|(_, value)| *value);
            let cells: String = subjects
                .iter()
                .map(|subject| format!("{:>12}", of(subject).map_or_else(String::new, |value| row.show(value))))
                .collect();
            let peers = values.iter().filter(|(whose, _)| whose != "muster").map(|(_, value)| *value);
            let verdict = of("muster").and_then(|own| verdict(*row, own, peers.reduce(f64::min)));
            missed |= verdict.as_ref().is_some_and(|(met, _)| !met);
            let verdict = verdict
                .map_or_else(String::new, |(met, bound)| format!("  {bound}  {}", if met { "ok" } else { "MISSED" }));
            println!("{:<54}{cells}{verdict}", row.what());
        }
        missed
    }
}

/// Whether muster meets its budget, and that. `None` if there is none, or nobody to compare with.
fn verdict(row: Row, own: f64, fastest: Option<f64>) -> Option<(bool, String)> {
    match row {
        Row::Rest | Row::RestBusy | Row::PackagesRest | Row::PackagesRestBusy => {
            let times = fastest? / own;
            Some((times >= FASTER_MIN, format!("≥ {FASTER_MIN} × faster: {times:.0} ×")))
        }
        Row::DriftMost => Some((own <= DRIFT_MAX_MS, format!("≤ {DRIFT_MAX_MS:.0}"))),
        _ => None,
    }
}
