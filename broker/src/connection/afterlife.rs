//! After a connection: its last will, and its session if the client may resume it.

use std::{sync::Arc, time::Duration};

use muster_guard::{LineKind, LineLimiter, log_peer};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    registry::{ConnectionTicket, FormerSession, SessionKey},
    session::ClientSession,
    state::BrokerState,
};

pub(crate) use super::last_will::LastWill;

/// Log lines about sessions that are not kept.
const NOT_KEPT: LineKind = LineKind::new("sessions that are not kept", 600);

/// Ends a connection. When this returns, the next connection of the same client may begin.
pub(super) async fn begin(
    shared: &Arc<BrokerState>,
    ticket: ConnectionTicket,
    mut session: ClientSession,
    will: Option<LastWill>,
    expiry_s: u32,
) {
    if expiry_s == 0 {
        shared.exchange.forget(&session);
        if let Some(will) = will {
            will.publish(shared).await;
        }
        return;
    }
    session.sleep();
    let number = session.number;
    let (now, later) = match will {
        Some(will) if will.delay_s == 0 => (Some(will), None),
        will => (None, will),
    };
    if let Some(will) = now {
        will.publish(shared).await;
    }
    let delay = later.as_ref().map(|will| Duration::from_secs(will.delay_s.min(expiry_s).into()));
    match shared.registry.sleep(&ticket, session, later) {
        Ok(woken) => {
            let end = end_in_time(Arc::clone(shared), Arc::clone(ticket.key()), number, delay, expiry_s, woken);
            tokio::spawn(end);
        }
        Err(former) => {
            log_peer!(
                WARN,
                &ticket.key().0,
                NOT_KEPT,
                client.id = LineLimiter::shorten(ticket.client_id()),
                hint = "raise `clients_max` or `identity_clients_max`",
                "a session is not kept for its client"
            );
            end_session(shared, *former).await;
        }
    }
}

/// Publishes a delayed will and ends the session when they are due, unless the client comes back or the broker stops.
async fn end_in_time(
    shared: Arc<BrokerState>,
    key: SessionKey,
    number: u64,
    delay: Option<Duration>,
    expiry_s: u32,
    woken: CancellationToken,
) {
    let expiry = Duration::from_secs(expiry_s.into());
    let wait = |time| {
        let (woken, stop) = (woken.clone(), shared.stop.clone());
        async move {
            tokio::select! {
                () = sleep(time) => true,
                () = woken.cancelled() => false,
                () = stop.cancelled() => false,
            }
        }
    };
    if let Some(delay) = delay {
        if !wait(delay).await {
            return;
        }
        if let Some(will) = shared.registry.take_will(&key, number) {
            will.publish(&shared).await;
        }
    }
    if wait(expiry.saturating_sub(delay.unwrap_or_default())).await
        && let Some(former) = shared.registry.forget(&key, number)
    {
        end_session(&shared, former).await;
    }
}

/// Ends a session for good, with its subscriptions and its delayed will.
pub(crate) async fn end_session(shared: &BrokerState, FormerSession { session, will }: FormerSession) {
    shared.exchange.forget(&session);
    if let Some(will) = will {
        will.publish(shared).await;
    }
}
