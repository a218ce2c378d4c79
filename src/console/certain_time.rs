//! The time that has certainly come, by which the console ends and removes what is over ([`CertainClock`]). Hosts on other
//! machines that agree with the clock confirm it ([`crate::upkeep`]), or an operator does.

use muster_api::{ChangeKind, ConfirmClock, ConsoleClock};
use muster_base::{
    certain_clock::CertainClock,
    clock::{now_ms, rfc3339_ms},
};
use muster_topics::{Millis, diagnostic::Diagnostic, name::Name};

use crate::{
    dispatch::event::DispatchEvent,
    error::Error,
    state::Console,
    store::{
        Store, StoreError, StoreResult,
        change::{self, NewChange},
    },
};

/// Continues with what the store has. A new store believes the clock; one that has lost it goes by what it has signed.
pub(super) async fn open(store: &Store, clock_ms: Millis) -> StoreResult<CertainClock> {
    let otherwise_ms = match store.signed_ms().await? {
        0 => clock_ms,
        signed_ms => signed_ms,
    };
    Ok(CertainClock::continued(store.certain_time().await?, otherwise_ms))
}

/// Goes on, and stores how far it is, now and then.
pub(super) async fn keep(time: &CertainClock, store: &Store) -> StoreResult<()> {
    let Some((certain_ms, uptime)) = time.take_due() else { return Ok(()) };
    let stored = store.set_certain_time(certain_ms, uptime).await;
    if stored.is_err() {
        time.not_stored();
    }
    stored
}

impl Console {
    /// Returns the clock, and whether it is confirmed.
    #[must_use]
    pub fn clock(&self) -> ConsoleClock {
        let clock_ms = now_ms();
        ConsoleClock { clock_ms, ahead_ms: self.shared.time.ahead_ms(clock_ms) }
    }

    /// Records that the clock is right, as an operator has looked and says.
    pub async fn confirm_clock(&self, operator: &Name, seen: ConfirmClock) -> Result<ConsoleClock, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let clock_ms = now_ms();
        if clock_ms.abs_diff(seen.clock_ms) > LOOKED_AT_MS.unsigned_abs() {
            let message = "the clock does not show the time to confirm: it was set, or the request is too old";
            return Err(Error::conflict("clock_was_set", message).hint("see `muster clock show`"));
        }
        let change = NewChange {
            operator,
            kind: ChangeKind::ClockConfirmed,
            subject: rfc3339_ms(clock_ms),
            detail: format!("{} min ahead until then", shared.time.ahead_ms(clock_ms) / 60_000),
        };
        let mut transaction = shared.store.begin().await?;
        change::note(&mut transaction, &change, clock_ms).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        shared.time.confirm(clock_ms);
        // What has waited for that ends.
        let _ = shared.commands.dispatch.send(DispatchEvent::ClockSet).await;
        keep(&shared.time, &shared.store).await?;
        tracing::warn!(%operator, clock_ms, "an operator confirms the console's clock");
        Ok(self.clock())
    }
}

/// How long ago an operator may have looked at the clock that is confirmed.
const LOOKED_AT_MS: Millis = 10 * 60_000;

/// By how much the clock may be ahead of the certain time before an operator is told: what is over then goes that much later.
const TOLD_MS: Millis = 3_600_000;

/// What an operator has to know if the clock is so far ahead.
pub(super) fn message(ahead_ms: Millis) -> Option<Diagnostic> {
    (ahead_ms >= TOLD_MS).then(|| {
        let cause = format!(
            "the console's clock is {} h ahead of the time that is confirmed, and no host on another machine \
             confirms it: nothing expires or is removed by it until then",
            ahead_ms / TOLD_MS
        );
        Diagnostic::new(cause).with_hint(
            "compare `date -u` here and elsewhere; if the clock is right, `muster clock confirm`, otherwise set it",
        )
    })
}

#[cfg(test)]
mod tests {
    use muster_base::clock::{Uptime, pretended};
    use muster_topics::name::HostId;

    use super::*;
    use crate::{
        start::sweep_once,
        state::ConsoleState,
        testing::{Fixture, admin},
    };

    const HOUR: Millis = 3_600_000;
    const DAY: Millis = 24 * HOUR;

    /// The rows of each table that is swept by time.
    async fn rows(shared: &ConsoleState) -> Vec<(&'static str, i64)> {
        let mut rows = Vec::new();
        for table in ["command", "token", "credential", "issued", "removed", "alert", "alert_silence"] {
            let count = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}")));
            rows.push((table, count.fetch_one(shared.store.read()).await.unwrap()));
        }
        rows
    }

    /// One row of each that is over soon, or was over long ago but not for as long as it is kept.
    async fn fill(fixture: &Fixture) {
        let shared = fixture.shared();
        let (member, gone) = (fixture.member("one").await, fixture.member("two").await);
        fixture.token().await;
        let link = fixture.console.new_sign_in_link().await.unwrap();
        fixture.console.sign_in(link.rsplit_once("code=").unwrap().1).await.unwrap();
        fixture.command(&[member.id]).await;
        fixture.console.remove_host(&admin(), &gone.id.to_string()).await.unwrap();
        let now = now_ms();
        for statement in [
            "UPDATE command_host SET state = 'missing'",
            "INSERT INTO issued (serial, role, name, issued_ms, expires_ms) VALUES ('a1', 'operator', 'anna', $1, $1)",
            "INSERT INTO alert_silence (id, host, rule, operator, reason, created_ms, until_ms)
             VALUES ('s', NULL, NULL, 'admin', 'test', $1, $1)",
        ] {
            sqlx::query(statement).bind(now).execute(shared.store.write()).await.unwrap();
        }
        crate::alert::raise_own(shared, member.id, "ended", &Diagnostic::new("text"), now).await.unwrap();
        let end = "UPDATE alert SET state = 'cleared', ended_ms = $1";
        sqlx::query(end).bind(now).execute(shared.store.write()).await.unwrap();
    }

    #[tokio::test]
    async fn clock_that_is_ahead_removes_nothing_until_it_is_confirmed() {
        let fixture = Fixture::new().await;
        let shared = fixture.shared();
        fill(&fixture).await;
        let before = rows(shared).await;
        assert!(before.iter().all(|(_, count)| *count > 0), "{before:?}");
        for ahead_ms in [HOUR, 31 * DAY, 400 * DAY] {
            pretended::set_ahead(ahead_ms);
            sweep_once(shared).await.unwrap();
            assert_eq!(rows(shared).await, before, "{ahead_ms}");
            let told = message(shared.time.ahead_ms(now_ms()));
            assert!(told.is_some_and(|told| told.hint.is_some()) == (ahead_ms > HOUR));
            // Across a restart of the console, and of the machine.
            keep(&shared.time, &shared.store).await.unwrap();
            for boot in [Uptime::now().unwrap().boot, 7] {
                let uptime = Uptime { boot, ..Uptime::now().unwrap() };
                let known_ms = shared.time.known_ms();
                shared.store.set_certain_time(known_ms, Some(uptime)).await.unwrap();
                let again = open(&shared.store, now_ms()).await.unwrap();
                assert!(again.now() < known_ms + 10 * 60_000, "{boot}");
            }
        }
        // An operator says that it is right.
        let seen = ConfirmClock { clock_ms: now_ms() - HOUR };
        assert_eq!(fixture.console.confirm_clock(&admin(), seen).await.unwrap_err().problem.code, "clock_was_set");
        assert!(fixture.console.clock().ahead_ms > 399 * DAY);
        let seen = ConfirmClock { clock_ms: now_ms() };
        assert_eq!(fixture.console.confirm_clock(&admin(), seen).await.unwrap().ahead_ms, 0);
        let again = open(&shared.store, now_ms()).await.unwrap();
        assert_eq!(again.ahead_ms(now_ms()), 0, "it is stored at once");
        sweep_once(shared).await.unwrap();
        let left = rows(shared).await;
        assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
        pretended::set_ahead(0);
        fixture.running.stop().await;
    }

    #[tokio::test]
    async fn clock_that_is_behind_removes_nothing() {
        let fixture = Fixture::new().await;
        fill(&fixture).await;
        let before = rows(fixture.shared()).await;
        for behind_ms in [HOUR, 31 * DAY, 400 * DAY] {
            pretended::set_ahead(-behind_ms);
            sweep_once(fixture.shared()).await.unwrap();
            assert_eq!(rows(fixture.shared()).await, before, "{behind_ms}");
        }
        pretended::set_ahead(0);
        fixture.running.stop().await;
    }

    #[tokio::test]
    async fn store_that_was_never_asked_goes_by_what_it_has_signed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, now) = (Store::open_in(folder.path()).await.unwrap(), now_ms());
        assert_eq!(open(&store, now).await.unwrap().ahead_ms(now), 0);
        store.set_signed_ms(now - 31 * DAY).await.unwrap();
        assert!(open(&store, now).await.unwrap().ahead_ms(now) > 30 * DAY);
        store.close().await;
    }

    #[tokio::test]
    async fn hosts_on_this_machine_are_told_from_others() {
        let fixture = Fixture::new().await;
        let (here, other) = (fixture.member("here").await, fixture.member("other").await);
        let boot = muster_base::clock::boot_id().unwrap();
        for (host, boot) in [(here.id, boot.as_str()), (other.id, "another")] {
            let state = serde_json::json!({"facts": {"boot_id": boot}}).to_string();
            sqlx::query("INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)")
                .bind(host.to_string())
                .bind(state)
                .execute(fixture.shared().store.write())
                .await
                .unwrap();
        }
        let found: Vec<HostId> =
            crate::store::host::on_machine(fixture.shared().store.read(), &boot).await.unwrap().into_iter().collect();
        assert_eq!(found, [here.id]);
        fixture.running.stop().await;
    }
}
