//! Splits a set of units into commands that fit into messages, and reads the hosts' answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_api::{Command, CommandHost, NewCommand};
use muster_topics::{
    command::{SetPart, TARGET_HOSTS_MAX, UnitSet, UnitWish, Verb},
    diagnostic::Diagnostic,
    name::{CommandId, HostId, Name},
    outcome::Status,
};
use tokio::{sync::broadcast::error::RecvError, time::Instant};

use crate::{dispatch, error::Error, page_change::PageChange, state::Console};

/// The largest part of a set: this leaves room for its hosts and realms in a message of 64 KiB. A larger unit is sent
/// alone, and refused if it does not fit into any message.
const PART_MAX_BYTES: usize = 40_000;

/// The size of a message beside a set and its hosts: its realms and its signature.
const REST_BYTES: usize = 6_000;

/// The size of a host's id in a message.
const HOST_BYTES: usize = 41;

/// Returns commands that together apply the wishes, or check them.
pub(super) fn verbs(wishes: Vec<UnitWish>, check: bool) -> Result<Vec<Verb>, Error> {
    let mut parts: Vec<(usize, Vec<UnitWish>)> = Vec::new();
    for wish in wishes {
        let bytes = size(&wish)?;
        match parts.last_mut() {
            Some((taken, part)) if *taken + bytes <= PART_MAX_BYTES => {
                *taken += bytes;
                part.push(wish);
            }
            _ => parts.push((bytes, vec![wish])),
        }
    }
    let of = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let set = CommandId::new();
    let verb = |(number, (_, units))| {
        let part = (of > 1).then_some(SetPart { set, number, of });
        Verb::UnitsApply(UnitSet { units, check, part })
    };
    Ok((1..).zip(parts).map(verb).collect())
}

/// Splits hosts into as many as fit into a message with a verb.
pub(super) fn portions<'a>(verb: &Verb, hosts: &'a [HostId]) -> impl Iterator<Item = &'a [HostId]> + use<'a> {
    let most = match verb {
        Verb::UnitsApply(set) => {
            let bytes: usize = set.units.iter().map(|wish| size(wish).unwrap_or_default()).sum();
            let room = muster_topics::PAYLOAD_MAX_BYTES.saturating_sub(bytes + REST_BYTES);
            (room / HOST_BYTES).clamp(1, TARGET_HOSTS_MAX)
        }
        _ => TARGET_HOSTS_MAX,
    };
    hosts.chunks(most)
}

/// The size of a wish in a signed body, which is itself a JSON string.
fn size(wish: &UnitWish) -> Result<usize, Error> {
    let text = serde_json::to_string(wish).map_err(|error| Error::internal("writing a unit", &error))?;
    let escaped = text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    Ok(text.len() + escaped + 1)
}

/// Sends commands to hosts, and waits for their outcomes. For each host that answered all of its commands: `None` if
/// they are done, or else the reason.
pub(super) async fn ask(
    console: &Console,
    operator: &Name,
    commands: Vec<NewCommand>,
    limit: Duration,
) -> Result<BTreeMap<HostId, Option<Diagnostic>>, Error> {
    if commands.is_empty() {
        return Ok(BTreeMap::new());
    }
    let deadline = Instant::now() + limit;
    let mut changes = console.changes();
    let mut commands = dispatch::announce_all(console, operator, commands).await?;
    let mut stale: BTreeSet<CommandId> = commands.iter().map(|command| command.id).collect();
    loop {
        for command in commands.iter_mut().filter(|command| stale.contains(&command.id)) {
            *command = console.command(command.id).await?;
        }
        stale.clear();
        if commands.iter().flat_map(|command| &command.hosts).all(CommandHost::is_over) {
            break;
        }
        while stale.is_empty() {
            match tokio::time::timeout_at(deadline, changes.recv()).await {
                Ok(Ok(PageChange::Command(id))) if commands.iter().any(|command| command.id == id) => {
                    stale.insert(id);
                }
                Ok(Ok(_)) => {}
                Ok(Err(RecvError::Lagged(_))) => stale.extend(commands.iter().map(|command| command.id)),
                // The others have not answered in time.
                Ok(Err(RecvError::Closed)) | Err(_) => return Ok(answers(&commands)),
            }
        }
    }
    Ok(answers(&commands))
}

fn answers(commands: &[Command]) -> BTreeMap<HostId, Option<Diagnostic>> {
    let mut answers: BTreeMap<HostId, Option<Diagnostic>> = BTreeMap::new();
    let lines = || commands.iter().flat_map(|command| &command.hosts);
    for line in lines() {
        let Some(outcome) = line.outcome() else { continue };
        let answer = answers.entry(line.host).or_default();
        match &outcome.value.status {
            status if status.is_success() => {}
            Status::Refused { diagnostic, .. } | Status::Failed(diagnostic) => *answer = Some(diagnostic.clone()),
            _ => *answer = Some("it did not check the change".into()),
        }
    }
    let silent: BTreeSet<HostId> = lines().filter(|line| line.outcome().is_none()).map(|line| line.host).collect();
    answers.retain(|host, answer| answer.is_some() || !silent.contains(host));
    answers
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        common::ProgramSpec,
        name::Digest,
        unit::{ArtifactRef, Spec, YunoSpec},
    };

    use super::*;

    fn wish(number: usize, args: &[&str]) -> UnitWish {
        let artifact = ArtifactRef {
            sha256: Digest::of(b"a"),
            size_bytes: 1,
            role: "a".parse().unwrap(),
            version: "1".parse().unwrap(),
            manifest: None,
        };
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let spec = Box::new(Spec::Yuno(YunoSpec {
            program: ProgramSpec { args, ..ProgramSpec::default() },
            ..YunoSpec::new(artifact)
        }));
        UnitWish { unit: format!("default/u{number}").parse().unwrap(), spec, run: None, new: false }
    }

    #[test]
    fn large_set_is_split_into_messages() {
        let few = verbs((0..3).map(|number| wish(number, &[])).collect(), false).unwrap();
        let [Verb::UnitsApply(UnitSet { units, part: None, check: false })] = &few[..] else { panic!("one part") };
        assert_eq!(units.len(), 3);
        let quotes = "\"".repeat(300);
        let many: Vec<UnitWish> = (0..250).map(|number| wish(number, &[&quotes])).collect();
        let parts = verbs(many.clone(), true).unwrap();
        assert!(parts.len() > 1);
        let mut all = Vec::new();
        for (index, verb) in parts.iter().enumerate() {
            let Verb::UnitsApply(set) = verb else { panic!("a set") };
            let part = set.part.unwrap();
            assert_eq!((part.number as usize, part.of as usize, set.check), (index + 1, parts.len(), true));
            // As it is signed: a string inside of a string.
            let signed = serde_json::to_string(&serde_json::to_string(verb).unwrap()).unwrap().len();
            let hosts = vec![HostId::random(); 1_000];
            let portion = portions(verb, &hosts).next().unwrap();
            assert!(
                signed + portion.len() * HOST_BYTES + REST_BYTES / 2 <= muster_topics::PAYLOAD_MAX_BYTES,
                "{signed}"
            );
            assert_eq!(portions(verb, &hosts).map(<[HostId]>::len).sum::<usize>(), 1_000);
            all.extend(set.units.clone());
        }
        assert_eq!(all, many);
    }
}
