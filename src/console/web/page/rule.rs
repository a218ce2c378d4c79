//! The page of one alert rule: shows, sets and removes it.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{NewAlertRule, Problem};
use muster_promql::number;
use muster_rules::alert::{defaults, words};
use muster_topics::{
    alert::{Metric, Rule, RuleFault, RuleField, Severity},
    catalogue::Measure,
    name::{Name, NameError},
};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::PageParams,
        guard::FormFields,
        session::WebSession,
        view::rule::{RuleForm, RuleView},
    },
};

/// The rule; a new one if none is named.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct RulePageQuery {
    #[serde(default)]
    name: String,
    #[serde(default)]
    host: String,
}

/// Faults by the name of their field.
type FieldFaults = BTreeMap<&'static str, String>;

/// Shows the form, filled with the console's rule, or else with the default one.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<RulePageQuery>,
) -> Response {
    let view = view(&console, &asked).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

async fn view(console: &Console, asked: &RulePageQuery) -> Result<RuleView, Error> {
    let new = || RuleForm {
        name: asked.name.clone(),
        host: asked.host.clone(),
        severity: Severity::default().as_str().to_owned(),
        ..RuleForm::default()
    };
    let unset = |form: RuleForm| RuleView { form, is_set: false, faults: FieldFaults::new(), problem: None };
    let Ok(name) = asked.name.parse::<Name>() else { return Ok(unset(new())) };
    let host = match asked.host.as_str() {
        "" => None,
        host => Some(console.host(host).await?),
    };
    let (id, hostname) = (host.as_ref().map(|host| host.id), host.as_ref().map(|host| host.hostname.as_str()));
    let rules = console.alert_rules().await?;
    if let Some(one) = rules.iter().find(|one| one.name == name && one.host == id) {
        // If several hosts have this name, the id decides.
        let named = id.map(|id| id.to_string());
        let form = RuleForm::of(&name, named.as_deref(), &one.rule);
        return Ok(RuleView { is_set: true, ..unset(form) });
    }
    let of_all = rules.into_iter().find(|one| one.name == name && one.host.is_none()).map(|one| one.rule);
    let known = of_all.or_else(|| defaults::rules().remove(&name));
    Ok(unset(known.map_or_else(new, |rule| RuleForm::of(&name, hostname, &rule))))
}

/// Sets a rule; problems are shown beside their fields, with the form as it was.
pub(in crate::web) async fn set(State(console): State<Console>, session: WebSession, fields: FormFields) -> Response {
    let form = form(&fields);
    let (faults, problem, status) = match wanted(&form) {
        Err(faults) => (faults, None, StatusCode::BAD_REQUEST),
        Ok(new) => match console.set_alert_rule(&session.operator, new).await {
            Ok(_) => return answer::see("/alerts#rules"),
            Err(error) => refused(error),
        },
    };
    // The name of an existing rule cannot be changed.
    let is_set = fields.one("is_set") == "yes";
    let view = RuleView { form, is_set, faults, problem };
    answer::html(status, session.frame().page(&view))
}

/// Returns where a refusal belongs: beside a field, or above the form.
fn refused(error: Error) -> (FieldFaults, Option<Problem>, StatusCode) {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let problem = error.problem;
    let message = &problem.diagnostic.cause;
    let words = match &problem.diagnostic.hint {
        Some(hint) => format!("{message}. Hint: {hint}"),
        None => message.clone(),
    };
    let field = match problem.code.as_str() {
        "unknown_host" | "ambiguous_host" => Some("host"),
        _ => None,
    };
    match field {
        Some(field) => (FieldFaults::from([(field, words)]), None, status),
        None => (FieldFaults::new(), Some(problem), status),
    }
}

fn form(fields: &FormFields) -> RuleForm {
    let text = |name: &str| fields.one(name).trim().to_owned();
    RuleForm {
        name: text("name"),
        host: text("host"),
        metric: text("metric"),
        of: text("of"),
        threshold: text("threshold"),
        clear: text("clear"),
        lasting: text("lasting"),
        severity: text("severity"),
        off: fields.one("off") == "yes",
    }
}

/// Parses the form as a rule; returns every field with a fault.
fn wanted(form: &RuleForm) -> Result<NewAlertRule, FieldFaults> {
    let mut faults = FieldFaults::new();
    let name: Option<Name> =
        form.name.parse().map_err(|error: NameError| faults.insert("name", error.to_string())).ok();
    let metric = Metric::ALL.into_iter().find(|metric| metric.as_str() == form.metric);
    if metric.is_none() {
        faults.insert("metric", format!("{:?} is not a known metric", form.metric));
    }
    let is_flag = metric.is_some_and(|metric| metric.measure() == Measure::Flag);
    let threshold = match form.threshold.as_str() {
        // Above 0 means yes.
        "" if is_flag => Some(0.0),
        "" if form.off => Some(0.0),
        text => words::level(text).map_err(|problem| faults.insert("threshold", problem)).ok(),
    };
    let clear = match form.clear.as_str() {
        "" => Some(None),
        text => words::level(text).map(Some).map_err(|problem| faults.insert("clear", problem)).ok(),
    };
    let for_ms = match form.lasting.as_str() {
        "" | "0" => Some(0),
        text => number::duration(text).and_then(|ms| u64::try_from(ms).ok()),
    };
    if for_ms.is_none() {
        faults.insert("lasting", format!("{:?} is not a duration. Hint: write 30s, 5m or 2h", form.lasting));
    }
    let severities = [Severity::Info, Severity::Warning, Severity::Critical];
    let severity = severities.into_iter().find(|severity| severity.as_str() == form.severity);
    if severity.is_none() {
        faults.insert("severity", format!("{:?} is not a severity. Hint: info, warning or critical", form.severity));
    }
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    match (name, metric, threshold, clear, for_ms, severity) {
        (Some(name), Some(metric), Some(threshold), Some(clear), Some(for_ms), Some(severity)) if faults.is_empty() => {
            let rule = Rule { metric, of: given(&form.of), threshold, clear, for_ms, severity, disabled: form.off };
            match rule.check() {
                Ok(()) => Ok(NewAlertRule { name, host: given(&form.host), rule }),
                Err(fault) => Err(FieldFaults::from([(field_name(fault.field), hinted(&fault))])),
            }
        }
        _ => Err(faults),
    }
}

fn field_name(field: RuleField) -> &'static str {
    match field {
        RuleField::Metric => "metric",
        RuleField::Threshold => "threshold",
        RuleField::Clear => "clear",
        RuleField::Of => "of",
    }
}

/// A problem and its hint as pages have them.
fn hinted(RuleFault { problem, hint, .. }: &RuleFault) -> String {
    match hint {
        Some(hint) => format!("{problem}. Hint: {hint}"),
        None => problem.clone(),
    }
}

/// Removes a rule.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let answer = async {
        let name = fields.one("name").parse();
        let name: Name = name.map_err(|error: NameError| Error::invalid("bad_rule", error.to_string()))?;
        let host = Some(fields.one("host")).filter(|host| !host.is_empty());
        console.remove_alert_rule(&session.operator, &name, host).await?;
        Ok(answer::see("/alerts#rules"))
    };
    answer::or_problem(&session, answer.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> RuleForm {
        let text = str::to_owned;
        RuleForm {
            name: text("disk"),
            metric: text("disk_used"),
            threshold: text("80%"),
            clear: text("75 %"),
            lasting: text("10m"),
            severity: text("critical"),
            ..RuleForm::default()
        }
    }

    #[test]
    fn rule_form_round_trips() {
        let new = wanted(&filled()).unwrap();
        let rule = Rule {
            metric: Metric::DiskUsed,
            of: None,
            threshold: 0.8,
            clear: Some(0.75),
            for_ms: 600_000,
            severity: Severity::Critical,
            disabled: false,
        };
        assert_eq!((new.name.as_str(), new.host, &new.rule), ("disk", None, &rule));
        for (name, rule) in defaults::rules() {
            let again = wanted(&RuleForm::of(&name, Some("shop-7"), &rule)).unwrap();
            assert_eq!((again.name, again.host.as_deref()), (name, Some("shop-7")));
            let clear = if rule.metric.measure() == Measure::Flag { None } else { rule.clear };
            assert_eq!(again.rule, Rule { clear, ..rule });
        }
    }

    #[test]
    fn each_fault_is_shown_beside_its_field() {
        let check = |form: RuleForm, fields: &[&str]| {
            let faults = wanted(&form).unwrap_err();
            assert_eq!(faults.keys().copied().collect::<Vec<_>>(), fields, "{faults:?}");
        };
        let text = str::to_owned;
        check(RuleForm::default(), &["metric", "name", "severity", "threshold"]);
        check(RuleForm { name: text("No Name"), ..filled() }, &["name"]);
        check(RuleForm { threshold: text("much"), clear: text("little"), ..filled() }, &["clear", "threshold"]);
        check(RuleForm { lasting: text("a while"), ..filled() }, &["lasting"]);
        check(RuleForm { threshold: String::new(), ..filled() }, &["threshold"]);
        assert!(wanted(&RuleForm { threshold: String::new(), off: true, clear: String::new(), ..filled() }).is_ok());
        let broken =
            RuleForm { metric: text("unit_broken"), threshold: String::new(), clear: String::new(), ..filled() };
        assert_eq!(wanted(&broken).unwrap().rule.threshold, 0.0);
        check(RuleForm { clear: text("90%"), ..filled() }, &["clear"]);
        check(RuleForm { metric: text("cpu_busy"), of: text("/"), ..filled() }, &["of"]);
        let percent = wanted(&RuleForm { threshold: text("80"), clear: String::new(), ..filled() }).unwrap_err();
        assert!(percent["threshold"].ends_with("Hint: did you mean 80%?"), "{percent:?}");
        let (faults, problem, _) = refused(Error::invalid("bad_rule", "something else"));
        assert!(faults.is_empty() && problem.is_some());
    }
}
