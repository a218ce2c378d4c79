//! Aggregations over series.

use std::collections::HashMap;

use super::labels::Labels;
use crate::{
    error::Error,
    eval::{ABSENT, EvalSteps, Evaluator, StepSeries, is_absent},
    number,
    over_time::quantile,
    tree::{Aggregate, Aggregation, Grouping},
};

impl Evaluator<'_> {
    pub(crate) fn aggregate(&mut self, aggregate: &Aggregate, steps: EvalSteps) -> Result<Vec<StepSeries>, Error> {
        let Aggregate { function, vector, grouping } = aggregate;
        match function {
            Aggregation::Quantile(share) => {
                let shares = self.scalar(share, steps)?;
                let groups = SeriesGroups::of(self.vector(vector, steps)?, grouping);
                Ok(groups.quantiles(&shares))
            }
            Aggregation::Top(count) | Aggregation::Bottom(count) => {
                let counts = self.scalar(count, steps)?;
                let top = matches!(function, Aggregation::Top(_));
                SeriesGroups::of(self.vector(vector, steps)?, grouping).chosen(&counts, top)
            }
            Aggregation::CountValues(label) => {
                let series = self.vector(vector, steps)?;
                self.count_values(&series, label, grouping, steps)
            }
            _ => self.folded(aggregate, steps),
        }
    }

    /// How many series of a group have each value; the value becomes a label.
    fn count_values(
        &self,
        series: &[StepSeries],
        label: &str,
        grouping: &Grouping,
        steps: EvalSteps,
    ) -> Result<Vec<StepSeries>, Error> {
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut counted: Vec<StepSeries> = Vec::new();
        for step in 0..steps.count {
            for one in series {
                let Some(value) = one.values.get(step).filter(|value| !is_absent(**value)) else { continue };
                let mut labels = one.labels.clone();
                labels.set(label, &number::value(*value));
                let labels = match grouping {
                    Grouping::Only(names) => {
                        labels.only(&names.iter().map(String::as_str).chain([label]).collect::<Vec<_>>())
                    }
                    Grouping::Without(_) => grouping.of(&labels),
                };
                let place = *places.entry(labels.clone()).or_insert(counted.len());
                if place == counted.len() {
                    self.check_room(counted.len() + 1, steps)?;
                    counted.push(StepSeries { labels, values: vec![ABSENT; steps.count] });
                }
                if let Some(count) = counted.get_mut(place).and_then(|group| group.values.get_mut(step)) {
                    *count = if is_absent(*count) { 1.0 } else { *count + 1.0 };
                }
            }
        }
        Ok(counted)
    }

    /// Aggregations that can handle one series after another.
    fn folded(&mut self, aggregate: &Aggregate, steps: EvalSteps) -> Result<Vec<StepSeries>, Error> {
        let Aggregate { function, vector, grouping } = aggregate;
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut groups: Vec<(Labels, Vec<GroupCell>)> = Vec::new();
        let mut too_large = None;
        let most = self.values_max();
        self.stream(vector, steps, &mut |series| {
            let labels = grouping.of(&series.labels);
            let place = *places.entry(labels.clone()).or_insert(groups.len());
            if place == groups.len() {
                if groups.len().saturating_mul(steps.count) > most {
                    too_large = Some(groups.len());
                    return Err(Error::Enough);
                }
                groups.push((labels, vec![GroupCell::default(); steps.count]));
            }
            if let Some((_, cells)) = groups.get_mut(place) {
                let present = cells.iter_mut().zip(&series.values).filter(|(_, value)| !is_absent(**value));
                present.for_each(|(cell, value)| cell.add(function, *value));
            }
            Ok(())
        })
        .or_else(|error| match too_large {
            Some(groups) => self.check_room(groups, steps),
            None => Err(error),
        })?;
        let finished = |(labels, cells): (Labels, Vec<GroupCell>)| StepSeries {
            labels,
            values: cells.iter().map(|cell| cell.finish(function)).collect(),
        };
        Ok(groups.into_iter().map(finished).collect())
    }
}

/// The intermediate result of a group at a step.
#[derive(Clone, Copy, Default)]
struct GroupCell {
    count: f64,
    /// The sum, the extreme, or the sum of squares.
    value: f64,
    mean: f64,
}

impl GroupCell {
    fn add(&mut self, function: &Aggregation, value: f64) {
        self.count += 1.0;
        let first = self.count == 1.0;
        match function {
            Aggregation::Sum => self.value = if first { value } else { self.value + value },
            Aggregation::Minimum if first || value < self.value || self.value.is_nan() => self.value = value,
            Aggregation::Maximum if first || value > self.value || self.value.is_nan() => self.value = value,
            Aggregation::Average if first => self.mean = value,
            // An infinite average stays infinite, unless the opposite infinity or NaN follows.
            Aggregation::Average
                if self.mean.is_infinite()
                    && (value.is_finite() || value.is_infinite() && (self.mean > 0.0) == (value > 0.0)) => {}
            // Divided before adding, so that large values do not overflow.
            Aggregation::Average => self.mean += value / self.count - self.mean / self.count,
            Aggregation::Deviation | Aggregation::Variance if first => self.mean = value,
            Aggregation::Deviation | Aggregation::Variance => {
                let delta = value - self.mean;
                self.mean += delta / self.count;
                self.value += delta * (value - self.mean);
            }
            _ => {}
        }
    }

    fn finish(self, function: &Aggregation) -> f64 {
        if self.count == 0.0 {
            return ABSENT;
        }
        match function {
            Aggregation::Average => self.mean,
            Aggregation::Count => self.count,
            Aggregation::Group => 1.0,
            Aggregation::Variance => self.value / self.count,
            Aggregation::Deviation => (self.value / self.count).sqrt(),
            _ => self.value,
        }
    }
}

/// Series, and the group of each.
struct SeriesGroups {
    series: Vec<StepSeries>,
    groups: Vec<(Labels, Vec<usize>)>,
}

impl SeriesGroups {
    fn of(series: Vec<StepSeries>, grouping: &Grouping) -> Self {
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut groups: Vec<(Labels, Vec<usize>)> = Vec::new();
        for (index, one) in series.iter().enumerate() {
            let labels = grouping.of(&one.labels);
            let place = *places.entry(labels.clone()).or_insert(groups.len());
            match groups.get_mut(place) {
                Some((_, members)) => members.push(index),
                None => groups.push((labels, vec![index])),
            }
        }
        Self { series, groups }
    }

    /// The values of a group's members at a step, with their indices.
    fn present(&self, members: &[usize], step: usize) -> Vec<(usize, f64)> {
        let value = |member: &usize| Some((*member, *self.series.get(*member)?.values.get(step)?));
        members.iter().filter_map(value).filter(|(_, value)| !is_absent(*value)).collect()
    }

    fn quantiles(self, shares: &[f64]) -> Vec<StepSeries> {
        let values = |members: &[usize]| {
            let at = |(step, share): (usize, &f64)| {
                let present: Vec<f64> = self.present(members, step).into_iter().map(|(_, value)| value).collect();
                if present.is_empty() { ABSENT } else { quantile(*share, present) }
            };
            shares.iter().enumerate().map(at).collect()
        };
        self.groups
            .iter()
            .map(|(labels, members)| StepSeries { labels: labels.clone(), values: values(members) })
            .collect()
    }

    /// The `counts` largest or smallest values of each group at each step; sorted if there is only one step.
    fn chosen(self, counts: &[f64], top: bool) -> Result<Vec<StepSeries>, Error> {
        let mut chosen: Vec<Vec<f64>> = self.series.iter().map(|one| vec![ABSENT; one.values.len()]).collect();
        let mut order = Vec::new();
        for (step, count) in counts.iter().enumerate() {
            let count = whole(*count)?;
            for (_, members) in &self.groups {
                let mut present = self.present(members, step);
                present.sort_by(|(_, a), (_, b)| {
                    let order = a.partial_cmp(b).map(|order| if top { order.reverse() } else { order });
                    order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                });
                for (member, value) in present.into_iter().take(count) {
                    if let Some(place) = chosen.get_mut(member).and_then(|values| values.get_mut(step)) {
                        *place = value;
                    }
                    if counts.len() == 1 {
                        order.push(member);
                    }
                }
            }
        }
        if counts.len() != 1 {
            order.extend(0..self.series.len());
        }
        let mut series: Vec<Option<StepSeries>> = self
            .series
            .into_iter()
            .zip(chosen)
            .map(|(one, values)| Some(StepSeries { labels: one.labels, values }))
            .collect();
        let taken = order.into_iter().filter_map(|member| series.get_mut(member)?.take());
        Ok(taken.filter(|one| one.values.iter().any(|value| !is_absent(*value))).collect())
    }
}

/// The number of wanted values.
fn whole(count: f64) -> Result<usize, Error> {
    // The range of a 64-bit integer, as in Prometheus.
    if count.is_nan() || count.abs() > 9_223_372_036_854_775_807.0 {
        return Err(Error::execution(format!("Scalar value {} overflows int64", number::value(count))));
    }
    let count = count.trunc() as usize;
    Ok(count)
}
