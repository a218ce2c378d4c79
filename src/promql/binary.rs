//! Binary operators.

use std::collections::HashMap;

use super::labels::Labels;
use crate::{
    error::Error,
    eval::{ABSENT, EvalSteps, Evaluator, NodeValue, StepSeries, is_absent, merged, same_labels},
    labels::NAME,
    tree::{Binary, Grouping, ManySide, Matching, Operator},
};

impl Evaluator<'_> {
    pub(crate) fn binary(&mut self, binary: &Binary, steps: EvalSteps) -> Result<NodeValue, Error> {
        let left = self.eval(&binary.left, steps)?;
        let right = self.holding(&left, |evaluator| evaluator.eval(&binary.right, steps))?;
        self.check()?;
        let (operator, as_bool) = (binary.operator, binary.as_bool);
        Ok(match (left, right) {
            (NodeValue::Scalar(left), NodeValue::Scalar(right)) => {
                let both = left.iter().zip(&right);
                NodeValue::Scalar(both.map(|(l, r)| apply(operator, *l, *r).unwrap_or_else(truth)).collect())
            }
            (NodeValue::Vector(series), NodeValue::Scalar(scalar)) => {
                NodeValue::Vector(with_scalar(series, &scalar, operator, as_bool, false)?)
            }
            (NodeValue::Scalar(scalar), NodeValue::Vector(series)) => {
                NodeValue::Vector(with_scalar(series, &scalar, operator, as_bool, true)?)
            }
            (NodeValue::Vector(left), NodeValue::Vector(right)) if operator.is_set() => {
                NodeValue::Vector(set(operator, &binary.matching.labels, left, right, steps)?)
            }
            (NodeValue::Vector(left), NodeValue::Vector(right)) => {
                NodeValue::Vector(self.paired(binary, &left, &right, steps)?)
            }
        })
    }

    /// The values of matching series, combined.
    fn paired(
        &self,
        binary: &Binary,
        left: &[StepSeries],
        right: &[StepSeries],
        steps: EvalSteps,
    ) -> Result<Vec<StepSeries>, Error> {
        let swapped = binary.matching.many == ManySide::Right;
        let (many, one) = if swapped { (right, left) } else { (left, right) };
        let mut pairs = MatchedPairs::new(binary, many, one, steps);
        for step in 0..steps.count {
            pairs.step(step, swapped)?;
            self.check_room(pairs.found.len(), steps)?;
            self.check_labels(pairs.labels_bytes)?;
        }
        Ok(pairs.found)
    }
}

fn truth(kept: bool) -> f64 {
    if kept { 1.0 } else { 0.0 }
}

/// The result of an arithmetic operator (`Ok`), or whether a comparison holds (`Err`).
fn apply(operator: Operator, left: f64, right: f64) -> Result<f64, bool> {
    Ok(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::Modulo => left % right,
        Operator::Power => left.powf(right),
        Operator::Atan2 => left.atan2(right),
        Operator::Equal => return Err(left == right),
        Operator::NotEqual => return Err(left != right),
        Operator::Less => return Err(left < right),
        Operator::LessOrEqual => return Err(left <= right),
        Operator::Greater => return Err(left > right),
        Operator::GreaterOrEqual => return Err(left >= right),
        Operator::And | Operator::Or | Operator::Unless => f64::NAN,
    })
}

/// The result of an operator, if there is one. A comparison that holds returns `kept`.
fn outcome(operator: Operator, left: f64, right: f64, as_bool: bool, kept: f64) -> Option<f64> {
    match apply(operator, left, right) {
        Ok(value) => Some(value),
        Err(so) if as_bool => Some(truth(so)),
        Err(so) => so.then_some(kept),
    }
}

/// Whether the result of an operator has no series name.
fn loses_name(operator: Operator, as_bool: bool) -> bool {
    as_bool || !operator.is_comparison() && operator != Operator::Atan2
}

fn with_scalar(
    series: Vec<StepSeries>,
    scalar: &[f64],
    operator: Operator,
    as_bool: bool,
    scalar_first: bool,
) -> Result<Vec<StepSeries>, Error> {
    let value = |(value, scalar): (f64, &f64)| {
        if is_absent(value) {
            return ABSENT;
        }
        let (left, right) = if scalar_first { (*scalar, value) } else { (value, *scalar) };
        outcome(operator, left, right, as_bool, value).unwrap_or(ABSENT)
    };
    let changed = series.into_iter().map(|one| StepSeries {
        labels: if loses_name(operator, as_bool) { one.labels.nameless() } else { one.labels },
        values: one.values.into_iter().zip(scalar).map(value).collect(),
    });
    merged(changed.filter(|one| one.values.iter().any(|value| !is_absent(*value))).collect())
}

/// Numbers of the label sets by which series match.
#[derive(Default)]
struct Signatures {
    numbers: HashMap<Labels, usize>,
}

impl Signatures {
    fn of(&mut self, series: &[StepSeries], grouping: &Grouping) -> Vec<usize> {
        series
            .iter()
            .map(|one| {
                let next = self.numbers.len();
                *self.numbers.entry(grouping.of(&one.labels)).or_insert(next)
            })
            .collect()
    }
}

fn has(series: &StepSeries, step: usize) -> bool {
    series.values.get(step).is_some_and(|value| !is_absent(*value))
}

fn set(
    operator: Operator,
    grouping: &Grouping,
    left: Vec<StepSeries>,
    right: Vec<StepSeries>,
    steps: EvalSteps,
) -> Result<Vec<StepSeries>, Error> {
    let mut signatures = Signatures::default();
    let (left_numbers, right_numbers) = (signatures.of(&left, grouping), signatures.of(&right, grouping));
    let count = signatures.numbers.len();
    // For each signature, whether a side has it at a step.
    let having = |series: &[StepSeries], numbers: &[usize]| -> Vec<Vec<bool>> {
        let mut having = vec![Vec::new(); count];
        for (one, number) in series.iter().zip(numbers) {
            if let Some(having) = having.get_mut(*number) {
                having.resize(steps.count, false);
                having.iter_mut().zip(&one.values).for_each(|(had, value)| *had |= !is_absent(*value));
            }
        }
        having
    };
    let masked = |series: Vec<StepSeries>, numbers: &[usize], other: &[Vec<bool>], wanted: bool| -> Vec<StepSeries> {
        let mask = |(mut one, number): (StepSeries, &usize)| {
            let other = other.get(*number);
            for (step, value) in one.values.iter_mut().enumerate() {
                if other.and_then(|had| had.get(step)).copied().unwrap_or(false) != wanted {
                    *value = ABSENT;
                }
            }
            one
        };
        let masked = series.into_iter().zip(numbers).map(mask);
        masked.filter(|one| (0..steps.count).any(|step| has(one, step))).collect()
    };
    match operator {
        Operator::And => Ok(masked(left, &left_numbers, &having(&right, &right_numbers), true)),
        Operator::Unless => Ok(masked(left, &left_numbers, &having(&right, &right_numbers), false)),
        _ => {
            let had = having(&left, &left_numbers);
            let rest = masked(right, &right_numbers, &had, false);
            merged(left.into_iter().chain(rest).collect())
        }
    }
}

/// Matching series, and the results so far.
struct MatchedPairs<'a> {
    binary: &'a Binary,
    many: &'a [StepSeries],
    one: &'a [StepSeries],
    many_numbers: Vec<usize>,
    one_numbers: Vec<usize>,
    /// For each signature, the series of the "one" side that has it at this step.
    partners: Vec<Option<usize>>,
    /// For each signature, whether it has a result at this step.
    taken: Vec<bool>,
    /// For each series of the "many" side: its last partner, and the index of their result.
    last: Vec<Option<(usize, usize)>>,
    places: HashMap<Labels, usize>,
    found: Vec<StepSeries>,
    /// The size of their labels.
    labels_bytes: usize,
    steps: EvalSteps,
}

impl<'a> MatchedPairs<'a> {
    fn new(binary: &'a Binary, many: &'a [StepSeries], one: &'a [StepSeries], steps: EvalSteps) -> Self {
        let mut signatures = Signatures::default();
        let many_numbers = signatures.of(many, &binary.matching.labels);
        let one_numbers = signatures.of(one, &binary.matching.labels);
        let count = signatures.numbers.len();
        Self {
            binary,
            many,
            one,
            many_numbers,
            one_numbers,
            partners: vec![None; count],
            taken: vec![false; count],
            last: vec![None; many.len()],
            places: HashMap::new(),
            found: Vec::new(),
            labels_bytes: 0,
            steps,
        }
    }

    fn step(&mut self, step: usize, swapped: bool) -> Result<(), Error> {
        // If one side is empty, nothing can be ambiguous.
        if !self.many.iter().any(|series| has(series, step)) {
            return Ok(());
        }
        self.partners.fill(None);
        self.taken.fill(false);
        for (index, (series, number)) in self.one.iter().zip(&self.one_numbers).enumerate() {
            let Some(partner) = self.partners.get_mut(*number).filter(|_| has(series, step)) else { continue };
            if partner.replace(index).is_some() {
                return Err(self.ambiguous(series, if swapped { "left" } else { "right" }));
            }
        }
        for (index, series) in self.many.iter().enumerate() {
            let Some(value) = series.values.get(step).copied().filter(|value| !is_absent(*value)) else { continue };
            let number = self.many_numbers.get(index).copied().unwrap_or(usize::MAX);
            let Some(partner) = self.partners.get(number).copied().flatten() else { continue };
            let Some(other) = self.one.get(partner).and_then(|one| one.values.get(step)).copied() else { continue };
            let (left, right) = if swapped { (other, value) } else { (value, other) };
            let Some(result) = outcome(self.binary.operator, left, right, self.binary.as_bool, left) else { continue };
            if self.binary.matching.many == ManySide::Neither
                && self.taken.get_mut(number).is_some_and(|taken| std::mem::replace(taken, true))
            {
                let message =
                    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)";
                return Err(Error::execution(message.to_owned()));
            }
            let place = self.place(index, partner);
            match self.found.get_mut(place).and_then(|found| found.values.get_mut(step)) {
                Some(old) if is_absent(*old) => *old = result,
                _ if self.binary.matching.many == ManySide::Neither => return Err(same_labels()),
                _ => {
                    let message = "multiple matches for labels: grouping labels must ensure unique matches";
                    return Err(Error::execution(message.to_owned()));
                }
            }
        }
        Ok(())
    }

    /// The index of a pair's result.
    fn place(&mut self, many: usize, one: usize) -> usize {
        if let Some(Some((partner, place))) = self.last.get(many)
            && *partner == one
        {
            return *place;
        }
        let default = Labels::default();
        let many_labels = self.many.get(many).map_or(&default, |series| &series.labels);
        let one_labels = self.one.get(one).map_or(&default, |series| &series.labels);
        let labels = result_labels(self.binary, many_labels, one_labels);
        let place = *self.places.entry(labels.clone()).or_insert(self.found.len());
        if place == self.found.len() {
            self.labels_bytes += labels.bytes();
            self.found.push(StepSeries { labels, values: vec![ABSENT; self.steps.count] });
        }
        if let Some(last) = self.last.get_mut(many) {
            *last = Some((one, place));
        }
        place
    }

    fn ambiguous(&self, series: &StepSeries, side: &str) -> Error {
        let group = match &self.binary.matching.labels {
            Grouping::Only(_) => self.binary.matching.labels.of(&series.labels),
            Grouping::Without(_) => self.binary.matching.labels.of(&series.labels).nameless(),
        };
        Error::execution(format!(
            "found duplicate series for the match group {group} on the {side} hand-side of the operation: many-to-many \
             matching not allowed: matching labels must be unique on one side"
        ))
    }
}

/// The labels of a result: those of the "many" side, or the common ones, plus those included from the "one" side.
fn result_labels(binary: &Binary, many: &Labels, one: &Labels) -> Labels {
    let Matching { labels: grouping, many: side, include } = &binary.matching;
    let mut labels = if loses_name(binary.operator, binary.as_bool) { many.nameless() } else { many.clone() };
    if *side == ManySide::Neither {
        labels = match grouping {
            Grouping::Only(_) => grouping.of(&labels),
            Grouping::Without(names) => labels.without(&names.iter().map(String::as_str).collect::<Vec<_>>()),
        };
    }
    for name in include {
        labels.set(name, one.get(name));
    }
    if binary.as_bool { labels.without(&[NAME]) } else { labels }
}
