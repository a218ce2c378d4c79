//! Prometheus's query language over any source of series, so that the console answers Grafana as Prometheus
//! would.
//!
//! The text is parsed and checked once ([`ParsedQuery::parse`]) and evaluated at one time or at the steps of a range. The
//! semantics are those of Prometheus 2.42, which the tests ask the same questions: windows include both ends, a value is found
//! for five minutes after its measurement, and rates are extrapolated.
//!
//! Modules, in reading order:
//!
//! - [`labels`]: a series' name and labels
//! - [`matcher`]: which series a selector matches
//! - [`source`]: the trait of a source of samples
//! - `tree`: a checked query; `parse`: parses text into one
//! - `eval`: evaluates a query at the steps of a range; `aggregate`, `binary` and `call` are its parts
//! - `window`: the samples of each step; `over_time_summaries`: the same from summaries, with the error bounds
//! - `over_time`, `math`, `date`, `histogram`, `relabel`: functions; pure numbers and labels
//! - [`number`]: numbers and times in Prometheus's format
//!
//! **Invariant: IO goes through [`Source`] alone**, and the time is a parameter.
//!
//! **Invariant: a query costs a bounded amount**: of text, depth, steps, series, samples, values and labels ([`QueryLimits`]); and it ends
//! soon after its caller has cancelled it ([`QueryLimits::enough`]).
//!
//! **Invariant: an unsupported feature is refused by name**, never answered with something else.
//!
//! A source may have only summaries of old or long ranges ([`SampleStretch`]): functions that can be computed from them are
//! answered, with a bounded error; others need samples.
//!
//! # Differences
//!
//! - Missing: native histograms and their functions, `holt_winters`, and everything newer than 2.42.
//! - A window fixed by `@` stays fixed, also in `predict_linear` and where another argument differs from step to
//!   step; Prometheus moves it there with the steps, which is a bug.
//! - In regular expressions `.` matches a line break too, as in Prometheus 3, and `\d`, `\w`, `\s` cover all of Unicode.
//! - Date functions of NaN, or of a time 30,000 years away, yield NaN.
//! - Among equal values `topk` and `bottomk` may choose others.

mod aggregate;
mod binary;
mod call;
mod date;
mod error;
mod eval;
mod histogram;
pub mod labels;
mod limits;
pub mod matcher;
mod matcher_list;
mod math;
pub mod number;
mod over_time;
mod over_time_summaries;
mod parse;
mod query_range;
mod re2;
mod relabel;
pub mod source;
mod summary;
pub mod text;
mod tree;
mod window;

pub use limits::QueryLimits;

pub use query_range::{LOOKBACK_MS, Millis, QueryRange, SUBQUERY_STEP_MS};

pub use error::Error;

pub use self::{
    labels::{Labels, NAME},
    matcher::{MatchOperator, Matcher},
    matcher_list::Matchers,
    source::{Hints, STRETCH_MAX_MS, SampleStretch, Source, SourceError, TimedValue},
    summary::StretchSummary,
};

/// The result of a query at one time.
#[derive(Clone, Debug, PartialEq)]
pub enum Instant {
    /// A number.
    Scalar(f64),
    /// A text.
    Text(String),
    /// One value of each series; sorted if the query sorts.
    Vector(Vec<(Labels, f64)>),
    /// Samples of each series, oldest first.
    Matrix(Vec<(Labels, Vec<TimedValue>)>),
}

/// A parsed query.
#[derive(Debug)]
pub struct ParsedQuery {
    top: tree::QueryRoot,
}

impl ParsedQuery {
    /// Parses a query.
    ///
    /// # Errors
    /// If the text is not a query, or uses an unsupported feature.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { top: parse::query(text)? })
    }

    /// The result at one time.
    ///
    /// # Errors
    /// If the series do not allow a result, if a limit is exceeded, or if they cannot be read.
    pub fn instant(&self, source: &dyn Source, at_ms: Millis, limits: &QueryLimits) -> Result<Instant, Error> {
        let range = QueryRange { start_ms: at_ms, end_ms: at_ms, step_ms: 1 };
        let mut evaluator = eval::Evaluator::new(source, limits, range);
        match &self.top {
            tree::QueryRoot::Text(text) => Ok(Instant::Text(text.clone())),
            tree::QueryRoot::Ranged(ranged) => Ok(Instant::Matrix(evaluator.samples(ranged)?)),
            tree::QueryRoot::Node(node) => Ok(match evaluator.eval(node, evaluator.steps())? {
                eval::NodeValue::Scalar(values) => Instant::Scalar(values.first().copied().unwrap_or(f64::NAN)),
                eval::NodeValue::Vector(series) => Instant::Vector(
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

    /// The result at the steps of a range: the values of each series, sorted by labels.
    ///
    /// # Errors
    /// As [`Self::instant`], and if the query does not return numbers or the range has too many steps.
    pub fn range(
        &self,
        source: &dyn Source,
        range: QueryRange,
        limits: &QueryLimits,
    ) -> Result<Vec<(Labels, Vec<TimedValue>)>, Error> {
        let node = match &self.top {
            tree::QueryRoot::Node(node) => node,
            tree::QueryRoot::Text(_) => return Err(not_for_range("string")),
            tree::QueryRoot::Ranged(_) => return Err(not_for_range("range vector")),
        };
        eval::check_range(range, limits)?;
        let mut evaluator = eval::Evaluator::new(source, limits, range);
        let steps = evaluator.steps();
        let series = match evaluator.eval(node, steps)? {
            eval::NodeValue::Scalar(values) => vec![eval::StepSeries { labels: Labels::default(), values }],
            eval::NodeValue::Vector(series) => series,
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

/// Parses a plain selector, as used by `series` and `labels`.
///
/// # Errors
/// If the text is anything else.
pub fn selector(text: &str) -> Result<Matchers, Error> {
    if let tree::QueryRoot::Node(node) = parse::query(text)?
        && let tree::Expr::Selector(tree::VectorSelector { matchers, at: None, offset_ms: 0 }) = node.expr
    {
        return Ok(matchers);
    }
    let hint = "such as muster_host_cpu_busy_ratio{host=\"…\"}";
    Err(Error::query(format!("{text:?} is not a plain selector")).with_hint(hint))
}

fn not_for_range(kind: &str) -> Error {
    Error::query(format!("invalid expression type {kind:?} for range query, must be Scalar or instant Vector"))
}
