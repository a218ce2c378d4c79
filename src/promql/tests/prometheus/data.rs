//! Series generated from a seed: gauges, counters that reset, gaps, histograms, and NaN.

use std::{fmt::Write, ops::RangeInclusive};

use muster_promql::{Labels, Matchers, Millis, NAME, Source, SourceError, TimedValue, number};

use crate::chance::Chance;

/// The first sample.
pub(crate) const START_MS: Millis = 1_700_000_000_000;
/// How long there are samples.
pub(crate) const LENGTH_MS: Millis = 3 * 3_600_000;

pub(crate) struct Data {
    series: Vec<(Labels, Vec<TimedValue>)>,
}

impl Data {
    pub(crate) fn new(seed: u64) -> Self {
        let mut data = Self { series: Vec::new() };
        let chance = &mut Chance::new(seed);
        data.gauges(chance);
        data.counters(chance);
        data.histograms(chance);
        data.oddities(chance);
        data.series.sort_by(|(a, _), (b, _)| a.cmp(b));
        data
    }

    fn add(&mut self, name: &str, labels: &[(&str, &str)], samples: Vec<TimedValue>) {
        self.series.push((labels.iter().copied().chain([(NAME, name)]).collect(), samples));
    }

    fn gauges(&mut self, chance: &mut Chance) {
        for (host, room) in [("h1", "a"), ("h2", "a"), ("h3", "b"), ("h4", "b")] {
            let mut level = 20.0 + chance.share() * 5.0;
            let samples = times(chance, 15_000, host == "h3");
            let walk = samples.iter().map(|at_ms| {
                level += chance.share() - 0.5;
                (*at_ms, (level * 100.0).round() / 100.0)
            });
            self.add("temp_celsius", &[("host", host), ("room", room)], walk.collect());
            let total = 8e9 + chance.share() * 1e9;
            let total = total.round();
            let even = times(chance, 30_000, false);
            self.add("mem_total_bytes", &[("host", host)], even.iter().map(|at_ms| (*at_ms, total)).collect());
            for kind in ["heap", "cache"] {
                let used = even.iter().map(|at_ms| (*at_ms, (total * (0.2 + 0.2 * chance.share())).round()));
                self.add("mem_used_bytes", &[("host", host), ("kind", kind)], used.collect());
            }
            let started = START_MS / 1000 - 1_000_000 * (chance.below(300) as i64);
            let boots = even.iter().map(|at_ms| (*at_ms, started as f64 + 0.5));
            self.add("boot_time_seconds", &[("host", host)], boots.collect());
            let up =
                times(chance, 60_000, host == "h2").into_iter().map(|at_ms| (at_ms, f64::from(chance.below(5) > 0)));
            self.add("up", &[("host", host), ("job", "node")], up.collect());
            let version = if room == "a" { "1.2" } else { "2.0" };
            let info = even.iter().map(|at_ms| (*at_ms, 1.0)).collect();
            self.add("build_info", &[("host", host), ("version", version)], info);
            let rare = times(chance, 240_000, false).into_iter().map(|at_ms| (at_ms, chance.share() * 10.0 - 5.0));
            self.add("rare", &[("host", host)], rare.collect());
        }
        // Begins late and ends early.
        let middle = (START_MS + LENGTH_MS / 3..START_MS + LENGTH_MS / 2).step_by(20_000);
        let samples = middle.map(|at_ms| (at_ms, chance.share())).collect();
        self.add("temp_celsius", &[("host", "h5"), ("room", "c")], samples);
    }

    fn counters(&mut self, chance: &mut Chance) {
        for host in ["h1", "h2", "h3"] {
            for code in ["200", "404", "500"] {
                for path in ["/", "/api"] {
                    let mut count = if host == "h1" { 0.0 } else { chance.below(100_000) as f64 };
                    let samples = times(chance, 15_000, code == "404").into_iter().map(|at_ms| {
                        count = if chance.once_in(120) { 0.0 } else { count + chance.below(40) as f64 };
                        (at_ms, count)
                    });
                    let samples = samples.collect();
                    self.add("requests_total", &[("host", host), ("code", code), ("path", path)], samples);
                }
            }
            let mut count = 0.0;
            let samples = times(chance, 15_000, false).into_iter().map(|at_ms| {
                count += chance.share() * 1e-3;
                (at_ms, count)
            });
            let samples = samples.collect();
            self.add("cpu_seconds_total", &[("host", host)], samples);
        }
    }

    fn histograms(&mut self, chance: &mut Chance) {
        for host in ["h1", "h2"] {
            let bounds = ["0.005", "0.05", "0.5", "1", "5", "+Inf"];
            let mut counts = [0_u32; 6];
            let mut sum = 0.0;
            let (mut buckets, mut sums, mut totals) = (vec![Vec::new(); 6], Vec::new(), Vec::new());
            for at_ms in times(chance, 30_000, false) {
                for _ in 0..chance.below(30) {
                    let bucket = chance.below(6);
                    counts[bucket] += 1;
                    sum += [0.004, 0.03, 0.3, 0.8, 3.0, 9.0][bucket];
                }
                let mut below = 0;
                for (count, samples) in counts.iter().zip(&mut buckets) {
                    below += count;
                    samples.push((at_ms, f64::from(below)));
                }
                sums.push((at_ms, sum));
                totals.push((at_ms, f64::from(below)));
            }
            for (bound, samples) in bounds.into_iter().zip(buckets) {
                self.add("latency_seconds_bucket", &[("host", host), ("le", bound)], samples);
            }
            self.add("latency_seconds_sum", &[("host", host)], sums);
            self.add("latency_seconds_count", &[("host", host)], totals);
        }
        // Without the last bound, and with one that is none.
        for bound in ["1", "5", "many"] {
            let samples =
                times(chance, 60_000, false).into_iter().map(|at_ms| (at_ms, chance.below(9) as f64)).collect();
            self.add("broken_bucket", &[("le", bound)], samples);
        }
    }

    fn oddities(&mut self, chance: &mut Chance) {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e300, -1e300, 1e-300, 5.0, -7.25];
        for kind in ["mixed", "plain"] {
            let samples = times(chance, 30_000, false).into_iter().map(|at_ms| {
                let value = if kind == "mixed" { chance.one(&odd) } else { chance.below(5) as f64 - 2.0 };
                (at_ms, value)
            });
            let samples = samples.collect();
            self.add("odd", &[("kind", kind), ("text", "a-b_c d\"e\\f")], samples);
        }
        let constant = times(chance, 30_000, false);
        for value in [f64::INFINITY, 3.0] {
            let samples = constant.iter().map(|at_ms| (*at_ms, value)).collect();
            self.add("constant", &[("value", &number::value(value))], samples);
        }
        self.add("once", &[("host", "h1")], vec![(START_MS + LENGTH_MS / 2, 42.0)]);
    }

    /// As text that `promtool` makes blocks of.
    pub(crate) fn open_metrics(&self) -> String {
        let mut text = String::new();
        for (labels, samples) in &self.series {
            let pairs: Vec<String> = labels
                .iter()
                .filter(|(name, _)| *name != NAME)
                .map(|(name, value)| format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")))
                .collect();
            for (at_ms, value) in samples {
                let (value, at) = (number::value(*value), number::seconds(*at_ms));
                writeln!(text, "{}{{{}}} {value} {at}", labels.get(NAME), pairs.join(",")).unwrap();
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

/// Times that are not quite regular, and if wanted with a gap and lost ones.
fn times(chance: &mut Chance, every_ms: Millis, gaps: bool) -> Vec<Millis> {
    let first = START_MS + chance.below(every_ms as usize) as Millis;
    let mut times = Vec::new();
    for regular in (first..START_MS + LENGTH_MS).step_by(every_ms as usize) {
        let in_gap = (START_MS + 4_000_000..START_MS + 5_200_000).contains(&regular);
        if !(gaps && (in_gap || chance.once_in(10))) {
            times.push(regular + chance.below(every_ms as usize / 20) as Millis);
        }
    }
    times
}

impl Source for Data {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError> {
        let chosen = self.series.iter().enumerate().filter(|(_, (labels, _))| matchers.accept(|name| labels.get(name)));
        Ok(chosen.map(|(index, (labels, _))| (labels.clone(), index as u64)).take(series_max).collect())
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        _: usize,
        into: &mut Vec<TimedValue>,
    ) -> Result<(), SourceError> {
        let samples = &self.series[series as usize].1;
        into.extend(samples.iter().filter(|(at_ms, _)| times.contains(at_ms)));
        Ok(())
    }
}
