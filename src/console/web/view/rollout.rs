//! One rollout: how it goes, its waves, why hosts wait, what has happened, and its hosts.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_api::{
    HostOutcome, Rollout, RolloutDetail, RolloutHost, RolloutHosts, RolloutPhase, RolloutStep, RolloutVerb,
    RolloutWait, RolloutWaitKind, RolloutWave, RolloutWaveState, host_names::HostNames,
};
use muster_topics::desired::DeploymentName;

use super::{
    deployment,
    elements::{self, Tone, ago, count, due, grouped, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
};

/// The hosts of one page: a screen or two.
pub(in crate::web) const PAGE_HOSTS: u32 = 100;

/// The events on which a rollout is fetched again.
pub(super) const EVENTS: [&str; 1] = ["deployment"];

/// The path of the page of a deployment's rollout.
pub(in crate::web) fn url(deployment: &DeploymentName) -> String {
    format!("/rollout/{deployment}")
}

/// The path of a verb's page.
pub(super) fn verb_url(deployment: &DeploymentName, verb: RolloutVerb) -> String {
    format!("{}/{}", url(deployment), verb_path(verb))
}

/// The last part of a verb's path.
pub(in crate::web) fn verb_path(verb: RolloutVerb) -> &'static str {
    match verb {
        RolloutVerb::Pause => "pause",
        RolloutVerb::Resume => "resume",
        RolloutVerb::Promote => "promote",
        RolloutVerb::Retry => "retry",
        RolloutVerb::Cancel => "cancel",
        RolloutVerb::CancelWithRollback => "rollback",
    }
}

/// All verbs.
pub(in crate::web) const VERBS: [RolloutVerb; 6] = [
    RolloutVerb::Pause,
    RolloutVerb::Resume,
    RolloutVerb::Promote,
    RolloutVerb::Retry,
    RolloutVerb::Cancel,
    RolloutVerb::CancelWithRollback,
];

/// What a verb's button says.
pub(super) fn verb_words(verb: RolloutVerb) -> &'static str {
    match verb {
        RolloutVerb::Pause => "Pause",
        RolloutVerb::Resume => "Resume",
        RolloutVerb::Promote => "Approve the next wave",
        RolloutVerb::Retry => "Retry",
        RolloutVerb::Cancel => "Cancel",
        RolloutVerb::CancelWithRollback => "Cancel and roll back",
    }
}

/// The colour of an outcome.
fn outcome_tone(outcome: HostOutcome) -> Tone {
    match outcome {
        HostOutcome::Verified => Tone::Good,
        HostOutcome::Failed | HostOutcome::Lost | HostOutcome::RolledBack | HostOutcome::Refused => Tone::Bad,
        HostOutcome::Cannot | HostOutcome::Missing | HostOutcome::Skipped => Tone::Busy,
        HostOutcome::Superseded | HostOutcome::Removed => Tone::Idle,
    }
}

/// The words for an outcome.
fn outcome_words(outcome: HostOutcome) -> String {
    outcome.word().replace('_', " ")
}

/// The colour of what a host waits for.
fn wait_tone(kind: RolloutWaitKind) -> Tone {
    match kind {
        RolloutWaitKind::Changing | RolloutWaitKind::Preparing | RolloutWaitKind::Retry => Tone::Busy,
        RolloutWaitKind::Paused | RolloutWaitKind::Approval => Tone::Bad,
        _ => Tone::Idle,
    }
}

/// Renders how a rollout goes, in a word.
pub(super) fn phase(of: &Rollout) -> Markup {
    match of.phase {
        RolloutPhase::Running => state(Tone::Busy, "running"),
        RolloutPhase::Soaking { .. } => state(Tone::Busy, "soaking"),
        RolloutPhase::Approval => state(Tone::Bad, "waits for approval"),
        RolloutPhase::Paused { .. } => state(Tone::Bad, "paused"),
        RolloutPhase::Completed => state(Tone::Good, "completed"),
        RolloutPhase::Cancelled => state(Tone::Idle, "cancelled"),
        RolloutPhase::RolledBack { .. } => state(Tone::Bad, "rolled back"),
        RolloutPhase::Superseded { .. } => state(Tone::Idle, "superseded"),
        RolloutPhase::Failed { .. } => state(Tone::Bad, "failed"),
    }
}

/// Renders what there is to say of its phase.
pub(super) fn phase_words(of: &Rollout, frame: &PageFrame) -> Markup {
    let other = |by: u32| html! { a href={ (url(&of.deployment)) "?version=" (by) } { "version " (by) } };
    html! {
        @match &of.phase {
            RolloutPhase::Running if of.wave >= of.waves => { "the last wave" @if of.waves > 1 { " of " (of.waves) } " admits hosts" }
            RolloutPhase::Running => { "wave " (of.wave) " of " (of.waves) " admits hosts" }
            RolloutPhase::Soaking { until_ms } => { "wave " (of.wave) " has succeeded; the next one begins " (due(*until_ms, frame.now_ms)) }
            RolloutPhase::Approval => { "wave " (of.wave) " has succeeded; an operator must approve the next one" }
            RolloutPhase::Paused { since_ms, reason } => { (reason) ", " (ago(*since_ms, frame.now_ms)) }
            RolloutPhase::Completed => "every host has an outcome",
            RolloutPhase::Cancelled => "hosts keep what they have",
            RolloutPhase::RolledBack { by } => { (other(*by)) " goes back" }
            RolloutPhase::Superseded { by } => { (other(*by)) " has replaced it" }
            RolloutPhase::Failed { reason } => (reason),
        }
    }
}

/// Renders the hosts of a rollout as a bar: those that have ended, by colour, and those that change now.
pub(super) fn bar(of: &Rollout) -> Markup {
    shares(of.hosts, of.in_flight, &of.outcomes)
}

fn shares(hosts: u64, in_flight: u64, outcomes: &BTreeMap<HostOutcome, u64>) -> Markup {
    let sum = |tone| outcomes.iter().filter(|(of, _)| outcome_tone(**of) == tone).map(|(_, number)| number).sum();
    let (good, bad, idle): (u64, u64, u64) = (sum(Tone::Good), sum(Tone::Bad), sum(Tone::Idle) + sum(Tone::Busy));
    let label = format!("{} of {}", outcomes.values().sum::<u64>(), count(hosts, "host has ended", "hosts have ended"));
    elements::bar(&label, hosts, &[("good", good), ("bad", bad), ("idle", idle), ("busy", in_flight)])
}

/// Renders the number of hosts with each outcome.
pub(super) fn outcomes(counts: &BTreeMap<HostOutcome, u64>) -> Markup {
    html! {
        span.summary {
            @for (of, number) in counts {
                (state(outcome_tone(*of), &format!("{} {}", grouped(*number), outcome_words(*of)))) " "
            }
        }
    }
}

/// Which rollout, and which of its hosts are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownRollout {
    /// Of this version; the last one without.
    pub(in crate::web) version: Option<u32>,
    /// Hosts with this outcome alone.
    pub(in crate::web) outcome: Option<HostOutcome>,
    /// Hosts that wait for this alone.
    pub(in crate::web) waits: Option<RolloutWaitKind>,
    /// Hosts of this wave alone.
    pub(in crate::web) wave: Option<u32>,
    /// The page, from 1.
    pub(in crate::web) page: u32,
}

impl ShownRollout {
    fn is_all(&self) -> bool {
        self.outcome.is_none() && self.waits.is_none() && self.wave.is_none()
    }

    /// The same rollout, with all its hosts.
    fn all(&self) -> Self {
        Self { version: self.version, ..Self::default() }
    }

    fn url(&self, deployment: &DeploymentName) -> String {
        let wire = |kind: RolloutWaitKind| serde_json::to_value(kind).ok()?.as_str().map(str::to_owned);
        let parts = [
            ("version", self.version.map(|number| number.to_string())),
            ("outcome", self.outcome.map(|outcome| outcome.word().to_owned())),
            ("waits", self.waits.and_then(wire)),
            ("wave", self.wave.map(|number| number.to_string())),
            ("page", (self.page > 1).then(|| self.page.to_string())),
        ];
        let query: Vec<String> =
            parts.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))).collect();
        let url = url(deployment);
        if query.is_empty() { url } else { format!("{url}?{}", query.join("&")) }
    }
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct RolloutView {
    /// The rollout.
    pub(in crate::web) detail: RolloutDetail,
    /// The version of the deployment's last rollout.
    pub(in crate::web) newest: u32,
    /// Those of its hosts that are on the page.
    pub(in crate::web) hosts: RolloutHosts,
    /// All rollouts of the deployment, the newest first. Not known of a region alone.
    pub(in crate::web) history: Vec<Rollout>,
    /// What is shown.
    pub(in crate::web) shown: ShownRollout,
}

impl PageView for RolloutView {
    fn title(&self) -> String {
        format!("Rollout of {}, version {}", self.name(), self.detail.rollout.version)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Rollouts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let here = self.shown.url(self.name());
        html! {
            h1 { "Rollout of " a href=(deployment::url(self.name())) { (self.name()) } }
            (region(&here, "progress", &EVENTS, self.progress(frame)))
            section {
                h2 { "Hosts" }
                (region(&here, "hosts", &["deployment", "host"], self.hosts(frame)))
            }
            section {
                h2 { "Policy" }
                p.note { "It is in the deployment's document, below " code { "rollout" } ". Defaults are shown for what the document leaves out." }
                (deployment::json("Policy", &serde_json::Value::Object(self.detail.policy.clone())))
            }
            section {
                h2 { "Rollouts of this deployment" }
                (self.history(frame))
            }
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        match name {
            "progress" => Some(self.progress(frame)),
            "hosts" => Some(self.hosts(frame)),
            _ => None,
        }
    }
}

impl RolloutView {
    fn name(&self) -> &DeploymentName {
        &self.detail.rollout.deployment
    }

    fn progress(&self, frame: &PageFrame) -> Markup {
        let of = &self.detail.rollout;
        html! {
            div.head {
                p { (phase(of)) " " (phase_words(of, frame)) }
                div.actions { (self.verbs()) }
            }
            (self.newer())
            (bar(of))
            (self.facts(frame))
            section {
                h2 { "Waves" }
                (self.waves())
            }
            (self.waits())
            section {
                h2 { "What has happened" }
                (steps(&self.detail.steps, frame))
            }
        }
    }

    /// Says that this is not the deployment's last rollout.
    fn newer(&self) -> Markup {
        html! {
            @if !self.is_last() {
                div.notice { p { "This is an earlier rollout. " a href=(url(self.name())) { "Show that of version " (self.newest) } } }
            }
        }
    }

    fn verbs(&self) -> Markup {
        html! {
            @for verb in &self.detail.verbs {
                a.button href=(verb_url(self.name(), *verb)) { (verb_words(*verb)) "…" } " "
            }
        }
    }

    fn facts(&self, frame: &PageFrame) -> Markup {
        let of = &self.detail.rollout;
        html! {
            dl.facts {
                div { dt { "Version" } dd {
                    a href=(deployment::version_url(self.name(), of.version)) { (of.version) }
                    @if of.is_rollback { ", which rolls back to an earlier one" }
                } }
                div { dt { "Hosts" } dd { (grouped(of.hosts)) ", " (grouped(of.ended())) " have ended" } }
                div { dt { "Changing now" } dd { (grouped(of.in_flight)) } }
                div { dt { "Unavailable" } dd { (grouped(of.unavailable)) } }
                div { dt { "Began" } dd { (ago(of.begun_ms, frame.now_ms)) } }
                @if let Some(at_ms) = of.ended_ms { div { dt { "Ended" } dd { (ago(at_ms, frame.now_ms)) } } }
                @if let Some(at_ms) = self.detail.deadline_ms {
                    div { dt { "Deadline" } dd { (due(at_ms, frame.now_ms)) ", for hosts that are away" } }
                }
                @if let Some(number) = self.detail.goes_back_to.filter(|_| !of.phase.is_end()) {
                    div { dt { "Goes back to" } dd { a href=(deployment::version_url(self.name(), number)) { "version " (number) } " if it is rolled back" } }
                }
            }
        }
    }

    fn waves(&self) -> Markup {
        html! {
            table.cards {
                caption.visually-hidden { "Waves" }
                thead { tr { th scope="col" { "Wave" } th scope="col" { "State" } th scope="col" { "Size" } th scope="col" { "Admitted" }
                    th scope="col" { "Changing" } th scope="col" { "Outcomes" } } }
                tbody { @for wave in &self.detail.on_waves { (self.wave(wave)) } }
            }
        }
    }

    fn wave(&self, wave: &RolloutWave) -> Markup {
        let tone = match wave.state {
            RolloutWaveState::Waiting => Tone::Idle,
            RolloutWaveState::Present => Tone::Busy,
            RolloutWaveState::Ended => Tone::Good,
        };
        let hosts = ShownRollout { wave: Some(wave.number), ..self.shown.all() };
        html! {
            tr {
                th scope="row" { (wave.number) }
                td data-label="State" { (state(tone, wave.state.word())) }
                td.number data-label="Size" { @if let Some(size) = wave.size { (grouped(size)) } @else { "the rest" } }
                td.number data-label="Admitted" {
                    @if wave.admitted > 0 { a href={ (hosts.url(self.name())) "#hosts" } { (grouped(wave.admitted)) } } @else { "0" }
                }
                td.number data-label="Changing" { (grouped(wave.in_flight)) }
                td data-label="Outcomes" {
                    (shares(wave.size.unwrap_or(0).max(wave.admitted), wave.in_flight, &wave.outcomes))
                    (outcomes(&wave.outcomes))
                }
            }
        }
    }

    /// Renders why hosts have not ended.
    fn waits(&self) -> Markup {
        html! {
            @if !self.detail.waits.is_empty() {
                section {
                    h2 { "Why hosts wait" }
                    table.cards {
                        caption.visually-hidden { "Why hosts wait" }
                        thead { tr { th scope="col" { "Waits for" } th scope="col" { "Hosts" } th scope="col" { "Why" } th scope="col" { "Which" } } }
                        tbody { @for wait in &self.detail.waits { (self.wait(wait)) } }
                    }
                }
            }
        }
    }

    fn wait(&self, wait: &RolloutWait) -> Markup {
        let names = HostNames::new(wait.first.iter().map(|host| (host.host, host.hostname.as_str())));
        let all = ShownRollout { waits: Some(wait.kind), ..self.shown.all() };
        let more = wait.hosts.saturating_sub(wait.first.len() as u64);
        html! {
            tr {
                th scope="row" { (state(wait_tone(wait.kind), wait.kind.word())) }
                td.number data-label="Hosts" { (grouped(wait.hosts)) }
                td data-label="Why" { @if wait.reason.cause.is_empty() { "–" } @else { (format!("{:#}", wait.reason)) } }
                td data-label="Which" {
                    @for host in &wait.first {
                        a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) } " "
                    }
                    @if more > 0 { a href={ (all.url(self.name())) "#hosts" } { "and " (grouped(more)) " more" } }
                }
            }
        }
    }

    fn hosts(&self, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.hosts.hosts.iter().map(|host| (host.host, host.hostname.as_str())));
        html! {
            (self.tiles())
            @if self.hosts.hosts.is_empty() {
                p {
                    @if self.shown.is_all() && self.shown.page <= 1 { "This rollout has no hosts." } @else {
                        "No host matches. " a href=(self.shown.all().url(self.name())) { "Show all" }
                    }
                }
            } @else {
                table.cards {
                    caption.visually-hidden { "Hosts of the rollout" }
                    thead { tr { th scope="col" { "Host" } th scope="col" { "Outcome" } th scope="col" { "Why" } th scope="col" { "Wave" }
                        th scope="col" { "Admitted" } th scope="col" { "Ended" } } }
                    tbody { @for host in &self.hosts.hosts { (self.row(host, &names, frame)) } }
                }
                (self.pages())
            }
        }
    }

    /// Renders the number of hosts with each outcome, and of those that wait for the same; each shows those alone.
    fn tiles(&self) -> Markup {
        let mut waits: BTreeMap<RolloutWaitKind, u64> = BTreeMap::new();
        for wait in &self.detail.waits {
            *waits.entry(wait.kind).or_default() += wait.hosts;
        }
        let all = self.shown.all();
        let tile = |shown: ShownRollout, number: u64, tone: Tone, words: &str| {
            let current = (shown == ShownRollout { page: 0, ..self.shown.clone() }).then_some("true");
            html! {
                li { a href=(shown.url(self.name())) aria-current=[current] {
                    span.number { (grouped(number)) } " " (state(tone, words))
                } }
            }
        };
        html! {
            ul.tiles aria-label="Hosts by outcome" {
                @for (of, number) in &self.detail.rollout.outcomes {
                    (tile(ShownRollout { outcome: Some(*of), ..all.clone() }, *number, outcome_tone(*of), &outcome_words(*of)))
                }
                @for (of, number) in &waits {
                    (tile(ShownRollout { waits: Some(*of), ..all.clone() }, *number, wait_tone(*of), of.word()))
                }
                @if let Some(wave) = self.shown.wave { li { "those of wave " (wave) } }
                @if !self.shown.is_all() { li { a href=(all.url(self.name())) { "Show all" } } }
            }
        }
    }

    fn row(&self, host: &RolloutHost, names: &HostNames<'_>, frame: &PageFrame) -> Markup {
        let release = format!("{}/release?host={}", url(self.name()), host.host);
        html! {
            tr {
                th scope="row" {
                    a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) }
                    @if let Some(group) = &host.group { " " span.note { (group) } }
                }
                td data-label="Outcome" {
                    @match (host.outcome, host.waits) {
                        (Some(outcome), _) => (state(outcome_tone(outcome), &outcome_words(outcome))),
                        (None, Some(kind)) => (state(wait_tone(kind), kind.word())),
                        (None, None) => "–",
                    }
                    @if host.is_unavailable { " " (state(Tone::Bad, "unavailable")) }
                    @if host.failures > 0 { " " span.note { "failed " (count(host.failures.into(), "time", "times")) } }
                    @if is_releasable(host) && self.is_last() { " " a href=(release) { "Release…" } }
                }
                td data-label="Why" {
                    @if let Some(reason) = &host.reason { (format!("{reason:#}")) } @else { "–" }
                    @if host.changed == Some(false) { " " span.note { "(nothing was changed)" } }
                }
                td.number data-label="Wave" { @if let Some(wave) = host.wave { (wave) } @else { "–" } }
                td data-label="Admitted" { @if let Some(at_ms) = host.admitted_ms { (ago(at_ms, frame.now_ms)) } @else { "–" } }
                td data-label="Ended" { @if let Some(at_ms) = host.ended_ms { (ago(at_ms, frame.now_ms)) } @else { "–" } }
            }
        }
    }

    /// Whether this is the deployment's last rollout: budgets count for that alone.
    fn is_last(&self) -> bool {
        self.newest <= self.detail.rollout.version
    }

    fn pages(&self) -> Markup {
        let page = self.shown.page.max(1);
        let first = u64::from(page - 1) * u64::from(PAGE_HOSTS);
        let (shown, found) = (self.hosts.hosts.len() as u64, self.hosts.total);
        let to = |page| ShownRollout { page, ..self.shown.clone() }.url(self.name());
        html! {
            @if found > shown {
                nav.pages aria-label="Pages of hosts" {
                    @if page > 1 { a href=(to(page - 1)) rel="prev" { "← previous" } } " "
                    span { (grouped(first + 1)) "–" (grouped(first + shown)) " of " (grouped(found)) }
                    " " @if first + shown < found { a href=(to(page + 1)) rel="next" { "next →" } }
                }
            }
        }
    }

    fn history(&self, frame: &PageFrame) -> Markup {
        html! {
            table.cards {
                caption.visually-hidden { "Rollouts of this deployment" }
                thead { tr { th scope="col" { "Version" } th scope="col" { "Phase" } th scope="col" { "Hosts" } th scope="col" { "Outcomes" }
                    th scope="col" { "Began" } } }
                tbody {
                    @for one in self.history.iter().take(HISTORY_SHOWN) {
                        @let page = ShownRollout { version: Some(one.version), ..ShownRollout::default() };
                        tr {
                            th scope="row" {
                                a href=(page.url(self.name())) { (one.version) }
                                @if one.version == self.detail.rollout.version { " " span.note { "this one" } }
                            }
                            td data-label="Phase" { (phase(one)) }
                            td.number data-label="Hosts" { (grouped(one.hosts)) }
                            td data-label="Outcomes" { (outcomes(&one.outcomes)) }
                            td data-label="Began" { (ago(one.begun_ms, frame.now_ms)) }
                        }
                    }
                }
            }
            @if self.history.len() > HISTORY_SHOWN {
                p.note { "and " (count((self.history.len() - HISTORY_SHOWN) as u64, "earlier one", "earlier ones")) ": "
                    code { "muster rollout ls " (self.name()) } }
            }
        }
    }
}

/// The most rollouts of a deployment that are listed.
const HISTORY_SHOWN: usize = 20;

/// Whether an operator may count the host as available again: it is not, and does not change now.
fn is_releasable(host: &RolloutHost) -> bool {
    host.is_unavailable && matches!(host.outcome, Some(HostOutcome::Failed | HostOutcome::Lost))
}

fn steps(steps: &[RolloutStep], frame: &PageFrame) -> Markup {
    html! {
        @if steps.is_empty() { p.note { "Nothing yet." } } @else {
            ul.plain.steps tabindex="0" aria-label="What has happened" {
                @for step in steps {
                    li {
                        (ago(step.at_ms, frame.now_ms)) " " (step.text)
                        @if let Some(operator) = &step.operator { span.note { " by " (operator) } }
                    }
                }
            }
        }
    }
}

/// What a verb would do, and the button for it.
#[derive(Clone, Debug)]
pub(in crate::web) struct RolloutVerbView {
    /// The rollout.
    pub(in crate::web) detail: RolloutDetail,
    /// The verb.
    pub(in crate::web) verb: RolloutVerb,
}

impl PageView for RolloutVerbView {
    fn title(&self) -> String {
        format!("{}: rollout of {}", verb_words(self.verb), self.detail.rollout.deployment)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Rollouts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let of = &self.detail.rollout;
        let is_danger = matches!(self.verb, RolloutVerb::Cancel | RolloutVerb::CancelWithRollback);
        html! {
            h1 { (verb_words(self.verb)) ": rollout of " a href=(url(&of.deployment)) { (of.deployment) } }
            p { "Version " (of.version) ": " (phase(of)) " " (phase_words(of, frame)) }
            (bar(of))
            p { (outcomes(&of.outcomes)) }
            @if self.detail.verbs.contains(&self.verb) {
                p { (self.effect()) }
                (frame.form(&verb_url(&of.deployment, self.verb), html! {
                    input type="hidden" name="version" value=(of.version);
                    @if is_danger { button.danger type="submit" { (verb_words(self.verb)) } }
                    @else { button.primary type="submit" { (verb_words(self.verb)) } }
                }))
            } @else {
                p { "The present state of the rollout does not allow that. " a href=(url(&of.deployment)) { "Show the rollout" } }
            }
        }
    }
}

impl RolloutVerbView {
    /// Renders what the verb does.
    fn effect(&self) -> Markup {
        let of = &self.detail.rollout;
        let failed: u64 = of.outcomes.iter().filter(|(one, _)| one.is_failure()).map(|(_, number)| number).sum();
        let open = of.open().saturating_sub(of.in_flight);
        html! {
            @match self.verb {
                RolloutVerb::Pause => {
                    "No further host begins until an operator resumes the rollout. " (self.changing()) " The deadline for offline hosts stops."
                }
                RolloutVerb::Resume => {
                    "Hosts begin again. " @if failed > 0 { "The failures of the present wave are accepted: only further ones count." }
                }
                RolloutVerb::Promote => { "Wave " (of.wave + 1) " of " (of.waves) " begins." }
                RolloutVerb::Retry => { (count(failed, "host that has failed tries", "hosts that have failed try")) " the same version again, within the budget." }
                RolloutVerb::Cancel => {
                    "It ends now. "
                    @if open > 0 {
                        (count(open, "host that has not begun keeps its version. ", "hosts that have not begun keep their version. "))
                    }
                    "Hosts that have changed keep the version. " (self.changing())
                }
                RolloutVerb::CancelWithRollback => {
                    "It ends now. A new version is made" @if let Some(number) = self.detail.goes_back_to { ", with the content of "
                        a href=(deployment::version_url(&of.deployment, number)) { "version " (number) } }
                    ". It goes to all hosts without waves, approvals and windows, within the same budget. " (self.changing())
                }
            }
        }
    }

    fn changing(&self) -> Markup {
        let number = self.detail.rollout.in_flight;
        html! { @if number > 0 { (count(number, "host that changes now goes", "hosts that change now go")) " on to the end." } }
    }
}

/// That a host counts as available again, and the button for it.
#[derive(Clone, Debug)]
pub(in crate::web) struct ReleaseView {
    /// The deployment.
    pub(in crate::web) deployment: DeploymentName,
    /// The host.
    pub(in crate::web) host: RolloutHost,
}

impl PageView for ReleaseView {
    fn title(&self) -> String {
        format!("Release {}", self.host.hostname)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Rollouts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let RolloutHost { host, hostname, group, outcome, reason, .. } = &self.host;
        let rollout = url(&self.deployment);
        html! {
            h1 { "Release " a href=(elements::host_url(*host)) { (hostname) } }
            p {
                "In the rollout of " a href=(&rollout) { (self.deployment) } ": "
                @if let Some(outcome) = outcome { (state(outcome_tone(*outcome), &outcome_words(*outcome))) }
                @if let Some(reason) = reason { " " (format!("{reason:#}")) }
            }
            @if is_releasable(&self.host) {
                p {
                    "The host counts as available again and no longer uses the budget"
                    @if let Some(group) = group { " of " (group) }
                    ": other hosts may begin instead. Its outcome stays, and nothing on it changes."
                }
                (frame.form(&format!("{rollout}/release"), html! {
                    input type="hidden" name="host" value=(host);
                    button.primary type="submit" { "Release " (hostname) }
                }))
            } @else {
                p { "It does not use the budget, or is changing now. " a href=(&rollout) { "Show the rollout" } }
            }
        }
    }
}

/// Renders a deployment's rollout in a line.
pub(super) fn line(of: &Rollout, frame: &PageFrame) -> Markup {
    html! {
        p {
            a href=(url(&of.deployment)) { "Rollout of version " (of.version) } ": " (phase(of)) " " (phase_words(of, frame))
        }
        (bar(of))
    }
}
