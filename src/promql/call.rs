//! Functions of vectors and numbers.

use std::collections::HashMap;

use super::labels::Labels;
use crate::{
    date::DatePart,
    error::Error,
    eval::{ABSENT, EvalSteps, Evaluator, NodeValue, StepSeries, is_absent, merged, seconds},
    histogram::{self, HistogramBucket},
    labels::NAME,
    math::MathFunction,
    relabel,
    tree::{Expr, QueryNode, RangeVector},
    window::WindowPurpose,
};

/// The label with a bucket's upper bound.
const BOUND_LABEL: &str = "le";

impl Evaluator<'_> {
    pub(crate) fn call(&mut self, node: &QueryNode, steps: EvalSteps) -> Result<NodeValue, Error> {
        let series = match &node.expr {
            Expr::ToScalar(vector) => return Ok(NodeValue::Scalar(to_scalar(&self.vector(vector, steps)?, steps))),
            Expr::ToVector(scalar) => {
                vec![StepSeries { labels: Labels::default(), values: self.scalar(scalar, steps)? }]
            }
            Expr::AbsentOver { ranged, labels } => self.absent_over(ranged, labels, steps)?,
            Expr::Absent { vector, labels } => {
                let series = self.vector(vector, steps)?;
                absent(labels, steps, |index| series.iter().any(|one| has(one, index)))
            }
            Expr::Map { function, vector, parameters } => self.map(*function, vector, parameters, steps)?,
            Expr::Date { function, vector } => self.date(*function, vector.as_deref(), steps)?,
            Expr::Timestamp(vector) => self.timestamp(vector, steps)?,
            Expr::Sort { vector, descending } => {
                let mut series = self.vector(vector, steps)?;
                // The result of a range query is sorted by labels instead.
                if steps.count == 1 {
                    sort(&mut series, *descending);
                }
                series
            }
            Expr::HistogramQuantile { quantile, vector } => {
                let shares = self.scalar(quantile, steps)?;
                buckets(&self.vector(vector, steps)?, &shares)
            }
            Expr::LabelReplace { vector, to, replacement, from, pattern } => {
                let series = self.vector(vector, steps)?;
                let most = self.limits.label_max_bytes;
                self.relabelled(series, |labels| relabel::replace(labels, to, (replacement, from), pattern, most))?
            }
            Expr::LabelJoin { vector, to, separator, from } => {
                let series = self.vector(vector, steps)?;
                let most = self.limits.label_max_bytes;
                self.relabelled(series, |labels| relabel::join(labels, to, separator, from, most))?
            }
            _ => return Err(Error::execution("this part of the query has no value")),
        };
        Ok(NodeValue::Vector(series))
    }

    fn relabelled(
        &self,
        series: Vec<StepSeries>,
        relabel: impl Fn(&Labels) -> Result<Labels, Error>,
    ) -> Result<Vec<StepSeries>, Error> {
        let mut bytes = 0;
        let relabel = |one: StepSeries| {
            let labels = relabel(&one.labels)?;
            bytes += labels.bytes();
            self.check_labels(bytes)?;
            Ok(StepSeries { labels, values: one.values })
        };
        merged(series.into_iter().map(relabel).collect::<Result<_, Error>>()?)
    }

    fn map(
        &mut self,
        function: MathFunction,
        vector: &QueryNode,
        parameters: &[QueryNode],
        steps: EvalSteps,
    ) -> Result<Vec<StepSeries>, Error> {
        let parameters: Vec<Vec<f64>> =
            parameters.iter().map(|node| self.scalar(node, steps)).collect::<Result<_, _>>()?;
        let series = self.vector(vector, steps)?;
        let at =
            |index: usize| -> Vec<f64> { parameters.iter().filter_map(|values| values.get(index).copied()).collect() };
        changed(series, |index, value| function.apply(value, &at(index)))
    }

    fn date(
        &mut self,
        function: DatePart,
        vector: Option<&QueryNode>,
        steps: EvalSteps,
    ) -> Result<Vec<StepSeries>, Error> {
        match vector {
            Some(vector) => changed(self.vector(vector, steps)?, |_, value| Some(function.of(value))),
            None => {
                let values = (0..steps.count).map(|index| function.of(seconds(steps.time(index)))).collect();
                Ok(vec![StepSeries { labels: Labels::default(), values }])
            }
        }
    }

    /// The time of each sample; of computed values, the time of the step.
    fn timestamp(&mut self, vector: &QueryNode, steps: EvalSteps) -> Result<Vec<StepSeries>, Error> {
        let Expr::Selector(selector) = &vector.expr else {
            return changed(self.vector(vector, steps)?, |index, _| Some(seconds(steps.time(index))));
        };
        let mut series = Vec::new();
        self.select(
            selector,
            WindowPurpose::TIME,
            steps,
            &|_, (at_ms, value)| (!is_absent(value)).then_some(seconds(at_ms)),
            &mut |one: StepSeries| {
                series.push(one);
                Ok(())
            },
        )?;
        changed(series, |_, value| Some(value))
    }

    fn absent_over(
        &mut self,
        ranged: &RangeVector,
        labels: &Labels,
        steps: EvalSteps,
    ) -> Result<Vec<StepSeries>, Error> {
        let mut found = vec![false; steps.count];
        self.ranged(ranged, WindowPurpose::ABSENCE, steps, &|_, _| Some(1.0), &mut |series| {
            found.iter_mut().zip(&series.values).for_each(|(found, value)| *found |= !is_absent(*value));
            Ok(())
        })?;
        Ok(absent(labels, steps, |index| found.get(index).copied().unwrap_or(false)))
    }
}

fn has(series: &StepSeries, index: usize) -> bool {
    series.values.get(index).is_some_and(|value| !is_absent(*value))
}

/// The value 1 at each step without a value.
fn absent(labels: &Labels, steps: EvalSteps, found: impl Fn(usize) -> bool) -> Vec<StepSeries> {
    let values: Vec<f64> = (0..steps.count).map(|index| if found(index) { ABSENT } else { 1.0 }).collect();
    if values.iter().all(|value| is_absent(*value)) {
        return Vec::new();
    }
    vec![StepSeries { labels: labels.clone(), values }]
}

/// The only value of each step.
fn to_scalar(series: &[StepSeries], steps: EvalSteps) -> Vec<f64> {
    let mut values = vec![ABSENT; steps.count];
    let mut many = vec![false; steps.count];
    for one in series {
        for ((place, many), value) in values.iter_mut().zip(&mut many).zip(&one.values) {
            if !is_absent(*value) {
                *many |= !is_absent(*place);
                *place = *value;
            }
        }
    }
    let only =
        values.into_iter().zip(many).map(|(value, many)| if many || is_absent(value) { f64::NAN } else { value });
    only.collect()
}

/// Series without names, with each value mapped.
fn changed(series: Vec<StepSeries>, change: impl Fn(usize, f64) -> Option<f64>) -> Result<Vec<StepSeries>, Error> {
    let change = |(index, value): (usize, f64)| {
        if is_absent(value) { ABSENT } else { change(index, value).unwrap_or(ABSENT) }
    };
    let changed = series.into_iter().map(|one| StepSeries {
        labels: one.labels.nameless(),
        values: one.values.into_iter().enumerate().map(change).collect(),
    });
    merged(changed.filter(|one| one.values.iter().any(|value| !is_absent(*value))).collect())
}

/// Sorts by the value of the first step, NaN last.
fn sort(series: &mut [StepSeries], descending: bool) {
    let value = |one: &StepSeries| one.values.first().copied().unwrap_or(ABSENT);
    series.sort_by(|a, b| {
        let (a, b) = (value(a), value(b));
        let order = a.partial_cmp(&b).map(|order| if descending { order.reverse() } else { order });
        order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    });
}

/// The upper bound of a bucket, and its count at each step.
type BucketCounts<'a> = (f64, &'a [f64]);

/// Quantiles of histograms, whose buckets are series that differ in their bound.
fn buckets(series: &[StepSeries], shares: &[f64]) -> Vec<StepSeries> {
    let mut places: HashMap<Labels, usize> = HashMap::new();
    let mut histograms: Vec<(Labels, Vec<BucketCounts<'_>>)> = Vec::new();
    for one in series {
        let Ok(bound) = one.labels.get(BOUND_LABEL).parse::<f64>() else { continue };
        let labels = one.labels.without(&[NAME, BOUND_LABEL]);
        let place = *places.entry(labels.clone()).or_insert(histograms.len());
        if place == histograms.len() {
            histograms.push((labels, Vec::new()));
        }
        if let Some((_, buckets)) = histograms.get_mut(place) {
            buckets.push((bound, one.values.as_slice()));
        }
    }
    let quantiles = |buckets: &[BucketCounts<'_>]| -> Vec<f64> {
        let quantile = |(index, share): (usize, &f64)| {
            let count = |values: &[f64]| values.get(index).copied().filter(|count| !is_absent(*count));
            let present = buckets
                .iter()
                .filter_map(|(bound, values)| Some(HistogramBucket { bound: *bound, count: count(values)? }));
            let present: Vec<HistogramBucket> = present.collect();
            if present.is_empty() { ABSENT } else { histogram::quantile(*share, present) }
        };
        shares.iter().enumerate().map(quantile).collect()
    };
    histograms.into_iter().map(|(labels, buckets)| StepSeries { labels, values: quantiles(&buckets) }).collect()
}
