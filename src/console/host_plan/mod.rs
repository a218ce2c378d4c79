//! Plans: hosts are asked what documents would change there, and equal answers are grouped.
//!
//! Modules: [`collect`] (asks hosts, and reads their answers), [`stored`] (requests that have no room in a command), [`guess`] (what the
//! console believes of hosts that are away). A plan is
//! made by a task of its own, in two rounds: all hosts answer briefly, with a digest; then one host of each group is asked for the
//! whole.
//!
//! **Invariant: a group keeps one answer**, and a plan no more than [`SHOWN_MAX_BYTES`] of them.
//!
//! Plans are kept in memory: what is lost with the console is made again.

mod collect;
mod guess;
mod stored;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use muster_api::{NamedHost, NewPlan, Plan, PlanFailure, PlanGroup, PlannedDeployment};
use muster_base::clock::now_ms;
use muster_rules::host_plan::{HostPlan, group::PlanGroups};
use muster_topics::{
    Millis, canonical,
    desired::{DeploymentName, DeploymentVersion, PlanRequest},
    diagnostic::Diagnostic,
    name::{CommandId, Digest, HostId, Name},
};

use self::{collect::Answers, stored::StoredRequests};
use crate::{desired::PlanRequests, error::Error, state::Console, store::host};

/// The plans that are kept, and for how long.
const KEPT_MAX: usize = 16;
const KEPT_MS: Millis = 24 * 3_600_000;

/// Plans that are made at once: each asks the whole fleet.
const MADE_MAX: usize = 2;

/// How long hosts may take.
const WAIT_MS: u64 = 60_000;
const WAIT_MAX_MS: u64 = 600_000;

/// The groups of a deployment of which a host is asked for the whole plan.
const SHOWN_MAX: usize = 100;

/// How much of whole plans is kept of a deployment.
pub(crate) const SHOWN_MAX_BYTES: usize = 4 * 1024 * 1024;

/// The plans of the console.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    kept: Mutex<VecDeque<Arc<KeptPlan>>>,
    stored: StoredRequests,
}

/// A plan.
#[derive(Debug)]
struct KeptPlan {
    made_ms: Millis,
    state: Mutex<PlanState>,
}

/// How far a plan is.
#[derive(Debug)]
struct PlanState {
    shown: Plan,
    seen: Arc<SeenPlan>,
}

/// What an operator has seen: what each host is to find again.
#[derive(Debug, Default)]
pub(crate) struct SeenPlan {
    deployments: BTreeMap<DeploymentName, SeenDeployment>,
}

/// The version of a deployment that a plan was made of, and the digest that each host has found.
#[derive(Debug)]
struct SeenDeployment {
    content: Arc<DeploymentVersion>,
    digests: Arc<BTreeMap<HostId, Digest>>,
}

impl SeenPlan {
    /// Returns the version that a plan was made of.
    pub(crate) fn content(&self, name: &DeploymentName) -> Option<&DeploymentVersion> {
        self.deployments.get(name).map(|seen| &*seen.content)
    }

    /// Returns the digest that each host has found.
    pub(crate) fn digests(&self, name: &DeploymentName) -> Arc<BTreeMap<HostId, Digest>> {
        self.deployments.get(name).map(|seen| Arc::clone(&seen.digests)).unwrap_or_default()
    }

    /// Returns the digest of it.
    fn digest(&self) -> Digest {
        let of = |(name, seen): (&DeploymentName, &SeenDeployment)| {
            (name.clone(), seen.content.digest().ok(), (*seen.digests).clone())
        };
        let all: Vec<_> = self.deployments.iter().map(of).collect();
        canonical::digest(&all).unwrap_or_else(|_| Digest::of(&serde_json::to_vec(&all).unwrap_or_default()))
    }
}

impl KeptPlan {
    fn state(&self) -> MutexGuard<'_, PlanState> {
        // No panic leaves it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plans {
    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<KeptPlan>>> {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now_ms();
        all.retain(|kept| now.saturating_sub(kept.made_ms) < KEPT_MS);
        all
    }

    /// Keeps a new plan; the oldest that is done gives way.
    fn add(&self, shown: Plan) -> Result<Arc<KeptPlan>, Error> {
        let mut all = self.all();
        let made = all.iter().filter(|kept| !kept.state().shown.done).count();
        if made >= MADE_MAX {
            let message = format!("{made} plans are being made, the maximum");
            return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_plans", message)
                .hint("try again once they are done"));
        }
        while all.len() >= KEPT_MAX {
            let Some(oldest) = all.iter().position(|kept| kept.state().shown.done) else { break };
            all.remove(oldest);
        }
        let state = PlanState { shown, seen: Arc::default() };
        let kept = Arc::new(KeptPlan { made_ms: now_ms(), state: Mutex::new(state) });
        all.push_back(Arc::clone(&kept));
        Ok(kept)
    }

    /// Returns a plan.
    pub(crate) fn plan(&self, id: &str) -> Result<Plan, Error> {
        let found = self.all().iter().find(|kept| kept.state().shown.id == id).cloned();
        found
            .map(|kept| kept.state().shown.clone())
            .ok_or_else(|| Error::not_found("unknown_plan", "there is no such plan, or it was dropped").hint(AGAIN))
    }

    /// Returns the newest plan of a deployment that is done.
    pub(crate) fn of_deployment(&self, name: &DeploymentName) -> Option<Plan> {
        let all = self.all();
        let is_of = |kept: &&Arc<KeptPlan>| {
            let state = kept.state();
            state.shown.done && state.shown.error.is_none() && state.shown.deployment(name).is_some()
        };
        all.iter().rev().find(is_of).map(|kept| kept.state().shown.clone())
    }

    /// Returns what an operator has seen of the plan with this digest.
    pub(crate) fn seen(&self, digest: &Digest) -> Result<Arc<SeenPlan>, Error> {
        let all = self.all();
        let found = all.iter().rev().find(|kept| kept.state().shown.digest.as_ref() == Some(digest));
        found.map(|kept| Arc::clone(&kept.state().seen)).ok_or_else(|| {
            Error::not_found("unknown_plan", format!("there is no plan {}, or it was dropped", digest.short()))
                .hint(AGAIN)
        })
    }
}

const AGAIN: &str = "plans are kept for a day and until the console restarts; `muster plan` makes a new one";

impl Console {
    /// Begins to find out what documents would change.
    pub async fn plan_documents(&self, operator: &Name, wanted: NewPlan) -> Result<Plan, Error> {
        let wait_ms = wanted.wait_ms.unwrap_or(WAIT_MS);
        if !(1_000..=WAIT_MAX_MS).contains(&wait_ms) {
            return Err(Error::invalid("bad_timeout", "hosts may take from one second to ten minutes for a plan"));
        }
        let requests = self.plan_requests(operator, &wanted).await?;
        let deployments = requests.applied.iter().cloned().map(planned).collect();
        let shown = Plan {
            id: CommandId::new().to_string(),
            operator: operator.clone(),
            made_ms: now_ms(),
            done: false,
            digest: None,
            error: None,
            asked: 0,
            answered: 0,
            deployments,
        };
        let kept = self.shared.hosts.plans.add(shown.clone())?;
        let (console, operator) = (self.clone(), operator.clone());
        tokio::spawn(async move {
            let made = console.make_plan(&operator, requests, &kept, Duration::from_millis(wait_ms)).await;
            let mut state = kept.state();
            if let Err(error) = made {
                tracing::warn!(%error, "a plan cannot be made");
                state.shown.error = Some(error.problem.diagnostic.cause);
            }
            state.shown.done = true;
        });
        Ok(shown)
    }

    /// Returns the newest plan of a deployment, if it is kept.
    pub(crate) fn last_plan(&self, name: &DeploymentName) -> Option<Plan> {
        self.shared.hosts.plans.of_deployment(name)
    }

    /// Returns how far a plan is.
    pub fn plan(&self, id: &str) -> Result<Plan, Error> {
        self.shared.hosts.plans.plan(id)
    }

    /// Returns a request that a host was told to fetch.
    pub(crate) fn plan_request(&self, host: HostId, digest: &Digest) -> Result<String, Error> {
        self.shared.hosts.plans.stored.get(host, digest).ok_or_else(|| {
            Error::not_found("unknown_plan", format!("the plan {} does not need this host's answer", digest.short()))
        })
    }

    async fn make_plan(
        &self,
        operator: &Name,
        requests: PlanRequests,
        kept: &KeptPlan,
        wait: Duration,
    ) -> Result<(), Error> {
        let online: std::collections::HashSet<HostId> =
            host::online(self.shared.store.read()).await?.into_iter().collect();
        let is_asked = |host: &HostId| requests.heard.contains(host) && online.contains(host);
        let asked: Vec<(PlanRequest, Vec<HostId>)> = requests
            .requests
            .iter()
            .map(|(request, hosts)| (request.clone(), hosts.iter().copied().filter(is_asked).collect::<Vec<_>>()))
            .filter(|(_, hosts)| !hosts.is_empty())
            .collect();
        kept.state().shown.asked = asked.iter().map(|(_, hosts)| hosts.len() as u64).sum();
        let mut gathered = Gathered::default();
        let brief = self
            .ask_for_plans(operator, &asked, wait, &mut |host, answer| {
                gathered.add(host, answer);
                kept.state().shown.answered += 1;
            })
            .await?;
        gathered.failed.extend(brief.silent.into_iter().map(|host| (host, SILENT.into())));
        self.complete_groups(operator, &asked, wait, &mut gathered).await?;
        let mut away = HashMap::new();
        for (request, hosts) in &requests.requests {
            let absent: Vec<HostId> = hosts.iter().copied().filter(|host| !online.contains(host)).collect();
            if !absent.is_empty() {
                guess::add(self, request, &absent, &mut away).await?;
            }
        }
        let unheard =
            requests.requests.iter().flat_map(|(request, hosts)| hosts.iter().map(move |host| (request, *host)));
        let unheard: Vec<(&PlanRequest, HostId)> =
            unheard.filter(|(_, host)| online.contains(host) && !requests.heard.contains(host)).collect();
        let names = |hosts: &[HostId]| named(hosts, &requests.hostnames);
        let mut seen = SeenPlan::default();
        let mut state = kept.state();
        for (one, content) in state.shown.deployments.iter_mut().zip(&requests.contents) {
            let name = &one.change.deployment;
            let groups = gathered.groups.remove(name).unwrap_or_default();
            let digests = Arc::new(groups.digests());
            seen.deployments.insert(name.clone(), SeenDeployment { content: Arc::clone(content), digests });
            one.groups = shown_groups(groups, &names);
            one.away = shown_groups(away.remove(name).unwrap_or_default(), &names);
            let is_of = |request: &PlanRequest| request.names().any(|of| of == name);
            one.unheard =
                names(&unheard.iter().filter(|(request, _)| is_of(request)).map(|(_, host)| *host).collect::<Vec<_>>());
            let concerns = |host: &HostId| {
                asked.iter().any(|(request, hosts)| is_of(request) && hosts.binary_search(host).is_ok())
            };
            let failed = gathered.failed.iter().filter(|(host, _)| concerns(host));
            one.failed = failed
                .flat_map(|(host, told)| {
                    names(&[*host]).into_iter().map(|host| PlanFailure { host, diagnostic: told.clone() })
                })
                .collect();
            one.failed.sort_by(|one, other| one.host.hostname.cmp(&other.host.hostname));
        }
        state.shown.digest = Some(seen.digest());
        state.seen = Arc::new(seen);
        Ok(())
    }

    /// Asks one host of each group for the whole plan.
    async fn complete_groups(
        &self,
        operator: &Name,
        asked: &[(PlanRequest, Vec<HostId>)],
        wait: Duration,
        gathered: &mut Gathered,
    ) -> Result<(), Error> {
        let mut chosen: BTreeMap<HostId, PlanRequest> = BTreeMap::new();
        for groups in gathered.groups.values() {
            for (host, plan) in groups.first_hosts(SHOWN_MAX) {
                if !plan.is_change() || plan.refused.is_some() {
                    continue;
                }
                let of = asked.iter().find(|(_, hosts)| hosts.binary_search(&host).is_ok());
                if let Some((request, _)) = of {
                    chosen.insert(host, PlanRequest { brief: false, ..request.clone() });
                }
            }
        }
        let again: Vec<(PlanRequest, Vec<HostId>)> =
            chosen.into_iter().map(|(host, request)| (request, vec![host])).collect();
        let mut left_bytes = SHOWN_MAX_BYTES;
        let _: Answers = self
            .ask_for_plans(operator, &again, wait, &mut |_, answer| {
                for plan in answer.into_iter().flat_map(|plan| plan.deployments) {
                    let bytes = serde_json::to_vec(&plan).map_or(usize::MAX, |bytes| bytes.len());
                    if bytes <= left_bytes
                        && let Some(groups) = gathered.groups.get_mut(&plan.deployment)
                        && groups.complete(plan)
                    {
                        left_bytes -= bytes;
                    }
                }
            })
            .await?;
        Ok(())
    }
}

/// Why a host has no plan that has not answered.
const SILENT: &str = "it has not answered in time";

/// The answers of hosts.
#[derive(Debug, Default)]
struct Gathered {
    groups: HashMap<DeploymentName, PlanGroups>,
    failed: Vec<(HostId, Diagnostic)>,
}

impl Gathered {
    fn add(&mut self, host: HostId, answer: Result<HostPlan, Diagnostic>) {
        match answer {
            Ok(plan) => {
                for one in plan.deployments {
                    self.groups.entry(one.deployment.clone()).or_default().add(host, one);
                }
            }
            Err(why) => self.failed.push((host, why)),
        }
    }
}

fn planned(change: muster_api::AppliedDeployment) -> PlannedDeployment {
    let (groups, away, unheard, failed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    PlannedDeployment { change, groups, away, unheard, failed }
}

fn shown_groups(groups: PlanGroups, names: &impl Fn(&[HostId]) -> Vec<NamedHost>) -> Vec<PlanGroup> {
    groups.sorted().into_iter().map(|group| PlanGroup { hosts: names(&group.hosts), plan: group.plan }).collect()
}

/// Returns hosts with their names, by name.
fn named(hosts: &[HostId], hostnames: &HashMap<HostId, String>) -> Vec<NamedHost> {
    let hostname = |host: &HostId| hostnames.get(host).cloned().unwrap_or_else(|| host.to_string());
    let mut named: Vec<NamedHost> =
        hosts.iter().map(|host| NamedHost { host: *host, hostname: hostname(host) }).collect();
    named.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
    named
}
