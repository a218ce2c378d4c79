//! The interface for hosts: join, renew, download content. HTTPS with a certificate of the authority,
//! which a joining host knows from its token.
//!
//! TLS asks for a client certificate and accepts a client without one, because a joining host has none yet. Every route requires one,
//! except joining and the revocation list, which other brokers download. TLS checks that the certificate is ours and has not expired; the
//! store, that it was not revoked.
//!
//! **Invariant: a token is used up in the transaction that adds its host**, so there is neither a
//! used token without a host nor a host without one.
//!
//! **Invariant: a token takes no existing host away from its owner.** The joiner chooses the id, so a holder of a token could
//! name another's. An existing host joins again with its own key, which the certificate request proves, or with a token that an operator
//! made for it (`muster token create --replace HOST`). Any other attempt is refused, and raises an alert of that host.
//!
//! **Invariant: a host can download what the console has given to it** ([`super::given`]), and nothing that it reports gives it more.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post, put},
};
use muster_base::clock::{now_ms, rfc3339_ms};
use muster_guard::{LineKind, log_peer};
use muster_rules::hostname;
use muster_topics::{
    Millis, V1,
    desired::HandedIn,
    diagnostic::Diagnostic,
    join::{JoinRequest, Membership, RenewRequest},
    name::{Digest, HostId, Name},
    numbered::NumberedKind,
    role::Identity,
    sealed::SealingKeyNotice,
    secret::SecretRef,
};
use sqlx::{Sqlite, SqliteConnection, Transaction};

use super::{
    alert,
    api::extract::{JsonBody, PathSegments},
    authority::{CheckedCsr, IssuedPem, PeerCertificate},
    content,
    error::Error,
    host_share::{self, ShareKind, ShareLevel, ShareUse},
    page_change::PageChange,
    server::{CallerConnection, ClientCertificate},
    state::{Console, ConsoleState},
    store::{
        self, StoreError,
        given::GivenPart,
        host::{self, JoiningHost, KeyStanding},
        register::{CertificateStanding, RegisteredCertificate},
        token::{self, TokenRefusal},
    },
};

/// The most bytes of facts that are stored of a host.
const FACTS_MAX_BYTES: usize = 16 * 1024;
/// The code of the refusal of a host that has as many certificates as one may have.
const TOO_MANY: &str = "too_many_certificates";
/// How many certificates that have not expired one host may have: one that renews as agents do has three, and as many more as the
/// root was replaced.
const CERTIFICATES_MAX: u64 = 16;
/// How long a host that asks for another certificate for its key gets the same one.
const SAME_FOR_MS: Millis = 3_600_000;

/// By how much clocks may have differed between a backup, what was issued after it, and its restoration.
const RESTORED_SLACK_MS: Millis = 3_600_000;

/// Log lines about hosts that may not join.
const NOT_JOINED: LineKind = LineKind::new("hosts that may not join", 60).burst(20);
/// Log lines about forbidden or odd requests of hosts.
const NOT_GIVEN: LineKind = LineKind::new("invalid requests of hosts", 60).burst(5);
/// Log lines about hosts that join, or renew their certificates.
const JOINED: LineKind = LineKind::new("hosts that join", 60).burst(3);
const RENEWED: LineKind = LineKind::new("renewed certificates", 60).burst(3);

/// A route for hosts.
pub(super) struct HostRoute {
    pub(super) path: &'static str,
    handler: MethodRouter<Console>,
}

/// All routes for hosts. A test asks each of them for what its caller was not given.
pub(super) fn routes() -> Vec<HostRoute> {
    let route = |path, handler| HostRoute { path, handler };
    vec![
        route("/v1/join", post(join)),
        route("/v1/renew", post(renew)),
        route("/v1/sealing-key", post(sealing_key)),
        route("/v1/revoked.pem", get(revoked)),
        route("/v1/artifacts/{sha256}", get(artifact)),
        route("/v1/configs/{sha256}", get(config)),
        route("/v1/secrets/{realm}/{name}/{version}", get(secret)),
        route("/v1/manifests/{sha256}", get(manifest)),
        route("/v1/desired/{digest}", get(desired)),
        route("/v1/desired", put(hand_in)),
        route("/v1/plans/{digest}", get(plan_request)),
    ]
}

/// Returns the router for hosts.
pub(super) fn router(console: Console) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler));
    router
        .fallback(async || Error::not_found("unknown_path", "unknown path for hosts"))
        .method_not_allowed_fallback(async || {
            Error::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this path does not support the method")
        })
        .with_state(console)
}

/// A member host, by the certificate that it presented.
struct MemberHost(HostId);

impl FromRequestParts<Console> for MemberHost {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Error> {
        let shown = parts.extensions.get::<ClientCertificate>().and_then(|shown| shown.0.clone());
        let Some(peer) = shown else {
            return Err(Error::unauthorised("no_certificate", "a host's certificate is required"));
        };
        let Identity::Host(host) = peer.identity else {
            return Err(Error::new(StatusCode::FORBIDDEN, "not_a_host", "this certificate is not a host's"));
        };
        if !console.shared.authority.roots().has_name(&peer.issuer) {
            return Err(Error::new(
                StatusCode::FORBIDDEN,
                "root_replaced",
                format!("the certificate of host {host} is under a root certificate that was replaced"),
            )
            .hint(format!("remove identity.json from the agent's folder, and join with a token of `muster token create --replace {host}`")));
        }
        if !host::holds_certificate(console.shared.store.read(), host, &peer.serial).await?
            && !readmit(&console.shared, host, &peer).await?
        {
            return Err(Error::new(
                StatusCode::FORBIDDEN,
                "revoked",
                format!("host {host} was revoked or removed, or joined again with another key"),
            )
            .hint("join again with a new token"));
        }
        CallerConnection::has_logged_in(&parts.extensions);
        Ok(Self(host))
    }
}

/// Whether a host is a member by a certificate that is in no table, because the console was restored from a backup of before
/// it was issued. TLS has verified that it is ours and valid; that it was issued in the time that the backup does not know
/// is required here, and that the host was not revoked, as far as the console knows.
///
/// The serial number is stored, so that the host can be revoked from then on. The certificate of a revoked host is revoked.
async fn readmit(shared: &ConsoleState, host: HostId, peer: &PeerCertificate) -> Result<bool, Error> {
    let Some((taken_ms, restored_ms)) = store::register::restored(shared.store.read()).await? else { return Ok(false) };
    let issued_ms = peer.issued_ms();
    if !(taken_ms.saturating_sub(RESTORED_SLACK_MS)..=restored_ms.saturating_add(RESTORED_SLACK_MS))
        .contains(&issued_ms)
    {
        return Ok(false);
    }
    let now = now_ms();
    let mut transaction = shared.store.begin().await?;
    let standing = store::register::certificate_standing(&mut transaction, host, &peer.serial).await?;
    if standing == CertificateStanding::Known {
        return Ok(false);
    }
    let is_revoked = standing == CertificateStanding::OfRevokedHost;
    let certificate = RegisteredCertificate {
        serial: peer.serial.clone(),
        host: host.to_string(),
        key_sha256: peer.key.to_string(),
        issued_ms,
        expires_ms: peer.validity_ms.1,
        revoked_ms: is_revoked.then_some(now),
    };
    let is_new = store::register::add_presented(&mut transaction, host, &certificate).await?;
    if is_new && let Ok(alert) = alert::own(alert::CAME_BACK, &came_back(taken_ms), now) {
        store::alert::put_own(&mut transaction, host, alert, now).await?;
    }
    transaction.commit().await.map_err(StoreError::from)?;
    shared.revocation.requested.notify_one();
    log_peer!(
        WARN, host, RENEWED, host.id = %host, certificate.serial = peer.serial, is_new, is_revoked,
        "a host shows a certificate that was issued after the backup that the console was restored from"
    );
    shared.changed(PageChange::Host(host));
    shared.changed(PageChange::Alert(Some(host)));
    Ok(!is_revoked)
}

fn came_back(taken_ms: Millis) -> Diagnostic {
    let cause = format!(
        "this host joined after the backup of {} from which the console was restored, and is a member again by its certificate",
        rfc3339_ms(taken_ms)
    );
    Diagnostic::new(cause).with_hint("revoke it if it was revoked or removed since then (`muster host revoke`)")
}

async fn join(
    State(console): State<Console>,
    JsonBody(request): JsonBody<JoinRequest>,
) -> Result<Json<Membership>, Error> {
    let shared = &console.shared;
    let csr = checked(&request.csr)?;
    if !hostname::is_good(&request.hostname) {
        return Err(Error::invalid(
            "bad_hostname",
            "the hostname is empty, too long, or has characters that are not shown",
        )
        .hint("give the machine another name (`hostnamectl set-hostname NAME`), or bring its agent up to date"));
    }
    if serde_json::to_vec(&request.facts).map_or(usize::MAX, |facts| facts.len()) > FACTS_MAX_BYTES {
        return Err(Error::invalid("bad_facts", "the facts are too long"));
    }
    let (now, host) = (now_ms(), request.host);
    let secret = Digest::of(request.secret.as_bytes());
    let JoinRequest { hostname, facts, sealing_key, .. } = request;
    let joining = JoiningHost { host, hostname, facts, sealing_key };
    let mut transaction = shared.store.begin().await?;
    let standing = host::key_standing(&mut transaction, host, csr.key().as_str()).await?;
    if !token::consume(&mut transaction, &secret, host, now).await? {
        let unusable = token::why_not(&mut transaction, &secret, now).await?;
        // The answer may have been lost: the same host with the same key gets another.
        let again = unusable == TokenRefusal::UsedBy(host) && standing == KeyStanding::Held;
        if !again {
            log_peer!(WARN, "joining", NOT_JOINED, host.id = %host, reason = ?unusable, "a host may not join");
            return Err(refused(unusable));
        }
    }
    match standing {
        KeyStanding::NewHost | KeyStanding::Held => {}
        KeyStanding::Revoked => {
            return Err(Error::new(
                StatusCode::FORBIDDEN,
                "key_revoked",
                format!("this key of host {host} was revoked"),
            )
            .hint("the agent makes a new one if it is given a token of `muster token create --replace HOST`"));
        }
        KeyStanding::Foreign if token::replaces(&mut transaction, &secret).await? == Some(host) => {
            log_peer!(WARN, host, JOINED, host.id = %host, "a host joins again with another key, as an operator has allowed");
        }
        KeyStanding::Foreign => {
            // Nothing of this attempt is stored, so the token remains valid.
            drop(transaction);
            return Err(takeover(shared, host, &joining.hostname, now).await);
        }
    }
    // With another key it is another machine: what the host had counts no more.
    let (mut transaction, certificate) = match standing {
        KeyStanding::Held => certified(transaction, shared, &csr, host).await?,
        _ => (transaction, grant(shared, &csr, host)?),
    };
    host::join(&mut transaction, &joining, &certificate, now).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    shared.revocation.requested.notify_one();
    log_peer!(INFO, host, JOINED, host.id = %host, hostname = %joining.hostname, "a host has joined");
    shared.changed(PageChange::Host(host));
    Ok(Json(membership(shared, host, certificate)))
}

/// The refusal for a holder of a token that claims to be an existing host, without its key.
async fn takeover(shared: &ConsoleState, host: HostId, hostname: &str, now: Millis) -> Error {
    log_peer!(WARN, host, NOT_JOINED, host.id = %host, hostname, "a join as an existing host with another key was refused");
    let message =
        format!("a machine with the hostname {hostname} tried to join as this host with another key and was refused");
    if let Err(error) = alert::raise_own(shared, host, alert::JOIN_REFUSED, &Diagnostic::new(message), now).await {
        tracing::error!(host.id = %host, %error, "an alert cannot be stored");
    }
    Error::conflict("host_exists", format!("host {host} exists with another key")).hint(format!(
        "if it has lost its folder or was revoked, `muster token create --replace {host}` lets it join again; a copy of a disk needs an          empty data folder to be a host of its own"
    ))
}

fn refused(unusable: TokenRefusal) -> Error {
    let (code, message) = match unusable {
        TokenRefusal::Unknown => ("token_wrong", "unknown token"),
        TokenRefusal::UsedBy(_) => ("token_used", "this token was used; it is valid for one host"),
        TokenRefusal::Revoked => ("token_revoked", "this token was revoked"),
        TokenRefusal::Expired => ("token_expired", "this token has expired"),
        TokenRefusal::For(_) => ("token_for_another", "this token is for another host, which has joined already"),
    };
    Error::new(StatusCode::FORBIDDEN, code, message).hint("`muster token create` on the console's side creates one")
}

async fn renew(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    JsonBody(request): JsonBody<RenewRequest>,
) -> Result<Json<Membership>, Error> {
    let shared = &console.shared;
    let csr = checked(&request.csr)?;
    let (mut transaction, certificate) = certified(shared.store.begin().await?, shared, &csr, host).await?;
    host::add_certificate(&mut transaction, host, &certificate, now_ms()).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    tell_certificates(shared, host, false).await?;
    log_peer!(INFO, host, RENEWED, host.id = %host, "a host has renewed its certificate");
    Ok(Json(membership(shared, host, certificate)))
}

/// Pins a host's sealing key. Its certificate identifies it, so a broker cannot replace the key.
async fn sealing_key(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    JsonBody(notice): JsonBody<SealingKeyNotice>,
) -> Result<Json<SealingKeyNotice>, Error> {
    let shared = &console.shared;
    let mut transaction = shared.store.begin().await?;
    let replaced = host::set_sealing_key(&mut transaction, host, &notice.key, now_ms()).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    if replaced {
        log_peer!(WARN, host, NOT_GIVEN, host.id = %host, "a host has another sealing key than before: what was sealed to the old one it cannot read");
    }
    shared.revocation.requested.notify_one();
    Ok(Json(notice))
}

fn checked(csr: &str) -> Result<CheckedCsr, Error> {
    CheckedCsr::parse(csr).map_err(|error| Error::invalid("bad_csr", error.to_string()))
}

/// Returns a certificate for a host: the one that it has, if it asks for another without need. All that are not expired have to be
/// on the revocation list if the host is revoked, so they are few, however often it asks.
async fn certificate(
    db: &mut SqliteConnection,
    shared: &ConsoleState,
    csr: &CheckedCsr,
    host: HostId,
) -> Result<IssuedPem, Error> {
    let (now, lifetime) = (now_ms(), shared.current().host_certificate_lifetime());
    let held = host::certificates(db, host, now).await?;
    let share = certificate_share(held.count + 1);
    let is_many = share.level() == ShareLevel::Exceeded;
    let Some((newest, issued_ms)) = held.newest.filter(|(newest, _)| newest.key == csr.key()) else {
        return match is_many {
            true => Err(too_many(host, share.most)),
            false => grant(shared, csr, host),
        };
    };
    let left_ms = newest.expires_ms.saturating_sub(now);
    let lifetime_ms = Millis::try_from(lifetime.as_millis()).unwrap_or(Millis::MAX);
    let is_recent = (0..SAME_FOR_MS).contains(&now.saturating_sub(issued_ms));
    let is_enough = left_ms <= lifetime_ms && (is_recent || is_many && left_ms > lifetime_ms / 2);
    match is_enough && shared.authority.is_issued_by_present_root(&newest.pem) {
        true => Ok(newest),
        false => grant(shared, csr, host),
    }
}

/// Returns a certificate for a host, with the transaction, which goes on; that one was refused is told without it.
async fn certified(
    mut transaction: Transaction<'static, Sqlite>,
    shared: &ConsoleState,
    csr: &CheckedCsr,
    host: HostId,
) -> Result<(Transaction<'static, Sqlite>, IssuedPem), Error> {
    match certificate(&mut transaction, shared, csr, host).await {
        Ok(certificate) => Ok((transaction, certificate)),
        Err(error) => {
            drop(transaction);
            if error.problem.code == TOO_MANY {
                tell_certificates(shared, host, true).await?;
            }
            Err(error)
        }
    }
}

fn certificate_share(count: u64) -> ShareUse {
    ShareUse { kind: ShareKind::Certificates, used: count, most: CERTIFICATES_MAX }
}

/// Says what a host has of the certificates that it may have, and whether it was refused one.
async fn tell_certificates(shared: &ConsoleState, host: HostId, is_refused: bool) -> Result<(), Error> {
    let now = now_ms();
    let mut db = shared.store.read().acquire().await.map_err(StoreError::from)?;
    let held = host::certificates(&mut db, host, now).await?;
    drop(db);
    let share = certificate_share(held.count + u64::from(is_refused));
    host_share::tell(shared, host, &share, u64::from(is_refused), now).await;
    Ok(())
}

fn too_many(host: HostId, most: u64) -> Error {
    let message = format!("host {host} has {most} unexpired certificates and requests one for another key");
    Error::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY, message)
        .hint("an agent keeps its key: if it did not request these, revoke the host (`muster host revoke`)")
}

/// Makes a host's certificate. It begins at the time that has certainly come: one that begins later, because the clock is ahead,
/// would keep the host out once that is put right.
fn grant(shared: &ConsoleState, csr: &CheckedCsr, host: HostId) -> Result<IssuedPem, Error> {
    let clock_ms = now_ms();
    let begins_ms = shared.time.at(clock_ms);
    let until_begun = Duration::from_millis(clock_ms.saturating_sub(begins_ms).unsigned_abs());
    let lifetime = shared.current().host_certificate_lifetime().saturating_add(until_begun);
    shared
        .authority
        .grant(csr, &Identity::Host(host), lifetime, begins_ms)
        .map_err(|error| Error::internal_of("making the certificate", &error))
}

fn membership(shared: &ConsoleState, host: HostId, certificate: IssuedPem) -> Membership {
    let current = shared.authority.current();
    let keys = &current.signing;
    let fleet = shared.hosts.addresses.present();
    let given = fleet.as_ref().map_or(0, |given| given.number);
    let numbers = [(NumberedKind::CommandKeys, keys.state.generation), (NumberedKind::HostAddresses, given)];
    Membership {
        v: V1,
        host,
        certificate: certificate.pem,
        authority: current.roots.pem(),
        command_keys: keys.state.of_hosts(),
        broker_url: shared.settings.urls.broker.clone(),
        console_url: shared.settings.urls.hosts.clone(),
        prefix: shared.settings.started_with.prefix.clone(),
        revision_key: shared.authority.revision_key(host),
        numbers: numbers.into_iter().filter(|(_, number)| *number > 0).collect(),
        addresses: fleet.map(|given| given.addresses),
    }
}

/// Returns the body of a host's present document.
async fn desired(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    PathSegments(digest): PathSegments<Digest>,
) -> Result<Response, Error> {
    let body = console.desired_body(host, &digest).await?;
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response())
}

/// Returns what a host is asked to plan.
async fn plan_request(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    PathSegments(digest): PathSegments<Digest>,
) -> Result<Response, Error> {
    let request = console.plan_request(host, &digest)?;
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], request).into_response())
}

/// Takes what a host has of the console, which has asked for it.
async fn hand_in(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    JsonBody(handed_in): JsonBody<HandedIn>,
) -> Result<StatusCode, Error> {
    console.hand_in(host, &handed_in).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the revocation list: serial numbers of revoked certificates, which are public.
async fn revoked(State(console): State<Console>) -> Response {
    let list = console.shared.revocation.list.borrow().to_string();
    ([(header::CONTENT_TYPE, "application/x-pem-file"), (header::CACHE_CONTROL, "no-cache")], list).into_response()
}

async fn config(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    Path(sha256): Path<String>,
) -> Result<Response, Error> {
    let sha256 = given(&console, host, &sha256).await?;
    content::download::config(&console, &sha256).await
}

/// Returns the value of a version of a secret that the host was told to use, sealed to it.
async fn secret(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    PathSegments((realm, name, version)): PathSegments<(Name, Name, u32)>,
) -> Result<Response, Error> {
    let secret = SecretRef { name, version };
    let sealed = console.secret_for(host, &realm, &secret).await.inspect_err(|error| {
        if error.status == StatusCode::FORBIDDEN {
            log_peer!(WARN, host, NOT_GIVEN, host.id = %host, %realm, %secret, "a host requests a secret that none of its units uses");
        }
    })?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(sealed)).into_response())
}

async fn manifest(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    Path(sha256): Path<String>,
) -> Result<Response, Error> {
    let sha256 = given(&console, host, &sha256).await?;
    content::download::manifest(&console, &sha256).await
}

/// Returns the hash, if the console has given such content to the host. The error is the same whether the content
/// exists: otherwise it would confirm guesses.
async fn given(console: &Console, host: HostId, text: &str) -> Result<Digest, Error> {
    let sha256: Digest =
        text.parse().map_err(|error: muster_topics::name::NameError| Error::invalid("bad_hash", error.to_string()))?;
    if console.may_fetch(host, GivenPart::Content(&sha256)).await? {
        return Ok(sha256);
    }
    log_peer!(WARN, host, NOT_GIVEN, host.id = %host, %sha256, "a host requests content that none of its units uses");
    let message = format!("no unit of host {host} uses content with the hash {sha256}");
    Err(Error::new(StatusCode::FORBIDDEN, "not_assigned", message)
        .hint("apply the unit for this host by name (`muster unit apply`)"))
}

async fn artifact(
    State(console): State<Console>,
    MemberHost(host): MemberHost,
    Path(sha256): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let sha256 = given(&console, host, &sha256).await?;
    content::download::artifact(&console, sha256, &headers).await
}

#[cfg(test)]
mod tests;
