//! Alerts as text for people.

use muster_topics::count::counted;
use muster_topics::{
    alert::{Alert, Metric, Rule},
    catalogue::Measure,
    diagnostic::Diagnostic,
    size,
};

use super::{Reading, ReadingSubject};

/// Describes why an alert was raised.
#[must_use]
pub fn raised(rule: &Rule, reading: &Reading) -> Diagnostic {
    let (subject, value) = (about(&reading.subject), reading.value);
    match reading.subject.metric {
        Metric::UnitBroken => format!("{subject} ended too often and is held as broken").into(),
        Metric::UnitFailed => {
            Diagnostic::new(format_args!("{subject} should run and does not")).with_hint("`muster unit show` shows why")
        }
        Metric::UnitRolledBack => {
            format!("{subject} was rolled back to its last verified revision because a later one failed").into()
        }
        Metric::UnitRestarts => format!("{subject} was restarted {}", counted(value, "time")).into(),
        Metric::DiskUnresponsive => Diagnostic::new(format_args!("{subject} does not answer")).with_hint(
            "programs that read or write there hang; check its server or device, or unmount \
                 it with `umount -l`",
        ),
        Metric::StoreLost => Diagnostic::new(
            "the agent's store was set back, lost or damaged; earlier \
                 commands that it no longer knows are refused",
        )
        .with_hint(
            "the agent's log shows which; if no backup was restored, check the \
                 host's disk and its units",
        ),
        Metric::StoreUnwritable => Diagnostic::new(
            "the agent's folder is not writable; units keep running, \
                 commands are refused, and desired changes wait",
        )
        .with_hint(
            "check whether its file system is full, without free inodes, or read-only after an \
                 error (`df -h`, `df -i`, `dmesg` on the host)",
        ),
        Metric::DocumentRefused => {
            Diagnostic::new("this host refuses its document of desired state; the previous one stays in force")
                .with_hint("`muster host show` shows why")
        }
        Metric::Duplicate => Diagnostic::new("another agent claims to be this host")
            .with_hint("if its disk was cloned, remove the agent's folder on the copy and join it with a new token"),
        Metric::LaterProtocol => Diagnostic::new(
            "the console's protocol is newer than this agent's, which ignores its commands; units keep running",
        )
        .with_hint("upgrade the agent"),
        metric => {
            let measure = metric.measure();
            let side = if metric.is_bad_if_low() { "below" } else { "above" };
            let lasting = match rule.for_ms {
                0 => String::new(),
                for_ms => format!(" for {}", span(for_ms)),
            };
            format!("{subject} {}, {side} {}{lasting}", said(measure, value), said(measure, rule.threshold)).into()
        }
    }
}

/// Describes when a rule raises an alert.
#[must_use]
pub fn rule(rule: &Rule) -> String {
    if rule.disabled {
        return format!("{}: off", rule.metric.as_str());
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

/// Describes why an alert ended.
#[must_use]
pub fn ended(alert: &Alert, value: Option<f64>) -> Diagnostic {
    let subject = ReadingSubject { metric: alert.metric, unit: alert.unit.clone(), mount: alert.mount.clone() };
    match (value, alert.metric.measure()) {
        (Some(_), Measure::Flag) => alert.diagnostic.clone().within("over"),
        (Some(value), measure) => format!("{} {} again", about(&subject), said(measure, value)).into(),
        (None, _) => alert.diagnostic.clone().within("ended: it is no longer measured, or its rule was removed"),
    }
}

/// Describes a subject, up to its value.
fn about(subject: &ReadingSubject) -> String {
    let unit = subject.unit.as_ref().map(ToString::to_string).unwrap_or_default();
    match subject.metric {
        Metric::CpuBusy => "processors busy:".to_owned(),
        Metric::MemoryUsed => "memory used:".to_owned(),
        Metric::DiskUsed => format!("file system {} used:", subject.mount.as_deref().unwrap_or("?")),
        Metric::InodesUsed => format!("inodes of file system {} used:", subject.mount.as_deref().unwrap_or("?")),
        Metric::DiskUnresponsive => format!("file system {}", subject.mount.as_deref().unwrap_or("?")),
        Metric::FilesUsed => "open files, of the host's limit:".to_owned(),
        Metric::PidsUsed => "processes and threads, of the host's limit:".to_owned(),
        Metric::PortsUsed => "local TCP ports used:".to_owned(),
        Metric::ConntrackUsed => "connections tracked by the firewall, of its limit:".to_owned(),
        Metric::LoadPerCore => "load for each processor:".to_owned(),
        Metric::Temperature => "temperature:".to_owned(),
        Metric::UnitCpuBusy => format!("unit {unit} uses of all processors:"),
        Metric::UnitMemory => format!("unit {unit} uses memory:"),
        Metric::UnitDiskUsed => format!("unit {unit} has written, of its limit:"),
        Metric::UnitRestarts | Metric::UnitBroken | Metric::UnitFailed | Metric::UnitRolledBack => {
            format!("unit {unit}")
        }
        Metric::CertificateLeft => "left of the certificate's life:".to_owned(),
        Metric::StoreUsed => "file system of the agent's folder used:".to_owned(),
        Metric::ClockOff => "clock off by".to_owned(),
        Metric::StoreLost => "losses of the agent's store:".to_owned(),
        Metric::StoreUnwritable => "agent's folders that are not writable:".to_owned(),
        Metric::Duplicate => "twins of this host:".to_owned(),
        Metric::DocumentRefused => "documents refused:".to_owned(),
        Metric::LaterProtocol => "newer protocols of the console:".to_owned(),
        Metric::Other => "something:".to_owned(),
    }
}

/// Formats a value with its unit.
#[must_use]
pub fn said(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Ratio => {
            let percent = value * 100.0;
            let digits = usize::from((percent - percent.round()).abs() >= 0.05);
            format!("{percent:.digits$} %")
        }
        Measure::Celsius => format!("{value:.0} °C"),
        Measure::Bytes if value < 0.0 => format!("-{}", size::print(-value as u64)),
        Measure::Bytes => size::print(value as u64),
        Measure::Seconds => format!("{value:.1} s"),
        Measure::Number => format!("{}", (value * 100.0).round() / 100.0),
        Measure::Flag => (if value > 0.0 { "yes" } else { "no" }).to_owned(),
    }
}

/// Parses a level as people write it: a number, with %, s or a unit of bytes ([`size::unit`]) where the metric has one.
///
/// # Errors
/// If it is no such number; the message says what is expected.
pub fn level(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches(|last: char| last.is_ascii_alphabetic() || last == '%');
    let factor = match &text[number.len()..] {
        "%" => Some(0.01),
        "s" => Some(1.0),
        unit => size::unit(unit).map(|bytes| bytes as f64),
    };
    let read = factor.and_then(|factor| Some((number.trim().parse::<f64>().ok()?, factor)));
    let (number, factor) = read.ok_or_else(|| {
        format!("{text:?} is not a level: expected a number, with %, s, KiB, MiB or GiB after it if the metric has such a unit")
    })?;
    let level = number * factor;
    // 80 % is 0.8, not 0.8000000000000000444.
    if level.is_finite() { Ok((level * 1e9).round() / 1e9) } else { Err(format!("{text:?} is not a finite number")) }
}

/// Formats a level so that [`level`] reads the same value, without rounding.
#[must_use]
pub fn exact(measure: Measure, value: f64) -> String {
    let written = |text: String| level(&text).is_ok_and(|read| read == value).then_some(text);
    let with = |factor: f64, unit: &str| written(format!("{}{unit}", (value / factor * 1e6).round() / 1e6));
    let found = match measure {
        Measure::Ratio => with(0.01, "%"),
        Measure::Bytes if value >= 1.0 && value.fract() == 0.0 => written(size::print_exact(value as u64)),
        Measure::Bytes => None,
        Measure::Celsius | Measure::Seconds | Measure::Number | Measure::Flag => None,
    };
    found.unwrap_or_else(|| value.to_string())
}

/// Formats a duration.
#[must_use]
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms => format!("{} s", ms / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_levels_parse_to_the_same() {
        for (measure, value, text) in [
            (Measure::Ratio, 0.9, "90%"),
            (Measure::Ratio, 0.125, "12.5%"),
            (Measure::Ratio, 0.0, "0%"),
            (Measure::Ratio, 1.0 / 3.0, "0.3333333333333333"),
            (Measure::Bytes, 536_870_912.0, "512MiB"),
            (Measure::Bytes, 1_073_741_824.0, "1GiB"),
            (Measure::Bytes, 5_000.0, "5000"),
            (Measure::Bytes, 0.0, "0"),
            (Measure::Celsius, 90.0, "90"),
            (Measure::Seconds, 1.5, "1.5"),
            (Measure::Number, -3.0, "-3"),
        ] {
            assert_eq!(exact(measure, value), text);
            assert!((level(text).unwrap() - value).abs() < 1e-9, "{text}");
        }
        for bad in ["", "x", "90 percent", "5 XB", "NaN", "1e999", "%"] {
            assert!(level(bad).is_err(), "{bad:?}");
        }
    }
}
