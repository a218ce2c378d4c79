//! The tasks of a unit, which its host is asked for.

use std::time::Duration;

use axum::http::StatusCode;
use muster_api::{CommandHost, NewCommand, NewTarget};
use muster_topics::{
    command::Verb,
    name::{CommandId, HostId, Name, UnitName},
    outcome::{RefusalCode, Status},
    task::UnitTasks,
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::timeout,
};

use super::{error::Error, page_change::PageChange, state::Console};

/// How long the host may take to answer; then nobody waits any more.
const ANSWER: Duration = Duration::from_secs(20);
/// How long the question itself waits for the host.
const EXPIRE_MS: u64 = 20_000;

impl Console {
    /// Asks a host for the tasks of a unit, and the log of one from a position on, and waits for the answer.
    pub async fn unit_tasks(
        &self,
        operator: &Name,
        (host, unit): (HostId, UnitName),
        log: Option<u64>,
        from: u64,
    ) -> Result<UnitTasks, Error> {
        let mut changes = self.changes();
        let target = NewTarget::Hosts(vec![host.to_string()]);
        let verb = Verb::UnitTasks { unit, log, from };
        let asked = self
            .submit(operator, NewCommand { target, expires_in_ms: Some(EXPIRE_MS), verb, copied_from: None })
            .await?;
        if asked.hosts.iter().any(|line| line.away_since_ms().is_some()) {
            return Err(no_answer());
        }
        let Ok(answered) = timeout(ANSWER, self.answered(asked.id, host, &mut changes)).await else {
            return Err(no_answer());
        };
        let line = answered?;
        match line.status() {
            Some(Status::Completed) => {
                let (answer, _) = self.output(asked.id, host).await?;
                serde_json::from_slice(&answer)
                    .map_err(|error| Error::internal("reading what the host answers", &error))
            }
            Some(Status::Refused { code: RefusalCode::NotFound, diagnostic }) => {
                Err(Error::told(StatusCode::NOT_FOUND, "unknown_task", diagnostic.clone()))
            }
            Some(Status::Refused { diagnostic, .. } | Status::Failed(diagnostic)) => {
                Err(Error::told(StatusCode::CONFLICT, "refused_by_host", diagnostic.clone()))
            }
            _ => Err(no_answer()),
        }
    }

    /// Waits until a command has an outcome on a host, or cannot have one any more.
    async fn answered(
        &self,
        command: CommandId,
        host: HostId,
        changes: &mut Receiver<PageChange>,
    ) -> Result<CommandHost, Error> {
        loop {
            let now = self.command(command).await?;
            if let Some(line) = now.hosts.into_iter().find(|line| line.host == host && line.is_over()) {
                return Ok(line);
            }
            loop {
                match changes.recv().await {
                    Ok(PageChange::Command(changed)) if changed == command => break,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Err(no_answer()),
                }
            }
        }
    }
}

fn no_answer() -> Error {
    Error::new(StatusCode::GATEWAY_TIMEOUT, "no_answer", "the host has not answered")
        .hint("`muster host ls` shows whether it is online")
}
