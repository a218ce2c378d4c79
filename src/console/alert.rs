//! Alerts: those that hosts report, the rules that hosts evaluate, and silences.
//!
//! Rules reach a host as one signed document with all of them. It has no outcome: a host reports in its heartbeats which
//! generation it has, and is sent the document again whenever that is not the current one ([`super::document_sync`]). So it does not
//! matter what is lost on the way, how long a host was away, or whether it has only just joined.
//!
//! **Invariant: rules are stored before they are sent to any host**, and a host never receives an older generation than it had.

pub mod outlet;

use std::{collections::BTreeMap, time::Duration};

use axum::http::StatusCode;
use muster_base::clock::now_ms;
use muster_topics::{
    Millis, V1,
    alert::{Alert, AlertState, Metric, RULES_MAX, Rule, Severity},
    diagnostic::Diagnostic,
    name::{HostId, Name, NameError},
    numbered::NumberedContent,
};

use super::{
    error::Error,
    operator,
    page_change::PageChange,
    state::{Console, ConsoleState},
    store::{
        StoreError,
        alert::{self, Which},
        host,
        ids::IdKind,
    },
};

/// The most rules for all hosts, and for each host: together the most that a host may have.
const SCOPE_MAX: usize = RULES_MAX / 2;
/// The most alerts in one list.
const ALERTS_MAX: u32 = 1_000;
/// The longest silence: a longer one should be a change of the rule.
const SILENCE_MAX_S: u64 = 366 * 24 * 3600;
/// The longest reason of a silence.
const REASON_MAX_BYTES: usize = 1_000;

/// How long an alert of the console's own stays active after its cause: long enough to be seen on the next working day.
pub(super) const OWN_HOLDS: Duration = Duration::from_secs(3 * 24 * 3600);
/// The prefix of ids of the console's own alerts: no host may raise or clear one of these.
pub(super) const OWN_PREFIX: &str = "console-";
/// A holder of a token claimed to be an existing host, without its key.
pub(super) const JOIN_REFUSED: &str = "console-join-refused";

/// The store is older than the console knows: a copy was restored.
pub(super) const WENT_BACK: &str = "console-store-went-back";

/// The console was restored from a backup.
pub(super) const RESTORED: &str = "console-restored";

/// A host came back by its certificate alone, after the console was restored from a backup of before it joined.
pub(super) const CAME_BACK: &str = "console-host-came-back";

/// Creates an alert of the console's own.
pub(super) fn own(rule: &str, message: &Diagnostic, now: Millis) -> Result<Alert, NameError> {
    let rule: Name = rule.parse()?;
    Ok(Alert {
        v: V1,
        epoch: 0,
        seq: u64::try_from(now).unwrap_or(0),
        id: rule.clone(),
        rule,
        severity: Severity::Critical,
        unit: None,
        mount: None,
        metric: Metric::Other,
        value: 1.0,
        threshold: 0.0,
        clear: 0.0,
        since_ms: now,
        at_ms: now,
        state: AlertState::Raised,
        diagnostic: message.clone(),
    })
}

/// Raises an alert of the console's own, about a host.
pub(super) async fn raise_own(
    shared: &ConsoleState,
    host: HostId,
    rule: &str,
    message: &Diagnostic,
    now: Millis,
) -> Result<(), Error> {
    let alert = own(rule, message, now).map_err(|error| Error::internal("the name of an alert", &error))?;
    let mut transaction = shared.store.begin().await?;
    alert::put_own(&mut transaction, host, alert, now).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    shared.changed(PageChange::Alert(Some(host)));
    Ok(())
}

impl Console {
    /// Returns active alerts, or all remembered ones, of one host or of all; latest beginning first.
    pub async fn alerts(&self, which: Which<'_>) -> Result<Vec<muster_api::Alert>, Error> {
        let which = Which { limit: which.limit.min(ALERTS_MAX), ..which };
        // Problems of the console itself belong to no host, and come first.
        let own = match which.host.is_none() && which.hosts.is_none() {
            true => self.own_alerts(),
            false => Vec::new(),
        };
        let own = own.into_iter().filter(|one| which.rule.is_none_or(|rule| one.alert.rule == *rule));
        let of_hosts = alert::list(self.shared.store.read(), which, now_ms()).await?;
        Ok(own.chain(of_hosts).collect())
    }

    /// Returns the problems of the console itself as alerts.
    pub(super) fn own_alerts(&self) -> Vec<muster_api::Alert> {
        self.shared.notices.alerts(now_ms())
    }

    /// Returns the same as texts.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        self.shared.notices.texts()
    }

    /// Counts active alerts that are not silenced, of one host or of all.
    pub async fn alert_count(&self, host: Option<HostId>) -> Result<u64, Error> {
        let own = if host.is_none() { self.own_alerts().len() as u64 } else { 0 };
        Ok(alert::count(self.shared.store.read(), host, now_ms()).await? + own)
    }

    /// Returns all rules of the console.
    pub async fn alert_rules(&self) -> Result<Vec<muster_api::AlertRule>, Error> {
        Ok(alert::rules(self.shared.store.read()).await?)
    }

    /// Sets a rule, and sends it to the hosts that it applies to.
    pub async fn set_alert_rule(
        &self,
        operator: &Name,
        new: muster_api::NewAlertRule,
    ) -> Result<muster_api::AlertRule, Error> {
        self.shared.check_operator(operator).await?;
        let muster_api::NewAlertRule { name, host, rule } = new;
        if let Err(problem) = rule.check() {
            let told = Diagnostic::of(&problem).within(format_args!("rule {name}"));
            return Err(Error::told(StatusCode::BAD_REQUEST, "bad_rule", told));
        }
        let host = self.scope(host.as_deref()).await?;
        let mut transaction = self.shared.store.begin().await?;
        let mut of_scope = alert::rules(&mut *transaction).await?;
        of_scope.retain(|one| one.host == host);
        match of_scope.iter().find(|one| one.name == name) {
            Some(before) if before.rule == rule => return Ok(muster_api::AlertRule { name, host, rule }),
            None if of_scope.len() >= SCOPE_MAX => {
                return Err(Error::conflict("too_many_rules", format!("there are {SCOPE_MAX} rules, the maximum")));
            }
            _ => {}
        }
        alert::set_rule(&mut transaction, host, &name, &rule).await?;
        self.changed_rules(transaction, host).await?;
        tracing::info!(rule = %name, %operator, "an alert rule is set");
        Ok(muster_api::AlertRule { name, host, rule })
    }

    /// Removes a rule: a host's own rule of this name applies again.
    pub async fn remove_alert_rule(&self, operator: &Name, name: &Name, host: Option<&str>) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let host = self.scope(host).await?;
        let mut transaction = self.shared.store.begin().await?;
        if !alert::remove_rule(&mut transaction, host, name).await? {
            let whom = match host {
                None => "all hosts".to_owned(),
                Some(id) => {
                    format!("host {}", self.hostnames(&[id]).await?.remove(&id).unwrap_or_else(|| id.to_string()))
                }
            };
            return Err(Error::not_found("unknown_rule", format!("there is no rule {name} for {whom}"))
                .hint("`muster rule ls`, or GET /api/v1/alert-rules, lists them; one that agents bring along is switched off with `muster rule set NAME --enabled no`"));
        }
        self.changed_rules(transaction, host).await?;
        tracing::info!(rule = %name, %operator, "an alert rule is removed");
        Ok(())
    }

    async fn scope(&self, host: Option<&str>) -> Result<Option<HostId>, Error> {
        match host {
            Some(host) => self.resolve_host(host).await.map(Some),
            None => Ok(None),
        }
    }

    /// Commits a change of rules, and notifies the hosts concerned.
    async fn changed_rules(
        &self,
        mut transaction: sqlx::Transaction<'static, sqlx::Sqlite>,
        host: Option<HostId>,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let generation = alert::next_generation(&mut transaction, host, 0, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        shared.hosts.rules.set_generation(host, generation);
        let hosts = match host {
            Some(host) => vec![host],
            None => host::online(shared.store.read()).await?,
        };
        shared.hosts.rules.mark_owed(hosts);
        Ok(())
    }

    /// Returns present and future silences.
    pub async fn alert_silences(&self) -> Result<Vec<muster_api::AlertSilence>, Error> {
        Ok(alert::silences(self.shared.store.read(), now_ms()).await?)
    }

    /// Creates a silence.
    pub async fn silence_alerts(
        &self,
        operator: &Name,
        new: muster_api::NewAlertSilence,
    ) -> Result<muster_api::AlertSilence, Error> {
        self.shared.check_operator(operator).await?;
        let muster_api::NewAlertSilence { host, rule, reason, for_s } = new;
        let reason = reason.trim();
        if reason.is_empty() || reason.len() > REASON_MAX_BYTES {
            return Err(Error::invalid("bad_reason", format!("a reason has 1 to {REASON_MAX_BYTES} bytes"))
                .hint("the reason is shown to other operators"));
        }
        if !(1..=SILENCE_MAX_S).contains(&for_s) {
            return Err(Error::invalid("bad_time", format!("a silence lasts from 1 s to {SILENCE_MAX_S} s")));
        }
        let now = now_ms();
        let silence = muster_api::AlertSilence {
            id: operator::new_id()?,
            host: self.scope(host.as_deref()).await?,
            rule,
            reason: reason.to_owned(),
            operator: operator.clone(),
            created_ms: now,
            until_ms: now.saturating_add(i64::try_from(for_s).unwrap_or(i64::MAX).saturating_mul(1000)),
        };
        alert::add_silence(self.shared.store.write(), &silence).await?;
        tracing::info!(silence.id = %silence.id, %operator, reason, "alerts are silenced");
        self.shared.changed(PageChange::Alert(silence.host));
        Ok(silence)
    }

    /// Ends a silence.
    pub async fn end_alert_silence(&self, operator: &Name, id: &str) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let id: Name = self.whole_id(IdKind::Silences, id).await?;
        if !alert::end_silence(self.shared.store.write(), &id, now_ms()).await? {
            return Err(Error::not_found("unknown_silence", format!("there is no silence {id}, or it is over"))
                .hint("`muster silence ls`, or GET /api/v1/alert-silences, lists them"));
        }
        tracing::info!(silence.id = %id, %operator, "a silence is removed");
        self.shared.changed(PageChange::Alert(None));
        Ok(())
    }
}

/// Returns the rules of a host, and their number. If the host has newer ones, from a store that was lost since, the rules get a
/// still newer number.
pub(super) async fn present(shared: &ConsoleState, host: HostId, ahead: u64) -> Result<(u64, NumberedContent), Error> {
    if ahead >= shared.hosts.rules.of(host) {
        let mut transaction = shared.store.begin().await?;
        let least = ahead.saturating_add(1);
        let generation = alert::next_generation(&mut transaction, Some(host), least, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        shared.hosts.rules.set_generation(Some(host), generation);
    }
    // In this order: rules that change meanwhile are sent again, as newer ones.
    let number = shared.hosts.rules.of(host);
    let rules: BTreeMap<Name, Rule> = alert::rules_for(shared.store.read(), host).await?;
    Ok((number, NumberedContent::AlertRules(rules)))
}

#[cfg(test)]
mod tests;
