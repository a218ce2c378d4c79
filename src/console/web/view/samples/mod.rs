//! Sample values of each view for tests: usual, empty, and hostile ones, in which every text
//! from elsewhere tries to be markup.

mod alert;
mod authority;
mod backup;
mod command;
mod content;
mod deployment;
mod fleet;
mod rollout;
mod unit;

use std::{collections::BTreeMap, sync::Arc};

use maud::Markup;
use muster_topics::{
    Millis,
    admission::{AdmissionWait, AdmissionWaitKind},
    alert::{AlertState, Metric, Rule, Severity},
    channel::{Ability, ToldStats},
    command::{Exec, LogView, Target, Verb},
    command_keys::KnownKeys,
    common::{CommonSpec, ProgramSpec},
    container::{ContainerSpec, ContainerState, ContainerSummary, Image, Mount, Runtime},
    desired::{DeploymentReport, DeploymentUnit, DesiredMark, DesiredReport, DocumentRefusal, UnitOwner},
    diagnostic::Diagnostic,
    heartbeat::{Facts, HostState, Interface, UnitSummary},
    manifest::Manifest,
    name::{CommandId, Digest, HostId, UnitName},
    outcome::{Data, Outcome, Output, RefusalCode, Status as Ended},
    presence::Capability,
    probe::{self, Check, Port, Probe, Probes},
    process::{Cores, Limits},
    task::{OwedReport, TaskAction, TaskLogText, TaskRecord, TaskState, UnitTasks},
    unit::{
        ArtifactRef, Beside, Channel, ConfigRef, Content, Desired, Exit, Hold, HoldReason, InstanceReport, Observed,
        ObservedState, Phase, Progress, RolledBack, Run, Spec, TrialReport, YunoSpec,
    },
};

pub(in crate::web) use self::{alert::alert, fleet::host, unit::unit};
use muster_api::{
    Alert, AlertRule, AlertSilence, AlertStanding, AppliedDeployment, ApplyAction, Artifact, Change, ChangeCost,
    ChangeKind, Command, CommandHost, CommandState, Config, ConfirmAction, ConfirmedDocuments, Cordon, CordonInfo,
    CreatedToken, Deployment, DeploymentDetail, DeploymentDifferences, DeploymentHost, DeploymentState,
    DeploymentUnitChange, DeploymentVersionDetail, DeploymentVersionInfo, FieldDifference, Host, HostConnection,
    HostCordon, HostLabel, HostOutcome, HostPresence, HostProgress, LabelOrigin, NamedHost, Problem, Received,
    RemovedDeployment, Rollout, RolloutDetail, RolloutHost, RolloutHosts, RolloutPhase, RolloutStep, RolloutVerb,
    RolloutWait, RolloutWaitKind, RolloutWave, RolloutWaveState, Secret, SecretConfig, SecretDetail, SecretUser,
    SecretVersion, SecretVersionState, Status, Token, UnconfirmedDeployment, UnconfirmedHost, UnconfirmedLabels, Unit,
    UnitChange, Var, VarLayer,
    authority::RootStage,
    upgrade::{Offer, Upgrade, upgrade},
};

use self::{alert::*, command::*, content::*, deployment::*, fleet::*, rollout::*, unit::*};
use super::{
    PageFrame, PageView,
    alerts::{AlertsView, SilenceForm},
    backups::BackupsView,
    changes::ChangesView,
    command::{CommandView, ShownOutput as Text, shown},
    commands::CommandsView,
    confirm::ConfirmView,
    content::{ArtifactsView, ConfigView, ConfigsView, ManifestView},
    deployment::{DeploymentView, RemovalView, RollbackView, ShownDeploymentHosts, VersionView},
    deployments::DeploymentsView,
    glance::{FleetGlance, Severities},
    host::{DrainView, HostView},
    hosts::{HostsView, ShownHosts},
    join::JoinView,
    problem::ProblemView,
    rollout::{ReleaseView, RolloutVerbView, RolloutView, ShownRollout, VERBS, verb_path},
    rollouts::RolloutsView,
    rule::{RuleForm, RuleView},
    run::{RunForm, RunTarget, RunView},
    secret::{SecretView, SecretsView},
    sign_in::SignInView,
    unit::UnitView,
    unit_tasks::ShownTasks,
    units::{ShownUnits, UnitsView},
    vars::{ShownVars, VarForm, VarsView},
};
use crate::{
    desired::UnitClaim,
    fleet::{ListedHost, Overview},
    store::{command_status::HostCommandStatus, host::Presences, unit_list::UnitPage},
    web::{
        chart::{latest::Latest, range::TimeRange},
        ledger::{CommandProgress, ListedCommand},
    },
};

/// A text that would show if it were taken for markup.
pub(in crate::web) const HOSTILE: &str = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;";

const NOW: Millis = 1_700_000_000_000;

fn ago(seconds: i64) -> Millis {
    NOW - seconds * 1000
}

fn frame() -> PageFrame {
    PageFrame {
        operator: Some("admin".parse().unwrap()),
        token: "00ff".repeat(16),
        alerts: 3,
        notices: vec!["the disk of the console's folder is full".to_owned()],
        now_ms: NOW,
    }
}

/// Every page, rendered.
pub(in crate::web) fn pages() -> Vec<(&'static str, Markup)> {
    let mut pages = vec![
        ("sign-in", PageFrame::stranger(NOW).page(&SignInView { code: Some("ab12".repeat(16)), problem: None })),
        (
            "sign-in-hostile",
            PageFrame::stranger(NOW).page(&SignInView { code: Some(HOSTILE.to_owned()), problem: None }),
        ),
        ("sign-in-first", PageFrame::stranger(NOW).page(&SignInView { code: None, problem: Some(problem(HOSTILE)) })),
    ];
    let mut add = |name, view: &dyn Fn() -> Markup| pages.push((name, view()));
    add("hosts", &|| frame().page(&hosts("shop-7", 12)));
    add("hosts-empty", &|| frame().page(&hosts("", 0)));
    add("hosts-none-found", &|| {
        let shown = ShownHosts { text: HOSTILE.to_owned(), online: Some(false), page: 3 };
        frame().page(&HostsView { shown, ..hosts("", 0) })
    });
    add("hosts-hostile", &|| frame().page(&hosts(HOSTILE, 3)));
    add("host", &|| frame().page(&host_view("shop-7.example", 2)));
    add("host-empty", &|| {
        let host = Host { presence: None, state: None, ..host("fresh", 0) };
        let units = vec![];
        frame().page(&HostView {
            host,
            units,
            alerts: vec![],
            commands: vec![],
            latest: vec![],
            rollouts: vec![],
            ..host_view("", 0)
        })
    });
    add("host-hostile", &|| frame().page(&host_view(HOSTILE, 2)));
    add("host-drain", &|| {
        let carried = vec![("shop/till".parse().unwrap(), vec![name(1), name(2)])];
        frame().page(&DrainView { host: host("shop-7", 0), carried })
    });
    add("host-drain-hostile", &|| frame().page(&DrainView { host: host(HOSTILE, 0), carried: vec![] }));
    add("unit", &|| frame().page(&unit_view("shop-7", "GET /till 200 in 3 ms\n")));
    add("unit-plain", &|| {
        frame().page(&UnitView { asked: None, log: None, latest: vec![], newer: None, ..unit_view("shop-7", "") })
    });
    add("unit-retired", &|| {
        let mut view = unit_view("shop-7", "");
        view.unit.hold = Some(Hold::new(HoldReason::Operator, ago(9)));
        view.unit.desired.run = Run::Stopped;
        frame().page(&view)
    });
    add("unit-running", &|| frame().page(&UnitView { unit: unit("shop-7", 0), ..unit_view("shop-7", "") }));
    add("container", &|| frame().page(&UnitView { unit: container("shop-7"), ..unit_view("shop-7", "") }));
    add("container-adopted", &|| {
        let mut unit = container("shop-7");
        unit.desired.spec = Spec::Container(ContainerSpec::new(Image::Existing("old-web".to_owned()))).into();
        frame().page(&UnitView { unit, ..unit_view("shop-7", "") })
    });
    add("container-hostile", &|| frame().page(&UnitView { unit: container(HOSTILE), ..unit_view(HOSTILE, HOSTILE) }));
    add("unit-hostile", &|| frame().page(&unit_view(HOSTILE, HOSTILE)));
    add("unit-files", &|| frame().page(&files_view("shop-7")));
    add("unit-files-hostile", &|| frame().page(&files_view(HOSTILE)));
    add("unit-files-empty", &|| {
        let view = files_view("shop-7");
        let tasks = ShownTasks { answer: Some(UnitTasks::default()), ..view.tasks.clone() };
        frame().page(&UnitView { tasks, ..view })
    });
    add("unit-files-not-asked", &|| frame().page(&UnitView { tasks: ShownTasks::default(), ..files_view("shop-7") }));
    add("commands", &|| frame().page(&CommandsView { commands: commands("shop-7") }));
    add("commands-empty", &|| frame().page(&CommandsView { commands: vec![] }));
    add("commands-hostile", &|| frame().page(&CommandsView { commands: commands(HOSTILE) }));
    add("command", &|| frame().page(&command_view("shop-7", "Linux shop-7 6.1.0-18-amd64 #1 SMP x86_64 GNU/Linux\n")));
    add("command-hostile", &|| frame().page(&command_view(HOSTILE, HOSTILE)));
    add("command-many", &|| frame().page(&view(command("uname", "shop", 240), 2)));
    for (page, hostname, select) in
        [("command-over", "shop", "label.site=north"), ("command-over-hostile", HOSTILE, HOSTILE)]
    {
        add(page, &|| frame().page(&command_over(hostname, select)));
    }
    add("run-picked", &|| {
        let input = RunForm { aim: RunTarget::Picked, select: "label.site=north".to_owned(), ..RunForm::default() };
        frame().page(&run("shop-7", input, None))
    });
    add("run", &|| {
        frame().page(&run("shop-7", RunForm { command: "uname -a".to_owned(), ..RunForm::default() }, None))
    });
    add("run-refused", &|| {
        let text = || HOSTILE.to_owned();
        let input = RunForm {
            command: text(),
            named: text(),
            select: text(),
            user: text(),
            cwd: text(),
            timeout_s: text(),
            ..RunForm::default()
        };
        frame().page(&run(HOSTILE, input, Some(problem(HOSTILE))))
    });
    add("run-nowhere", &|| {
        frame().page(&RunView { hosts: vec![], found: 0, input: RunForm::default(), problem: None })
    });
    add("alerts", &|| frame().page(&alerts("shop-7", "disk /: 93 %")));
    add("alerts-empty", &|| {
        let empty = AlertsView { raised: vec![], over: vec![], silences: vec![], ..alerts("", "") };
        frame().page(&AlertsView { rules: vec![], form: SilenceForm::default(), ..empty })
    });
    add("alerts-hostile", &|| {
        frame().page(&AlertsView { problem: Some(problem(HOSTILE)), ..alerts(HOSTILE, HOSTILE) })
    });
    add("rule", &|| frame().page(&rule("disk", None)));
    add("rule-new", &|| {
        let form = RuleForm { severity: "warning".to_owned(), ..RuleForm::default() };
        frame().page(&RuleView { form, is_set: false, faults: BTreeMap::new(), problem: None })
    });
    add("rule-hostile", &|| frame().page(&rule(HOSTILE, Some(HOSTILE))));
    let names = std::collections::HashMap::from([(TOKEN_HOST, HOSTILE.to_owned())]);
    add("join", &|| {
        frame().page(&JoinView {
            tokens: tokens(),
            names: names.clone(),
            created: None,
            problem: None,
            authority: authority::rotated(false),
        })
    });
    add("join-made", &|| {
        frame().page(&JoinView {
            tokens: tokens(),
            names: names.clone(),
            created: Some(created()),
            problem: Some(problem("x")),
            authority: authority::rotating(false),
        })
    });
    add("join-empty", &|| {
        frame().page(&JoinView {
            tokens: vec![],
            names: Default::default(),
            created: None,
            problem: None,
            authority: authority::quiet(),
        })
    });
    add("join-rotated", &|| {
        frame().page(&JoinView {
            tokens: vec![],
            names: Default::default(),
            created: None,
            problem: None,
            authority: authority::rotating(true),
        })
    });
    let roots = [
        ("join-root-trust", authority::rotating_root(RootStage::Trust, false)),
        ("join-root-certificates", authority::rotating_root(RootStage::Certificates, true)),
        ("join-root-replaced", authority::rotated(true)),
    ];
    for (name, authority) in roots {
        add(name, &|| {
            frame().page(&JoinView {
                tokens: vec![],
                names: Default::default(),
                created: None,
                problem: None,
                authority: authority.clone(),
            })
        });
    }
    add("artifacts", &|| frame().page(&ArtifactsView { artifacts: vec![artifact("1.0.0"), artifact("1.1.0")] }));
    add("artifacts-empty", &|| frame().page(&ArtifactsView { artifacts: vec![] }));
    add("configs", &|| frame().page(&ConfigsView { configs: vec![config(None)] }));
    add("configs-empty", &|| frame().page(&ConfigsView { configs: vec![] }));
    add("units", &|| frame().page(&units_view("shop-7", 3)));
    add("units-empty", &|| frame().page(&UnitsView { shown: ShownUnits::default(), ..units_view("", 0) }));
    add("units-none-found", &|| frame().page(&units_view("", 0)));
    add("units-of-hostile-hosts", &|| frame().page(&units_view(HOSTILE, 3)));
    add("units-hostile", &|| {
        let shown = ShownUnits { select: HOSTILE.to_owned(), deployment: HOSTILE.to_owned(), ..ShownUnits::default() };
        frame().page(&UnitsView { shown, problem: Some(problem(HOSTILE)), ..units_view(HOSTILE, 3) })
    });
    add("deployments", &|| frame().page(&deployments()));
    add("deployments-empty", &|| {
        frame().page(&DeploymentsView { deployments: vec![], unconfirmed: 0, cordoned: vec![] })
    });
    add("changes", &|| frame().page(&ChangesView { changes: changed(HOSTILE) }));
    add("changes-empty", &|| frame().page(&ChangesView { changes: vec![] }));
    add("confirm", &|| frame().page(&confirm_view("shop-7", false)));
    add("confirm-conflict", &|| frame().page(&confirm_view("shop-7", true)));
    add("confirm-hostile", &|| frame().page(&confirm_view(HOSTILE, false)));
    add("confirm-empty", &|| {
        let planned = ConfirmedDocuments { hosts: vec![], waiting: vec![] };
        frame().page(&ConfirmView { planned, ..confirm_view("", true) })
    });
    add("deployment", &|| frame().page(&deployment_view("shop-7", 14)));
    add("deployment-many", &|| {
        let shown = ShownDeploymentHosts { state: Some(DeploymentState::Away), page: 2 };
        frame().page(&DeploymentView { shown, ..deployment_view("shop", 2_000) })
    });
    add("deployment-empty", &|| frame().page(&deployment_view("", 0)));
    add("deployment-hostile", &|| frame().page(&deployment_view(HOSTILE, 14)));
    add("deployment-version", &|| frame().page(&version_view("till")));
    add("deployment-version-hostile", &|| frame().page(&version_view(HOSTILE)));
    add("deployment-rollback", &|| frame().page(&rollback_view("shop-7")));
    add("deployment-rollback-hostile", &|| frame().page(&rollback_view(HOSTILE)));
    add("deployment-removal", &|| frame().page(&RemovalView { planned: removed("shop-7") }));
    add("deployment-removal-hostile", &|| frame().page(&RemovalView { planned: removed(HOSTILE) }));
    add("deployment-rolled-out", &|| {
        let rollout = Some(rollout(RolloutPhase::Soaking { until_ms: ago(-100) }, 300));
        frame().page(&DeploymentView { rollout, ..deployment_view("shop-7", 14) })
    });
    add("deployment-planned", &|| {
        frame().page(&DeploymentView { plan: Some(plan("shop-7", 30)), ..deployment_view("shop-7", 14) })
    });
    add("deployment-planned-hostile", &|| {
        frame().page(&DeploymentView { plan: Some(plan(HOSTILE, 2)), ..deployment_view("shop-7", 14) })
    });
    add("rollouts", &|| frame().page(&rollouts("shop-7")));
    add("rollouts-hostile", &|| frame().page(&rollouts(HOSTILE)));
    add("rollouts-empty", &|| frame().page(&RolloutsView { rollouts: vec![] }));
    add("rollout", &|| frame().page(&paused_view("shop-7", 300)));
    add("rollout-many", &|| {
        let shown = ShownRollout { waits: Some(RolloutWaitKind::InFlight), page: 3, ..ShownRollout::default() };
        frame().page(&RolloutView { shown, ..rollout_view("shop", RolloutPhase::Running, 10_000) })
    });
    add("rollout-empty", &|| frame().page(&rollout_view("", RolloutPhase::Completed, 0)));
    add("rollout-earlier", &|| {
        let mut view = rollout_view("shop-7", RolloutPhase::Superseded { by: 5 }, 40);
        view.newest = 5;
        let shown = ShownRollout { version: Some(4), wave: Some(2), ..ShownRollout::default() };
        frame().page(&RolloutView { shown, ..view })
    });
    add("rollout-hostile", &|| frame().page(&paused_view(HOSTILE, 40)));
    for verb in VERBS {
        for (hostname, hostile) in [("shop-7", ""), (HOSTILE, "-hostile")] {
            let name: &'static str = format!("rollout-{}{hostile}", verb_path(verb)).leak();
            add(name, &|| frame().page(&RolloutVerbView { detail: paused_view(hostname, 300).detail, verb }));
        }
    }
    add("rollout-ended-cancel", &|| {
        let detail = rollout_view("shop-7", RolloutPhase::Completed, 300).detail;
        frame().page(&RolloutVerbView { detail, verb: RolloutVerb::Cancel })
    });
    for (page, hostname, index) in [
        ("rollout-release", "shop-7", 10),
        ("rollout-release-hostile", HOSTILE, 10),
        ("rollout-release-not", "shop-7", 9),
    ] {
        add(page, &|| {
            frame().page(&ReleaseView { deployment: deployment_name(), host: rollout_host(hostname, index) })
        });
    }
    let owned = |owner: Option<UnitOwner>, claim: UnitClaim| {
        let mut view = unit_view("shop-7", "");
        (view.unit.owner, view.claim) = (owner, claim);
        frame().page(&view)
    };
    let claim =
        |is_leaving, is_detached| UnitClaim { is_leaving, deployment: Some(owner(false).deployment), is_detached };
    add("unit-of-deployment", &|| owned(Some(owner(false)), claim(false, false)));
    add("unit-orphan", &|| owned(Some(owner(true)), UnitClaim::default()));
    add("unit-leaving", &|| owned(Some(owner(false)), claim(true, false)));
    add("unit-detached", &|| owned(Some(owner(false)), claim(false, true)));
    add("unit-claimed", &|| owned(None, claim(false, false)));
    add("secrets", &|| {
        frame().page(&SecretsView { secrets: vec![secret()], realms: vec![], problem: Some(problem("x")) })
    });
    add("secrets-empty", &|| frame().page(&SecretsView { secrets: vec![], realms: vec![], problem: None }));
    add("vars", &|| frame().page(&vars_view("shop-7")));
    add("vars-empty", &|| frame().page(&VarsView { vars: vec![], found: 0, ..vars_view("") }));
    add("vars-none-found", &|| {
        let shown = ShownVars { text: HOSTILE.to_owned(), page: 2 };
        frame().page(&VarsView { shown, vars: vec![], found: 0, ..vars_view("") })
    });
    add("vars-hostile", &|| {
        let text = || HOSTILE.to_owned();
        let form = VarForm { name: text(), value: text(), of: text(), ..VarForm::default() };
        frame().page(&VarsView { form, problem: Some(problem(HOSTILE)), ..vars_view(HOSTILE) })
    });
    add("secret", &|| frame().page(&secret_view()));
    add("backups", &|| frame().page(&BackupsView { backups: backup::backups("disk") }));
    add("backups-hostile", &|| frame().page(&BackupsView { backups: backup::backups(HOSTILE) }));
    add("backups-empty", &|| frame().page(&BackupsView { backups: backup::none() }));
    add("manifest", &|| frame().page(&ManifestView { sha256: Digest::of(b"manifest"), manifest: manifest() }));
    add("config", &|| frame().page(&ConfigView { config: config(Some(serde_json::json!({"greeting": HOSTILE}))) }));
    add("not-found", &|| frame().page(&ProblemView { status: 404, problem: problem("unknown page") }));
    add("failed", &|| frame().page(&ProblemView { status: 500, problem: problem(HOSTILE) }));
    pages
}

/// Regions by name, as they are rendered alone.
pub(in crate::web) type Regions = Vec<(&'static str, Option<Markup>)>;

/// Pages that have regions.
pub(in crate::web) fn parts() -> Vec<(&'static str, Regions)> {
    fn each(view: &impl PageView, names: &[&'static str]) -> Regions {
        names.iter().map(|name| (*name, view.part(&frame(), name))).collect()
    }
    vec![
        ("hosts", each(&hosts("shop-7", 3), &["glance", "fleet"])),
        (
            "host",
            each(&host_view("shop-7", 2), &["facts", "alerts", "units", "desired", "containers", "latest", "recent"]),
        ),
        ("alerts", each(&alerts("shop-7", "disk"), &["raised", "over"])),
        ("unit", each(&unit_view("shop-7", "line\n"), &["asked", "state", "log", "latest"])),
        ("units", each(&units_view("shop-7", 3), &["units"])),
        ("deployments", each(&deployments(), &["deployments"])),
        ("deployment", each(&deployment_view("shop-7", 3), &["hosts"])),
        ("rollouts", each(&rollouts("shop-7"), &["rollouts"])),
        ("rollout", each(&paused_view("shop-7", 300), &["progress", "hosts"])),
        ("commands", each(&CommandsView { commands: commands("shop-7") }, &["commands"])),
        ("command", each(&command_view("shop-7", "x"), &["progress"])),
    ]
}

fn problem(message: &str) -> Problem {
    let diagnostic = Diagnostic::new(message).with_consequence(format_args!("so {message}"));
    Problem { code: "sample".to_owned(), diagnostic: diagnostic.with_hint(format_args!("try {message}")) }
}

fn name(index: usize) -> UnitName {
    ["default/hello", "shop/till", "shop/scanner_gateway-2"][index % 3].parse().unwrap()
}
