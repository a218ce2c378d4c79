//! The findings as text.

use muster_base::failure::{Failure, FailureKind};
use serde::Serialize;

use crate::check::{self, Finding, Verdict};

/// A report of all findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the program that checked.
    pub version: String,
    /// The worst verdict.
    pub verdict: Verdict,
    /// All findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Makes one.
    #[must_use]
    pub fn new(version: &str, findings: Vec<Finding>) -> Self {
        Self { version: version.to_owned(), verdict: check::worst(&findings), findings }
    }

    /// The findings as lines, each remedy below its finding, and a line that sums them up.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.findings.iter().map(|one| one.check.len()).max().unwrap_or_default();
        let mut text = String::new();
        for one in &self.findings {
            let Finding { part, check, verdict, finding, remedy } = one;
            let (verdict, part) = (verdict.as_str(), part.as_str());
            text += format!("{verdict:<8} {part:<8} {check:<width$}  {finding}").trim_end();
            text.push('\n');
            if let Some(remedy) = remedy {
                text += &format!("         -> {remedy}\n");
            }
        }
        text + "\n" + &self.summary() + "\n"
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|one| one.verdict == verdict).count()
    }

    fn summary(&self) -> String {
        let plural =
            |count: usize, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
        match (self.count(Verdict::Problem), self.count(Verdict::Warning)) {
            (0, 0) => "no problems".to_owned(),
            (problems, warnings) => format!("{}, {}", plural(problems, "problem"), plural(warnings, "warning")),
        }
    }

    /// Nothing if there is no problem; else a failure that has been printed already.
    ///
    /// # Errors
    /// If there is a problem.
    pub fn outcome(&self) -> Result<(), Failure> {
        if self.verdict == Verdict::Problem { Err(Failure::silent(FailureKind::Failed)) } else { Ok(()) }
    }
}
