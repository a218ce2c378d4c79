//! Replaces the key that the console signs with, without anybody touching a host.
//!
//! 1. `begin` makes a new key and tells all hosts of it, in a document that the present key signs ([`super::document_sync`]). Hosts
//!    report which keys they have.
//! 2. `finish`, once every member has it: commands that wait are signed again, the console signs with the new key, the old one is
//!    deleted, and hosts are told to drop it.
//!
//! Members that are away meanwhile come back with the old key alone. They notice that a message is signed with another one, and
//! get the present keys with a renewal of their certificates (`/v1/renew`), which depends on no signature.
//!
//! **Invariant: nothing is signed with a key that a member does not have**, unless an operator named that member.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::http::StatusCode;
use muster_api::authority::{
    AuthorityStatus, BeginRotation, FinishRotation, LackingHost, LackingReason, PastRotation, RotatedKey,
    RotationStatus, SigningKeyPlace,
};
use muster_base::clock::now_ms;
use muster_rules::rotation::{self, FinishedRotation, KeyStanding, KeyState, MemberKeys, OfferedKey};
use muster_topics::{
    Millis, V1,
    command_keys::{CommandKeys, KnownKeys},
    envelope::UnsignedMessage,
    name::{HostId, Name},
    topic::{HostTopic, Topic},
};

use super::{
    authority::AuthorityError,
    command_signer::SignError,
    dispatch,
    error::Error,
    key_ring::{ActiveKeys, KeyPlace, NEXT_KEY, NewKeyError},
    list::first_names,
    state::{Console, ConsoleState},
    store::{StoreError, command_key, host},
};

/// What a step writes, which is taken from the disk's reserve if needed: a key and `keys.json`, in blocks of a file system.
const FILES_BYTES: u64 = 32 << 10;
/// How much of `keys.json` a host takes that is named.
const NAMED_BYTES: u64 = 40;
/// The most hosts that an error names.
const NAMED_MAX: usize = 10;
/// How long a page shows the last rotation: hosts that were away for longer have most likely healed, or joined anew.
const LAST_SHOWN: Duration = Duration::from_secs(30 * 24 * 3600);

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
        let (keys, now) = (shared.authority.keys(), now_ms());
        let KeyState { signing, next, last, .. } = &keys.state;
        let last = last.as_ref().filter(|last| next.is_none() && last.finished_ms >= since_ms);
        let (members, away) = match next.is_some() || last.is_some() {
            true => (command_key::members(shared.store.read()).await?, host::away(shared.store.read(), None).await?),
            false => Default::default(),
        };
        let lacking = |why: &dyn Fn(&MemberKeys) -> Option<LackingReason>| -> Vec<LackingHost> {
            let lacking = members.iter().filter_map(|(hostname, member)| {
                let (host, hostname, why) = (member.host, hostname.clone(), why(member)?);
                Some(LackingHost { host, hostname, why, away_since_ms: away.get(&host).copied() })
            });
            lacking.collect()
        };
        let having = |lacking: &[LackingHost]| (members.len() - lacking.len()) as u64;
        let rotation = next.as_ref().map(|OfferedKey { key, begun_ms, operator }| {
            let lacking = lacking(&|member| reason(KeyStanding::of(member, key.id(), now)));
            RotationStatus {
                new_key: key.id().to_owned(),
                begun_ms: *begun_ms,
                operator: operator.clone(),
                having: having(&lacking),
                ready: lacking.iter().all(|host| host.why == LackingReason::CertificateExpired),
                lacking,
            }
        });
        let last_rotation = last.map(|last| {
            let FinishedRotation { retired, finished_ms, operator, .. } = last;
            let lacking = lacking(&|member| match reason(KeyStanding::of(member, signing.id(), now)) {
                None if member.keys.as_ref().is_some_and(|known| !keys.state.is_known_by(known)) => {
                    Some(LackingReason::HasOldKey)
                }
                reason => reason,
            });
            PastRotation {
                old_key: retired.clone(),
                finished_ms: *finished_ms,
                operator: operator.clone(),
                having: having(&lacking),
                lacking,
            }
        });
        Ok(AuthorityStatus {
            fingerprint: shared.authority.fingerprint().clone(),
            signing_key: signing.id().to_owned(),
            signing_key_place: place(&keys),
            rotation,
            last_rotation,
        })
    }

    /// Begins a rotation; one that is under way goes on.
    pub async fn begin_rotation(&self, operator: &Name, wanted: BeginRotation) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.begin(&operator, wanted).await }).await
    }

    /// Finishes a rotation: from now on the new key signs, and the old one is of no use.
    pub async fn finish_rotation(&self, operator: &Name, wanted: FinishRotation) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.finish(&operator, wanted).await }).await
    }

    /// Takes back the new key of a rotation that is under way.
    pub async fn abandon_rotation(&self, operator: &Name) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.abandon(&operator).await }).await
    }

    async fn begin(&self, operator: &Name, wanted: BeginRotation) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let BeginRotation { what: RotatedKey::Signing } = wanted;
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        if shared.authority.keys().state.next.is_none() {
            shared.store.make_room_for(FILES_BYTES);
            let key = shared.authority.key_ring().new_key().await.map_err(no_new_key)?;
            let id = key.id().to_owned();
            let offered = shared.authority.keys().state.offered(key, operator.clone(), now_ms());
            set(shared, offered.ok_or_else(nothing_under_way)?)?;
            tracing::warn!(%operator, key = id, "a rotation of the signing key begins: hosts are told of the new key");
            tell_all(shared).await?;
        }
        self.authority_status().await
    }

    async fn finish(&self, operator: &Name, wanted: FinishRotation) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let mut without = BTreeSet::new();
        for host in &wanted.without {
            without.insert(self.resolve_host(host).await?);
        }
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        // No command is signed with the old key meanwhile.
        let no_commands = shared.content.lock.lock().await;
        let next = shared.authority.key_ring().next_signer().map_err(unusable)?.ok_or_else(nothing_under_way)?;
        check_members(shared, next.state.signing.id(), &without).await?;
        let finished = shared.authority.keys().state.finished(operator.clone(), without, now_ms());
        let finished = finished.ok_or_else(nothing_under_way)?;
        // A signer that does not sign with it is noticed before anything depends on it.
        next.signer
            .sign(&document(shared, &finished))
            .await
            .map_err(|error| unsigned("signing with the new key", error))?;
        // Before anything is retired: if the console ends now, its hosts accept both signatures.
        sign_again(shared, &next).await?;
        set(shared, finished)?;
        tracing::warn!(%operator, key = next.state.signing.id(), "the rotation is finished: the new key signs from now on");
        tell_all(shared).await?;
        drop(no_commands);
        self.authority_status().await
    }

    async fn abandon(&self, operator: &Name) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        let abandoned = shared.authority.keys().state.abandoned(now_ms()).ok_or_else(nothing_under_way)?;
        set(shared, abandoned)?;
        tracing::warn!(%operator, "the rotation of the signing key is abandoned: hosts are told to forget the new key");
        tell_all(shared).await?;
        self.authority_status().await
    }
}

/// Performs a step although its caller may be dropped: otherwise hosts would hear of it only when they report again.
async fn to_its_end(
    step: impl Future<Output = Result<AuthorityStatus, Error>> + Send + 'static,
) -> Result<AuthorityStatus, Error> {
    tokio::spawn(step).await.map_err(|error| Error::internal("a step of the rotation", &error))?
}

fn reason(standing: KeyStanding) -> Option<LackingReason> {
    match standing {
        KeyStanding::Has => None,
        KeyStanding::Lacks => Some(LackingReason::Unconfirmed),
        KeyStanding::Unheard => Some(LackingReason::Unheard),
        KeyStanding::TooOld => Some(LackingReason::OldAgent),
        KeyStanding::Expired => Some(LackingReason::CertificateExpired),
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

/// Stores the next state, and uses it.
fn set(shared: &ConsoleState, state: KeyState) -> Result<(), Error> {
    let generation = state.generation;
    let named = state.last.as_ref().map_or(0, |last| last.without.len() as u64);
    shared.store.make_room_for(FILES_BYTES + named * NAMED_BYTES);
    shared.authority.key_ring().set(state).map_err(unusable)?;
    shared.hosts.keys.set_generation(None, generation);
    Ok(())
}

/// Has all hosts told of the present keys that can replace theirs; those that are away are told when they are back.
async fn tell_all(shared: &ConsoleState) -> Result<(), StoreError> {
    let members = command_key::members(shared.store.read()).await?;
    let able = members.into_iter().filter(|(_, member)| member.keys.is_some()).map(|(_, member)| member.host);
    shared.hosts.keys.mark_owed(able.collect());
    Ok(())
}

/// Checks that all members have the new key, but for those that are named.
async fn check_members(shared: &ConsoleState, new: &str, without: &BTreeSet<HostId>) -> Result<(), Error> {
    let (members, now) = (command_key::members(shared.store.read()).await?, now_ms());
    let standings: Vec<(HostId, KeyStanding)> =
        members.iter().map(|(_, member)| (member.host, KeyStanding::of(member, new, now))).collect();
    let blocking = rotation::blocking(&standings, without);
    if blocking.is_empty() {
        return Ok(());
    }
    let is_old = |host: &HostId| standings.iter().any(|(of, standing)| of == host && *standing == KeyStanding::TooOld);
    let is_any_old = blocking.iter().any(is_old);
    let name =
        |host: &HostId| members.iter().find(|(_, member)| member.host == *host).map_or("", |(name, _)| name.as_str());
    let named = first_names(&blocking.iter().map(name).collect::<Vec<_>>(), NAMED_MAX);
    let hint = match is_any_old {
        true => {
            "upgrade the agents that cannot replace keys, or name hosts that shall get the new key by a renewal later \
                 (`--without HOST`, `without` in the API); `muster authority rotate --status` says why each lacks it"
        }
        false => {
            "wait until they are back, or name hosts that shall get the new key by a renewal later (`--without HOST`, `without` in \
                  the API); `muster authority rotate --status` says why each lacks it"
        }
    };
    Err(Error::conflict(
        "hosts_lack_key",
        format!("{} of {} hosts lack the new key: {named}", blocking.len(), members.len()),
    )
    .consequence("the present key goes on signing")
    .hint(hint))
}

/// Signs all open commands again, with the new key. Hosts know a command by its id, and its body stays what it was.
async fn sign_again(shared: &ConsoleState, next: &ActiveKeys) -> Result<(), Error> {
    let mut transaction = shared.store.begin().await?;
    let open = command_key::open_signed(&mut transaction).await?;
    let count = open.len();
    for (command, signed) in open {
        let failed = |error: SignError| unsigned("signing a command again", error);
        let message = UnsignedMessage::of_signed(&signed).map_err(|error| failed(error.into()))?;
        let signed = next.signer.sign_message(message).await.map_err(failed)?;
        command_key::set_signed(&mut transaction, command, &signed).await?;
    }
    transaction.commit().await.map_err(StoreError::from)?;
    if count > 0 {
        tracing::info!(commands = count, "open commands are signed with the new key");
    }
    Ok(())
}

fn nothing_under_way() -> Error {
    Error::conflict("no_rotation", "no rotation is under way").hint("`muster authority rotate signing` begins one")
}

fn unusable(error: AuthorityError) -> Error {
    Error::internal("using the authority's keys", &error)
}

fn no_new_key(error: NewKeyError) -> Error {
    let message = error.to_string();
    match error {
        NewKeyError::Credential(_) => Error::conflict("key_is_credential", message).consequence("no rotation begins").hint(
            format!("put a new key beside it as the credential {NEXT_KEY} (`openssl genpkey -algorithm ed25519`), start the console again, \
             and begin then"),
        ),
        NewKeyError::SignerHasOne(_) => Error::conflict("signer_has_one_key", message)
            .consequence("no rotation begins")
            .hint("give the signer a second key beside the present one, and begin then"),
        NewKeyError::Signer(error) => signer_away(&error.to_string()),
        NewKeyError::File(error) => unusable(error),
    }
}

/// The refusal of what needs a signature that the external signer does not give.
fn signer_away(message: &str) -> Error {
    let diagnostic = muster_topics::diagnostic::Diagnostic::parse(message);
    let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "signer_away", diagnostic.cause)
        .consequence("nothing of this was done");
    match diagnostic.hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The refusal of what could not be signed.
pub(super) fn unsigned(what: &'static str, error: SignError) -> Error {
    match error {
        SignError::Signer(error) => {
            tracing::error!(%error, "{what} failed");
            signer_away(&error.to_string())
        }
        SignError::Message(error) => Error::internal(what, &error),
    }
}

/// Handles a host's report of its keys. An agent that cannot replace them reports none, and is not told of others.
pub(super) fn confirm(shared: &ConsoleState, host: HostId, reported: Option<&KnownKeys>, now: Millis) {
    let Some(reported) = reported else { return };
    // The same keys are the right ones, whichever way they came, and before they were first replaced.
    let is_right = shared.authority.keys().state.is_known_by(reported);
    let has = if is_right { shared.hosts.keys.of(host) } else { reported.generation };
    shared.hosts.keys.confirm(host, Some(has), now);
}

/// Returns the document with which hosts are told of these keys.
fn document(shared: &ConsoleState, state: &KeyState) -> CommandKeys {
    let issued_ms = shared.hosts.signing_time.careful_ms(now_ms());
    CommandKeys { v: V1, issued_ms, generation: state.generation, keys: state.of_hosts(), authorities: Vec::new() }
}

/// Sends one host the keys that the console may sign with. Returns the generation that was sent, if there is a connection.
pub(super) async fn tell(shared: Arc<ConsoleState>, host: HostId, ahead: u64) -> Result<Option<u64>, Error> {
    if ahead > 0 {
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        if let Some(renumbered) = shared.authority.keys().state.renumbered(ahead, now_ms()) {
            set(&shared, renumbered)?;
        }
    }
    let keys = shared.authority.keys();
    let body = document(&shared, &keys.state);
    let bytes = keys.signer.sign(&body).await.map_err(|error| unsigned("signing keys", error))?;
    let is_sent = shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Command), bytes).await;
    Ok(is_sent.then_some(body.generation))
}

#[cfg(test)]
mod tests;
