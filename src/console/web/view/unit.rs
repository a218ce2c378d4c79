//! One unit: its desired state beside the observed one, and its actions.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use maud::{Markup, html};
use muster_api::{Command, Unit, upgrade::Upgrade};
use muster_topics::{
    container::{ContainerSpec, Image, Network},
    desired::UnitOwner,
    endpoint::Protocol,
    name::{CommandId, HostId, Name, UnitName},
    unit::{Channel, Content, Desired, NOTE_MAX_CHARS, Observed, Phase, Spec},
    verb_table::KindName,
};

use super::super::chart::{latest::Latest, range::TimeRange};
use super::{
    command::{ShownOutput, is_open},
    commands, deployment,
    elements::{self, Tone, ago, bytes, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    manage, measurements, problem,
    region::region,
    unit_tasks::ShownTasks,
};
use crate::{desired::UnitClaim, web::command_progress::HostCounts};

/// The default number of lines of a log.
pub(in crate::web) const LINES: u32 = 200;
/// The most lines.
pub(in crate::web) const LINES_MAX: u32 = 5_000;

/// The URL of a unit's page.
pub(in crate::web) fn url(host: HostId, unit: &UnitName) -> String {
    format!("/host/{host}/unit/{}/{}", unit.realm(), unit.name())
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct UnitView {
    /// The unit.
    pub(in crate::web) unit: Unit,
    /// The command that was just submitted here.
    pub(in crate::web) asked: Option<Command>,
    /// The same question of before, whose answer is shown while the host is asked again.
    pub(in crate::web) before: Option<CommandId>,
    /// The end of the log, if that was requested, with the host's notes.
    pub(in crate::web) log: Option<(ShownOutput, String)>,
    /// Its tasks, if they were requested.
    pub(in crate::web) tasks: ShownTasks,
    /// Its latest measurements.
    pub(in crate::web) latest: Vec<Latest>,
    /// The range of its charts.
    pub(in crate::web) range: TimeRange,
    /// Newer content that it could get.
    pub(in crate::web) newer: Option<Upgrade>,
    /// What deployments have to do with it.
    pub(in crate::web) claim: UnitClaim,
}

impl PageView for UnitView {
    fn title(&self) -> String {
        format!("{} on {}", self.unit.unit, self.unit.hostname)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Hosts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch { host: Some(self.unit.host), command: None })
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let url = url(self.unit.host, &self.unit.unit);
        html! {
            div.head {
                h1 { (self.unit.unit) }
                p {
                    (self.unit.desired.spec.kind()) " on " a href=(elements::host_url(self.unit.host)) { (self.unit.hostname) }
                    @if let Some(owner) = &self.unit.owner { ", of the deployment " a href=(deployment::url(&owner.deployment)) { (owner.deployment) } }
                }
            }
            (self.actions(frame, &url))
            (self.holding(frame, &url))
            div aria-live="polite" { (region(&self.asked_url(), "asked", &["command"], self.asked(frame))) }
            (region(&url, "state", &["unit", "host"], self.state(frame)))
            @if self.has("logs") { section {
                h2 { "Log" }
                (frame.form(&format!("{url}/logs"), html! {
                    div.row {
                        label for="lines" { "Last lines" }
                        input #lines type="number" name="lines" value=(LINES) min="1" max=(LINES_MAX) inputmode="numeric";
                        button type="submit" { "Show the log" }
                    }
                }))
                (region(&self.asked_url(), "log", &["command"], self.log()))
            } }
            @if self.has_tasks() {
                section {
                    h2 { "Tasks" }
                    (ShownTasks::form(frame, &url))
                    (region(&self.tasks_url(), "tasks", &["command"], self.tasks.region(frame, &url)))
                }
            }
            (manage::section(self, frame))
            section {
                div.head {
                    h2 { "Measurements" }
                    (self.range.links(&url))
                }
                (measurements::charts(&format!("{url}/charts"), self.range))
                (region(&url, "latest", &["metrics"], measurements::latest(&self.latest, frame)))
            }
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        match name {
            "asked" => Some(self.asked(frame)),
            "state" => Some(self.state(frame)),
            "log" => Some(self.log()),
            "tasks" => Some(self.tasks.region(frame, &url(self.unit.host, &self.unit.unit))),
            "latest" => Some(measurements::latest(&self.latest, frame)),
            _ => None,
        }
    }
}

impl UnitView {
    /// Whether it may be able to play: its own report of that changes.
    fn may_play(&self) -> bool {
        self.unit.desired.spec.channel() == Channel::Lines
    }

    /// Whether units of its kind have this verb.
    pub(super) fn has(&self, word: &str) -> bool {
        KindName::from(&*self.unit.desired.spec).has(word)
    }

    fn asked_url(&self) -> String {
        let url = url(self.unit.host, &self.unit.unit);
        match &self.asked {
            Some(asked) => format!("{url}?asked={}", asked.id),
            None => url,
        }
    }

    fn tasks_url(&self) -> String {
        let url = self.asked_url();
        match &self.before {
            Some(before) if self.asked.is_some() => format!("{url}&before={before}"),
            _ => url,
        }
    }

    /// Whether its host changes it by tasks: what belongs to the host itself, and what was asked for.
    fn has_tasks(&self) -> bool {
        self.has("tasks") || self.tasks.asked.is_some()
    }

    /// The deployment that it belongs to, and that alone may change it.
    pub(super) fn owner(&self) -> Option<&UnitOwner> {
        let owner = self.unit.owner.as_ref()?;
        // Its host may not have reported yet that it is detached.
        let is_detached = self.claim.is_detached && self.claim.deployment.as_ref() == Some(&owner.deployment);
        (!is_detached).then_some(owner)
    }

    /// Renders possible actions; those that its deployment would not let happen are left out. Forms are never fetched again, because an operator may be typing in one; so they do
    /// not depend on the state, and the host refuses what makes no sense, with the reason. Changing parts are in
    /// regions.
    fn actions(&self, frame: &PageFrame, url: &str) -> Markup {
        html! {
            div.actions {
                @if self.owner().is_none() {
                    (frame.form(&format!("{url}/start"), html! { button type="submit" { "Start" } }))
                    (frame.form(&format!("{url}/stop"), html! { button type="submit" { "Stop" } }))
                }
                (frame.form(&format!("{url}/restart"), html! { button type="submit" { "Restart" } }))
                @if self.has("freeze") {
                    (frame.form(&format!("{url}/freeze"), html! { button type="submit" { "Freeze" } }))
                    (frame.form(&format!("{url}/thaw"), html! { button type="submit" { "Thaw" } }))
                }
                @if self.may_play() && self.owner().is_none() {
                    (frame.form(&format!("{url}/play"), html! { button type="submit" { "Play" } }))
                    (frame.form(&format!("{url}/pause"), html! { button type="submit" { "Pause" } }))
                }
                @if self.has("exec") {
                    a.button href={ "/run?host=" (self.unit.host) "&container=" (self.unit.unit) } { "Run a command inside" }
                }
            }
            @if let Some(owner) = self.owner() {
                p.note { "Whether it runs is up to its deployment, " a href=(deployment::url(&owner.deployment)) { (owner.deployment) } "." }
            }
        }
    }

    /// Renders holding, and ending a hold.
    fn holding(&self, frame: &PageFrame, url: &str) -> Markup {
        html! {
            (frame.form(&format!("{url}/hold"), html! {
                div.row {
                    label for="note" { "Hold" }
                    input #note type="text" name="note" maxlength=(NOTE_MAX_CHARS) placeholder="what for";
                    button type="submit" { "Hold" }
                }
            }))
            (frame.form(&format!("{url}/unhold"), html! { button type="submit" { "End its hold" } }))
        }
    }

    /// Renders the command that was just submitted, and its progress.
    fn asked(&self, frame: &PageFrame) -> Markup {
        html! {
            @if let Some(asked) = &self.asked {
                div.notice {
                    p {
                        a href=(commands::url(asked.id)) { (commands::what(&asked.verb)) } " "
                        (commands::summary(&HostCounts::of(&asked.hosts))) " " (ago(asked.issued_ms, frame.now_ms))
                    }
                    @for line in &asked.hosts {
                        @if let Some(reason) = elements::reason(line) { (problem::why(&reason)) }
                    }
                }
            }
        }
    }

    fn log(&self) -> Markup {
        let open = self.asked.as_ref().is_some_and(|asked| asked.hosts.iter().any(is_open));
        html! {
            @match &self.log {
                None => p.note { "The log stays on the host; its last lines are fetched on request." },
                Some((log, words)) if log.whole_bytes > 0 => {
                    @for line in words.lines() { p.note { (line) } }
                    @if log.whole_bytes > log.tail.len() {
                        p.note {
                            "The end of " (bytes(log.whole_bytes as u64)) " from its host; "
                            @if let Some(asked) = &self.asked { a href=(commands::url(asked.id)) { "the whole of it" } } "."
                        }
                    }
                    pre #log-text .terminal role="region" tabindex="0" aria-label="Log" { (log.tail) }
                }
                Some(_) if open => p.note { "Asking the host…" },
                Some(_) => p.note { "The host returned no lines." },
            }
        }
    }

    fn state(&self, frame: &PageFrame) -> Markup {
        let Unit { desired, observed, hold, at_ms, .. } = &self.unit;
        let (instance, now_ms) = (observed.instance(), frame.now_ms);
        html! {
            @if let (None, Some(error)) = (self.unit.retired(), &observed.error) {
                div.notice.bad { (problem::parts(error)) }
            }
            @if let Some(back) = observed.rolled_back() {
                div.notice.bad {
                    p { strong { (format!("{:#}", back.diagnostic("It "))) } " " (ago(back.at_ms, now_ms)) }
                    p.why { "It stays on this revision until it is changed. Start it to try the failed revision again." }
                    @if let Some(lines) = &back.last_lines { pre.terminal { (lines) } }
                }
            }
            table.compare {
                caption.visually-hidden { "Desired and observed state of the unit" }
                thead { tr { td {} th scope="col" { "Desired" } th scope="col" { "Observed " (ago(*at_ms, now_ms)) } } }
                tbody {
                    tr { th scope="row" { "State" } td { (wanted(desired)) }
                         td {
                             (elements::unit_phase(&self.unit)) (suspended(observed)) " " (ago(observed.since_ms, now_ms))
                             @if let Some(why) = &instance.unready { p.why { (why) } }
                             @if let Some(progress) = observed.progress {
                                 p.why { (bytes(progress.done_bytes)) " of " (bytes(progress.total_bytes)) " (" (progress.percent()) " %)" }
                             }
                         } }
                    tr { th scope="row" { "Generation" } td { (desired.generation) }
                         td { (observed.generation) (behind(desired.generation != observed.generation)) } }
                    tr { th scope="row" { "Content" } td { (content(&self.unit.wanted())) }
                         td { @match self.unit.content() { Some(there) => (content(&there)), None => { "not known" } } } }
                    tr { th scope="row" { "Revision" } td { code { (desired.revision.short()) } }
                         td {
                             @if let Some(revision) = &observed.revision {
                                 code { (revision.short()) }
                                 @if observed.rolled_back().is_some() { " " (state(Tone::Bad, "rolled back")) }
                                 @else { (behind(*revision != desired.revision)) }
                                 @if observed.trial.is_on() { " " (state(Tone::Busy, "on trial")) }
                             } @else { "none" }
                         } }
                }
            }
            dl.facts {
                @if let Some(owner) = &self.unit.owner { div { dt { "Deployment" } dd { (deployment::owner(owner)) } } }
                @if hold.is_some() { div { dt { "Hold" } dd { (elements::unit_held(&self.unit, now_ms)) } } }
                @if let Some(verified) = observed.trial.verified() { div { dt { "Verified" } dd { "revision " code { (verified.short()) } } } }
                @if let Some(pid) = instance.pid { div { dt { "Process" } dd { (pid) } } }
                @if let Some(beside) = &observed.beside {
                    div { dt { "Successor" } dd { (beside) " " (ago(beside.since_ms, now_ms)) } }
                }
                @if let Some(end) = observed.last_end { div { dt { "Last exit" } dd { (end) } } }
                @if let Some(status) = &instance.status {
                    div { dt { "Says" } dd { (status) } }
                }
                @if !instance.unsupported.is_empty() {
                    div { dt { "Does without" } dd { ul.plain { @for one in &instance.unsupported { li { (format!("{one:#}")) } } } } }
                }
                @if !instance.drift.is_empty() {
                    div { dt { "Others changed" } dd { ul.plain { @for one in &instance.drift { li { (format!("{one:#}")) } } } } }
                }
                @if !observed.owed.is_empty() {
                    div { dt { "Owes" } dd { ul.plain { @for one in &observed.owed {
                        li { (one) " " (ago(one.since_ms, now_ms)) }
                    } } } }
                }
                @if let Some(stats) = &self.unit.stats {
                    div { dt { "Stats" } dd {
                        @for (name, value) in &stats.values { code { (name) "=" (value) } " " }
                        @if stats.and_more { "… " }
                        (ago(stats.at_ms, now_ms))
                    } }
                }
                @if !instance.can.is_empty() {
                    div { dt { "Can" } dd { (instance.can.iter().map(|ability| ability.name()).collect::<Vec<_>>().join(", ")) } }
                }
                @if observed.attempts > 0 { div { dt { "Automatic restart" } dd { (observed.attempts) } } }
                @if let Some(retry_ms) = observed.retry_ms() { div { dt { "Next start" } dd { (elements::due(retry_ms, now_ms)) } } }
                @if !observed.endpoints.is_empty() {
                    div { dt { "Listens at" } dd { @for end in &observed.endpoints { (wired(&end.name, end.address, end.port, end.protocol)) } } }
                }
                @if !observed.connectors.is_empty() {
                    div { dt { "Connects to" } dd {
                        @for end in &observed.connectors {
                            (wired(&end.name, end.address, end.port, end.protocol))
                            "of " a href=(url(self.unit.host, &end.unit)) { (end.unit) } " "
                        }
                    } }
                }
                (spec(&self.unit.unit.realm(), &desired.spec))
                @if !self.unit.pins.is_empty() {
                    div { dt { "Snapshots need" } dd { @for word in self.unit.pins.words() { code { (word) } " " } } }
                }
            }
        }
    }
}

fn wired(name: &Name, address: IpAddr, port: u16, protocol: Protocol) -> Markup {
    html! { (name) " " code { (SocketAddr::new(address, port)) @if protocol != Protocol::Tcp { "/" (protocol) } } " " }
}

fn wanted(desired: &Desired) -> Markup {
    html! { (elements::wanted(desired.run)) @if desired.frozen { ", frozen" } }
}

fn suspended(observed: &Observed) -> Markup {
    let is_up = matches!(observed.phase(), Phase::Running | Phase::Playing);
    html! {
        @if observed.instance().frozen { " " (state(Tone::Busy, "frozen")) }
        @if is_up && observed.instance().unready.is_some() { " " (state(Tone::Bad, "unready")) }
    }
}

fn content(content: &Content) -> Markup {
    html! { (content.artifact) @for config in &content.configs { " " code { (config) } } }
}

fn behind(behind: bool) -> Markup {
    html! { @if behind { " " (state(Tone::Busy, "not present yet")) } }
}

fn spec(realm: &Name, spec: &Spec) -> Markup {
    let (configs, args, env, labels) = (spec.configs(), spec.args(), spec.env(), &spec.common().labels);
    let user = spec.user();
    html! {
        @if let Some(artifact) = spec.artifact() {
            div { dt { "Artifact" } dd { (artifact.role) "@" (artifact.version) ", " (bytes(artifact.size_bytes)) " " code { (artifact.sha256.short()) } } }
        }
        @if let Spec::Files(files) = spec {
            div { dt { "Files" } dd { ul.plain { @for (path, entry) in &files.files {
                li { code { (path) } " " (muster_rules::files::words(entry)) }
            } } } }
        }
        @if let Spec::Container(container) = spec { (in_container(container)) }
        @if !configs.is_empty() {
            div { dt { "Configs" } dd { @for config in configs {
                a href={ "/config/" (config.id) "/" (config.version) } { (config.id) "@" (config.version) } " "
            } } }
        }
        @if !spec.common().secrets.is_empty() {
            div { dt { "Secrets" } dd { @for secret in &spec.common().secrets {
                a href=(super::secret::url(realm, &secret.name)) { (secret) } " "
            } } }
        }
        @if !args.is_empty() { div { dt { "Arguments" } dd { code { (muster_topics::argv::join(args)) } } } }
        @if !env.is_empty() {
            // Values may be secrets; names are shown.
            div { dt { "Environment" } dd { @for name in env.keys() { code { (name) } " " } } }
        }
        @if let Some(user) = user { div { dt { "User" } dd { (user) } } }
        @if let Some(limits) = limits(spec) { div { dt { "May use" } dd { (limits) } } }
        @if let Some(program) = spec.program() {
            div { dt { "Grace" } dd { (elements::span(program.grace_ms)) } }
        }
        @if !spec.probes().is_none() {
            div { dt { "Probes" } dd { ul.plain { @for (which, probe) in spec.probes().iter() {
                li { (which) " " code { (probe.check) } " every " (humantime::format_duration(Duration::from_millis(probe.interval_ms))) }
            } } } }
        }
        @for (what, units) in [("Starts after", &spec.common().after), ("Requires", &spec.common().requires)] {
            @if !units.is_empty() { div { dt { (what) } dd { @for unit in units { code { (unit) } " " } } } }
        }
        @if !labels.is_empty() {
            div { dt { "Labels" } dd { @for (name, value) in labels { code { (name) "=" (value) } " " } } }
        }
    }
}

/// Describes its limits, if it has any.
fn limits(spec: &Spec) -> Option<String> {
    let limits = spec.limits();
    let disk_bytes = spec.container().and_then(|container| container.disk_bytes);
    let words = [
        limits.memory_bytes.map(|most| format!("memory {}", bytes(most))),
        limits.cpu.map(|cores| format!("{cores} processors")),
        limits.pids.map(|pids| format!("{pids} processes")),
        disk_bytes.map(|most| format!("disk {}", bytes(most))),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn in_container(container: &ContainerSpec) -> Markup {
    html! {
        div { dt { "Runtime" } dd { (container.runtime) } }
        @match &container.image {
            Image::Name(name) => { div { dt { "Image" } dd { code { (name) } } } }
            Image::Existing(name) => { div { dt { "Adopted" } dd { "the container " code { (name) } } } }
            Image::Rootfs(_) | Image::Archive(_) => {}
        }
        @if let Some(entry) = &container.entry { div { dt { "Entry point" } dd { code { (muster_topics::argv::join(entry)) } } } }
        @for mount in &container.mounts {
            div { dt { "Mount" } dd {
                code { (mount.host) } " as " code { (mount.inside) } @if mount.read_only { " (read only)" }
            } }
        }
        div { dt { "Network" } dd { (match container.network {
            Network::Bridge => "bridge",
            Network::Host => "the host's",
            Network::None => "none",
        }) } }
    }
}

/// Renders a table of units of one host.
pub(in crate::web) fn table(units: &[Unit], frame: &PageFrame) -> Markup {
    html! {
        table.cards {
            caption.visually-hidden { "Units" }
            thead {
                tr { th scope="col" { "Unit" } th scope="col" { "Should be" } th scope="col" { "Is" } th scope="col" { "What" }
                     th scope="col" { "Last report" } }
            }
            tbody {
                @for unit in units {
                    tr {
                        th scope="row" { a href=(url(unit.host, &unit.unit)) { (unit.unit) } }
                        td data-label="Should be" { (wanted(&unit.desired)) }
                        td data-label="Is" {
                            (elements::unit_phase(unit)) (suspended(&unit.observed))
                            " " (ago(unit.observed.since_ms, frame.now_ms))
                            @if unit.observed.rolled_back().is_some() { " " (state(Tone::Bad, "rolled back")) }
                            @if unit.observed.trial.is_on() { " " (state(Tone::Busy, "on trial")) }
                            @if unit.hold.is_some() { " " (elements::unit_held(unit, frame.now_ms)) }
                            @if let (true, Some(error)) = (unit.desired.run.is_running(), &unit.observed.error) { (problem::why(error)) }
                            @if let (None, Some(why)) = (&unit.observed.error, &unit.observed.instance().unready) { p.why { (format!("{why:#}")) } }
                        }
                        td data-label="What" {
                            (unit.content().unwrap_or_else(|| unit.wanted()).artifact)
                            @if let Some(owner) = &unit.owner { div.note { (deployment::owner(owner)) } }
                            @if let Some(deviation) = unit.deviation() { p.why { (deviation) } }
                        }
                        td data-label="Last report" { (ago(unit.at_ms, frame.now_ms)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::view::samples;

    /// Parts outside of regions stay as the page was made, so they must not describe the unit's state.
    #[test]
    fn unit_forms_do_not_depend_on_state() {
        let frame = PageFrame { operator: None, token: String::new(), alerts: 0, notices: Vec::new(), now_ms: 0 };
        let forms = |index: usize| {
            let unit = samples::unit("anna", index);
            let view = UnitView {
                unit,
                asked: None,
                before: None,
                log: None,
                tasks: ShownTasks::default(),
                latest: Vec::new(),
                range: TimeRange::Hour,
                newer: None,
                claim: UnitClaim::default(),
            };
            let html = view.body(&frame).into_string();
            assert!(!html.contains("no process"), "{html}");
            let actions = html.split("action=\"").skip(1).filter_map(|rest| rest.split('"').next()?.rsplit('/').next());
            actions.map(str::to_owned).collect::<Vec<_>>()
        };
        // One runs, and one has no process and is held.
        let (running, failed) = (forms(0), forms(1));
        assert_eq!(running, failed);
        for action in ["start", "freeze", "thaw", "play", "hold", "unhold", "signal", "retire", "remove"] {
            assert!(running.iter().any(|one| one == action), "{running:?} has no {action}");
        }
    }
}
