//! What was measured, beside what it should be.

/// Budgets: of memory for each program, of that the direct supervisor's, of all together at rest, and against runit.
const MEMORY_MAX_KB: f64 = 190.0;
const SHIM_MAX_KB: f64 = 250.0;
const CPU_MAX_PERCENT: f64 = 0.05;
const WAKES_MAX: f64 = 1.0;
const SLOWER_THAN_RUNIT_MAX: f64 = 1.2;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    StartAll,
    KilledToMain,
    KilledToMain99,
    Memory,
    MemoryMost,
    Direct,
    Processor,
    Wakes,
    Copies,
    SamePid,
}

impl Row {
    fn what(self) -> &'static str {
        match self {
            Self::StartAll => "start of all, ms",
            Self::KilledToMain => "killed -> next main, median, ms",
            Self::KilledToMain99 => "killed -> next main, p99, ms",
            Self::Memory => "memory of the supervisor for each program (PSS), mean, KB",
            Self::MemoryMost => "  the most",
            Self::Direct => "  of the mean, the direct supervisor",
            Self::Processor => "processor at rest, all together, % of a core",
            Self::Wakes => "wake-ups at rest, all together, /s",
            Self::Copies => "copies after the direct supervisor was killed",
            Self::SamePid => "  one and the same process (1: yes)",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::StartAll | Self::Copies | Self::SamePid => format!("{value:.0}"),
            Self::KilledToMain | Self::KilledToMain99 | Self::Processor => format!("{value:.2}"),
            Self::Memory | Self::MemoryMost | Self::Direct | Self::Wakes => format!("{value:.1}"),
        }
    }
}

/// All figures, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Table(Vec<(Row, Vec<(&'static str, f64)>)>);

impl Table {
    pub(crate) fn put(&mut self, row: Row, subject: &'static str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == row) {
            Some((_, values)) => values.push((subject, value)),
            None => self.0.push((row, vec![(subject, value)])),
        }
    }

    /// Prints all rows; returns whether a budget was missed.
    pub(crate) fn print(&self) -> bool {
        let mut subjects: Vec<&str> = Vec::new();
        for (subject, _) in self.0.iter().flat_map(|(_, values)| values) {
            if !subjects.contains(subject) {
                subjects.push(subject);
            }
        }
        let heads: String = subjects.iter().map(|subject| format!("{subject:>13}")).collect();
        println!("{:<60}{heads}", "");
        let mut missed = false;
        for (row, values) in &self.0 {
            let of = |subject: &str| values.iter().find(|(whose, _)| *whose == subject).map(|(_, value)| *value);
            let cells: String = subjects
                .iter()
                .map(|subject| format!("{:>13}", of(subject).map_or_else(String::new, |value| row.show(value))))
                .collect();
            let verdict = of("muster").and_then(|own| verdict(*row, own, of("runit")));
            missed |= verdict.as_ref().is_some_and(|(met, _)| !met);
            let verdict = verdict
                .map_or_else(String::new, |(met, bound)| format!("  {bound}  {}", if met { "ok" } else { "MISSED" }));
            println!("{:<60}{cells}{verdict}", row.what());
        }
        missed
    }
}

/// Whether muster meets its budget, and its value. `None` if the other side is missing.
fn verdict(row: Row, own: f64, runit: Option<f64>) -> Option<(bool, String)> {
    match row {
        Row::KilledToMain => {
            let bound = runit? * SLOWER_THAN_RUNIT_MAX;
            Some((own <= bound, format!("≤ {bound:.2} ({SLOWER_THAN_RUNIT_MAX} × runit)")))
        }
        Row::Memory => Some((own <= MEMORY_MAX_KB, format!("≤ {MEMORY_MAX_KB:.0}"))),
        Row::Direct => Some((own <= SHIM_MAX_KB, format!("≤ {SHIM_MAX_KB:.0}"))),
        Row::Processor => Some((own <= CPU_MAX_PERCENT, format!("≤ {CPU_MAX_PERCENT}"))),
        Row::Wakes => Some((own <= WAKES_MAX, format!("≤ {WAKES_MAX}"))),
        Row::Copies | Row::SamePid => Some((own == 1.0, "= 1".to_owned())),
        _ => None,
    }
}
