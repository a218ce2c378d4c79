//! Joins simulated hosts to the fleet as any host: each with a key, a token and a certificate of its own, over HTTPS.
//! These are kept, so that a later start needs none of it.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use muster_agent::join::{self, JoinClient, JoinError, Joiner, JoinerSealingKey, MemberIdentity};
use muster_base::{
    clock,
    failure::{Failure, FailureContext as _, FailureKind},
    files,
};
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    heartbeat::Facts,
    join::{JoinToken, Membership},
    name::HostId,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    hostname::hostname,
    store::{HostLife, Number, SimulatedHostRow, Store},
};

/// Number of hosts that join at the same time. The console needs a millisecond or two for each, so these keep it busy.
const AT_ONCE: usize = 16;
/// Number of hosts that are stored at once: as many as a kill may lose.
const KEPT_AT_ONCE: usize = 64;
/// A certificate that expires sooner than this is renewed by joining again.
const GOOD_FOR_MS: Millis = 24 * 3_600_000;
/// Number of hosts between two progress messages.
const TELL_EVERY: usize = 500;

/// The hosts that must join: those that are not stored, and those whose certificate expires.
pub(super) fn missing(count: Number, rows: &[SimulatedHostRow], membership: Option<&Membership>) -> Vec<Number> {
    let Some(membership) = membership else { return (0..count).collect() };
    let good: BTreeSet<Number> =
        rows.iter().filter(|row| is_good(row, membership, clock::now_ms())).map(|row| row.n).collect();
    (0..count).filter(|n| !good.contains(n)).collect()
}

fn is_good(row: &SimulatedHostRow, membership: &Membership, now_ms: Millis) -> bool {
    row.identity(membership).validity_ms().is_ok_and(|(_, ends_ms)| ends_ms > now_ms + GOOD_FOR_MS)
}

/// Reads tokens from a file (`-` is standard input), one on each line.
pub(super) fn read_tokens(path: &Path) -> Result<Vec<JoinToken>, Failure> {
    let what = || format!("the tokens in {}", path.display());
    let text = match path.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut bytes)
                .and_then(|_| files::text(bytes))
                .trying("the tokens on standard input")?
        }
        false => files::read_text(path).map_err(|error| Failure::of_file(path, &error))?,
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate();
    lines
        .map(|(index, line)| {
            line.parse().map_err(|error| {
                Failure::told(
                    FailureKind::Usage,
                    Diagnostic::new(error).within(format_args!("{}, number {}", what(), index + 1)),
                )
            })
        })
        .collect()
}

/// What is needed to join.
pub(super) struct JoinInputs<'a> {
    pub(super) store: &'a Store,
    /// Hosts that are stored already; they keep their ids.
    pub(super) rows: &'a [SimulatedHostRow],
    pub(super) membership: Option<Membership>,
    pub(super) facts: Facts,
    pub(super) shutdown: &'a CancellationToken,
}

impl JoinInputs<'_> {
    /// Makes these hosts join, each with a token, and stores them.
    pub(super) async fn join(
        self,
        missing: &[Number],
        tokens: Vec<JoinToken>,
        told: impl Fn(usize),
    ) -> Result<(), Failure> {
        let Some(first) = tokens.first() else { return Ok(()) };
        if let Some(membership) = &self.membership {
            let ours = join::fingerprints(&membership.authority).map_err(|error| failure(&error))?;
            if !ours.contains(&first.authority) {
                return Err(Failure::new(
                    FailureKind::Refused,
                    "the hosts in this folder are members of another fleet",
                )
                .hint("choose another folder with --data-dir DIR"));
            }
        }
        let door = Arc::new(JoinClient::new(first).map_err(|error| failure(&error))?);
        let mut work: Vec<(HostId, Number, JoinToken)> =
            missing.iter().zip(tokens).rev().map(|(n, token)| (self.id(*n), *n, token)).collect();
        let mut joining = JoinSet::new();
        let (mut joined, mut done) = (Vec::new(), 0);
        loop {
            while let Some((host, n, token)) = (joining.len() < AT_ONCE).then(|| work.pop()).flatten() {
                let (door, facts) = (Arc::clone(&door), self.facts.clone());
                joining.spawn(async move {
                    let hostname = hostname(n);
                    let joiner =
                        Joiner { host, hostname: &hostname, facts: &facts, sealing_key: JoinerSealingKey::Derived };
                    (n, door.join(&token.secret, &joiner).await)
                });
            }
            let one = tokio::select! {
                one = joining.join_next() => one,
                () = self.shutdown.cancelled() => None,
            };
            let Some(one) = one else { break };
            let (n, identity) = one.trying("joining")?;
            joined.push((n, identity.map_err(|error| failure(&error))?));
            done += 1;
            if done % TELL_EVERY == 0 {
                told(done);
            }
            if joined.len() == KEPT_AT_ONCE {
                self.keep(std::mem::take(&mut joined)).await?;
            }
        }
        self.keep(joined).await
    }

    fn id(&self, n: Number) -> HostId {
        self.rows.iter().find(|row| row.n == n).map_or_else(HostId::random, |row| row.id)
    }

    async fn keep(&self, joined: Vec<(Number, MemberIdentity)>) -> Result<(), Failure> {
        let Some((_, first)) = joined.first() else { return Ok(()) };
        self.store.set_membership(&first.membership).await.trying("the simulation's store")?;
        let created_ms = clock::now_ms();
        // As an agent does: later than any epoch that a lost store can have had.
        let life = HostLife { epoch: u64::try_from(created_ms / 1000).unwrap_or_default(), instances: Vec::new() };
        let row = |(n, identity): (Number, MemberIdentity)| SimulatedHostRow {
            n,
            id: identity.membership.host,
            certificate: identity.membership.certificate,
            key: identity.key,
            created_ms,
            life: life.clone(),
        };
        let rows: Vec<SimulatedHostRow> = joined.into_iter().map(row).collect();
        self.store.put_hosts(&rows).await.trying("the simulation's store")
    }
}

fn failure(error: &JoinError) -> Failure {
    let kind = match error {
        JoinError::Refused { .. } | JoinError::Stranger { .. } => FailureKind::Refused,
        JoinError::Unreachable { .. } => FailureKind::Unreachable,
        _ => FailureKind::Failed,
    };
    Failure::of(kind, error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tokens_are_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let authority = muster_topics::name::Digest::of(b"a");
        let token = JoinToken { url: "https://127.0.0.1:1".to_owned(), authority, secret: "s".to_owned() };
        fs::write(&path, format!("{token}\n\n  {token}\n")).unwrap();
        assert_eq!(read_tokens(&path).unwrap(), [token.clone(), token.clone()]);
        fs::write(&path, format!("{token}\nnonsense\n")).unwrap();
        let error = read_tokens(&path).unwrap_err();
        assert!(error.kind == FailureKind::Usage && error.lines().contains("number 2"));
        assert!(read_tokens(&folder.path().join("none")).is_err());
    }

    #[test]
    fn without_a_membership_all_are_missing() {
        assert_eq!(missing(3, &[], None), [0, 1, 2]);
    }
}
