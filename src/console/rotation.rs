//! Replaces the key that the console signs with, without anybody touching a host; and the fleet's root certificate ([`root`]).
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
//!
//! One rotation is under way at a time: both have hosts told by the same document, with one generation.

mod root;
mod status;

use std::collections::BTreeSet;

use axum::http::StatusCode;
use muster_api::authority::{AuthorityStatus, BeginRotation, FinishRotation, RotatedKey};
use muster_base::clock::now_ms;
use muster_rules::rotation::{self, HostNeed, KeyStanding, KeyState, RotationStage};
use muster_topics::count::counted;
use muster_topics::{
    Millis, V1,
    command::Refresh,
    command_keys::{CommandKeys, KnownKeys},
    diagnostic::Diagnostic,
    envelope::UnsignedMessage,
    name::{HostId, Name},
    numbered::NumberedContent,
    slot::Slot,
};

use super::{
    authority::AuthorityError,
    command_signer::{SignError, SignerError},
    error::Error,
    key_ring::{ActiveKeys, NEXT_KEY, NewKeyError},
    list::first_names,
    roots::{NEXT_ROOT_KEY, RootSet},
    state::{Console, ConsoleState},
    store::{StoreError, command_key},
};

/// What a step writes, which is taken from the disk's reserve if needed: keys, roots and `keys.json`, in blocks of a file system.
const FILES_BYTES: u64 = 32 << 10;
/// How much of `keys.json` a host takes that is named.
const NAMED_BYTES: u64 = 40;
/// The most hosts that an error names.
const NAMED_MAX: usize = 10;

impl Console {
    /// Begins a rotation; one that is under way goes on.
    pub async fn begin_rotation(&self, operator: &Name, wanted: BeginRotation) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.begin(&operator, wanted).await }).await
    }

    /// Finishes a rotation: from now on the new key signs, and the old one is of no use. That of a root goes on to its next
    /// stage.
    pub async fn finish_rotation(&self, operator: &Name, wanted: FinishRotation) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.finish(&operator, wanted).await }).await
    }

    /// Takes back the new key of a rotation that is under way.
    pub async fn cancel_rotation(&self, operator: &Name) -> Result<AuthorityStatus, Error> {
        let (console, operator) = (self.clone(), operator.clone());
        to_its_end(async move { console.cancel(&operator).await }).await
    }

    async fn begin(&self, operator: &Name, wanted: BeginRotation) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        match (wanted.what, shared.authority.keys().state.stage()) {
            (RotatedKey::Signing, None) => begin_signing(shared, operator).await?,
            (RotatedKey::Root, None) => root::begin(shared, operator).await?,
            (RotatedKey::Signing, Some(RotationStage::Key)) => {}
            (RotatedKey::Root, Some(RotationStage::Trust | RotationStage::Certificates)) => {}
            (RotatedKey::Signing, Some(_)) => return Err(other_rotation("the root certificate")),
            (RotatedKey::Root, Some(_)) => return Err(other_rotation("the signing key")),
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
        match shared.authority.keys().state.stage().ok_or_else(nothing_under_way)? {
            RotationStage::Key => finish_signing(shared, operator, without).await?,
            RotationStage::Trust => root::issue(shared, operator, without).await?,
            RotationStage::Certificates => root::finish(shared, operator, without).await?,
        }
        self.authority_status().await
    }

    async fn cancel(&self, operator: &Name) -> Result<AuthorityStatus, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        let (state, now) = (shared.authority.keys().state.clone(), now_ms());
        let (cancelled, what) = match state.stage().ok_or_else(nothing_under_way)? {
            RotationStage::Key => (state.cancelled(now), "signing key"),
            RotationStage::Trust => (state.root_cancelled(now), "root certificate"),
            RotationStage::Certificates => return Err(root::in_use()),
        };
        set(shared, cancelled.ok_or_else(nothing_under_way)?)?;
        tracing::warn!(%operator, "the rotation of the {what} is cancelled: hosts are told to drop the new one");
        tell_all(shared).await?;
        self.authority_status().await
    }
}

async fn begin_signing(shared: &ConsoleState, operator: &Name) -> Result<(), Error> {
    shared.store.make_room_for(FILES_BYTES);
    let key = shared.authority.key_ring().new_key().await.map_err(no_new_key)?;
    let id = key.id().to_owned();
    let offered = shared.authority.keys().state.offered(key, operator.clone(), now_ms());
    set(shared, offered.ok_or_else(nothing_under_way)?)?;
    tracing::warn!(%operator, key = id, "a rotation of the signing key begins: hosts are told of the new key");
    Ok(tell_all(shared).await?)
}

async fn finish_signing(shared: &ConsoleState, operator: &Name, without: BTreeSet<HostId>) -> Result<(), Error> {
    // No command is signed with the old key meanwhile.
    let _no_commands = shared.content.lock.lock().await;
    let next = shared.authority.key_ring().next_signer().map_err(unusable)?.ok_or_else(nothing_under_way)?;
    check_members(shared, HostNeed::Key(next.state.signing.id()), &without).await?;
    let finished = shared.authority.keys().state.finished(operator.clone(), without, now_ms());
    let finished = finished.ok_or_else(nothing_under_way)?;
    // A signer that does not sign with it is noticed before anything depends on it.
    next.signer
        .sign(Slot::default(), &Refresh { v: V1, issued_ms: 0, within_ms: 0 })
        .await
        .map_err(|error| unsigned("signing with the new key", error))?;
    // Before anything is retired: if the console ends now, its hosts accept both signatures.
    sign_again(shared, &next).await?;
    set(shared, finished)?;
    tracing::warn!(%operator, key = next.state.signing.id(), "the rotation is finished: the new key signs from now on");
    Ok(tell_all(shared).await?)
}

/// Performs a step although its caller may be dropped: otherwise hosts would hear of it only when they report again.
async fn to_its_end(
    step: impl Future<Output = Result<AuthorityStatus, Error>> + Send + 'static,
) -> Result<AuthorityStatus, Error> {
    tokio::spawn(step).await.map_err(|error| Error::internal("a step of the rotation", &error))?
}

/// Stores the next state, and uses it.
fn set(shared: &ConsoleState, state: KeyState) -> Result<(), Error> {
    let generation = state.generation;
    let root = state.root.as_ref();
    let finished = [state.last.as_ref(), root.and_then(|root| root.last.as_ref())];
    let named: usize = finished.into_iter().flatten().map(|last| last.without.len()).sum();
    let issues = state.next_root().and_then(|next| next.issues.as_ref());
    let named = named + issues.map_or(0, |since| since.without.len());
    shared.store.make_room_for(FILES_BYTES + named as u64 * NAMED_BYTES);
    let before = shared.authority.roots();
    shared.authority.set(state).map_err(unusable)?;
    shared.hosts.keys.set_generation(None, generation);
    if !before.is_same(&shared.authority.roots()) {
        root::replaced(shared);
    }
    Ok(())
}

/// Has all hosts told of the present keys that can replace theirs; those that are away are told when they are back.
async fn tell_all(shared: &ConsoleState) -> Result<(), StoreError> {
    let members = command_key::members(shared.store.read()).await?;
    // What others have is known with their first report.
    let heard = members.into_iter().filter(|(_, member)| member.keys.is_some()).map(|(_, member)| member.host);
    shared.hosts.keys.mark_owed(heard.collect());
    Ok(())
}

/// Checks that all members have what they need, but for those that are named.
async fn check_members(shared: &ConsoleState, need: HostNeed<'_>, without: &BTreeSet<HostId>) -> Result<(), Error> {
    let (members, now) = (command_key::members(shared.store.read()).await?, now_ms());
    let standings: Vec<(HostId, KeyStanding)> =
        members.iter().map(|(_, member)| (member.host, KeyStanding::of(member, need, now))).collect();
    let blocking = rotation::blocking(&standings, without);
    if blocking.is_empty() {
        return Ok(());
    }
    let name =
        |host: &HostId| members.iter().find(|(_, member)| member.host == *host).map_or("", |(name, _)| name.as_str());
    let named = first_names(&blocking.iter().map(name).collect::<Vec<_>>(), NAMED_MAX);
    let (code, lack, consequence, later) = match need {
        HostNeed::Key(_) => (
            "hosts_lack_key",
            "lack the new key",
            "the present key keeps signing",
            "hosts that get the new key later, by a renewal",
        ),
        HostNeed::Trust(_) => (
            "hosts_lack_root",
            "do not trust the new root certificate",
            "certificates are still made under the present root",
            "hosts that get it later, by a renewal",
        ),
        HostNeed::Certificate(_) => (
            "hosts_lack_root",
            "have no certificate under the new root",
            "the old root is still trusted",
            "hosts that must join again when they are back",
        ),
    };
    let hint = format!(
        "wait until they are back, or name {later} (`--without HOST`, `without` in the API); \
                 `muster authority show` shows why each lacks it"
    );
    Err(Error::conflict(code, format!("{} of {} {lack}: {named}", blocking.len(), counted(members.len(), "host")))
        .consequence(consequence)
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
    Error::conflict("no_rotation", "no rotation is under way").hint(
        "`muster authority rotate signing` begins one of the signing key, `rotate root` one of the root certificate",
    )
}

fn other_rotation(what: &str) -> Error {
    Error::conflict("other_rotation", format!("the rotation of {what} is under way"))
        .consequence("no other one begins")
        .hint("finish it first (`muster authority finish`), or take it back (`muster authority cancel`)")
}

fn unusable(error: AuthorityError) -> Error {
    Error::internal_of("using the authority's keys", &error)
}

fn no_new_key(error: NewKeyError) -> Error {
    let message = error.to_string();
    match error {
        NewKeyError::Credential(_) => {
            Error::conflict("key_is_credential", message).consequence("no rotation begins").hint(format!(
                "provide a new key as the credential {NEXT_KEY} (`openssl genpkey -algorithm ed25519`), restart the \
             console, and begin then"
            ))
        }
        NewKeyError::RootCredential(_) => {
            Error::conflict("key_is_credential", message).consequence("no rotation begins").hint(format!(
                "provide a new key as the credential {NEXT_ROOT_KEY} (`openssl genpkey -algorithm EC -pkeyopt \
             ec_paramgen_curve:P-256`), restart the console, and begin then"
            ))
        }
        NewKeyError::SignerHasOne(_) => Error::conflict("signer_has_one_key", message)
            .consequence("no rotation begins")
            .hint("give the signer a second key beside the present one, and begin then"),
        NewKeyError::Signer(error) => signer_away(&error),
        NewKeyError::File(error) => unusable(error),
    }
}

/// The refusal of what needs a signature that the external signer does not give.
fn signer_away(error: &SignerError) -> Error {
    Error::of(StatusCode::SERVICE_UNAVAILABLE, "signer_away", error).consequence("nothing of this was done")
}

/// The refusal of what could not be signed.
pub(super) fn unsigned(what: &'static str, error: SignError) -> Error {
    match error {
        SignError::Signer(error) => {
            tracing::error!(%error, hint = Diagnostic::of(&error).hint, "{what} failed");
            signer_away(&error)
        }
        SignError::Message(error) => Error::internal(what, &error),
    }
}

/// Handles a host's report of its keys, and of their number.
pub(super) fn confirm(shared: &ConsoleState, host: HostId, reported: &KnownKeys, number: u64, now: Millis) {
    // The same keys are the right ones, whichever way they came, and before they were first replaced.
    let current = shared.authority.current();
    let is_right = current.signing.state.is_known_by(reported, number, &current.roots.ids());
    let has = if is_right { shared.hosts.keys.of(host) } else { number };
    shared.hosts.keys.confirm(host, Some(has), now);
}

/// Returns what hosts are told of these keys, and of these roots once the first one was to be replaced.
fn content(state: &KeyState, roots: &RootSet) -> CommandKeys {
    let authorities = match state.root {
        Some(_) => roots.all().map(|root| root.pem().to_owned()).collect(),
        None => Vec::new(),
    };
    CommandKeys { keys: state.of_hosts(), authorities }
}

/// Returns the keys that the console may sign with, and their number. If a host has newer ones, they get a still newer number.
pub(super) async fn present(shared: &ConsoleState, ahead: u64) -> Result<(u64, NumberedContent), Error> {
    if ahead > 0 {
        let _one_at_a_time = shared.hosts.rotating.lock().await;
        if let Some(renumbered) = shared.authority.keys().state.renumbered(ahead, now_ms()) {
            set(shared, renumbered)?;
        }
    }
    let current = shared.authority.current();
    let state = &current.signing.state;
    Ok((state.generation, NumberedContent::CommandKeys(content(state, &current.roots))))
}

#[cfg(test)]
mod tests;
