//! The ledger of commands: each command, its progress on each host, and its output.
//!
//! **Invariant: a command has at most one outcome from each host.** The first one stays;
//! only the console's own verdicts about a host can be replaced: `missing`, and revoked.

use std::collections::{BTreeSet, HashMap, HashSet};

use muster_api::{CommandState, HostProgress};
use muster_base::clock::now_ms;
use muster_rules::{intent::CommandClass, presence, time::SLACK_MS};
use muster_sqlite::rows::{parameters, pieces};
use muster_topics::{
    Millis,
    command::{Command, OUTPUT_MAX_BYTES, Verb},
    name::{CommandId, HostId},
    outcome::{Outcome, Output, RefusalCode, Status, Stream},
};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use super::{
    columns::{from_word, json, parsed, signed, to_json, unsigned, word},
    error::{StoreError, StoreResult},
};

/// Stores a signed command for `hosts`.
pub async fn add(
    db: &mut SqliteConnection,
    command: &Command,
    signed_bytes: &[u8],
    hosts: &[HostId],
) -> StoreResult<()> {
    let id = command.id.to_string();
    let is_broadcast = command.target.broadcast().is_some();
    sqlx::query!(
        "INSERT INTO command (id, operator, issued_ms, expires_ms, broadcast, verb, signed, target,
                              stdout_max_bytes, stderr_max_bytes)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &id,
        command.asked_by.operator.as_str(),
        command.issued_ms,
        command.expires_ms,
        is_broadcast,
        // The signed bytes are sent; this is for lists.
        to_json("verb", &command.verb.masked())?,
        signed_bytes,
        // A list of hosts is in the rows below.
        is_broadcast.then(|| to_json("target", &command.target)).transpose()?,
        signed(command.verb.output_max_bytes(Stream::Stdout)),
        signed(command.verb.output_max_bytes(Stream::Stderr))
    )
    .execute(&mut *db)
    .await?;
    let mut sorted = hosts.to_vec();
    // In the order of the table, so that pages are filled one after the other.
    sorted.sort_unstable();
    sqlx::query!(
        "INSERT INTO command_host (command, host, state, listed) SELECT $1, value, 'waiting', $2 FROM json_each($3)",
        id,
        !is_broadcast,
        to_json("hosts", &sorted)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Stores the keys of a command's sealed content, one for each host.
pub async fn set_sealed_keys(
    db: &mut SqliteConnection,
    command: CommandId,
    keys: &HashMap<HostId, String>,
) -> StoreResult<()> {
    let id = command.to_string();
    sqlx::query!("UPDATE command SET sealed = 1 WHERE id = $1", &id).execute(&mut *db).await?;
    for (host, key) in keys {
        sqlx::query!(
            "UPDATE command_host SET sealed_key = $3 WHERE command = $1 AND host = $2",
            &id,
            host.to_string(),
            key
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Returns the key of a command's sealed content for one host.
pub async fn sealed_key(db: &SqlitePool, command: CommandId, host: HostId) -> StoreResult<Option<String>> {
    let row = sqlx::query_scalar!(
        "SELECT sealed_key FROM command_host WHERE command = $1 AND host = $2",
        command.to_string(),
        host.to_string()
    )
    .fetch_optional(db)
    .await?;
    Ok(row.flatten())
}

/// Removes the signed bytes of finished commands from before sealing, which contain secrets in clear.
pub async fn forget_clear_secrets(db: &SqlitePool) -> StoreResult<u64> {
    let forgotten = sqlx::query!(
        r#"UPDATE command SET signed = x''
           WHERE sealed = 0 AND length(signed) > 0 AND verb LIKE '%"***"%' AND NOT EXISTS (
               SELECT 1 FROM command_host
               WHERE command_host.command = command.id AND command_host.state IN ('waiting', 'accepted', 'running'))"#
    )
    .execute(db)
    .await?;
    Ok(forgotten.rows_affected())
}

/// Returns the bytes to publish, and whether they have sealed content, for which each host has a key of its own.
pub async fn signed_bytes(db: &SqlitePool, command: CommandId) -> StoreResult<Option<(Vec<u8>, bool)>> {
    let row = sqlx::query!("SELECT signed, sealed FROM command WHERE id = $1", command.to_string())
        .map(|row| (row.signed, row.sealed))
        .fetch_optional(db)
        .await?;
    Ok(row.map(|(bytes, sealed)| (bytes, sealed != 0)))
}

/// A command without an outcome from every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCommand {
    /// Its id.
    pub id: CommandId,
    /// When it expires.
    pub expires_ms: Millis,
    /// The length of its signed bytes.
    pub bytes: usize,
    /// Its class for the scheduler.
    pub kind: CommandClass,
    /// The hosts without an outcome, with how far it has come there.
    pub hosts: Vec<(HostId, CommandReach)>,
}

/// How far an open command has come with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandReach {
    /// It was never sent.
    No,
    /// It may have been sent.
    Maybe,
    /// The host has confirmed it.
    Answered,
    /// It cancels a command that this host has nothing to do with any more: it need not be sent.
    Unneeded,
}

/// Returns those hosts for which a command is over, or was never meant. A broadcast may be running on any host.
pub async fn done_with(db: &SqlitePool, command: CommandId, hosts: &[HostId]) -> StoreResult<HashSet<HostId>> {
    let id = command.to_string();
    let row = sqlx::query_scalar!(r#"SELECT broadcast AS "broadcast!: bool" FROM command WHERE id = $1"#, &id)
        .fetch_optional(db)
        .await?;
    let Some(is_broadcast) = row else { return Ok(HashSet::new()) };
    let rows =
        sqlx::query!(r#"SELECT host, state = 'done' AS "is_over!: bool" FROM command_host WHERE command = $1"#, &id)
            .map(|row| (row.host, row.is_over))
            .fetch_all(db)
            .await?;
    let mut over = HashMap::new();
    for (host, is_over) in rows {
        over.insert(parsed::<HostId>("host id", &host)?, is_over);
    }
    Ok(hosts.iter().filter(|host| over.get(host).copied().unwrap_or(!is_broadcast)).copied().collect())
}

/// Records that a command has not been sent to any host.
pub async fn hold_back(db: &mut SqliteConnection, command: CommandId) -> StoreResult<()> {
    sqlx::query!("UPDATE command SET went_out = 0 WHERE id = $1", command.to_string()).execute(db).await?;
    Ok(())
}

/// Records that commands are about to be sent.
pub async fn go_out(db: &SqlitePool, commands: &[CommandId]) -> StoreResult<()> {
    if commands.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE command SET went_out = 1 WHERE id IN (SELECT value FROM json_each($1))",
        to_json("commands", &commands)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records that any command may have been sent, because the store is older than it was.
pub async fn forget_what_went_out(db: &mut SqliteConnection) -> StoreResult<()> {
    sqlx::query!("UPDATE command SET went_out = 1 WHERE went_out = 0").execute(db).await?;
    Ok(())
}

/// Adjusts open commands that were issued in the future, by a clock that was ahead, so that they keep their lifetimes
/// from now on, the last of them issued now at the latest. Returns their number.
pub async fn date_back(db: &SqlitePool, now: Millis) -> StoreResult<u64> {
    let dated = sqlx::query!(
        "WITH early AS (
             SELECT id, issued_ms FROM command WHERE issued_ms > $1 + $2 AND EXISTS (
                 SELECT 1 FROM command_host WHERE command_host.command = command.id
                 AND command_host.state IN ('waiting', 'accepted', 'running')))
         UPDATE command SET issued_ms = command.issued_ms - ahead.by_ms, expires_ms = expires_ms - ahead.by_ms
         FROM (SELECT max(issued_ms) - $1 AS by_ms FROM early) AS ahead WHERE id IN (SELECT id FROM early)",
        now,
        SLACK_MS
    )
    .execute(db)
    .await?;
    Ok(dated.rows_affected())
}

/// Returns all open commands in the order of issue, for the start of dispatch.
pub async fn open(db: &SqlitePool) -> StoreResult<Vec<OpenCommand>> {
    let commands = sqlx::query!(
        r#"SELECT id, expires_ms, length(signed) AS "bytes!: i64", verb FROM command WHERE EXISTS (
               SELECT 1 FROM command_host WHERE command_host.command = command.id
               AND command_host.state IN ('waiting', 'accepted', 'running'))
           ORDER BY issued_ms, id"#
    )
    .map(|row| (row.id, row.expires_ms, row.bytes, row.verb))
    .fetch_all(db)
    .await?;
    let mut hosts = open_hosts(db).await?;
    let mut open = Vec::new();
    for (id, expires_ms, bytes, verb) in commands {
        let id = parsed("command id", &id)?;
        let verb: Verb = json("verb", &verb)?;
        let Some(hosts) = hosts.remove(&id) else { continue };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        open.push(OpenCommand { id, expires_ms, bytes, kind: CommandClass::of(&verb), hosts });
    }
    Ok(open)
}

/// Returns which hosts owe an outcome for which commands, and how far these have come. Only whether a command was sent
/// to any host is stored, not to which; times are no evidence, because clocks are set back.
async fn open_hosts(db: &SqlitePool) -> StoreResult<HashMap<CommandId, Vec<(HostId, CommandReach)>>> {
    let rows = sqlx::query!(
        r#"SELECT command, host, state, went_out AS "went_out!: bool" FROM command_host
           JOIN command ON command.id = command_host.command
           WHERE state IN ('waiting', 'accepted', 'running')"#
    )
    .map(|row| (row.command, row.host, row.state, row.went_out))
    .fetch_all(db)
    .await?;
    let mut hosts: HashMap<CommandId, Vec<(HostId, CommandReach)>> = HashMap::new();
    for (command, host, state, went_out) in rows {
        let reached = match (state.as_str(), went_out) {
            ("waiting", false) => CommandReach::No,
            ("waiting", true) => CommandReach::Maybe,
            _ => CommandReach::Answered,
        };
        hosts.entry(parsed("command id", &command)?).or_default().push((parsed("host id", &host)?, reached));
    }
    Ok(hosts)
}

/// Returns those hosts that owe outcomes for at least `count` commands that were sent to them by name.
pub async fn crowded(db: &SqlitePool, hosts: &[HostId], count: u64) -> StoreResult<Vec<HostId>> {
    let crowded = sqlx::query_scalar!(
        // Without the hint the index of all open commands is read.
        "SELECT host FROM command_host INDEXED BY command_host_open_by_host
         WHERE host IN (SELECT value FROM json_each($1)) AND listed = 1
           AND state IN ('waiting', 'accepted', 'running')
         GROUP BY host HAVING count(*) >= $2",
        to_json("hosts", &hosts)?,
        signed(count)
    )
    .fetch_all(db)
    .await?;
    crowded.iter().map(|host| parsed("host id", host)).collect()
}

/// Returns the verbs of open commands, with environments masked.
pub async fn open_verbs(db: &SqlitePool) -> StoreResult<Vec<(CommandId, Verb)>> {
    let rows = sqlx::query!(
        "SELECT id, verb FROM command WHERE EXISTS (
             SELECT 1 FROM command_host WHERE command_host.command = command.id
             AND command_host.state IN ('waiting', 'accepted', 'running'))"
    )
    .map(|row| (row.id, row.verb))
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|(id, verb)| Ok((parsed("command id", &id)?, json("verb", &verb)?))).collect()
}

/// Returns a host's state of a command, if it is one of its hosts.
pub async fn state(db: &mut SqliteConnection, command: CommandId, host: HostId) -> StoreResult<Option<CommandState>> {
    let row = sqlx::query_scalar!(
        "SELECT state FROM command_host WHERE command = $1 AND host = $2",
        command.to_string(),
        host.to_string()
    )
    .fetch_optional(db)
    .await?;
    row.map(|state| from_word("state", &state)).transpose()
}

/// Adds a host that answers a broadcast unexpectedly, because it matches now. Returns whether it was added: not for a
/// command that was for others, or is not in the ledger.
pub async fn add_host(
    db: &mut SqliteConnection,
    command: CommandId,
    host: HostId,
    state: CommandState,
) -> StoreResult<bool> {
    let added = sqlx::query!(
        "INSERT INTO command_host (command, host, state, listed)
         SELECT id, $2, $3, 0 FROM command WHERE id = $1 AND broadcast = 1
         ON CONFLICT (command, host) DO NOTHING",
        command.to_string(),
        host.to_string(),
        word("state", &state)?
    )
    .execute(db)
    .await?;
    Ok(added.rows_affected() > 0)
}

/// Advances the state of a command on a host. (The caller decides whether it is an advance.)
pub async fn advance(db: &mut SqliteConnection, command: CommandId, host: HostId, to: CommandState) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE command_host SET state = $3 WHERE command = $1 AND host = $2 AND state <> 'done'",
        command.to_string(),
        host.to_string(),
        word("state", &to)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// An outcome to store.
#[derive(Clone, Debug)]
pub struct SettledOutcome {
    /// Its command.
    pub command: CommandId,
    /// Its host.
    pub host: HostId,
    /// Its content.
    pub outcome: Outcome,
}

/// Stores outcomes where there is none yet; returns those whose command was not for their host. Of several from one
/// host the caller passes the first.
pub async fn settle(
    db: &mut SqliteConnection,
    outcomes: &[SettledOutcome],
    now: Millis,
) -> StoreResult<HashSet<(CommandId, HostId)>> {
    let mut strangers = HashSet::new();
    let mut sorted: Vec<&SettledOutcome> = outcomes.iter().collect();
    // In the order of the table: each page is changed once, however many of its rows are.
    sorted.sort_unstable_by_key(|one| (one.command, one.host));
    for piece in pieces(&sorted) {
        let sql = format!(
            "WITH came (command, host, outcome) AS (VALUES {})
             UPDATE command_host SET state = 'done', outcome = came.outcome, outcome_ms = ${}
             FROM came
             WHERE command_host.command = came.command AND command_host.host = came.host
               AND (command_host.state <> 'done' OR json_extract(command_host.outcome, '$.code') = 'revoked')",
            parameters(piece.len(), 3),
            piece.len() * 3 + 1
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for SettledOutcome { command, host, outcome } in piece {
            query = query.bind(command.to_string()).bind(host.to_string()).bind(to_json("outcome", outcome)?);
        }
        let stored = query.bind(now).execute(&mut *db).await?.rows_affected();
        // Nearly always all of them; returning each row would take as long as storing it.
        if stored < piece.len() as u64 {
            strangers.extend(without_a_row(db, piece).await?);
        }
    }
    Ok(strangers)
}

/// Returns the outcomes whose host is not one of the command's.
async fn without_a_row(
    db: &mut SqliteConnection,
    outcomes: &[&SettledOutcome],
) -> StoreResult<Vec<(CommandId, HostId)>> {
    let pairs: Vec<(CommandId, HostId)> = outcomes.iter().map(|one| (one.command, one.host)).collect();
    let rows = sqlx::query!(
        r#"SELECT came.value ->> 0 AS "command!: String", came.value ->> 1 AS "host!: String"
           FROM json_each($1) AS came WHERE NOT EXISTS (
               SELECT 1 FROM command_host
               WHERE command_host.command = came.value ->> 0 AND command_host.host = came.value ->> 1)"#,
        to_json("outcomes", &pairs)?
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| Ok((parsed("command id", &row.command)?, parsed("host id", &row.host)?))).collect()
}

/// Ends all open commands of a host, because it was revoked. Returns those commands.
pub async fn revoke(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<Vec<CommandId>> {
    let outcome = |message: &str| {
        let status = Status::Refused { code: RefusalCode::Revoked, diagnostic: message.into() };
        let (stdout, stderr) = (Output::default(), Output::default());
        to_json("outcome", &Outcome { status, started_ms: None, finished_ms: now, stdout, stderr })
    };
    let rows = sqlx::query_scalar!(
        "UPDATE command_host SET outcome = CASE state WHEN 'waiting' THEN $2 ELSE $3 END, outcome_ms = $4,
             state = 'done'
         WHERE host = $1 AND state IN ('waiting', 'accepted', 'running') RETURNING command",
        host.to_string(),
        outcome("the host was revoked before it had answered")?,
        outcome("the host was revoked while the command was open; its outcome there is unknown")?,
        now
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|command| parsed("command id", command)).collect()
}

/// Records that a command has expired without an answer of these hosts.
pub async fn miss(db: &mut SqliteConnection, command: CommandId, hosts: &[HostId]) -> StoreResult<()> {
    for host in hosts {
        sqlx::query!(
            "UPDATE command_host SET state = 'missing' WHERE command = $1 AND host = $2 AND state = 'waiting'",
            command.to_string(),
            host.to_string()
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its number in the order of arrival.
    pub n: i64,
    /// Its host.
    pub host: HostId,
    /// Its stream.
    pub stream: Stream,
    /// Its offset.
    pub offset_bytes: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// The effect of a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It was stored.
    New,
    /// It was known.
    Known,
    /// It exceeds what the command requested, so it was not stored.
    TooMuch,
}

/// The limits of stored output.
#[derive(Clone, Copy, Debug)]
pub struct OutputLimits {
    /// For each host.
    pub of_host_bytes: u64,
    /// For all hosts.
    pub of_all_bytes: u64,
}

/// Removes output beyond the limits: the oldest command's first, all of one host's at a time. Returns the removed
/// bytes.
pub async fn trim_output(
    db: &mut SqliteConnection,
    hosts: &BTreeSet<HostId>,
    limits: OutputLimits,
) -> StoreResult<u64> {
    let mut gone = 0;
    for host in hosts {
        gone += trim(db, &host.to_string(), limits.of_host_bytes).await?;
    }
    // The empty name stands for all hosts.
    Ok(gone + trim(db, "", limits.of_all_bytes).await?)
}

async fn trim(db: &mut SqliteConnection, of: &str, max_bytes: u64) -> StoreResult<u64> {
    let begun = output_size(db, of).await?;
    if begun <= max_bytes {
        return Ok(0);
    }
    // A little more than necessary, so that not every piece triggers this.
    let wanted = max_bytes - max_bytes / 8;
    let mut left = begun;
    while left > wanted {
        let Some((command, host)) = oldest_output(db, of).await? else { break };
        sqlx::query!("DELETE FROM output WHERE command = $1 AND host = $2", command, host).execute(&mut *db).await?;
        left = output_size(db, of).await?;
    }
    Ok(begun.saturating_sub(left))
}

/// Returns command and host of the oldest output of a host, or of all.
async fn oldest_output(db: &mut SqliteConnection, of: &str) -> StoreResult<Option<(String, String)>> {
    Ok(match of {
        "" => {
            sqlx::query!("SELECT command, host FROM output ORDER BY n LIMIT 1")
                .map(|row| (row.command, row.host))
                .fetch_optional(db)
                .await?
        }
        host => {
            sqlx::query!("SELECT command, host FROM output WHERE host = $1 ORDER BY n LIMIT 1", host)
                .map(|row| (row.command, row.host))
                .fetch_optional(db)
                .await?
        }
    })
}

async fn output_size(db: &mut SqliteConnection, of: &str) -> StoreResult<u64> {
    let row = sqlx::query_scalar!("SELECT bytes FROM output_size WHERE host = $1", of).fetch_optional(db).await?;
    unsigned("size", row.unwrap_or_default())
}

/// Stores a piece of output within what the command requested, whatever offset the host claims; a repetition changes
/// nothing.
pub async fn add_output(
    db: &mut SqliteConnection,
    command: CommandId,
    host: HostId,
    stream: Stream,
    offset_bytes: u64,
    data: &[u8],
) -> StoreResult<Added> {
    let word = word("stream", &stream)?;
    let (most, stored) = sqlx::query!(
        r#"SELECT (SELECT CASE $3 WHEN 'stdout' THEN stdout_max_bytes ELSE stderr_max_bytes END
                   FROM command WHERE id = $1) AS "most?: i64",
                  (SELECT coalesce(sum(length(data)), 0) FROM output
                   WHERE command = $1 AND host = $2 AND stream = $3) AS "stored!: i64""#,
        command.to_string(),
        host.to_string(),
        word
    )
    .map(|row| (row.most, row.stored))
    .fetch_one(&mut *db)
    .await?;
    let most = most.map_or(Ok(OUTPUT_MAX_BYTES), |most| unsigned("limit", most))?;
    let end = offset_bytes.saturating_add(data.len() as u64);
    let is_too_much = end > most || unsigned("size", stored)?.saturating_add(data.len() as u64) > most;
    if is_too_much {
        let known = sqlx::query_scalar!(
            r#"SELECT n AS "n!" FROM output WHERE command = $1 AND host = $2 AND stream = $3 AND offset_bytes = $4"#,
            command.to_string(),
            host.to_string(),
            word,
            signed(offset_bytes)
        )
        .fetch_optional(db)
        .await?;
        return Ok(known.map_or(Added::TooMuch, |_| Added::Known));
    }
    let added = sqlx::query!(
        "INSERT INTO output (command, host, stream, offset_bytes, data) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (command, host, stream, offset_bytes) DO NOTHING",
        command.to_string(),
        host.to_string(),
        word,
        signed(offset_bytes),
        data
    )
    .execute(db)
    .await?;
    Ok(if added.rows_affected() > 0 { Added::New } else { Added::Known })
}

/// Returns pieces of a command's output after piece `after`, in the order of arrival.
pub async fn output_after(
    db: &SqlitePool,
    command: CommandId,
    host: Option<HostId>,
    after: i64,
    limit: u32,
) -> StoreResult<Vec<Chunk>> {
    let rows = sqlx::query!(
        r#"SELECT n AS "n!", host, stream, offset_bytes, data FROM output
           WHERE command = $1 AND ($2 IS NULL OR host = $2) AND n > $3 ORDER BY n LIMIT $4"#,
        command.to_string(),
        host.map(|id| id.to_string()),
        after,
        i64::from(limit)
    )
    .map(|row| (row.n, row.host, row.stream, row.offset_bytes, row.data))
    .fetch_all(db)
    .await?;
    let chunk = |(n, host, stream, offset, data): (i64, String, String, i64, Vec<u8>)| {
        Ok(Chunk {
            n,
            host: parsed("host id", &host)?,
            stream: from_word("stream", &stream)?,
            offset_bytes: unsigned("offset", offset)?,
            data,
        })
    };
    rows.into_iter().map(chunk).collect()
}

/// Returns how many bytes of a command's output are stored, by host and stream.
pub async fn output_bytes(db: &SqlitePool, command: CommandId) -> StoreResult<HashMap<(HostId, Stream), u64>> {
    let rows = sqlx::query!(
        r#"SELECT host, stream, sum(length(data)) AS "bytes!: i64" FROM output WHERE command = $1
           GROUP BY host, stream"#,
        command.to_string()
    )
    .map(|row| (row.host, row.stream, row.bytes))
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|(host, stream, bytes)| {
            Ok(((parsed("host id", &host)?, from_word("stream", &stream)?), unsigned("length", bytes)?))
        })
        .collect()
}

struct CommandRow {
    id: String,
    operator: String,
    issued_ms: i64,
    expires_ms: i64,
    verb: String,
    target: Option<String>,
}

/// A filter of commands.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// This one.
    One(CommandId),
    /// The newest.
    Newest {
        /// Those of this host alone.
        host: Option<HostId>,
        /// This many.
        limit: u32,
    },
}

/// Returns commands, newest first, with their state on each host.
pub async fn list(db: &SqlitePool, which: Which) -> StoreResult<Vec<muster_api::Command>> {
    let only = match which {
        Which::One(_) => None,
        Which::Newest { host, .. } => host,
    };
    let mut commands = alone(db, which).await?;
    for command in &mut commands {
        command.hosts = hosts(db, &command.id.to_string(), only).await?;
    }
    Ok(commands)
}

/// Selects [`CommandRow`]s; conditions, order and limits follow.
macro_rules! select_commands {
    ($rest:literal, $($argument:expr),+) => {
        sqlx::query_as!(
            CommandRow,
            "SELECT id, operator, issued_ms, expires_ms, verb, target FROM command " + $rest,
            $($argument),+
        )
    };
}

/// Selects the newest [`CommandRow`]s of a host.
macro_rules! select_commands_of_host {
    ($host:expr, $limit:expr) => {
        select_commands!(
            "WHERE id IN (
                 SELECT command FROM command_host WHERE host = $1 AND listed = 1
                 UNION SELECT sent.id FROM command AS sent WHERE sent.broadcast = 1 AND EXISTS (
                     SELECT 1 FROM command_host WHERE command_host.command = sent.id AND command_host.host = $1))
             ORDER BY id DESC LIMIT $2",
            $host,
            $limit
        )
    };
}

/// Returns the same without hosts.
pub async fn alone(db: &SqlitePool, which: Which) -> StoreResult<Vec<muster_api::Command>> {
    let rows = match which {
        Which::One(id) => select_commands!("WHERE id = $1", id.to_string()).fetch_all(db).await?,
        Which::Newest { host: None, limit } => {
            select_commands!("ORDER BY id DESC LIMIT $1", limit).fetch_all(db).await?
        }
        Which::Newest { host: Some(host), limit } => {
            select_commands_of_host!(host.to_string(), limit).fetch_all(db).await?
        }
    };
    let command = |row: CommandRow| {
        Ok(muster_api::Command {
            id: parsed("command id", &row.id)?,
            operator: parsed("operator", &row.operator)?,
            issued_ms: row.issued_ms,
            expires_ms: row.expires_ms,
            verb: json("verb", &row.verb)?,
            target: row.target.map(|target| json("target", &target)).transpose()?,
            hosts: Vec::new(),
            withheld: Vec::new(),
        })
    };
    rows.into_iter().map(command).collect()
}

struct CommandHostRow {
    host: String,
    hostname: String,
    state: String,
    outcome: Option<String>,
    outcome_ms: Option<i64>,
    reason: Option<String>,
    presence: Option<String>,
    since_ms: Option<i64>,
    joined_ms: Option<i64>,
}

impl CommandHostRow {
    fn line(self, now: Millis) -> StoreResult<muster_api::CommandHost> {
        let state: CommandState = from_word("state", &self.state)?;
        let presence = match (self.presence, self.since_ms) {
            (Some(word), Some(since_ms)) => Some((from_word("presence", &word)?, since_ms)),
            _ => None,
        };
        let away_since_ms = || self.joined_ms.and_then(|joined_ms| presence::away_since_ms(presence, joined_ms, now));
        let progress = match (state, self.outcome, self.outcome_ms) {
            (CommandState::Waiting, ..) => {
                HostProgress::Waiting { away_since_ms: away_since_ms(), reason: self.reason }
            }
            (CommandState::Accepted, ..) => HostProgress::Accepted,
            (CommandState::Running, ..) => HostProgress::Running,
            (CommandState::Done, Some(outcome), Some(at_ms)) => {
                HostProgress::Done { outcome: muster_api::Received { at_ms, value: json("outcome", &outcome)? } }
            }
            (CommandState::Done, ..) => {
                return Err(StoreError::Row { what: "outcome", problem: "a finished command has none".into() });
            }
            (CommandState::Missing, ..) => HostProgress::Missing,
        };
        Ok(muster_api::CommandHost { host: parsed("host id", &self.host)?, hostname: self.hostname, progress })
    }
}

/// Selects [`CommandHostRow`]s of command `$1`; another condition and an order follow.
macro_rules! select_lines {
    ($command:expr, $rest:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            CommandHostRow,
            r#"SELECT command_host.host, COALESCE(host.hostname, command_host.host) AS "hostname!: String",
                      command_host.state, command_host.outcome, command_host.outcome_ms,
                      presence.state AS "presence?", presence.since_ms AS "since_ms?", host.joined_ms AS "joined_ms?",
                      CASE WHEN command_host.state = 'waiting' THEN (
                          SELECT json_extract(alert.body, '$.message') FROM alert
                          WHERE alert.host = command_host.host AND alert.state = 'raised'
                            AND json_extract(alert.body, '$.metric') = 'store_used' LIMIT 1
                      ) END AS "reason?: String"
               FROM command_host LEFT JOIN host ON host.id = command_host.host
               LEFT JOIN presence ON presence.host = command_host.host WHERE command_host.command = $1"#
                + $rest,
            $command
            $(, $argument)*
        )
    };
}

async fn hosts(db: &SqlitePool, command: &str, only: Option<HostId>) -> StoreResult<Vec<muster_api::CommandHost>> {
    let rows = match only {
        Some(host) => select_lines!(command, " AND command_host.host = $2", host.to_string()).fetch_all(db).await?,
        None => select_lines!(command, " ORDER BY 2, 1").fetch_all(db).await?,
    };
    let now = now_ms();
    rows.into_iter().map(|row| row.line(now)).collect()
}

/// Returns a command's state on some of its hosts, in their order.
pub async fn of_hosts(db: &SqlitePool, command: CommandId, of: &[HostId]) -> StoreResult<Vec<muster_api::CommandHost>> {
    let rows = select_lines!(
        command.to_string(),
        " AND command_host.host IN (SELECT value FROM json_each($2))",
        to_json("hosts", &of)?
    )
    .fetch_all(db)
    .await?;
    let now = now_ms();
    let mut found: Vec<muster_api::CommandHost> =
        rows.into_iter().map(|row| row.line(now)).collect::<StoreResult<_>>()?;
    let places: HashMap<HostId, usize> = of.iter().enumerate().map(|(place, host)| (*host, place)).collect();
    found.sort_by_key(|line| places.get(&line.host).copied());
    Ok(found)
}

/// Returns a command's state on one host; `None` if it was not for that host.
pub async fn of_host(
    db: &SqlitePool,
    command: CommandId,
    host: HostId,
) -> StoreResult<Option<muster_api::CommandHost>> {
    Ok(hosts(db, &command.to_string(), Some(host)).await?.pop())
}

/// Removes commands that expired before `before` and are finished on every host.
pub async fn sweep(db: &SqlitePool, before: Millis) -> StoreResult<u64> {
    let gone = sqlx::query!(
        "DELETE FROM command WHERE expires_ms < $1 AND NOT EXISTS (
         SELECT 1 FROM command_host
         WHERE command_host.command = command.id AND command_host.state IN ('accepted', 'running'))",
        before
    )
    .execute(db)
    .await?;
    Ok(gone.rows_affected())
}

/// Counts open commands.
pub async fn open_count(db: &SqlitePool) -> StoreResult<u64> {
    let count = sqlx::query_scalar!(
        "SELECT count(DISTINCT command) FROM command_host WHERE state IN ('waiting', 'accepted', 'running')"
    )
    .fetch_one(db)
    .await?;
    unsigned("count", count)
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        V1,
        asker::Asker,
        command::{Exec, Target, Verb},
        name::Name,
        outcome::Output,
    };

    use super::*;
    use crate::store::tests::temporary;

    fn command(expires_ms: Millis) -> Command {
        Command {
            v: V1,
            id: CommandId::new(),
            target: Target::All,
            issued_ms: 0,
            expires_ms,
            asked_by: Asker::admin(Name::admin()),
            realms: Vec::new(),
            verb: Verb::UnitRun { unit: "default/hello".parse().unwrap() },
            sealed: None,
        }
    }

    /// Whether its outcome is expected.
    async fn settle_one(db: &mut SqliteConnection, command: CommandId, host: HostId) -> bool {
        let one = SettledOutcome { command, host, outcome: outcome() };
        !settle(db, &[one], 5).await.unwrap().contains(&(command, host))
    }

    fn outcome() -> Outcome {
        let status = muster_topics::outcome::Status::Completed;
        Outcome { status, started_ms: None, finished_ms: 1, stdout: Output::default(), stderr: Output::default() }
    }

    #[tokio::test]
    async fn open_commands_are_loaded_after_restart() {
        let (dir, store) = temporary().await;
        let hosts = [HostId::random(), HostId::random(), HostId::random()];
        let one = command(10);
        let mut db = store.begin().await.unwrap();
        add(&mut db, &one, b"signed", &hosts).await.unwrap();
        advance(&mut db, one.id, hosts[0], CommandState::Running).await.unwrap();
        assert!(settle_one(&mut db, one.id, hosts[1]).await);
        assert!(!settle_one(&mut db, one.id, HostId::random()).await, "it was not asked");
        db.commit().await.unwrap();
        store.close().await;
        let store = super::super::Store::open(&dir.path().join("console.db")).await.unwrap();
        let mut found = open(store.read()).await.unwrap();
        found[0].hosts.sort_by_key(|(host, _)| *host);
        let mut wanted = vec![(hosts[0], CommandReach::Answered), (hosts[2], CommandReach::Maybe)];
        wanted.sort_by_key(|(host, _)| *host);
        assert_eq!(
            found,
            [OpenCommand { id: one.id, expires_ms: 10, bytes: 6, kind: CommandClass::of(&one.verb), hosts: wanted }]
        );
        assert_eq!(signed_bytes(store.read(), one.id).await.unwrap().unwrap(), (b"signed".to_vec(), false));
        assert_eq!(open_count(store.read()).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn first_outcome_is_kept_and_strangers_reported() {
        let (_dir, store) = temporary().await;
        let (hosts, strangers): (Vec<_>, Vec<_>) = (0..600).map(|_| (HostId::random(), HostId::random())).unzip();
        let one = command(10);
        let mut db = store.begin().await.unwrap();
        add(&mut db, &one, b"signed", &hosts).await.unwrap();
        let of = |hosts: &[HostId], status: &muster_topics::outcome::Status| {
            let outcome = Outcome { status: status.clone(), ..outcome() };
            hosts
                .iter()
                .map(|host| SettledOutcome { command: one.id, host: *host, outcome: outcome.clone() })
                .collect::<Vec<_>>()
        };
        let (first, late) = (muster_topics::outcome::Status::Completed, muster_topics::outcome::Status::TimedOut);
        assert_eq!(settle(&mut db, &of(&hosts[..300], &first), 5).await.unwrap(), HashSet::new());
        assert_eq!(settle(&mut db, &of(&hosts, &late), 6).await.unwrap(), HashSet::new());
        let wanted = strangers[..9].iter().map(|host| (one.id, *host)).collect();
        let mixed = [of(&hosts, &first), of(&strangers[..9], &first)].concat();
        assert_eq!(settle(&mut db, &mixed, 7).await.unwrap(), wanted);
        db.commit().await.unwrap();
        let shown = list(store.read(), Which::One(one.id)).await.unwrap().remove(0);
        let stored: HashMap<_, _> =
            shown.hosts.into_iter().map(|line| (line.host, line.outcome().cloned().unwrap())).collect();
        assert_eq!(stored.len(), hosts.len());
        for (index, host) in hosts.iter().enumerate() {
            let (at_ms, status) = if index < 300 { (5, &first) } else { (6, &late) };
            assert_eq!((stored[host].at_ms, &stored[host].value.status), (at_ms, status));
        }
    }

    #[tokio::test]
    async fn unexpected_answer_to_broadcast_is_added() {
        let (_dir, store) = temporary().await;
        let (one, other) = (HostId::random(), HostId::random());
        let target = || Target::Select("label.site=north".parse().unwrap());
        let select = Command { target: target(), ..command(10) };
        let listed = Command { target: Target::Hosts(vec![one]), ..command(10) };
        let mut db = store.begin().await.unwrap();
        for command in [&select, &listed] {
            add(&mut db, command, b"", &[one]).await.unwrap();
        }
        for (command, host, wanted) in [
            (select.id, other, true),
            (select.id, other, false),
            (select.id, one, false),
            (listed.id, other, false),
            (CommandId::new(), other, false),
        ] {
            assert_eq!(add_host(&mut db, command, host, CommandState::Running).await.unwrap(), wanted);
        }
        assert!(settle_one(&mut db, select.id, other).await);
        db.commit().await.unwrap();
        let shown = list(store.read(), Which::One(select.id)).await.unwrap().remove(0);
        assert_eq!((shown.target, shown.hosts.len()), (Some(target()), 2));
        let shown = list(store.read(), Which::One(listed.id)).await.unwrap().remove(0);
        assert_eq!((shown.target, shown.hosts.len()), (None, 1));
    }

    #[tokio::test]
    async fn commands_of_a_host_include_its_broadcasts() {
        let (_dir, store) = temporary().await;
        let (one, other) = (HostId::random(), HostId::random());
        let (all, others) = (command(10), Command { target: Target::Select("host=x".parse().unwrap()), ..command(10) });
        let [for_one, for_both] = [vec![one], vec![one, other]]
            .map(|hosts| (Command { target: Target::Hosts(hosts.clone()), ..command(10) }, hosts));
        let mut db = store.begin().await.unwrap();
        for (command, hosts) in [(&all, &[one, other][..]), (&others, &[other]), (&for_one.0, &for_one.1)] {
            add(&mut db, command, b"", hosts).await.unwrap();
        }
        add(&mut db, &for_both.0, b"", &for_both.1).await.unwrap();
        db.commit().await.unwrap();
        let of = async |host, limit| {
            let found = alone(store.read(), Which::Newest { host: Some(host), limit }).await.unwrap();
            found.iter().map(|command| command.id).collect::<Vec<_>>()
        };
        assert_eq!(of(one, 9).await, [for_both.0.id, for_one.0.id, all.id]);
        assert_eq!(of(other, 9).await, [for_both.0.id, others.id, all.id]);
        assert_eq!((of(one, 1).await, of(HostId::random(), 9).await), (vec![for_both.0.id], vec![]));
        // A host that answers a broadcast unexpectedly has it, too.
        let mut db = store.begin().await.unwrap();
        assert!(add_host(&mut db, others.id, one, CommandState::Running).await.unwrap());
        db.commit().await.unwrap();
        assert_eq!(of(one, 9).await, [for_both.0.id, for_one.0.id, others.id, all.id]);

        let sql = sqlx::Execute::sql(select_commands_of_host!("", 9));
        let sql = format!("EXPLAIN QUERY PLAN {}", sql.as_str());
        let plan: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_all(store.read()).await.unwrap();
        let plan = plan.into_iter().map(|(.., step)| step).collect::<Vec<_>>().join("\n");
        assert!(plan.contains("command_host_by_host (host=?)") && plan.contains("command_broadcast"), "{plan}");
        assert!(!plan.contains("SCAN command_host"), "{plan}");
    }

    fn limited(max_bytes: u64) -> Command {
        let exec = Exec { output_max_bytes: max_bytes, ..Exec::new(vec!["true".to_owned()], 1) };
        Command { verb: Verb::Exec(exec), ..command(10) }
    }

    #[tokio::test]
    async fn forged_output_is_limited() {
        let (_dir, store) = temporary().await;
        let (host, one) = (HostId::random(), limited(10));
        let mut db = store.begin().await.unwrap();
        add(&mut db, &one, b"", &[host]).await.unwrap();
        let mut put = async |offset: u64, data: &[u8]| {
            add_output(&mut db, one.id, host, Stream::Stdout, offset, data).await.unwrap()
        };
        assert_eq!(put(0, b"12345").await, Added::New);
        // Beyond the end; more than there is room for; the same bytes repeatedly at other offsets.
        assert_eq!(put(10, b"x").await, Added::TooMuch);
        assert_eq!(put(u64::MAX, b"x").await, Added::TooMuch);
        assert_eq!(put(5, b"678901").await, Added::TooMuch);
        for offset in 1..5 {
            put(offset, b"xxxxx").await;
        }
        assert_eq!(put(0, b"12345").await, Added::Known);
        assert_eq!(output_size(&mut db, "").await.unwrap(), 10);
        assert_eq!(add_output(&mut db, one.id, host, Stream::Stderr, 0, b"1234567890").await.unwrap(), Added::New);
        assert_eq!(output_size(&mut db, &host.to_string()).await.unwrap(), 20);
    }

    #[tokio::test]
    async fn oldest_output_is_dropped_first() {
        let (_dir, store) = temporary().await;
        let (loud, quiet) = (HostId::random(), HostId::random());
        let mut db = store.begin().await.unwrap();
        let mut ids = Vec::new();
        for host in [quiet, loud, loud, loud, loud] {
            let one = limited(100);
            add(&mut db, &one, b"", &[host]).await.unwrap();
            for offset in [0, 50] {
                add_output(&mut db, one.id, host, Stream::Stdout, offset, &[b'x'; 50]).await.unwrap();
            }
            ids.push(one.id);
        }
        let limits = |of_host_bytes, of_all_bytes| OutputLimits { of_host_bytes, of_all_bytes };
        let hosts = BTreeSet::from([loud]);
        assert_eq!(trim_output(&mut db, &hosts, limits(400, 500)).await.unwrap(), 0);
        // The oldest of the host with too much, and nothing of the other, which is older.
        assert_eq!(trim_output(&mut db, &hosts, limits(350, 500)).await.unwrap(), 100);
        assert_eq!(trim_output(&mut db, &hosts, limits(350, 250)).await.unwrap(), 200);
        db.commit().await.unwrap();
        let mut left = Vec::new();
        for id in &ids {
            left.push(output_after(store.read(), *id, None, 0, 9).await.unwrap().len());
        }
        assert_eq!(left, [0, 0, 0, 2, 2]);
        assert_eq!(sweep(store.write(), 100).await.unwrap(), 5, "what nobody answers is swept as well");
        let mut db = store.begin().await.unwrap();
        assert_eq!(output_size(&mut db, "").await.unwrap(), 0);
    }

    #[tokio::test]
    async fn only_finished_commands_are_swept() {
        let (_dir, store) = temporary().await;
        let host = HostId::random();
        let (over, running, fresh) = (command(10), command(10), command(1_000));
        let mut db = store.begin().await.unwrap();
        for one in [&over, &running, &fresh] {
            add(&mut db, one, b"", &[host]).await.unwrap();
            assert_eq!(add_output(&mut db, one.id, host, Stream::Stdout, 0, b"x").await.unwrap(), Added::New);
            assert_eq!(add_output(&mut db, one.id, host, Stream::Stdout, 0, b"x").await.unwrap(), Added::Known);
        }
        assert!(settle_one(&mut db, over.id, host).await);
        advance(&mut db, running.id, host, CommandState::Running).await.unwrap();
        db.commit().await.unwrap();
        assert_eq!(sweep(store.write(), 100).await.unwrap(), 1);
        let left: Vec<_> = list(store.read(), Which::Newest { host: None, limit: 9 }).await.unwrap();
        assert_eq!(left.iter().map(|one| one.id).collect::<Vec<_>>(), [fresh.id, running.id]);
        assert!(output_after(store.read(), over.id, None, 0, 9).await.unwrap().is_empty());
        assert_eq!(output_after(store.read(), fresh.id, Some(host), 0, 9).await.unwrap().len(), 1);
    }
}
