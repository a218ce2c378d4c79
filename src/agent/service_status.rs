//! Reports the agent's state to the service manager that started it: ready, connection and units, signs of life, its end.

use std::time::Duration;

use muster_base::service_manager::ServiceManager;
use muster_session::unit_state::UnitStates;
use muster_topics::unit::Phase;
use tokio_util::sync::CancellationToken;

use super::running::RunningAgent;

/// How long changes are gathered before they are reported: people do not read faster.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// Reports the status of a running agent to `manager` until `shutdown`, and then its end.
pub async fn follow(manager: &ServiceManager, agent: &RunningAgent, shutdown: &CancellationToken) {
    if !manager.is_there() {
        return shutdown.cancelled().await;
    }
    shutdown
        .run_until_cancelled(async {
            agent.looked_up().await;
            manager.ready(&describe(*agent.connected().borrow(), &agent.units().borrow()));
            tokio::join!(report_status_changes(manager, agent), notify_watchdog(manager, agent));
        })
        .await;
    manager.stopping("the agent is stopping; yunos keep running");
}

async fn report_status_changes(manager: &ServiceManager, agent: &RunningAgent) {
    let (mut connected, mut units) = (agent.connected(), agent.units());
    let mut told = String::new();
    loop {
        let now = describe(*connected.borrow_and_update(), &units.borrow_and_update());
        if now != told {
            manager.status(&now);
            told = now;
        }
        tokio::time::sleep(STATUS_PAUSE).await;
        // Both keep changes until they are read; an error means that the agent has ended.
        let changed = tokio::select! {
            changed = connected.changed() => changed,
            changed = units.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Notifies the watchdog as long as the agent's loop answers: three times within the watchdog's time, so that one
/// answer may be late.
async fn notify_watchdog(manager: &ServiceManager, agent: &RunningAgent) {
    let Some(time) = manager.watchdog() else { return };
    let every = time / 3;
    loop {
        match tokio::time::timeout(every, agent.answers()).await {
            Ok(true) => manager.alive(),
            Ok(false) => return,
            Err(_) => tracing::warn!("the agent's loop has not answered for {} s", every.as_secs()),
        }
        tokio::time::sleep(every).await;
    }
}

/// Describes the agent's state in a line for people.
fn describe(connected: bool, units: &UnitStates) -> String {
    let connection = if connected { "connected" } else { "not connected to the broker" };
    let running = units.values().filter(|unit| unit.observed.phase() == Phase::Running).count();
    match units.len() {
        0 => format!("{connection}; no units"),
        all => format!("{connection}; {running} of {all} units running"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_one_line() {
        assert_eq!(describe(false, &UnitStates::default()), "not connected to the broker; no units");
        assert_eq!(describe(true, &UnitStates::default()), "connected; no units");
    }
}
