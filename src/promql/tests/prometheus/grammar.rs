//! Queries generated from a seed. Each is well-typed, so that most are answered; whether labels match is left to chance.

use muster_promql::{Millis, QueryRange};

use crate::{
    chance::Chance,
    data::{LENGTH_MS, START_MS},
};

/// When a query is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    At(Millis),
    Range(QueryRange),
}

const NAMES: [&str; 17] = [
    "temp_celsius",
    "mem_total_bytes",
    "mem_used_bytes",
    "boot_time_seconds",
    "up",
    "build_info",
    "rare",
    "requests_total",
    "requests_total",
    "cpu_seconds_total",
    "latency_seconds_bucket",
    "latency_seconds_sum",
    "latency_seconds_count",
    "odd",
    "constant",
    "once",
    "nothing",
];
const LABELS: [&str; 8] = ["host", "room", "kind", "code", "path", "job", "version", "le"];
const DURATIONS: [&str; 7] = ["1m", "2m", "5m", "10m", "30m", "1h", "90s"];

pub(crate) fn at(chance: &mut Chance) -> When {
    // From a little before the first sample to a little behind the last, on and off whole seconds.
    let at_ms = START_MS - 300_000 + chance.below((LENGTH_MS + 900_000) as usize) as Millis;
    When::At(if chance.once_in(2) { at_ms / 1000 * 1000 } else { at_ms })
}

pub(crate) fn range(chance: &mut Chance) -> When {
    let start_ms = START_MS - 300_000 + chance.below(LENGTH_MS as usize) as Millis;
    let step_ms = chance.one(&[1_000, 7_000, 15_000, 60_000, 300_000, 1_234_567]);
    let steps = chance.below(40) as Millis;
    When::Range(QueryRange { start_ms, end_ms: start_ms + steps * step_ms + chance.below(1_000) as Millis, step_ms })
}

/// Times for a query that a person wrote.
pub(crate) fn every_way() -> Vec<When> {
    let middle = START_MS + LENGTH_MS / 2 + 321;
    let range =
        |start_ms, step_ms, steps| When::Range(QueryRange { start_ms, end_ms: start_ms + step_ms * steps, step_ms });
    vec![
        When::At(middle),
        When::At(START_MS - 60_000),
        When::At(START_MS + LENGTH_MS + 120_000),
        range(START_MS, 60_000, 180),
        range(middle, 15_000, 40),
        range(START_MS - 600_000, 1_800_000, 8),
    ]
}

pub(crate) fn query(chance: &mut Chance) -> String {
    let depth = 1 + chance.below(3);
    if chance.once_in(15) { scalar(chance, depth) } else { vector(chance, depth) }
}

fn selector(chance: &mut Chance) -> String {
    let mut text = chance.one(&NAMES).to_owned();
    if chance.once_in(3) {
        let matchers: Vec<String> = (0..=chance.below(2)).map(|_| matcher(chance)).collect();
        text.push_str(&format!("{{{}}}", matchers.join(",")));
    }
    text
}

fn matcher(chance: &mut Chance) -> String {
    chance
        .one(&[
            "host=\"h1\"",
            "host!=\"h1\"",
            "host=~\"h[12]\"",
            "host!~\"h1|h2\"",
            "host=~\".*\"",
            "host=~\"h\"",
            "room=\"a\"",
            "room=\"\"",
            "kind=~\"h.+|plain\"",
            "code=~\"2..\"",
            "code!=\"200\"",
            "path='/'",
            "le=\"+Inf\"",
            "absent=\"\"",
            "absent!=\"\"",
        ])
        .to_owned()
}

/// What may stand behind a selector or a subquery.
fn when(chance: &mut Chance) -> String {
    let mut text = String::new();
    if chance.once_in(12) {
        let middle = START_MS / 1000 + 5_000;
        match chance.below(4) {
            0 => text.push_str(" @ start()"),
            1 => text.push_str(" @ end()"),
            2 => text.push_str(&format!(" @ {middle}")),
            _ => text.push_str(&format!(" @ {middle}.75")),
        }
    }
    if chance.once_in(8) {
        text.push_str(chance.one(&[" offset 1m", " offset 5m30s", " offset -2m", " offset 1h"]));
    }
    text
}

fn grouping(chance: &mut Chance, words: [&str; 2]) -> String {
    let labels: Vec<&str> = (0..chance.below(3)).map(|_| chance.one(&LABELS)).collect();
    format!("{} ({})", chance.one(&words), labels.join(", "))
}

fn ranged(chance: &mut Chance, depth: usize) -> String {
    let duration = chance.one(&DURATIONS);
    if depth > 0 && chance.once_in(4) {
        let step = chance.one(&["", "30s", "1m", "17s"]);
        let inner = vector(chance, depth - 1);
        let inner = if inner.starts_with('-') || inner.contains(' ') { format!("({inner})") } else { inner };
        return format!("{inner}[{duration}:{step}]{}", when(chance));
    }
    format!("{}[{duration}]{}", selector(chance), when(chance))
}

fn scalar(chance: &mut Chance, depth: usize) -> String {
    if depth == 0 {
        return chance
            .one(&["0", "1", "2", "-1", "0.5", "1e3", "NaN", "Inf", "-Inf", "0x1f", "100", "time()", "pi()"])
            .to_owned();
    }
    match chance.below(4) {
        0 => format!("scalar({})", vector(chance, depth - 1)),
        1 => {
            let operator = chance.one(&["+", "-", "*", "/", "%", "^", "== bool", "> bool", "<= bool", "atan2"]);
            format!("{} {operator} {}", scalar(chance, depth - 1), scalar(chance, depth - 1))
        }
        2 => format!("-({})", scalar(chance, depth - 1)),
        _ => format!("({})", scalar(chance, depth - 1)),
    }
}

fn vector(chance: &mut Chance, depth: usize) -> String {
    if depth == 0 {
        let selector = selector(chance);
        return format!("{selector}{}", when(chance));
    }
    let depth = depth - 1;
    match chance.below(22) {
        0 => format!("{}{}", selector(chance), when(chance)),
        1..=5 => over(chance, depth),
        6..=8 => aggregation(chance, depth),
        9..=11 => binary(chance, depth),
        12 => with_scalar(chance, depth),
        13 | 14 => function(chance, depth),
        15 => relabelling(chance, depth),
        16 => {
            let share = chance.one(&["0.5", "0.9", "0", "1", "-1", "2", "NaN", "0.999"]);
            let buckets = chance.one(&[
                "latency_seconds_bucket",
                "rate(latency_seconds_bucket[5m])",
                "sum by (le) (rate(latency_seconds_bucket[10m]))",
                "sum by (le, host) (increase(latency_seconds_bucket[2m]))",
                "broken_bucket",
                "{__name__=~\".*_bucket\"}",
            ]);
            format!("histogram_quantile({share}, {buckets})")
        }
        17 => {
            let absent = chance.one(&["absent", "absent"]);
            if chance.once_in(2) {
                format!("{absent}({})", vector(chance, depth))
            } else {
                format!("absent_over_time({})", ranged(chance, depth))
            }
        }
        18 => format!("-{}", vector(chance, 0)),
        19 => format!("({})", vector(chance, depth)),
        20 => format!("vector({})", scalar(chance, depth)),
        _ => {
            let sort = chance.one(&["sort", "sort_desc", "timestamp"]);
            format!("{sort}({})", vector(chance, depth))
        }
    }
}

fn over(chance: &mut Chance, depth: usize) -> String {
    let function = chance.one(&[
        "rate",
        "rate",
        "increase",
        "irate",
        "delta",
        "idelta",
        "deriv",
        "changes",
        "resets",
        "avg_over_time",
        "min_over_time",
        "max_over_time",
        "sum_over_time",
        "count_over_time",
        "last_over_time",
        "stddev_over_time",
        "stdvar_over_time",
        "present_over_time",
        "quantile_over_time",
        "predict_linear",
    ]);
    let ranged = ranged(chance, depth);
    match function {
        // A window at a fixed time moves with the steps in Prometheus if another argument differs from step to step,
        // which is a fault of it.
        "quantile_over_time" if ranged.contains('@') => {
            format!("{function}({}, {ranged})", chance.one(&["0.5", "0.9", "1", "-1"]))
        }
        "quantile_over_time" => format!("{function}({}, {ranged})", scalar(chance, depth.min(1))),
        "predict_linear" if ranged.contains('@') => format!("deriv({ranged})"),
        "predict_linear" => format!("{function}({ranged}, {})", scalar(chance, depth.min(1))),
        _ => format!("{function}({ranged})"),
    }
}

fn aggregation(chance: &mut Chance, depth: usize) -> String {
    let name = chance.one(&[
        "sum",
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "stddev",
        "stdvar",
        "group",
        "quantile",
        "topk",
        "bottomk",
        "count_values",
    ]);
    let grouping = if chance.once_in(3) { String::new() } else { format!(" {} ", grouping(chance, ["by", "without"])) };
    match name {
        "quantile" => format!("{name}{grouping}({}, {})", scalar(chance, 0), vector(chance, depth)),
        "topk" | "bottomk" => {
            let count = chance.one(&["1", "2", "3", "0", "-1", "1000"]);
            format!("{name}{grouping}({count}, {})", vector(chance, depth))
        }
        // The text of a number tells of the last bit.
        "count_values" => format!("{name}{grouping}(\"value\", {})", selector(chance)),
        _ => format!("{name}{grouping}({})", vector(chance, depth)),
    }
}

fn binary(chance: &mut Chance, depth: usize) -> String {
    let (left, right) = (vector(chance, depth), vector(chance, depth));
    let operator = chance.one(&[
        "+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "== bool", "> bool", "and", "or", "unless",
        "atan2",
    ]);
    let mut matching = String::new();
    if !chance.once_in(3) {
        matching = grouping(chance, ["on", "ignoring"]);
        if !matches!(operator, "and" | "or" | "unless") && chance.once_in(3) {
            let include = if chance.once_in(2) { chance.one(&["", "version", "room", "job"]) } else { "" };
            let side = chance.one(&["group_left", "group_right"]);
            if !matching.contains(include) || include.is_empty() {
                matching.push_str(&format!(" {side} ({include})"));
            }
        }
    }
    format!("({left}) {operator} {matching} ({right})")
}

fn with_scalar(chance: &mut Chance, depth: usize) -> String {
    let operator =
        chance.one(&["+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "< bool", ">= bool", "atan2"]);
    let (vector, scalar) = (vector(chance, depth), scalar(chance, depth.min(1)));
    if chance.once_in(2) {
        format!("({vector}) {operator} ({scalar})")
    } else {
        format!("({scalar}) {operator} ({vector})")
    }
}

fn function(chance: &mut Chance, depth: usize) -> String {
    let function = chance.one(&[
        "abs",
        "ceil",
        "floor",
        "exp",
        "ln",
        "log2",
        "log10",
        "sqrt",
        "sgn",
        "round",
        "round",
        "clamp",
        "clamp_min",
        "clamp_max",
        "minute",
        "hour",
        "day_of_week",
        "day_of_month",
        "day_of_year",
        "days_in_month",
        "month",
        "year",
        "sin",
        "cos",
        "tanh",
        "deg",
        "rad",
    ]);
    match function {
        "round" if chance.once_in(2) => {
            format!("round({}, {})", vector(chance, depth), chance.one(&["0.1", "5", "0", "-2"]))
        }
        "clamp" => {
            let (least, most) = (scalar(chance, 0), scalar(chance, 0));
            format!("clamp({}, {least}, {most})", vector(chance, depth))
        }
        "clamp_min" | "clamp_max" => format!("{function}({}, {})", vector(chance, depth), scalar(chance, 0)),
        // Of times that are no numbers, or beyond all calendars, nobody knows the date.
        "minute" | "hour" | "day_of_week" | "day_of_month" | "day_of_year" | "days_in_month" | "month" | "year" => {
            let of = chance.one(&["", "boot_time_seconds", "up * 1e8", "timestamp(temp_celsius)", "vector(time())"]);
            format!("{function}({of})")
        }
        _ => format!("{function}({})", vector(chance, depth)),
    }
}

fn relabelling(chance: &mut Chance, depth: usize) -> String {
    let inner = vector(chance, depth);
    match chance.below(3) {
        0 => {
            let to = chance.one(&["host", "new", "__name__", "room"]);
            let from = chance.one(&["host", "code", "absent", "text"]);
            let (replacement, pattern) = chance.one(&[
                ("$1", "(.).*"),
                ("x-$1-${2}", "(.)(.*)"),
                ("", ".*"),
                ("$0", "h[0-9]"),
                ("same", "(.*)"),
                ("$name", "(?P<name>.*)"),
                ("$1", "never"),
            ]);
            format!("label_replace({inner}, \"{to}\", \"{replacement}\", \"{from}\", \"{pattern}\")")
        }
        1 => format!("label_join({inner}, \"joined\", \"-\", \"host\", \"code\", \"absent\")"),
        _ => format!("label_join({inner}, \"host\", \"\", \"room\")"),
    }
}
