//! Prometheus's query language over any source of series: what Grafana asks of the console, answered as Prometheus
//! answers it.
//!
//! The text is parsed and checked once ([`Query::parse`]) and evaluated at one time or at the steps of a range. The
//! meaning is that of Prometheus 2.42, which the tests ask the same questions: windows have both ends, a value is found
//! for five minutes after it was measured, and rates are extrapolated.
//!
//! Modules, in reading order:
//!
//! - [`labels`]: a series' name and labels
//! - [`matcher`]: which series a selector means
//! - [`source`]: where samples come from
//! - `tree`: a query, checked; `parse`: from text to it
//! - `eval`: a query's value at the steps of a range; `aggregate`, `binary` and `call` are its parts
//! - `window`: what each step looks at; `stretch`: where it is known in summaries alone, and what that may be wrong by
//! - `over`, `math`, `date`, `histogram`, `relabel`: functions; pure numbers and labels
//! - [`number`]: numbers and times as Prometheus writes them
//!
//! **Invariant: nothing here does IO but through [`Source`]**, and nothing knows the time but what it is told.
//!
//! **Invariant: a query costs a bounded amount**: of text, depth, steps, series and samples ([`Limits`]); and it ends
//! soon after its caller has had enough ([`Limits::enough`]).
//!
//! **Invariant: what is not understood is refused by name**, never answered with something else.
//!
//! A source may know of old times, or of long ones, nothing but summaries ([`Stretch`]): functions of what these hold are
//! answered, with a bounded error; others need samples.
//!
//! # What differs
//!
//! - Missing: native histograms and their functions, `holt_winters`, and what is newer than 2.42.
//! - A window that `@` fixes stays where it is, also in `predict_linear` and where another argument differs from step to
//!   step; Prometheus moves it there with the steps, which is a fault of it.
//! - In regular expressions `.` matches a line break too, as in Prometheus 3, and `\d`, `\w`, `\s` know all of Unicode.
//! - The date of what is no number, or lies 30,000 years away, is no number.
//! - Of equal values `topk` and `bottomk` may take others.

mod aggregate;
mod binary;
mod call;
mod date;
mod eval;
mod histogram;
pub mod labels;
pub mod matcher;
mod matcher_list;
mod math;
pub mod number;
mod over;
mod parse;
mod re2;
mod relabel;
pub mod source;
mod stretch;
mod summary;
pub mod text;
mod tree;
mod window;

use std::sync::Arc;

pub use self::{
    labels::{Labels, NAME},
    matcher::{Matcher, Test},
    matcher_list::Matchers,
    source::{Hints, STRETCH_MAX_MS, Sample, Source, SourceError, Stretch},
    summary::Summary,
};

/// A time in milliseconds since 1970.
pub type Millis = i64;

/// How long a value is found after it was measured, as Prometheus has it.
pub const LOOKBACK_MS: Millis = 300_000;
/// The step of a subquery that names none: Prometheus's default interval of evaluation.
pub const SUBQUERY_STEP_MS: Millis = 60_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no query, or asks for what there is not.
    #[error("{0}")]
    Query(String),
    /// The query cannot be answered over these series.
    #[error("{0}")]
    Execution(String),
    /// The query asks for too much.
    #[error("{0}")]
    Limit(String),
    /// The caller has had enough.
    #[error("the query took too long. hint: ask for a shorter range or fewer series")]
    Enough,
    /// The samples could not be had.
    #[error("the series cannot be read: {0}")]
    Source(SourceError),
}

/// What a query may cost.
#[derive(Clone)]
pub struct Limits {
    /// The most steps of a range.
    pub steps_max: usize,
    /// The most series that one selector may choose.
    pub series_max: usize,
    /// The most samples that may be read.
    pub samples_max: usize,
    /// The most values that any part of a query may have, all series and steps together.
    pub values_max: usize,
    /// Whether the caller has had enough; asked often.
    pub enough: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // As Prometheus has it: a point a second for three hours, a point a minute for a week.
            steps_max: 11_000,
            // A fleet of 10,000 hosts, each with a few of one name.
            series_max: 50_000,
            // As Prometheus has it.
            samples_max: 50_000_000,
            // 80 MB, of which a deep query holds a few at a time.
            values_max: 10_000_000,
            enough: Arc::new(|| false),
        }
    }
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps_max, series_max, samples_max, values_max, enough: _ } = self;
        f.debug_struct("Limits")
            .field("steps_max", steps_max)
            .field("series_max", series_max)
            .field("samples_max", samples_max)
            .field("values_max", values_max)
            .finish_non_exhaustive()
    }
}

/// The steps of a range: from `start_ms` by `step_ms` to at most `end_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first step.
    pub start_ms: Millis,
    /// Where it ends.
    pub end_ms: Millis,
    /// From one step to the next.
    pub step_ms: Millis,
}

/// A query's answer at one time.
#[derive(Clone, Debug, PartialEq)]
pub enum Instant {
    /// A number.
    Scalar(f64),
    /// A text.
    Text(String),
    /// A value of each series; in order if the query sorts.
    Vector(Vec<(Labels, f64)>),
    /// Samples of each series, oldest first.
    Matrix(Vec<(Labels, Vec<Sample>)>),
}

/// A query that was understood.
#[derive(Debug)]
pub struct Query {
    top: tree::Top,
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// If it is not one, or uses what is missing here.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { top: parse::query(text)? })
    }

    /// The answer at one time.
    ///
    /// # Errors
    /// If the series do not allow one, if it costs too much, or if they cannot be read.
    pub fn instant(&self, source: &dyn Source, at_ms: Millis, limits: &Limits) -> Result<Instant, Error> {
        let range = Range { start_ms: at_ms, end_ms: at_ms, step_ms: 1 };
        let mut evaluator = eval::Evaluator::new(source, limits, range);
        match &self.top {
            tree::Top::Text(text) => Ok(Instant::Text(text.clone())),
            tree::Top::Ranged(ranged) => Ok(Instant::Matrix(evaluator.samples(ranged)?)),
            tree::Top::Node(node) => Ok(match evaluator.eval(node, evaluator.steps())? {
                eval::Value::Scalar(values) => Instant::Scalar(values.first().copied().unwrap_or(f64::NAN)),
                eval::Value::Vector(series) => Instant::Vector(
                    series
                        .into_iter()
                        .filter_map(|one| {
                            let value = *one.values.first()?;
                            (!eval::is_absent(value)).then_some((one.labels, value))
                        })
                        .collect(),
                ),
            }),
        }
    }

    /// The answer at the steps of a range: values of each series, sorted by labels.
    ///
    /// # Errors
    /// As [`Self::instant`], and if the query gives no numbers or the range has too many steps.
    pub fn range(
        &self,
        source: &dyn Source,
        range: Range,
        limits: &Limits,
    ) -> Result<Vec<(Labels, Vec<Sample>)>, Error> {
        let node = match &self.top {
            tree::Top::Node(node) => node,
            tree::Top::Text(_) => return Err(not_for_range("string")),
            tree::Top::Ranged(_) => return Err(not_for_range("range vector")),
        };
        eval::check_range(range, limits)?;
        let mut evaluator = eval::Evaluator::new(source, limits, range);
        let steps = evaluator.steps();
        let series = match evaluator.eval(node, steps)? {
            eval::Value::Scalar(values) => vec![eval::Series { labels: Labels::default(), values }],
            eval::Value::Vector(series) => series,
        };
        let mut answer: Vec<_> = series
            .into_iter()
            .map(|one| (one.labels, steps.samples(&one.values)))
            .filter(|(_, s)| !s.is_empty())
            .collect();
        answer.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(answer)
    }
}

/// Reads a plain selector, as `series` and `labels` are asked with.
///
/// # Errors
/// If it is anything else.
pub fn selector(text: &str) -> Result<Matchers, Error> {
    if let tree::Top::Node(node) = parse::query(text)?
        && let tree::Expr::Selector(tree::Selector { matchers, at: None, offset_ms: 0 }) = node.expr
    {
        return Ok(matchers);
    }
    let hint = "hint: such as muster_host_cpu_busy_ratio{host=\"…\"}";
    Err(Error::Query(format!("{text:?} is no plain selector. {hint}")))
}

fn not_for_range(kind: &str) -> Error {
    Error::Query(format!("invalid expression type {kind:?} for range query, must be Scalar or instant Vector"))
}
