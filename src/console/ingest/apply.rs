//! One message into one transaction.

use muster_topics::{
    Millis, PAYLOAD_MAX_BYTES,
    ack::{Numbered, ReportAck},
    heartbeat::{Heartbeat, HostState},
    name::{CommandId, HostId, UnitName},
    outcome::{Content, Report, Stream},
    presence::{Presence, PresenceState},
    topic::{HostTopic, Topic},
    unit::UnitReport,
};
use sqlx::SqliteConnection;

use super::{
    ApplyError, Faulty,
    decide::{self, Verdict},
    effects::Effects,
};
use crate::{
    api::CommandState,
    console::{
        Change,
        store::{command, host},
    },
};

/// The most output of one stream of a command that is kept: far above what a command may ask for,
/// and a bound for a host that does not keep to it.
const OUTPUT_MAX_BYTES: u64 = 64 * 1024 * 1024;

type Result<T> = std::result::Result<T, ApplyError>;

/// Applies a message; what has to follow once it is committed goes to `effects`.
pub(super) async fn apply(
    db: &mut SqliteConnection,
    topic: &Topic,
    payload: &[u8],
    now: Millis,
    effects: &mut Effects,
) -> Result<()> {
    if payload.len() > PAYLOAD_MAX_BYTES {
        return Err(Faulty::TooLong(payload.len()).into());
    }
    let Topic::Host(host, topic) = topic else { return Err(Faulty::Topic.into()) };
    if !host::exists(db, *host).await? {
        // A retained topic is cleared with an empty message, also of a host that is no longer a member.
        return if payload.is_empty() { Ok(()) } else { Err(Faulty::UnknownHost.into()) };
    }
    match topic {
        // Cleared, by whoever tidied up: that says nothing of the host.
        HostTopic::Presence if payload.is_empty() => Ok(()),
        HostTopic::Presence => presence(db, *host, &parse(payload)?, now, effects).await,
        HostTopic::Heartbeat => heartbeat(db, *host, parse(payload)?, now, effects).await,
        HostTopic::Unit(unit) if payload.is_empty() => unit_gone(db, *host, unit, effects).await,
        HostTopic::Unit(unit) => unit_report(db, *host, unit, &parse(payload)?, now, effects).await,
        HostTopic::Outcome => report(db, *host, parse(payload)?, now, effects).await,
        _ => Err(Faulty::Topic.into()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|error| Faulty::Payload(error).into())
}

async fn presence(
    db: &mut SqliteConnection,
    id: HostId,
    presence: &Presence,
    now: Millis,
    effects: &mut Effects,
) -> Result<()> {
    let held = host::presence_order(db, id).await?;
    if !decide::presence_supersedes(held, presence) {
        return Ok(());
    }
    host::set_presence(db, id, presence, now).await?;
    effects.presences.push((id, presence.state == PresenceState::Online));
    effects.changes.push(Change::Host(id));
    Ok(())
}

async fn heartbeat(
    db: &mut SqliteConnection,
    id: HostId,
    heartbeat: Heartbeat,
    now: Millis,
    effects: &mut Effects,
) -> Result<()> {
    let (epoch, made_ms, is_final) = (heartbeat.epoch, heartbeat.at_ms, heartbeat.is_final);
    let verdict = decide::heartbeat(host::held(db, id).await?, heartbeat).inspect_err(|_| {
        // Whatever the host thinks that we hold is not what it means: begin anew.
        effects.refresh.insert(id);
    })?;
    match verdict {
        Verdict::Store { held, state } => {
            host::set_held(db, id, &held, &state.hostname, now).await?;
            forget_units(db, id, epoch, made_ms, &state, effects).await?;
            effects.acks(id).heartbeat = Some(Numbered { epoch, seq: held.seq });
            effects.changes.push(Change::Host(id));
            // Taken down as offline by mistake: it shows its presence again if it is asked to.
            let offline = host::presence_order(db, id).await?.is_some_and(|(held, _, off)| off && held <= epoch);
            if offline && !is_final {
                effects.refresh.insert(id);
            }
        }
        Verdict::Known { seq } => effects.acks(id).heartbeat = Some(Numbered { epoch, seq }),
        Verdict::Old => (),
        Verdict::Gap => drop(effects.refresh.insert(id)),
    }
    Ok(())
}

/// Forgets units that a heartbeat does not list. The message that says that a unit is gone is not
/// retained, so a console that was away has never had it.
async fn forget_units(
    db: &mut SqliteConnection,
    id: HostId,
    epoch: u64,
    made_ms: Millis,
    state: &HostState,
    effects: &mut Effects,
) -> Result<()> {
    for unit in host::units_before(db, id, epoch, made_ms).await? {
        if !state.units.contains_key(&unit) {
            unit_gone(db, id, &unit, effects).await?;
        }
    }
    Ok(())
}

async fn unit_gone(db: &mut SqliteConnection, id: HostId, unit: &UnitName, effects: &mut Effects) -> Result<()> {
    if host::remove_unit(db, id, unit).await? {
        effects.changes.push(Change::Unit(id, unit.clone()));
    }
    Ok(())
}

async fn unit_report(
    db: &mut SqliteConnection,
    id: HostId,
    unit: &UnitName,
    report: &UnitReport,
    now: Millis,
    effects: &mut Effects,
) -> Result<()> {
    if report.unit != *unit {
        return Err(Faulty::Content("it is about another unit than its topic says").into());
    }
    if host::set_unit(db, id, report, now).await? {
        effects.changes.push(Change::Unit(id, unit.clone()));
    }
    Ok(())
}

async fn report(
    db: &mut SqliteConnection,
    id: HostId,
    report: Report,
    now: Millis,
    effects: &mut Effects,
) -> Result<()> {
    let command = report.command;
    let acknowledged = ReportAck { command, seq: report.seq };
    let Some(state) = command::state(db, command, id).await? else {
        // From a store that was restored or swept. The host may forget it: nobody will ever ask.
        tracing::warn!(host.id = %id, command.id = %command, "an answer to a command that is not in the ledger");
        effects.acks(id).reports.insert(acknowledged);
        return Ok(());
    };
    match report.content {
        // These are not kept by the host, so they need no acknowledgement.
        Content::Accepted => advance(db, id, command, state, CommandState::Accepted, effects).await?,
        Content::Running => advance(db, id, command, state, CommandState::Running, effects).await?,
        Content::Output { stream, offset_bytes, data } => {
            effects.acks(id).reports.insert(acknowledged);
            let data = data.to_bytes().map_err(|_| Faulty::Content("its output is not base64"))?;
            if output(db, id, command, stream, offset_bytes, &data).await? {
                effects.changes.push(Change::Command(command));
            }
        }
        Content::Done { outcome } => {
            effects.acks(id).reports.insert(acknowledged);
            if command::settle(db, command, id, &outcome, now).await? {
                effects.changes.push(Change::Command(command));
            }
            effects.settled.push((command, id));
        }
    }
    Ok(())
}

async fn advance(
    db: &mut SqliteConnection,
    id: HostId,
    command: CommandId,
    from: CommandState,
    to: CommandState,
    effects: &mut Effects,
) -> Result<()> {
    if decide::advances(from, to) {
        command::advance(db, command, id, to).await?;
        effects.answered.push((command, id));
        effects.changes.push(Change::Command(command));
    }
    Ok(())
}

async fn output(
    db: &mut SqliteConnection,
    id: HostId,
    command: CommandId,
    stream: Stream,
    offset_bytes: u64,
    data: &[u8],
) -> Result<bool> {
    let end = offset_bytes.checked_add(data.len() as u64);
    if end.is_none_or(|end| end > OUTPUT_MAX_BYTES) {
        return Err(Faulty::Content("its output is beyond what is kept of a command").into());
    }
    Ok(command::add_output(db, command, id, stream, offset_bytes, data).await?)
}
