//! Progress of commands without their answers, for lists over ten thousand hosts.

use std::{collections::HashMap, sync::Arc};

use futures_util::TryStreamExt;
use muster_api::CommandState;
use muster_topics::{
    name::{CommandId, HostId},
    outcome::Status,
};
use sqlx::SqlitePool;

use super::{
    columns::{from_word, json, parsed, unsigned},
    error::StoreResult,
};

/// The state of a command on one host, without its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommandStatus {
    /// The host.
    pub host: HostId,
    /// Its name, or its id if it was removed.
    pub hostname: String,
    /// The state.
    pub state: CommandState,
    /// How it ended.
    pub status: Option<Arc<Status>>,
}

/// A query with `ended` between its two parts: what of an outcome says how it ended. Nearly all hosts have the same.
macro_rules! with_ended {
    ($before:literal, $after:literal, $command:expr) => {
        sqlx::query!(
            $before
                + r#"json_remove(command_host.outcome, '$.started_ms', '$.finished_ms', '$.stdout', '$.stderr')
                       AS "ended?: String""#
                + $after,
            $command
        )
    };
}

/// Returns the state of a command on each of its hosts, sorted by hostname.
pub async fn standings(db: &SqlitePool, command: CommandId) -> StoreResult<Vec<HostCommandStatus>> {
    let mut rows = with_ended!(
        r#"SELECT command_host.host, COALESCE(host.hostname, command_host.host) AS "hostname!: String",
                  command_host.state, "#,
        " FROM command_host LEFT JOIN host ON host.id = command_host.host
          WHERE command_host.command = $1 ORDER BY 2, 1",
        command.to_string()
    )
    .fetch(db);
    let mut standings = Vec::new();
    // Each distinct text is parsed once.
    let mut known: HashMap<String, Arc<Status>> = HashMap::new();
    while let Some(row) = rows.try_next().await? {
        let status = match row.ended {
            Some(text) => Some(match known.get(&text) {
                Some(status) => Arc::clone(status),
                None => {
                    let status = Arc::new(json("outcome", &text)?);
                    known.insert(text, Arc::clone(&status));
                    status
                }
            }),
            None => None,
        };
        standings.push(HostCommandStatus {
            host: parsed("host id", &row.host)?,
            hostname: row.hostname,
            state: from_word("state", &row.state)?,
            status,
        });
    }
    Ok(standings)
}

/// Counts a command's hosts by state and status, which reads an index alone: outcomes carry outputs.
pub async fn kinds(db: &SqlitePool, command: CommandId) -> StoreResult<Vec<(CommandState, Option<Status>, u64)>> {
    let rows = with_ended!(
        "SELECT command_host.state, ",
        r#", count(*) AS "count!: i64" FROM command_host WHERE command_host.command = $1 GROUP BY 1, 2"#,
        command.to_string()
    )
    .map(|row| (row.state, row.ended, row.count))
    .fetch_all(db)
    .await?;
    let kind = |(state, ended, count): (String, Option<String>, i64)| {
        let status = ended.map(|text| json("outcome", &text)).transpose()?;
        Ok((from_word("state", &state)?, status, unsigned("count", count)?))
    };
    rows.into_iter().map(kind).collect()
}

/// Returns the name of a command's host, if it has one alone; of several one of the names.
pub async fn hostname(db: &SqlitePool, command: CommandId) -> StoreResult<Option<String>> {
    let found = sqlx::query_scalar!(
        "SELECT COALESCE(host.hostname, command_host.host) FROM command_host
         LEFT JOIN host ON host.id = command_host.host
         WHERE command_host.command = $1 LIMIT 1",
        command.to_string()
    )
    .fetch_optional(db)
    .await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        V1,
        asker::Asker,
        command::{Command, Exec, Target, Verb},
        diagnostic::Diagnostic,
        name::Name,
        outcome::{Data, Outcome, Output, RefusalCode},
        unit::Exit,
    };

    use super::*;
    use crate::store::{
        command::{self, SettledOutcome},
        tests::temporary,
    };

    fn outcome(status: Status, finished_ms: i64) -> Outcome {
        let stdout = Output { rest: Some(Data::Text(format!("at {finished_ms}"))), ..Output::default() };
        Outcome { status, started_ms: Some(1), finished_ms, stdout, stderr: Output::default() }
    }

    #[tokio::test]
    async fn statuses_are_told_apart_by_outcome() {
        let (_dir, store) = temporary().await;
        let hosts: Vec<HostId> = (0..6).map(|_| HostId::random()).collect();
        let order = Command {
            v: V1,
            id: CommandId::new(),
            target: Target::Hosts(hosts.clone()),
            issued_ms: 0,
            expires_ms: 10,
            asked_by: Asker::admin(Name::admin()),
            realms: Vec::new(),
            verb: Verb::Exec(Exec::new(vec!["true".to_owned()], 1_000)),
            sealed: None,
        };
        let refused = Status::Refused { code: RefusalCode::Denied, diagnostic: Diagnostic::new("no") };
        let exited = |code| Status::exited(Exit::Code(code));
        let mut db = store.begin().await.unwrap();
        command::add(&mut db, &order, b"", &hosts).await.unwrap();
        let statuses = [exited(0), exited(0), exited(3), refused.clone()];
        let outcomes: Vec<SettledOutcome> = (0..)
            .zip(hosts.iter().zip(&statuses))
            .map(|(at, (host, status))| SettledOutcome {
                command: order.id,
                host: *host,
                outcome: outcome(status.clone(), at),
            })
            .collect();
        command::settle(&mut db, &outcomes, 5).await.unwrap();
        command::miss(&mut db, order.id, &hosts[4..5]).await.unwrap();
        db.commit().await.unwrap();

        let found = standings(store.read(), order.id).await.unwrap();
        let mut sorted = hosts.clone();
        sorted.sort_by_key(HostId::to_string);
        assert_eq!(found.iter().map(|one| one.host).collect::<Vec<_>>(), sorted, "by name, which here is the id");
        for (host, status) in hosts.iter().zip(&statuses) {
            let one = found.iter().find(|one| one.host == *host).unwrap();
            assert_eq!((one.state, one.status.as_deref()), (CommandState::Done, Some(status)));
        }
        let name = hostname(store.read(), order.id).await.unwrap().unwrap();
        assert!(sorted.iter().any(|host| host.to_string() == name));
        let kinds = kinds(store.read(), order.id).await.unwrap();
        let count = |state, status: Option<Status>| {
            kinds.iter().filter(|kind| (kind.0, &kind.1) == (state, &status)).map(|kind| kind.2).collect::<Vec<_>>()
        };
        assert_eq!(count(CommandState::Done, Some(exited(0))), [2]);
        assert_eq!(count(CommandState::Done, Some(exited(3))), [1]);
        assert_eq!(count(CommandState::Done, Some(refused)), [1]);
        assert_eq!(count(CommandState::Missing, None), [1]);
        assert_eq!(count(CommandState::Waiting, None), [1]);
        let some = [hosts[3], hosts[0], hosts[5]];
        let lines = command::of_hosts(store.read(), order.id, &some).await.unwrap();
        assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), some, "in their order");
        assert_eq!(lines[1].outcome().unwrap().value, outcome(exited(0), 0), "with all that it said");
    }
}
