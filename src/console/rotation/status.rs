//! How far a rotation is, or the last one was.

use std::{collections::BTreeMap, time::Duration};

use muster_api::authority::{
    AuthorityStatus, LackingHost, LackingReason, PastRotation, RootStage, RotatedKey, RotationStatus, SigningKeyPlace,
};
use muster_base::clock::now_ms;
use muster_rules::rotation::{
    FinishedRotation, HostNeed, IssuingSince, KeyStanding, KeyState, MemberKeys, RotationStage,
};
use muster_topics::{Millis, name::HostId};

use super::root::next_root;
use crate::{
    authority::AuthorityKeys,
    dispatch,
    error::Error,
    key_ring::{ActiveKeys, KeyPlace},
    state::{Console, ConsoleState, StartedBy},
    store::{StoreError, command_key, host, issued},
};

/// How long a page shows the last rotation: hosts that were away for longer have most likely healed, or joined anew.
const LAST_SHOWN: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is known of all members.
#[derive(Default)]
struct Members {
    members: Vec<(String, MemberKeys)>,
    away: BTreeMap<HostId, Millis>,
}

impl Members {
    async fn read(shared: &ConsoleState) -> Result<Self, StoreError> {
        let members = command_key::members(shared.store.read()).await?;
        let away = host::away(shared.store.read(), None).await?.into_iter().collect();
        Ok(Self { members, away })
    }

    /// Returns how many do not lack anything, and those that do.
    fn lacking(&self, why: impl Fn(&MemberKeys) -> Option<LackingReason>) -> (u64, Vec<LackingHost>) {
        let lacking = self.members.iter().filter_map(|(hostname, member)| {
            let (host, hostname, why) = (member.host, hostname.clone(), why(member)?);
            Some(LackingHost { host, hostname, why, away_since_ms: self.away.get(&host).copied() })
        });
        let lacking: Vec<LackingHost> = lacking.collect();
        ((self.members.len() - lacking.len()) as u64, lacking)
    }
}

impl Console {
    /// Returns the authority's keys, and how far a rotation is, or the last one was.
    pub async fn authority_status(&self) -> Result<AuthorityStatus, Error> {
        self.authority_status_since(Millis::MIN).await
    }

    /// Returns the same for a page, which must not read the state of all hosts for a rotation of long ago.
    pub async fn authority_glance(&self) -> Result<AuthorityStatus, Error> {
        self.authority_status_since(dispatch::before(now_ms(), LAST_SHOWN)).await
    }

    /// Returns the status, with the last rotation if it was finished since then.
    async fn authority_status_since(&self, since_ms: Millis) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        let current = shared.authority.current();
        let state = &current.signing.state;
        let last = last_of(state).filter(|(_, last)| state.stage().is_none() && last.finished_ms >= since_ms);
        let members = match state.stage().is_some() || last.is_some() {
            true => Members::read(shared).await?,
            false => Members::default(),
        };
        let rotation = match state.stage() {
            Some(stage) => rotation(shared, &current, stage, &members).await?,
            None => None,
        };
        Ok(AuthorityStatus {
            fingerprint: current.roots.serving().fingerprint().clone(),
            certificates: current.roots.pem(),
            signing_key: state.signing.id().to_owned(),
            signing_key_place: place(&current.signing),
            rotation,
            last_rotation: last.map(|(what, last)| past_rotation(&current, what, last, &members)),
        })
    }
}

/// The rotation that was finished last.
fn last_of(state: &KeyState) -> Option<(RotatedKey, &FinishedRotation)> {
    let root = state.root.as_ref().and_then(|root| root.last.as_ref()).map(|last| (RotatedKey::Root, last));
    let signing = state.last.as_ref().map(|last| (RotatedKey::Signing, last));
    [root, signing].into_iter().flatten().max_by_key(|(_, last)| last.finished_ms)
}

async fn rotation(
    shared: &ConsoleState,
    current: &AuthorityKeys,
    stage: RotationStage,
    members: &Members,
) -> Result<Option<RotationStatus>, Error> {
    let (state, now) = (&current.signing.state, now_ms());
    let by = |need: HostNeed<'_>| members.lacking(|member| reason(need, KeyStanding::of(member, need, now)));
    let status =
        |what, new_key, stage, (begun_ms, operator): (&Millis, &_), (having, lacking): (u64, Vec<LackingHost>)| {
            let ready = lacking.iter().all(|host| host.why == LackingReason::CertificateExpired);
            let (begun_ms, operator) = (*begun_ms, Clone::clone(operator));
            let (broker, by_hand) = (None, Vec::new());
            RotationStatus { what, new_key, stage, begun_ms, operator, having, lacking, ready, broker, by_hand }
        };
    if let (RotationStage::Key, Some(next)) = (stage, &state.next) {
        let id = next.key.id().to_owned();
        let having = by(HostNeed::Key(&id));
        return Ok(Some(status(RotatedKey::Signing, id, None, (&next.begun_ms, &next.operator), having)));
    }
    let Some(next) = state.next_root() else { return Ok(None) };
    let Ok(root) = next_root(shared, &current.roots) else { return Ok(None) };
    let id = root.id();
    let (stage, having) = match stage {
        RotationStage::Certificates => (RootStage::Certificates, by(HostNeed::Certificate(&id))),
        _ => (RootStage::Trust, by(HostNeed::Trust(&id))),
    };
    let mut status = status(RotatedKey::Root, id, Some(stage), (&next.begun_ms, &next.operator), having);
    if shared.settings.started_by != StartedBy::Up {
        status.broker = Some(shared.settings.started_with.broker_url.clone());
    }
    if let Some(since) = &next.issues {
        status.by_hand = by_hand(shared, since, now).await?;
    }
    Ok(Some(status))
}

/// Owners of certificates that were made by hand under the old root, and have none under the new one.
async fn by_hand(shared: &ConsoleState, since: &IssuingSince, now: Millis) -> Result<Vec<String>, StoreError> {
    let valid = issued::list(shared.store.read(), now).await?.into_iter().filter(|one| one.revoked_ms.is_none());
    let (new, old): (Vec<_>, Vec<_>) = valid.partition(|one| one.issued_ms >= since.at_ms);
    let owners = |of: Vec<issued::IssuedCertificate>| of.iter().map(|one| one.owner().to_string()).collect::<Vec<_>>();
    let has_new = owners(new);
    let mut lacking = owners(old);
    lacking.retain(|owner| !has_new.contains(owner));
    lacking.sort();
    lacking.dedup();
    Ok(lacking)
}

fn past_rotation(
    current: &AuthorityKeys,
    what: RotatedKey,
    last: &FinishedRotation,
    members: &Members,
) -> PastRotation {
    let (state, now) = (&current.signing.state, now_ms());
    let root = current.roots.serving().id();
    let (need, has_more) = match what {
        RotatedKey::Signing => (HostNeed::Key(state.signing.id()), LackingReason::HasOldKey),
        RotatedKey::Root => (HostNeed::Certificate(&root), LackingReason::HasOldRoot),
    };
    let is_known = |member: &MemberKeys| {
        let ids = current.roots.ids();
        member.keys.as_ref().is_none_or(|known| state.is_known_by(known, member.number, &ids))
    };
    let (having, lacking) = members.lacking(|member| match reason(need, KeyStanding::of(member, need, now)) {
        None if !is_known(member) => Some(has_more),
        reason => reason,
    });
    let (old_key, operator) = (last.retired.clone(), last.operator.clone());
    PastRotation { what, old_key, finished_ms: last.finished_ms, operator, having, lacking }
}

fn reason(need: HostNeed<'_>, standing: KeyStanding) -> Option<LackingReason> {
    match (standing, need) {
        (KeyStanding::Has, _) => None,
        (KeyStanding::Lacks, HostNeed::Certificate(_)) => Some(LackingReason::OldCertificate),
        (KeyStanding::Lacks, _) => Some(LackingReason::Unconfirmed),
        (KeyStanding::Unheard, _) => Some(LackingReason::Unheard),
        (KeyStanding::Expired, _) => Some(LackingReason::CertificateExpired),
    }
}

fn place(keys: &ActiveKeys) -> SigningKeyPlace {
    match &keys.place {
        KeyPlace::File(_) => SigningKeyPlace::File,
        KeyPlace::Credential(path) => SigningKeyPlace::Credential(path.display().to_string()),
        KeyPlace::Signer(address) => SigningKeyPlace::Signer(address.to_string()),
        KeyPlace::Absent => SigningKeyPlace::Absent,
    }
}
