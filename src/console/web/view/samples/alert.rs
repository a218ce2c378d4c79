//! Alerts, silences and rules.

use super::*;

pub(in crate::web) fn alert(hostname: &str, message: &str, standing: AlertStanding, number: i64) -> Alert {
    let (unit, mount) = if number % 2 == 0 { (None, Some("/".to_owned())) } else { (Some(name(1)), None) };
    let is_raised = standing == AlertStanding::Raised;
    Alert {
        host: HostId::random(),
        hostname: hostname.to_owned(),
        standing,
        ended_ms: (!is_raised).then(|| ago(90 * number)),
        received_ms: ago(500 * number),
        silence: None,
        alert: muster_topics::alert::Alert {
            v: muster_topics::V1,
            epoch: 1,
            seq: 1,
            id: "disk-1".parse().unwrap(),
            rule: "disk".parse().unwrap(),
            severity: if number % 3 == 0 { Severity::Warning } else { Severity::Critical },
            unit,
            mount,
            metric: Metric::DiskUsed,
            value: 0.93,
            threshold: 0.9,
            clear: 0.85,
            since_ms: ago(600 * number),
            at_ms: ago(5 * number),
            state: if is_raised { AlertState::Raised } else { AlertState::Cleared },
            diagnostic: Diagnostic::new(message),
        },
    }
}

pub(super) fn alerts(hostname: &str, message: &str) -> AlertsView {
    let one = |standing, number| alert(hostname, message, standing, number);
    let raised = one(AlertStanding::Raised, 2);
    let raised_host = raised.host;
    let silence = AlertSilence {
        id: "0a1b2c3d4e".parse().unwrap(),
        host: Some(raised.host),
        rule: Some("disk".parse().unwrap()),
        reason: format!("moving to a larger disk {message}"),
        operator: "admin".parse().unwrap(),
        created_ms: ago(700),
        until_ms: ago(-7_000),
    };
    let rule = |threshold, disabled| Rule {
        metric: Metric::DiskUsed,
        of: Some(message.to_owned()),
        threshold,
        clear: Some(0.7),
        for_ms: 600_000,
        severity: Severity::Critical,
        disabled,
    };
    let set = |host, rule| AlertRule { name: "disk".parse().unwrap(), host, rule };
    AlertsView {
        rules: vec![set(None, rule(0.8, false)), set(Some(raised.host), rule(0.8, true))],
        silences: vec![silence.clone(), AlertSilence { host: None, rule: None, ..silence.clone() }],
        raised: vec![one(AlertStanding::Raised, 1), Alert { silence: Some(silence), ..raised }],
        over: vec![one(AlertStanding::Cleared, 3), one(AlertStanding::Gone, 4)],
        names: [(raised_host, hostname.to_owned())].into(),
        form: SilenceForm { host: hostname.to_owned(), rule: hostname.to_owned(), reason: message.to_owned() },
        problem: None,
    }
}

/// The form of a rule; with a fault, in which every field is wrong.
pub(super) fn rule(name: &str, fault: Option<&str>) -> RuleView {
    let text = || fault.unwrap_or_default().to_owned();
    let form = RuleForm {
        name: name.to_owned(),
        host: text(),
        metric: "disk_used".to_owned(),
        of: fault.unwrap_or("/data").to_owned(),
        threshold: fault.unwrap_or("80%").to_owned(),
        clear: fault.unwrap_or("75%").to_owned(),
        lasting: fault.unwrap_or("10m").to_owned(),
        severity: "critical".to_owned(),
        off: false,
    };
    let fields = ["name", "host", "metric", "of", "threshold", "clear", "lasting", "severity"];
    let faults = fields.into_iter().filter_map(|field| Some((field, fault?.to_owned()))).collect();
    RuleView { form, is_set: fault.is_none(), faults, problem: fault.map(problem) }
}
