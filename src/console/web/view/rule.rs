//! Alert rules: the list, and the form that sets one.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_api::{AlertRule, Problem};
use muster_rules::alert::{defaults, words};
use muster_topics::{
    alert::{Metric, OF_MAX_BYTES, Rule, Severity},
    catalogue::Measure,
    name::{HostId, NAME_MAX_BYTES, Name},
};

use super::{
    alerts::severity,
    elements,
    frame::{PageFrame, PageView, Section},
    problem::notice,
    region::encoded,
};

/// The values of the form, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct RuleForm {
    /// Its name.
    pub(in crate::web) name: String,
    /// The host that it is for, by id or name; empty for all.
    pub(in crate::web) host: String,
    /// The metric, as a word.
    pub(in crate::web) metric: String,
    /// The file system or unit, if only one is meant.
    pub(in crate::web) of: String,
    /// The threshold at which it is raised.
    pub(in crate::web) threshold: String,
    /// The level at which it is cleared.
    pub(in crate::web) clear: String,
    /// How long the threshold has to be exceeded.
    pub(in crate::web) lasting: String,
    /// The severity, as a word.
    pub(in crate::web) severity: String,
    /// Whether the rule is off.
    pub(in crate::web) off: bool,
}

impl RuleForm {
    /// Returns the values of an existing rule.
    pub(in crate::web) fn of(name: &Name, host: Option<&str>, rule: &Rule) -> Self {
        let exact = |value: f64| match rule.metric.measure() {
            Measure::Flag => String::new(),
            measure => words::exact(measure, value),
        };
        Self {
            name: name.to_string(),
            host: host.unwrap_or_default().to_owned(),
            metric: rule.metric.as_str().to_owned(),
            of: rule.of.clone().unwrap_or_default(),
            threshold: exact(rule.threshold),
            clear: rule.clear.map(exact).unwrap_or_default(),
            lasting: lasting(rule.for_ms),
            severity: rule.severity.as_str().to_owned(),
            off: rule.disabled,
        }
    }
}

/// Formats a duration as the form reads it.
fn lasting(ms: u64) -> String {
    match ms {
        0 => String::new(),
        ms if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        ms if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        ms if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct RuleView {
    /// The values of the form.
    pub(in crate::web) form: RuleForm,
    /// Whether the console has such a rule, whose name and host cannot be changed.
    pub(in crate::web) is_set: bool,
    /// Faults of fields, by name.
    pub(in crate::web) faults: BTreeMap<&'static str, String>,
    /// Any other reason for a refusal.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for RuleView {
    fn title(&self) -> String {
        if self.is_set { format!("Rule {}", self.form.name) } else { "A rule for alerts".to_owned() }
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Alerts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { (self.title()) }
            p { a href="/alerts#rules" { "All alerts and rules" } }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            (frame.form("/alerts/rule", html! {
                @if self.is_set { input type="hidden" name="is_set" value="yes"; }
                div.run {
                    (self.who())
                    (self.what())
                    (self.when())
                    button.primary type="submit" { "Set the rule" }
                }
            }))
            @if self.is_set { (removal(&self.form.name, &self.form.host, frame)) }
        }
    }
}

impl RuleView {
    /// Renders one field with its label, and its fault beside it.
    fn field(&self, name: &'static str, label: &str, note: &str, input: Markup) -> Markup {
        html! {
            div.field {
                label for=(name) { (label) }
                (input)
                p.note id={ "about-" (name) } {
                    @if let Some(fault) = self.faults.get(name) { strong.why { (fault) } " " }
                    (note)
                }
            }
        }
    }

    fn text(
        &self,
        name: &'static str,
        (label, placeholder, note): (&str, &str, &str),
        value: &str,
        kept: bool,
    ) -> Markup {
        self.field(name, label, note, html! {
            input id=(name) type="text" name=(name) value=(value) placeholder=(placeholder) autocapitalize="none" spellcheck="false"
                maxlength=(OF_MAX_BYTES.max(NAME_MAX_BYTES)) aria-describedby={ "about-" (name) }
                aria-invalid=[self.faults.contains_key(name).then_some("true")] readonly[kept];
        })
    }

    fn who(&self) -> Markup {
        let form = &self.form;
        let own = if self.is_set {
            "A rule's name and host cannot be changed. Create another rule for another host."
        } else {
            "Lowercase letters, digits, - and _. Overrides the agents' built-in rule of this name."
        };
        html! {
            fieldset {
                legend { "Which" }
                div.options.explained {
                    (self.text("name", ("Name", "disk", own), &form.name, self.is_set))
                    (self.text("host", ("Host", "all hosts", "A name or an id; empty for all hosts. A host's own rule replaces one for all."), &form.host, self.is_set))
                }
            }
        }
    }

    fn what(&self) -> Markup {
        let form = &self.form;
        html! {
            fieldset {
                legend { "Metric" }
                div.options.explained {
                    (self.field("metric", "Measurement", "", html! {
                        select id="metric" name="metric" aria-describedby="about-metric" {
                            @for metric in Metric::ALL {
                                option value=(metric.as_str()) selected[metric.as_str() == form.metric] { (metric.as_str().replace('_', " ")) }
                            }
                        }
                    }))
                    (self.text("of", ("Of", "each", "One file system (its mount point) or one unit (REALM/NAME). Leave empty to check each one separately."), &form.of, false))
                }
            }
        }
    }

    fn when(&self) -> Markup {
        let form = &self.form;
        html! {
            fieldset {
                legend { "Condition" }
                div.options.explained {
                    (self.text("threshold", ("Beyond", "90%", "A percentage (90%), a size (512MiB) or a number. Leave empty for on/off metrics."), &form.threshold, false))
                    (self.text("clear", ("Cleared at", "85%", "The alert is cleared at this value. Leave empty to use the same value."), &form.clear, false))
                    (self.text("lasting", ("For", "5m", "How long the condition must hold, such as 30s, 5m or 2h. Leave empty to alert at once."), &form.lasting, false))
                    (self.field("severity", "Severity", "", html! {
                        select id="severity" name="severity" aria-describedby="about-severity" {
                            @for severity in [Severity::Info, Severity::Warning, Severity::Critical] {
                                option value=(severity.as_str()) selected[severity.as_str() == form.severity] { (severity.as_str()) }
                            }
                        }
                    }))
                }
                label.choice {
                    input type="checkbox" name="off" value="yes" checked[form.off];
                    "Disable this rule. This also switches off the agents' built-in rule of this name."
                }
            }
        }
    }
}

fn removal(name: &str, host: &str, frame: &PageFrame) -> Markup {
    frame.form(
        "/alerts/rule/remove",
        html! {
            input type="hidden" name="name" value=(name);
            input type="hidden" name="host" value=(host);
            p.note { "Without it, the agents' built-in rule of this name applies again, if there is one." }
            button type="submit" aria-label={ "Remove rule " (name) } { "Remove the rule" }
        },
    )
}

/// The URL of a rule's form.
fn url(name: &Name, host: Option<HostId>) -> String {
    let host = host.map(|host| format!("&host={host}")).unwrap_or_default();
    format!("/alerts/rule?name={}{host}", encoded(name.as_str()))
}

/// Renders all rules: the console's, and default ones that none of these replaces for all hosts.
pub(super) fn listing(set: &[AlertRule], hostname: &dyn Fn(HostId) -> String) -> Markup {
    let own = defaults::rules();
    let is_replaced = |name: &Name| set.iter().any(|one| one.name == *name && one.host.is_none());
    let row = |name: &Name, host: Option<HostId>, rule: &Rule, from: &str| {
        html! {
            tr {
                th scope="row" { a href=(url(name, host)) { (name) } }
                td data-label="Hosts" {
                    @match host {
                        Some(host) => { a href=(elements::host_url(host)) { (hostname(host)) } }
                        None => { "all" }
                    }
                }
                td data-label="Raised" { (words::rule(rule)) }
                td data-label="Severity" { (severity(rule.severity, true)) }
                td data-label="From" { (from) }
            }
        }
    };
    html! {
        table.cards {
            caption.visually-hidden { "Rules" }
            thead {
                tr { th scope="col" { "Rule" } th scope="col" { "Hosts" } th scope="col" { "Raised" } th scope="col" { "Severity" }
                     th scope="col" { "From" } }
            }
            tbody {
                @for one in set { (row(&one.name, one.host, &one.rule, "console")) }
                @for (name, rule) in own.iter().filter(|(name, _)| !is_replaced(name)) { (row(name, None, rule, "agents")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for (ms, text) in [(600_000, "10m"), (7_200_000, "2h"), (90_000, "90s"), (1_500, "1500ms")] {
            assert_eq!(lasting(ms), text);
            assert_eq!(muster_promql::number::duration(text), i64::try_from(ms).ok());
        }
        assert_eq!(lasting(0), "");
    }
}
