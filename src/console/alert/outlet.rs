//! Sends alerts to webhooks and to Alertmanager's API.
//!
//! There is no queue of messages. The store holds, for each outlet, which active alerts it has not been sent, and which ended
//! alerts it was sent as active. So an outlet that is away for a day loses nothing, is not flooded with alerts that came and went
//! meanwhile, and a restart of the console changes nothing. The backlog is bounded by the number of alerts.
//!
//! - A **webhook** gets one `POST` for each, with JSON: `event` is `raised` or `cleared`, `alert` is as in `GET /api/v1/alerts`. With a secret,
//!   `X-Muster-Signature: sha256=…` is the HMAC of the header `X-Muster-Timestamp` (seconds since 1970), a dot and the body. A silenced alert
//!   is not sent when raised; an alert that was sent before is cleared as usual.
//! - **Alertmanager** gets all active alerts with `POST /api/v2/alerts`, repeated each minute as it expects, and ended or silenced ones
//!   with their end time.
//!
//! A webhook with `tasks` also gets tasks of units that have ended: `event` is `tasks`, `tasks` a list of `host`, `hostname` and `task`, as in
//! the answer to `GET /api/v1/hosts/HOST/units/REALM/NAME/tasks`, and `missed` how many are not kept any more that it was not told. The
//! store has them, and up to which of them each outlet was told.
//!
//! An outlet that does not answer, or answers 408, 429 or 5xx, is retried with growing delays; after any other answer the alert counts as
//! sent, because a retry would be refused again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_api::AlertStanding;
use muster_base::{chance, clock::now_ms, failure::with_causes};
use muster_net::{
    http::{self, Proxy},
    pki,
};
use muster_rules::backoff::ExponentialGrowth;
use muster_topics::{
    Millis,
    address::has_user_information,
    alert::AlertState,
    diagnostic::Diagnostic,
    name::{Name, hex},
};
use reqwest::{Client, StatusCode};
use ring::hmac;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{OutletConfig, OutletKind},
    notice,
    page_change::PageChange,
    state::ConsoleState,
    store::{
        Store, StoreError, alert,
        task_end::{self, TaskEnd, UntoldTaskEnds},
    },
};

/// Delays between failed attempts.
const RETRY: ExponentialGrowth = ExponentialGrowth { first_ms: 1_000, max_ms: 300_000 };
/// The timeout of a request to an outlet.
const ANSWER: Duration = Duration::from_secs(10);
/// How often everything is checked again: silences end without an event, and Alertmanager needs repetitions of active
/// alerts.
const LOOK: Duration = Duration::from_secs(60);
/// How long Alertmanager treats an alert as active without a repetition: four times the period, as Prometheus does.
const HOLDS_MS: Millis = 4 * 60_000;
/// The most alerts in one round. Further ones follow at once.
const ROUND_MAX: u32 = 100;

/// Why an outlet cannot be used.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("the alert outlet {url}: {reason}")]
pub struct OutletError {
    url: String,
    reason: String,
    /// What to do about it.
    #[help]
    hint: String,
}

impl OutletError {
    fn new(url: &str, Diagnostic { cause, hint, .. }: Diagnostic) -> Self {
        let hint = hint
            .unwrap_or_else(|| "alert_outlets in the console's configuration sets where alerts are sent".to_owned());
        Self { url: url.to_owned(), reason: cause, hint }
    }
}

/// One outlet.
#[derive(Debug)]
pub(crate) struct AlertOutlet {
    /// Its name in the store.
    name: String,
    kind: OutletKind,
    url: String,
    key: Option<hmac::Key>,
    client: Client,
    /// Whether it is sent ends of tasks.
    tasks: bool,
    /// The problems of the console that it was sent, which are in no store.
    told: Mutex<BTreeMap<Name, muster_api::Alert>>,
}

/// What is to be sent.
#[derive(Debug, Default)]
struct OutletRound {
    raised: Vec<muster_api::Alert>,
    over: Vec<muster_api::Alert>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
enum OutletFailure {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    #[error("cannot reach it: {0}")]
    Unreachable(String),
    #[error("it answers {0}")]
    Answer(StatusCode),
}

impl AlertOutlet {
    /// Opens an outlet: reads all files that it needs.
    pub(crate) fn open(config: &OutletConfig) -> Result<Self, OutletError> {
        let told = |diagnostic| OutletError::new(&config.url, diagnostic);
        let failed = |reason: String| told(Diagnostic::new(reason));
        if has_user_information(&config.url) {
            let problem = Diagnostic::new("its URL has a user or a password, which every listing would show")
                .with_hint("leave it out; requests to a webhook are signed with the secret in `secret_file`");
            return Err(OutletError::new(&format!("of the kind {}", config.kind.as_str()), problem));
        }
        let url: reqwest::Url = config.url.parse().map_err(|error| {
            told(Diagnostic::new(format!("not a URL: {}", http::url_fault(&error))).with_hint("https://…"))
        })?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(failed("its URL must begin with http:// or https://".to_owned()));
        }
        let read = |path: &std::path::Path| {
            let failed = |error| told(Diagnostic::of_error(&error).within(path.display()));
            muster_base::files::read_text(path).map_err(failed)
        };
        let secret = config.secret_file.as_deref().map(read).transpose()?;
        let key = match secret.as_deref().map(str::trim) {
            Some("") => return Err(failed("its secret file is empty".to_owned())),
            Some(secret) => Some(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())),
            None => None,
        };
        let roots = match &config.authority_file {
            Some(path) => pki::roots(&read(path)?).map_err(|error| failed(with_causes(&error)))?,
            // The system's certificate authorities are trusted only if configured.
            None if url.scheme() == "https" => {
                return Err(told(Diagnostic::new("it has no `authority_file`").with_hint(
                    "set it to a PEM file with the authorities of its certificate; Debian's \
                     public ones are in /etc/ssl/certs/ca-certificates.crt",
                )));
            }
            None => rustls::RootCertStore::empty(),
        };
        let tls = rustls::ClientConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let proxy =
            Proxy::of(config.proxy.as_deref()).map_err(|error| told(Diagnostic::of(&error).within("`proxy`")))?;
        let client = http::client(tls, &url, proxy.as_ref())
            .and_then(|client| client.timeout(ANSWER).build())
            .map_err(|error| failed(with_causes(&error)))?;
        if config.tasks && config.kind != OutletKind::Webhook {
            return Err(failed("`tasks`: only a webhook can be sent tasks".to_owned()));
        }
        let tasks = config.tasks;
        let (kind, name) = (config.kind, format!("{} {}", config.kind.as_str(), config.url));
        Ok(Self {
            name,
            kind,
            url: config.url.trim_end_matches('/').to_owned(),
            key,
            client,
            tasks,
            told: Mutex::default(),
        })
    }

    /// Removes what is known of outlets that are not told of tasks any more.
    pub(crate) async fn forget_others(outlets: &[Self], store: &Store) -> Result<(), StoreError> {
        let names: Vec<String> = outlets.iter().filter(|one| one.tasks).map(|one| one.name.clone()).collect();
        task_end::retain_outlets(store.write(), &names).await
    }

    /// Sends what is due. Returns whether there is more.
    async fn tell(&self, shared: &ConsoleState, now: Millis) -> Result<bool, OutletFailure> {
        let round = self.round(shared, now).await?;
        let more = round.raised.len().max(round.over.len()) >= ROUND_MAX as usize;
        match self.kind {
            OutletKind::Webhook => {
                let events = round.raised.iter().map(|one| ("raised", one));
                for (event, one) in events.chain(round.over.iter().map(|one| ("cleared", one))) {
                    self.post(&self.url, webhook_body(event, one), now).await?;
                    self.note(&shared.store, one, event == "raised").await?;
                }
                return Ok(self.tell_tasks(&shared.store, now).await? || more);
            }
            OutletKind::Alertmanager => {
                let again = alert::list(shared.store.read(), alert::Which { limit: 1_000, ..Default::default() }, now);
                let of_hosts = again.await?.into_iter().filter(|one| one.silence.is_none());
                let holds: Vec<muster_api::Alert> = of_hosts.chain(shared.notices.alerts(now)).collect();
                let alerts: Vec<Value> = holds
                    .iter()
                    .map(|one| (one, now + HOLDS_MS))
                    .chain(round.over.iter().map(|one| (one, one.ended_ms.unwrap_or(now).min(now))))
                    .map(|(one, ends_ms)| alertmanager_body(one, ends_ms, &shared.settings.urls.web))
                    .collect();
                if !alerts.is_empty() {
                    self.post(&format!("{}/api/v2/alerts", self.url), Value::Array(alerts), now).await?;
                }
                for (one, holds) in holds.iter().map(|one| (one, true)).chain(round.over.iter().map(|one| (one, false)))
                {
                    self.note(&shared.store, one, holds).await?;
                }
            }
        }
        Ok(more)
    }

    /// Sends ends of tasks, if it is to get them. Returns whether there is more.
    async fn tell_tasks(&self, store: &Store, now: Millis) -> Result<bool, OutletFailure> {
        if !self.tasks {
            return Ok(false);
        }
        let UntoldTaskEnds { ends, missed } = task_end::untold(store.write(), &self.name, ROUND_MAX).await?;
        let Some(last) = ends.last().map(|end| end.n) else { return Ok(false) };
        self.post(&self.url, tasks_body(&ends, missed), now).await?;
        task_end::note_told(store.write(), &self.name, last).await?;
        Ok(ends.len() >= ROUND_MAX as usize)
    }

    async fn round(&self, shared: &ConsoleState, now: Millis) -> Result<OutletRound, StoreError> {
        let db = shared.store.read();
        let with_silenced = self.kind == OutletKind::Alertmanager;
        let mut raised = alert::untold(db, &self.name, now, ROUND_MAX).await?;
        let mut over = alert::told_and_over(db, &self.name, with_silenced, now, ROUND_MAX).await?;
        let (own, told) = (shared.notices.alerts(now), self.told());
        over.extend(told.values().filter(|one| own.iter().all(|holds| holds.alert.id != one.alert.id)).map(|one| {
            let mut over = muster_api::Alert { standing: AlertStanding::Cleared, ended_ms: Some(now), ..one.clone() };
            over.alert.state = AlertState::Cleared;
            over
        }));
        raised.extend(own.into_iter().filter(|one| !told.contains_key(&one.alert.id)));
        Ok(OutletRound { raised, over })
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<Name, muster_api::Alert>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn note(&self, store: &Store, one: &muster_api::Alert, holds: bool) -> Result<(), StoreError> {
        if notice::is_one(&one.alert.rule) {
            let mut told = self.told();
            match holds {
                true => told.insert(one.alert.id.clone(), one.clone()),
                false => told.remove(&one.alert.id),
            };
            return Ok(());
        }
        alert::note_told(store.write(), &self.name, one, holds).await
    }

    async fn post(&self, url: &str, body: Value, now: Millis) -> Result<(), OutletFailure> {
        let body = body.to_string();
        let mut request = self.client.post(url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            let seconds = (now / 1000).to_string();
            request = request.header("x-muster-signature", signature(key, &seconds, &body));
            request = request.header("x-muster-timestamp", seconds);
        }
        let answer =
            request.body(body).send().await.map_err(|error| OutletFailure::Unreachable(http::cause(&error)))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
            return Err(OutletFailure::Answer(status));
        }
        tracing::error!(outlet = self.name, %status, "an alert outlet refuses a notification, which is not repeated");
        Ok(())
    }
}

/// Serves an outlet until the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, outlet: AlertOutlet, shutdown: CancellationToken) {
    let mut changes = shared.pages.changes.subscribe();
    let mut attempts = 0;
    let all = async {
        loop {
            match outlet.tell(&shared, now_ms()).await {
                Ok(true) => {}
                Ok(false) => {
                    if attempts > 0 {
                        tracing::info!(outlet = outlet.name, "an alert outlet accepts notifications again");
                        attempts = 0;
                    }
                    let something = async {
                        // So much changed that some events were lost: that is reason enough to check.
                        while !matches!(
                            changes.recv().await,
                            Ok(PageChange::Alert(_) | PageChange::Tasks(_))
                                | Err(RecvError::Lagged(_) | RecvError::Closed)
                        ) {}
                    };
                    let _ = tokio::time::timeout(LOOK, something).await;
                }
                Err(error) => {
                    let wait_ms = RETRY.jittered_ms(attempts, chance::random());
                    tracing::warn!(outlet = outlet.name, %error, hint = Diagnostic::of(&error).hint, wait_ms, "a notification cannot be delivered to an alert outlet and is retried");
                    attempts = attempts.saturating_add(1);
                    tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
                }
            }
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Returns the body for a webhook.
fn webhook_body(event: &str, one: &muster_api::Alert) -> Value {
    json!({ "v": 1, "event": event, "alert": one })
}

/// Returns the body for a webhook with ends of tasks.
fn tasks_body(ends: &[TaskEnd], missed: u64) -> Value {
    let one = |end: &TaskEnd| json!({ "host": end.host, "hostname": end.hostname, "task": end.task });
    json!({ "v": 1, "event": "tasks", "missed": missed, "tasks": ends.iter().map(one).collect::<Vec<_>>() })
}

/// Returns `sha256=…` over time and body.
fn signature(key: &hmac::Key, seconds: &str, body: &str) -> String {
    let tag = hmac::sign(key, format!("{seconds}.{body}").as_bytes());
    format!("sha256={}", hex(tag.as_ref()))
}

/// Returns an alert for Alertmanager's API version 2. Labels identify an alert there, so they contain nothing that
/// changes while it is active.
fn alertmanager_body(one: &muster_api::Alert, ends_ms: Millis, console: &str) -> Value {
    let alert = &one.alert;
    let mut labels = json!({
        "alertname": alert.rule,
        "severity": alert.severity,
        "host": one.host,
        "hostname": one.hostname,
        "metric": alert.metric,
        "alert": alert.id,
    });
    if let Some(unit) = &alert.unit {
        labels["realm"] = json!(unit.realm());
        labels["unit"] = json!(unit.name());
    }
    if let Some(mount) = &alert.mount {
        labels["mount"] = json!(mount);
    }
    let is_over = one.standing != AlertStanding::Raised;
    json!({
        "labels": labels,
        "annotations": { "summary": format!("{:#}", alert.diagnostic), "value": alert.value.to_string() },
        "startsAt": rfc3339(alert.since_ms),
        "endsAt": rfc3339(if is_over { ends_ms.max(alert.since_ms + 1) } else { ends_ms }),
        "generatorURL": format!("{console}/alerts#alert-{}-{}-{}", one.host, alert.id, alert.since_ms),
    })
}

fn rfc3339(at_ms: Millis) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

#[cfg(test)]
mod tests;
