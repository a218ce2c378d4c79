//! Evaluates a query at the steps of a range.
//!
//! A vector is kept by series, each with one value for each step, so that work on labels alone (groups, matching,
//! relabelling) is done once and not at each step. Where possible series are processed one after another: an aggregation over a
//! selector or over a function of windows holds the samples of one series at a time.
//!
//! **Invariant: no two series of a value have the same labels.**

use std::collections::{HashMap, HashSet};

use super::{
    labels::Labels,
    source::{Source, TimedValue},
};
use crate::{
    error::Error,
    limits::{PARTS_MAX, QueryLimits},
    over_time::{OverTimeFunction, SampleWindow},
    query_range::{LOOKBACK_MS, Millis, QueryRange},
    tree::{Expr, QueryNode, RangeVector, VectorSelector},
    window::{WindowPurpose, reference, slide},
};

/// Marks a series without a value at a step. It is Prometheus's staleness marker, which no arithmetic operation
/// produces.
pub(crate) const ABSENT: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// Whether the value is missing.
pub(crate) fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// The error of two series with the same labels.
pub(crate) fn same_labels() -> Error {
    Error::execution("vector cannot contain metrics with the same labelset")
}

/// A series and its value at each step.
#[derive(Clone, Debug)]
pub(crate) struct StepSeries {
    pub(crate) labels: Labels,
    pub(crate) values: Vec<f64>,
}

/// The value of a node.
#[derive(Debug)]
pub(crate) enum NodeValue {
    Scalar(Vec<f64>),
    Vector(Vec<StepSeries>),
}

impl NodeValue {
    /// The number of its values.
    fn size(&self) -> usize {
        match self {
            Self::Scalar(values) => values.len(),
            Self::Vector(series) => series.iter().map(|one| one.values.len()).sum(),
        }
    }
}

/// The times at which a node is evaluated; at least one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvalSteps {
    pub(crate) start_ms: Millis,
    pub(crate) step_ms: Millis,
    pub(crate) count: usize,
}

impl EvalSteps {
    pub(crate) fn time(&self, index: usize) -> Millis {
        let index = Millis::try_from(index).unwrap_or(Millis::MAX);
        self.start_ms.saturating_add(self.step_ms.saturating_mul(index))
    }

    fn last(&self) -> Millis {
        self.time(self.count.saturating_sub(1))
    }

    /// The values that exist, with their times.
    pub(crate) fn samples(&self, values: &[f64]) -> Vec<TimedValue> {
        let present = values.iter().enumerate().filter(|(_, value)| !is_absent(**value));
        present.map(|(index, value)| (self.time(index), *value)).collect()
    }
}

/// Whether a range is valid.
pub(crate) fn check_range(range: QueryRange, limits: &QueryLimits) -> Result<(), Error> {
    let QueryRange { start_ms, end_ms, step_ms } = range;
    if step_ms <= 0 {
        return Err(Error::query(
            "zero or negative query resolution step widths are not accepted. Try a positive integer".to_owned(),
        ));
    }
    if end_ms < start_ms {
        return Err(Error::query("end timestamp must not be before start time"));
    }
    // As in Prometheus, intervals are counted, not their ends.
    if usize::try_from(end_ms.saturating_sub(start_ms) / step_ms).is_ok_and(|steps| steps <= limits.steps_max) {
        Ok(())
    } else {
        Err(Error::query(format!(
            "exceeded maximum resolution of {} points per timeseries. Try decreasing the query resolution (?step=XX)",
            limits.steps_max
        )))
    }
}

pub(crate) type SeriesSink<'s> = &'s mut dyn FnMut(StepSeries) -> Result<(), Error>;
/// The value of a window at a step, which is given by its index.
pub(crate) type WindowFunction<'m> = &'m dyn Fn(usize, &SampleWindow<'_>) -> Option<f64>;

pub(crate) struct Evaluator<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) limits: &'a QueryLimits,
    pub(crate) range: QueryRange,
    /// Number of samples and stretches that were read.
    pub(crate) samples: usize,
    /// Number of values that parts which are evaluated hold, while another part is evaluated.
    held: usize,
}

impl<'a> Evaluator<'a> {
    pub(crate) fn new(source: &'a dyn Source, limits: &'a QueryLimits, range: QueryRange) -> Self {
        Self { source, limits, range, samples: 0, held: 0 }
    }

    /// The steps of the whole query.
    pub(crate) fn steps(&self) -> EvalSteps {
        let QueryRange { start_ms, end_ms, step_ms } = self.range;
        let count = usize::try_from(end_ms.saturating_sub(start_ms) / step_ms.max(1)).unwrap_or(0) + 1;
        EvalSteps { start_ms, step_ms, count }
    }

    /// Returns an error if the caller has cancelled the query.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if (self.limits.enough)() { Err(Error::Enough) } else { Ok(()) }
    }

    /// Largest number of values of a vector.
    pub(crate) fn values_max(&self) -> usize {
        self.limits.values_max
    }

    /// Returns an error if a vector of this size is too large.
    pub(crate) fn check_room(&self, series: usize, steps: EvalSteps) -> Result<(), Error> {
        let (values, most) = (series.saturating_mul(steps.count), self.limits.values_max);
        if values > most {
            let steps = steps.count;
            let problem = format!("a part of the query has more than {most} values ({series} series at {steps} steps)");
            return Err(Error::limit(problem).with_hint("aggregate, or take longer steps"));
        }
        let most = most.saturating_mul(PARTS_MAX);
        if values.saturating_add(self.held) > most {
            let problem = format!("the parts of the query have more than {most} values");
            return Err(Error::limit(problem).with_hint("ask for some of it, or take longer steps"));
        }
        self.check()
    }

    /// Returns an error if the labels of a vector are too large.
    pub(crate) fn check_labels(&self, bytes: usize) -> Result<(), Error> {
        let most = self.limits.labels_max_bytes;
        if bytes <= most {
            return Ok(());
        }
        let problem = format!("the labels of a part of the query have more than {most} bytes");
        Err(Error::limit(problem).with_hint("aggregate, or make shorter labels"))
    }

    /// Does work while a value is held.
    pub(crate) fn holding<T>(
        &mut self,
        value: &NodeValue,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let size = value.size();
        self.held = self.held.saturating_add(size);
        let done = work(self);
        self.held = self.held.saturating_sub(size);
        done
    }

    /// The value of a node at each step.
    pub(crate) fn eval(&mut self, node: &QueryNode, steps: EvalSteps) -> Result<NodeValue, Error> {
        self.check()?;
        if !node.fixed || steps.count == 1 {
            let value = self.eval_each(node, steps)?;
            if let NodeValue::Vector(series) = &value {
                self.check_room(series.len(), steps)?;
                self.check_labels(series.iter().map(|one| one.labels.bytes()).sum())?;
            }
            return Ok(value);
        }
        // The value is the same at every step, so one is enough.
        let spread = |values: &[f64]| vec![values.first().copied().unwrap_or(ABSENT); steps.count];
        Ok(match self.eval_each(node, EvalSteps { count: 1, ..steps })? {
            NodeValue::Scalar(values) => NodeValue::Scalar(spread(&values)),
            NodeValue::Vector(series) => {
                self.check_room(series.len(), steps)?;
                let wide = series.into_iter().map(|one| StepSeries { values: spread(&one.values), labels: one.labels });
                NodeValue::Vector(wide.collect())
            }
        })
    }

    /// The value of a node that must be a vector.
    pub(crate) fn vector(&mut self, node: &QueryNode, steps: EvalSteps) -> Result<Vec<StepSeries>, Error> {
        Ok(match self.eval(node, steps)? {
            NodeValue::Vector(series) => series,
            NodeValue::Scalar(values) => vec![StepSeries { labels: Labels::default(), values }],
        })
    }

    /// The value of a node that must be a number.
    pub(crate) fn scalar(&mut self, node: &QueryNode, steps: EvalSteps) -> Result<Vec<f64>, Error> {
        Ok(match self.eval(node, steps)? {
            NodeValue::Scalar(values) => values,
            NodeValue::Vector(_) => vec![f64::NAN; steps.count],
        })
    }

    fn eval_each(&mut self, node: &QueryNode, steps: EvalSteps) -> Result<NodeValue, Error> {
        Ok(match &node.expr {
            Expr::Number(number) => NodeValue::Scalar(vec![*number; steps.count]),
            Expr::Time => NodeValue::Scalar((0..steps.count).map(|index| seconds(steps.time(index))).collect()),
            Expr::Selector(_) | Expr::Over { .. } => {
                let mut series = Vec::new();
                let limits = Evaluator { held: self.held, ..Evaluator::new(self.source, self.limits, self.range) };
                self.stream_each(node, steps, &mut |one| {
                    series.push(one);
                    limits.check_room(series.len(), steps)
                })?;
                NodeValue::Vector(series)
            }
            Expr::Negate(inner) => match self.eval(inner, steps)? {
                NodeValue::Scalar(values) => NodeValue::Scalar(values.iter().map(|value| -value).collect()),
                NodeValue::Vector(series) => NodeValue::Vector(negated(series)?),
            },
            Expr::Binary(binary) => self.binary(binary, steps)?,
            Expr::Aggregate(aggregate) => NodeValue::Vector(self.aggregate(aggregate, steps)?),
            _ => self.call(node, steps)?,
        })
    }

    /// Passes the series of a vector to `sink`, one after another.
    pub(crate) fn stream(&mut self, node: &QueryNode, steps: EvalSteps, sink: SeriesSink<'_>) -> Result<(), Error> {
        if matches!(node.expr, Expr::Selector(_) | Expr::Over { .. }) && (!node.fixed || steps.count == 1) {
            return self.stream_each(node, steps, sink);
        }
        self.vector(node, steps)?.into_iter().try_for_each(sink)
    }

    fn stream_each(&mut self, node: &QueryNode, steps: EvalSteps, sink: SeriesSink<'_>) -> Result<(), Error> {
        match &node.expr {
            Expr::Selector(selector) => self.select(
                selector,
                WindowPurpose::VALUE,
                steps,
                &|_, (_, value)| (!is_absent(value)).then_some(value),
                sink,
            ),
            Expr::Over { function, ranged, parameter } => {
                let parameter = match parameter {
                    Some(parameter) => self.scalar(parameter, steps)?,
                    None => Vec::new(),
                };
                self.over(*function, &parameter, ranged, steps, sink)
            }
            _ => self.vector(node, steps)?.into_iter().try_for_each(sink),
        }
    }

    /// Passes on what a function returns for the last sample of each series at each step, unless the sample is too old.
    pub(crate) fn select(
        &mut self,
        selector: &VectorSelector,
        purpose: WindowPurpose,
        steps: EvalSteps,
        measure: &dyn Fn(usize, TimedValue) -> Option<f64>,
        sink: SeriesSink<'_>,
    ) -> Result<(), Error> {
        let last = |index, window: &SampleWindow<'_>| measure(index, window.last()?);
        self.windows(selector, LOOKBACK_MS, purpose, steps, &last, sink)
    }

    fn over(
        &mut self,
        function: OverTimeFunction,
        parameter: &[f64],
        ranged: &RangeVector,
        steps: EvalSteps,
        sink: SeriesSink<'_>,
    ) -> Result<(), Error> {
        let mut seen = HashSet::new();
        let measure = |index: usize, window: &SampleWindow<'_>| {
            function.apply(window, parameter.get(index).copied().unwrap_or(f64::NAN))
        };
        self.ranged(ranged, WindowPurpose::of(function), steps, &measure, &mut |mut series: StepSeries| {
            if !function.keeps_name() {
                series.labels = series.labels.nameless();
            }
            if !seen.insert(series.labels.clone()) {
                return Err(same_labels());
            }
            sink(series)
        })
    }

    /// Passes on what a function returns for the window of each series at each step.
    pub(crate) fn ranged(
        &mut self,
        ranged: &RangeVector,
        purpose: WindowPurpose,
        steps: EvalSteps,
        measure: WindowFunction<'_>,
        sink: SeriesSink<'_>,
    ) -> Result<(), Error> {
        let (node, range_ms) = match ranged {
            RangeVector::Selector { selector, range_ms } => {
                return self.windows(selector, *range_ms, purpose, steps, measure, sink);
            }
            RangeVector::Subquery { node, range_ms, .. } => (node, *range_ms),
        };
        let Some(inner) = self.substeps(ranged, steps)? else { return Ok(()) };
        let range = self.range;
        for series in self.vector(node, inner)? {
            self.check()?;
            let samples = inner.samples(&series.values);
            let end = |index| reference(range, ranged.at(), ranged.offset_ms(), steps.time(index));
            let values = slide((&samples, &[]), range_ms, steps, &end, measure);
            if values.iter().any(|value| !is_absent(*value)) {
                sink(StepSeries { labels: series.labels, values })?;
            }
        }
        Ok(())
    }

    /// The steps of a subquery: the multiples of its own step in any of its windows.
    fn substeps(&self, ranged: &RangeVector, steps: EvalSteps) -> Result<Option<EvalSteps>, Error> {
        let RangeVector::Subquery { range_ms, step_ms, at, offset_ms, .. } = ranged else { return Ok(None) };
        let end = |now| reference(self.range, *at, *offset_ms, now);
        let earliest = end(steps.time(0)).saturating_sub(*range_ms);
        let mut start_ms = earliest / step_ms * step_ms;
        if start_ms < earliest {
            start_ms += step_ms;
        }
        let latest = end(steps.last());
        if latest < start_ms {
            return Ok(None);
        }
        let count = usize::try_from((latest - start_ms) / step_ms).unwrap_or(usize::MAX).saturating_add(1);
        let inner = EvalSteps { start_ms, step_ms: *step_ms, count };
        self.check_room(1, inner)?;
        Ok(Some(inner))
    }

    /// The samples of a range at the first step.
    pub(crate) fn samples(&mut self, ranged: &RangeVector) -> Result<Vec<(Labels, Vec<TimedValue>)>, Error> {
        let steps = self.steps();
        let all = std::cell::RefCell::new(Vec::new());
        let mut labels = Vec::new();
        let keep = |_: usize, window: &SampleWindow<'_>| {
            all.borrow_mut().push(window.samples.to_vec());
            Some(1.0)
        };
        self.ranged(ranged, WindowPurpose::POINTS, EvalSteps { count: 1, ..steps }, &keep, &mut |series| {
            labels.push(series.labels);
            Ok(())
        })?;
        Ok(labels.into_iter().zip(all.into_inner()).collect())
    }
}

pub(crate) fn seconds(at_ms: Millis) -> f64 {
    at_ms as f64 / 1000.0
}

fn negated(series: Vec<StepSeries>) -> Result<Vec<StepSeries>, Error> {
    let mut seen = HashSet::new();
    series
        .into_iter()
        .map(|one| {
            let labels = one.labels.nameless();
            if !seen.insert(labels.clone()) {
                return Err(same_labels());
            }
            let negate = |value: f64| if is_absent(value) { value } else { -value };
            Ok(StepSeries { labels, values: one.values.into_iter().map(negate).collect() })
        })
        .collect()
}

/// Merges series that have the same labels now; an error if two of them have a value at the same step.
pub(crate) fn merged(series: Vec<StepSeries>) -> Result<Vec<StepSeries>, Error> {
    let mut places: HashMap<Labels, usize> = HashMap::with_capacity(series.len());
    let mut merged: Vec<StepSeries> = Vec::with_capacity(series.len());
    for one in series {
        let Some(place) = places.get(&one.labels).and_then(|place| merged.get_mut(*place)) else {
            places.insert(one.labels.clone(), merged.len());
            merged.push(one);
            continue;
        };
        for (old, new) in place.values.iter_mut().zip(one.values) {
            match (is_absent(*old), is_absent(new)) {
                (_, true) => {}
                (true, false) => *old = new,
                (false, false) => return Err(same_labels()),
            }
        }
    }
    Ok(merged)
}
