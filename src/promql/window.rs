//! The windows of each step: a series' samples, or summaries where there are no samples or none are wanted.

use std::ops::RangeInclusive;

use super::source::{Hints, STRETCH_MAX_MS, SampleStretch, SourceError, TimedValue};
use crate::{
    error::Error,
    eval::{ABSENT, EvalSteps, Evaluator, SeriesSink, StepSeries, WindowFunction, is_absent},
    over_time::{OverTimeFunction, SampleWindow},
    query_range::{Millis, QueryRange},
    tree::{AtModifier, VectorSelector},
};

/// Windows that are further apart than this are read separately: skipping a shorter gap costs more than reading it.
const APART_MS: Millis = 600_000;
/// Latest time that can be queried, in the year 9999, so that sums of times do not overflow.
const TIME_MAX_MS: Millis = 253_402_300_799_000;

/// What windows are needed for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPurpose {
    function: &'static str,
    /// Whether summaries are sufficient.
    summaries: bool,
    /// Whether only the newest value is needed. It may be a staleness marker.
    newest: bool,
}

impl WindowPurpose {
    /// The value.
    pub(crate) const VALUE: Self = Self { function: "a value", summaries: true, newest: true };
    /// The time of the value.
    pub(crate) const TIME: Self = Self { function: "timestamp", summaries: false, newest: true };
    /// Whether there is a value.
    pub(crate) const ABSENCE: Self = Self { function: "absent_over_time", summaries: true, newest: false };
    /// The samples themselves.
    pub(crate) const POINTS: Self = Self { function: "a range of samples", summaries: false, newest: false };

    /// For a function.
    pub(crate) fn of(function: OverTimeFunction) -> Self {
        Self { function: function.name(), summaries: function.of_summaries(), newest: false }
    }
}

/// The data of a series: stretches, and the samples after them.
type KnownSeries<'k> = (&'k [TimedValue], &'k [SampleStretch]);

impl Evaluator<'_> {
    /// The windows of a selector. Staleness markers are removed, except the last sample of a window if the newest value
    /// is needed.
    pub(crate) fn windows(
        &mut self,
        selector: &VectorSelector,
        range_ms: Millis,
        purpose: WindowPurpose,
        steps: EvalSteps,
        measure: WindowFunction<'_>,
        sink: SeriesSink<'_>,
    ) -> Result<(), Error> {
        let range = self.range;
        let end = |index| reference(range, selector.at, selector.offset_ms, steps.time(index));
        let whole = end(0).saturating_sub(range_ms)..=end(steps.count.saturating_sub(1));
        let apart = selector.at.is_none() && steps.count > 1 && steps.step_ms.saturating_sub(range_ms) > APART_MS;
        let hints = Hints {
            step_ms: (steps.count > 1 && selector.at.is_none()).then_some(steps.step_ms),
            window_ms: (!purpose.newest).then_some(range_ms),
            function: purpose.function,
            summaries: purpose.summaries,
        };
        let chosen = self.chosen(selector, &whole)?;
        let samples_from = self.source.samples_from(&hints, &whole).map_err(unreadable)?;
        let old = whole.start().saturating_sub(STRETCH_MAX_MS)..=(*whole.end()).min(samples_from.saturating_sub(1));
        let marks = purpose.newest;
        if !apart {
            self.source.announce(&chosen.iter().map(|(_, id)| *id).collect::<Vec<_>>());
        }
        let (mut samples, mut stretches) = (Vec::new(), Vec::new());
        for (labels, id) in chosen {
            self.check()?;
            stretches.clear();
            if *whole.start() < samples_from {
                self.read_stretches(id, old.clone(), &hints, &mut stretches)?;
            }
            let values = if apart && *whole.end() >= samples_from {
                let mut values = vec![ABSENT; steps.count];
                for (index, value) in values.iter_mut().enumerate() {
                    let one = EvalSteps { start_ms: steps.time(index), count: 1, ..steps };
                    let times = end(index).saturating_sub(range_ms).max(samples_from)..=end(index);
                    self.read(id, times, marks, &mut samples)?;
                    let near = near(&stretches, end(index).saturating_sub(range_ms), end(index));
                    let measure = |_: usize, window: &SampleWindow<'_>| measure(index, window);
                    let found = slide((&samples, near), range_ms, one, &|_| end(index), &measure);
                    *value = found.first().copied().unwrap_or(ABSENT);
                }
                values
            } else {
                self.read(id, (*whole.start()).max(samples_from)..=*whole.end(), marks, &mut samples)?;
                slide((&samples, &stretches), range_ms, steps, &end, measure)
            };
            if values.iter().any(|value| !is_absent(*value)) {
                sink(StepSeries { labels, values })?;
            }
        }
        Ok(())
    }

    fn chosen(
        &self,
        selector: &VectorSelector,
        whole: &RangeInclusive<Millis>,
    ) -> Result<Vec<(crate::Labels, u64)>, Error> {
        let most = self.limits.series_max;
        let chosen = self.source.select(&selector.matchers, whole.clone(), most.saturating_add(1));
        let chosen = chosen.map_err(unreadable)?;
        if chosen.len() > most {
            let matchers = &selector.matchers;
            let problem = format!("{matchers} selects more than {most} series");
            return Err(Error::limit(problem).with_hint("select a host or a unit"));
        }
        Ok(chosen)
    }

    fn read(
        &mut self,
        id: u64,
        times: RangeInclusive<Millis>,
        marks: bool,
        samples: &mut Vec<TimedValue>,
    ) -> Result<(), Error> {
        samples.clear();
        if times.is_empty() {
            return Ok(());
        }
        let left = self.limits.samples_max.saturating_sub(self.samples);
        self.source.read(id, times, left, samples).map_err(unreadable)?;
        self.count(samples.len(), left)?;
        if !marks {
            samples.retain(|(_, value)| !is_absent(*value));
        }
        Ok(())
    }

    fn read_stretches(
        &mut self,
        id: u64,
        times: RangeInclusive<Millis>,
        hints: &Hints,
        stretches: &mut Vec<SampleStretch>,
    ) -> Result<(), Error> {
        let left = self.limits.samples_max.saturating_sub(self.samples);
        self.source.stretches(id, times, hints, left, stretches).map_err(unreadable)?;
        // Empty or too long stretches would break the order of windows.
        stretches.retain(|one| one.summary.count > 0 && (1..=STRETCH_MAX_MS).contains(&one.width_ms));
        self.count(stretches.len(), left)
    }

    fn count(&mut self, read: usize, left: usize) -> Result<(), Error> {
        if read > left {
            let most = self.limits.samples_max;
            let problem = format!("the query reads more than {most} samples");
            return Err(Error::limit(problem).with_hint("ask for a shorter range or fewer series"));
        }
        self.samples += read;
        Ok(())
    }
}

/// The error of a source; it may contain a limit that was exceeded.
fn unreadable(error: SourceError) -> Error {
    error.downcast::<Error>().map_or_else(Error::Source, |error| *error)
}

/// The time at which a selector is read for a step.
pub(crate) fn reference(range: QueryRange, at: Option<AtModifier>, offset_ms: Millis, now_ms: Millis) -> Millis {
    let base = match at {
        None => now_ms,
        Some(AtModifier::Start) => range.start_ms,
        Some(AtModifier::End) => range.end_ms,
        Some(AtModifier::Time(at_ms)) => at_ms,
    };
    base.saturating_sub(offset_ms).clamp(-TIME_MAX_MS, TIME_MAX_MS)
}

/// The stretches that a window can use; they are sorted.
fn near(stretches: &[SampleStretch], start_ms: Millis, end_ms: Millis) -> &[SampleStretch] {
    let first = stretches.partition_point(|one| one.end_ms() <= start_ms.saturating_sub(STRETCH_MAX_MS));
    let last = stretches.partition_point(|one| one.end_ms() <= end_ms);
    stretches.get(first..last).unwrap_or_default()
}

/// Moves a window over the data.
pub(crate) fn slide(
    (samples, stretches): KnownSeries<'_>,
    range_ms: Millis,
    steps: EvalSteps,
    end: &dyn Fn(usize) -> Millis,
    measure: WindowFunction<'_>,
) -> Vec<f64> {
    let mut values = vec![ABSENT; steps.count];
    let (mut low, mut high) = (0, 0);
    let (mut first, mut behind) = (0, 0);
    for (index, value) in values.iter_mut().enumerate() {
        let end_ms = end(index);
        let start_ms = end_ms.saturating_sub(range_ms);
        while samples.get(high).is_some_and(|(at_ms, _)| *at_ms <= end_ms) {
            high += 1;
        }
        while low < high && samples.get(low).is_some_and(|(at_ms, _)| *at_ms < start_ms) {
            low += 1;
        }
        while stretches.get(behind).is_some_and(|one| one.end_ms() <= end_ms) {
            behind += 1;
        }
        while first < behind && stretches.get(first).is_some_and(|one| one.end_ms() <= start_ms) {
            first += 1;
        }
        let samples = samples.get(low..high).unwrap_or_default();
        let mut stretches = stretches.get(..behind).unwrap_or_default();
        // A window that is shorter than a stretch may contain the end of none; the latest stretch is used then.
        let covers = |one: &SampleStretch| one.end_ms() > end_ms.saturating_sub(one.width_ms);
        if first < behind || !samples.is_empty() || !stretches.last().is_some_and(covers) {
            stretches = stretches.get(first..).unwrap_or_default();
        } else {
            stretches = stretches.get(behind - 1..).unwrap_or_default();
        }
        if samples.is_empty() && stretches.is_empty() {
            continue;
        }
        let window = SampleWindow { stretches, samples, start_ms, end_ms, now_ms: steps.time(index) };
        if let Some(found) = measure(index, &window) {
            *value = found;
        }
    }
    values
}
