//! Alerts in words for people.

use muster_topics::alert::{Alert, Measure, Metric, Rule};

use super::{Reading, Subject};

/// Why an alert is raised.
#[must_use]
pub fn raised(rule: &Rule, reading: &Reading) -> String {
    let (subject, value) = (about(&reading.subject), reading.value);
    match reading.subject.metric {
        Metric::UnitBroken => format!("{subject} ended too often and is held as broken"),
        Metric::UnitRolledBack => format!("{subject} went back to its last verified revision, for a later one failed"),
        Metric::UnitRestarts => format!("{subject} was started again {value} times"),
        Metric::Duplicate => "another agent claims to be this host. hint: was its disk cloned? Remove the agent's \
                              folder on the copy, and join it with a new token"
            .to_owned(),
        metric => {
            let measure = metric.measure();
            let side = if metric.is_bad_if_low() { "below" } else { "above" };
            let lasting = match rule.for_ms {
                0 => String::new(),
                for_ms => format!(" for {}", span(for_ms)),
            };
            format!("{subject} {}, {side} {}{lasting}", said(measure, value), said(measure, rule.threshold))
        }
    }
}

/// When a rule raises an alert.
#[must_use]
pub fn rule(rule: &Rule) -> String {
    if rule.disabled {
        return format!("{}: never, it is switched off", rule.metric.as_str());
    }
    let of = rule.of.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
    let metric = format!("{}{of}", rule.metric.as_str());
    let lasting = match rule.for_ms {
        0 => String::new(),
        for_ms => format!(" for {}", span(for_ms)),
    };
    match rule.metric.measure() {
        Measure::Flag => format!("{metric}{lasting}"),
        measure => {
            let side = if rule.metric.is_bad_if_low() { "below" } else { "above" };
            let (threshold, clear) = (said(measure, rule.threshold), said(measure, rule.clear_level()));
            format!("{metric} {side} {threshold}{lasting}, until {clear}")
        }
    }
}

/// Why it is over.
#[must_use]
pub fn ended(alert: &Alert, value: Option<f64>) -> String {
    let subject = Subject { metric: alert.metric, unit: alert.unit.clone(), mount: alert.mount.clone() };
    match (value, alert.metric.measure()) {
        (Some(_), Measure::Flag) => format!("over: {}", alert.message),
        (Some(value), measure) => format!("{} {} again", about(&subject), said(measure, value)),
        (None, _) => format!("over, for it is not measured any more, or nobody asks for it: {}", alert.message),
    }
}

/// What a subject is, up to its value.
fn about(subject: &Subject) -> String {
    let unit = subject.unit.as_ref().map(ToString::to_string).unwrap_or_default();
    match subject.metric {
        Metric::CpuBusy => "processors busy:".to_owned(),
        Metric::MemoryUsed => "memory used:".to_owned(),
        Metric::DiskUsed => format!("file system {} used:", subject.mount.as_deref().unwrap_or("?")),
        Metric::LoadPerCore => "load for each processor:".to_owned(),
        Metric::Temperature => "temperature:".to_owned(),
        Metric::UnitCpuBusy => format!("unit {unit} uses of all processors:"),
        Metric::UnitMemory => format!("unit {unit} uses memory:"),
        Metric::UnitRestarts | Metric::UnitBroken | Metric::UnitRolledBack => format!("unit {unit}"),
        Metric::CertificateLeft => "left of the certificate's life:".to_owned(),
        Metric::StoreUsed => "file system of the agent's folder used:".to_owned(),
        Metric::ClockOff => "clock off by".to_owned(),
        Metric::Duplicate => "twins of this host:".to_owned(),
        Metric::Other => "something:".to_owned(),
    }
}

/// A value with its unit.
#[must_use]
pub fn said(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Ratio => {
            let percent = value * 100.0;
            let digits = usize::from((percent - percent.round()).abs() >= 0.05);
            format!("{percent:.digits$} %")
        }
        Measure::Celsius => format!("{value:.0} °C"),
        Measure::Bytes if value.abs() < 1024.0 => format!("{value:.0} B"),
        Measure::Bytes if value.abs() < 1024.0 * 1024.0 => format!("{:.0} KiB", value / 1024.0),
        Measure::Bytes if value.abs() < 1024.0 * 1024.0 * 1024.0 => format!("{:.0} MiB", value / (1024.0 * 1024.0)),
        Measure::Bytes => format!("{:.1} GiB", value / (1024.0 * 1024.0 * 1024.0)),
        Measure::Seconds => format!("{value:.1} s"),
        Measure::Number => format!("{}", (value * 100.0).round() / 100.0),
        Measure::Flag => (if value > 0.0 { "yes" } else { "no" }).to_owned(),
    }
}

/// A length of time.
#[must_use]
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms => format!("{} s", ms / 1_000),
    }
}
