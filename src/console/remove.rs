//! Removes a host that is gone for good.
//!
//! Its measurements stay in the time-series store as long as those of other hosts. Its retained messages on the broker (presence,
//! alerts and units) can be cleared only by the host itself; the console ignores them, and clears its own.

use muster_base::clock::now_ms;
use muster_topics::{
    name::Name,
    topic::{HostTopic, Topic},
};

use super::{
    error::Error,
    state::Console,
    store::{StoreError, host, removed},
};

impl Console {
    /// Removes a host that is offline, by id or unique hostname: it is not a member any more, and its data is deleted.
    pub async fn remove_host(&self, operator: &Name, host: &str) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let (id, now) = (self.resolve_host(host).await?, now_ms());
        let mut transaction = self.shared.store.begin().await?;
        let presence = host::presence_order(&mut transaction, id).await?;
        if presence.is_some_and(|(_, _, is_away)| !is_away) {
            return Err(Error::conflict("host_online", format!("host {host} is online"))
                .hint("stop its units and its agent first, or they would keep running unseen"));
        }
        let owed = removed::remove(&mut transaction, id, now).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        tracing::warn!(host.id = %id, %operator, commands = owed.len(), "a host was removed");
        self.shared.hosts.forget_documents(id);
        self.shared.hosts.desired.forget(id);
        self.shared.hosts.rollouts.forget(id);
        // An empty message clears what the broker retains for it.
        self.shared.hosts.link.publish(Topic::Host(id, HostTopic::Desired), Vec::new());
        self.shared.left(id, &owed).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{CommandState, NewAlertRule, NewAlertSilence};
    use muster_base::clock::now_ms;
    use muster_topics::alert::{Metric, Rule, Severity};

    use crate::{
        store::{issued, register},
        testing::{Fixture, admin, problem},
    };

    fn rule(host: &str) -> NewAlertRule {
        let rule = Rule {
            metric: Metric::DiskUsed,
            of: None,
            threshold: 0.5,
            clear: None,
            for_ms: 0,
            severity: Severity::Warning,
            disabled: false,
        };
        NewAlertRule { name: "disk".parse().unwrap(), host: Some(host.to_owned()), rule }
    }

    #[tokio::test]
    async fn removed_host_keeps_commands_and_is_revoked() {
        let fixture = Fixture::new().await;
        let (gone, stays) = (fixture.member("gone").await, fixture.member("stays").await);
        let console = &fixture.console;
        let command = fixture.command(&[gone.id, stays.id]).await;
        console.set_alert_rule(&admin(), rule("gone")).await.unwrap();
        let silence =
            NewAlertSilence { host: Some("gone".to_owned()), rule: None, reason: "moved".to_owned(), for_s: 60 };
        console.silence_alerts(&admin(), silence).await.unwrap();

        sqlx::query("INSERT INTO presence VALUES ($1, 'online', 1, 1, '', 1, 0)")
            .bind(gone.id.to_string())
            .execute(fixture.shared().store.write())
            .await
            .unwrap();
        let refused = console.remove_host(&admin(), "gone").await.unwrap_err();
        assert_eq!((refused.status, refused.problem.code.as_str()), (409, "host_online"));
        sqlx::query("UPDATE presence SET state = 'offline'").execute(fixture.shared().store.write()).await.unwrap();
        console.remove_host(&admin(), "gone").await.unwrap();

        assert_eq!(console.hosts().await.unwrap().iter().map(|host| host.id).collect::<Vec<_>>(), [stays.id]);
        assert_eq!((console.alert_rules().await.unwrap().len(), console.alert_silences().await.unwrap().len()), (0, 0));
        let shown = console.command(command.id).await.unwrap();
        let of = |id| shown.hosts.iter().find(|line| line.host == id).unwrap();
        assert_eq!((of(gone.id).state(), of(stays.id).state()), (CommandState::Missing, CommandState::Waiting));
        assert_eq!(of(gone.id).hostname, gone.id.to_string(), "nobody knows its name any more");
        let store = &fixture.shared().store;
        assert_eq!(issued::revoked(store.read(), now_ms()).await.unwrap().len(), 1, "it stays on the list");
        assert_eq!(register::read(store.read()).await.unwrap().removed.len(), 1);
        let url = fixture.hosts_url("/v1/renew");
        let answer = fixture.client(gone.identity()).post(url).json(&serde_json::json!({})).send().await;
        // Whether the handshake fails or the answer is an error.
        if let Ok(answer) = answer {
            assert_eq!(problem(answer).await.0, 403);
        }
        assert_eq!(console.remove_host(&admin(), "gone").await.unwrap_err().status, 404);
        // If it comes back after all it is a member like any other.
        let again = fixture.member("gone").await;
        assert_eq!(console.host("gone").await.unwrap().id, again.id);
    }
}
