//! Asks hosts for plans by commands, and reads their answers as they come.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use muster_api::{NewCommand, NewTarget};
use muster_rules::host_plan::HostPlan;
use muster_topics::{
    command::Verb,
    desired::PlanRequest,
    diagnostic::Diagnostic,
    name::{CommandId, HostId, Name},
    outcome::{Outcome, Status},
};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, timeout_at},
};

use crate::{dispatch, error::Error, page_change::PageChange, state::Console};

/// Hosts of one command: each message has all of their ids.
const COMMAND_HOSTS: usize = 100;

/// Commands that are signed and stored together.
const COMMANDS_AT_ONCE: usize = 20;

/// How long changes are gathered before the answers of a command are read, and how often they are read without changes.
const SETTLE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_secs(2);

/// How long after a host's own time its answer is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// The answers of hosts.
pub(super) struct Answers {
    /// Hosts that have not answered.
    pub(super) silent: Vec<HostId>,
}

impl Console {
    /// Asks hosts, and gives each answer to `each`.
    pub(super) async fn ask_for_plans(
        &self,
        operator: &Name,
        asked: &[(PlanRequest, Vec<HostId>)],
        wait: Duration,
        each: &mut (dyn FnMut(HostId, Result<HostPlan, Diagnostic>) + Send),
    ) -> Result<Answers, Error> {
        // Nothing is missed in between.
        let mut news = self.changes();
        let until = Instant::now() + wait + GRACE;
        let mut commands = Vec::new();
        let mut asking = self.shared.hosts.plans.stored.asking();
        for (request, hosts) in asked {
            let question = asking.question(request, hosts)?;
            for hosts in hosts.chunks(COMMAND_HOSTS) {
                let target = NewTarget::Hosts(hosts.iter().map(HostId::to_string).collect());
                let expires_in_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                commands.push(NewCommand {
                    target,
                    expires_in_ms,
                    verb: Verb::Plan(question.clone()),
                    copied_from: None,
                });
            }
        }
        let mut open: HashMap<CommandId, HashSet<HostId>> = HashMap::new();
        let mut commands = commands.into_iter().peekable();
        while commands.peek().is_some() {
            let some: Vec<NewCommand> = commands.by_ref().take(COMMANDS_AT_ONCE).collect();
            for issued in dispatch::announce_all(self, operator, some).await? {
                open.insert(issued.id, issued.hosts.iter().map(|line| line.host).collect());
            }
        }
        let mut changed: HashSet<CommandId> = HashSet::new();
        let mut look = Instant::now() + SETTLE;
        while !open.is_empty() && Instant::now() < until {
            match timeout_at(look.min(until), news.recv()).await {
                Ok(Ok(PageChange::Command(id))) => {
                    if open.contains_key(&id) && changed.insert(id) {
                        look = look.min(Instant::now() + SETTLE);
                    }
                    continue;
                }
                Ok(Ok(_)) => continue,
                Ok(Err(RecvError::Lagged(_))) => {
                    changed.extend(open.keys());
                    look = look.min(Instant::now() + SETTLE);
                    continue;
                }
                Ok(Err(RecvError::Closed)) => break,
                Err(_) => {
                    // Nothing may have been heard of for long.
                    if changed.is_empty() {
                        changed.extend(open.keys());
                    }
                }
            }
            for id in std::mem::take(&mut changed) {
                let left = match open.get_mut(&id) {
                    Some(left) => left,
                    None => continue,
                };
                self.read_answers(id, left, each).await?;
                if left.is_empty() {
                    open.remove(&id);
                }
            }
            look = Instant::now() + LOOK;
        }
        Ok(Answers { silent: open.into_values().flatten().collect() })
    }

    /// Reads the answers of a command that are there, and takes their hosts out of `left`.
    async fn read_answers(
        &self,
        id: CommandId,
        left: &mut HashSet<HostId>,
        each: &mut (dyn FnMut(HostId, Result<HostPlan, Diagnostic>) + Send),
    ) -> Result<(), Error> {
        let command = self.command(id).await?;
        for line in command.hosts.iter().filter(|line| line.is_over()) {
            if !left.contains(&line.host) {
                continue;
            }
            let answer = match line.outcome() {
                None => Err(super::SILENT.into()),
                Some(outcome) => match self.read_answer(id, line.host, &outcome.value).await? {
                    Some(answer) => answer,
                    // A part of it has not arrived.
                    None => continue,
                },
            };
            left.remove(&line.host);
            each(line.host, answer);
        }
        Ok(())
    }

    /// Reads one answer; `None` if it is not whole yet.
    async fn read_answer(
        &self,
        id: CommandId,
        host: HostId,
        outcome: &Outcome,
    ) -> Result<Option<Result<HostPlan, Diagnostic>>, Error> {
        if !outcome.status.is_success() {
            return Ok(Some(Err(reason(&outcome.status))));
        }
        let rest = match outcome.stdout.rest.as_ref().map(|rest| rest.to_bytes()) {
            Some(Ok(rest)) => rest,
            Some(Err(_)) => return Ok(Some(Err("its answer cannot be read".into()))),
            None => Vec::new(),
        };
        let bytes = match outcome.stdout.sent_bytes {
            0 => rest,
            sent_bytes => {
                let (all, _) = self.output(id, host).await?;
                if (all.len() as u64) < sent_bytes + rest.len() as u64 {
                    return Ok(None);
                }
                all
            }
        };
        let plan = serde_json::from_slice(&bytes);
        Ok(Some(plan.map_err(|error| format!("its answer is not valid: {error}").into())))
    }
}

fn reason(status: &Status) -> Diagnostic {
    match status {
        Status::Refused { diagnostic, .. } | Status::Failed(diagnostic) => diagnostic.clone(),
        Status::Cancelled => "it was cancelled".into(),
        _ => "it was lost: the agent restarted in the meantime".into(),
    }
}
