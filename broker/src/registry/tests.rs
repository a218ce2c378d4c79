use super::*;
use crate::mailbox::Mailbox;
use futures_util::FutureExt;

fn registry(max: usize, max_per_identity: usize) -> Arc<Registry> {
    let limits = BrokerLimits {
        connections_max: max,
        connections_per_identity_max: max_per_identity,
        sessions_asleep_max: 2,
        ..BrokerLimits::default()
    };
    Registry::new(&limits, MessagePool::new(usize::MAX))
}

fn console(name: &str) -> Identity {
    format!("console-{name}").parse().unwrap()
}

fn enter(registry: &Arc<Registry>, name: &str, client_id: &str) -> Result<ConnectionTicket, RegistryFull> {
    registry.enter(console(name), client_id.to_owned(), None)
}

fn session(registry: &Registry) -> ClientSession {
    ClientSession::new(registry.number(), Mailbox::new(1000, IdentityBacklog::new(1000, 1000, MessagePool::new(1000))))
}

#[test]
fn connections_of_one_client_follow_each_other() {
    let registry = registry(10, 10);
    let first = enter(&registry, "a", "x").unwrap();
    assert!(first.turn().now_or_never().is_some() && !first.replaces());
    let second = enter(&registry, "a", "x").unwrap();
    assert!(first.ending().cause() == Some(EndCause::TakenOver) && second.replaces());
    assert_eq!(first.ending().wait().now_or_never(), Some(EndCause::TakenOver));
    let third = enter(&registry, "a", "x").unwrap();
    assert!(second.ending().cause().is_some() && third.ending().wait().now_or_never().is_none());
    // The third waits for the second, which waits for the first.
    assert!(second.turn().now_or_never().is_none() && third.turn().now_or_never().is_none());
    drop(first);
    assert!(second.turn().now_or_never().is_some() && third.turn().now_or_never().is_none());
    drop(second);
    assert!(third.turn().now_or_never().is_some());
    drop(third);
    assert_eq!(registry.connections(), 0);
    assert!(!enter(&registry, "a", "x").unwrap().replaces());
}

#[test]
fn first_end_cause_is_kept() {
    let registry = registry(10, 10);
    let tickets: Vec<_> = ["1", "2", "3"].into_iter().map(|id| enter(&registry, "a", id).unwrap()).collect();
    let _newer = enter(&registry, "a", "2").unwrap();
    registry.end_all();
    let causes: Vec<_> = tickets.iter().map(|ticket| ticket.ending().cause().unwrap()).collect();
    assert_eq!(causes, [EndCause::Stopping, EndCause::TakenOver, EndCause::Stopping]);
}

#[test]
fn revoked_clients_are_told_to_end() {
    let registry = registry(10, 10);
    let serial = |number: u8| Serial::new(&[number]);
    let good = registry.enter(console("a"), "1".to_owned(), serial(1)).unwrap();
    let bad = registry.enter(console("a"), "2".to_owned(), serial(2)).unwrap();
    let without = enter(&registry, "a", "3").unwrap();
    let asleep = registry.enter(console("a"), "4".to_owned(), serial(2)).unwrap();
    let waits = session(&registry);
    let number = waits.number;
    let woken = registry.sleep(&asleep, waits, None).ok().unwrap();
    drop(asleep);
    let revoked = registry.end_revoked(|found| Some(found) == serial(2).as_ref());
    assert_eq!((revoked.ending.len(), revoked.asleep.len(), registry.asleep()), (1, 1, 0));
    assert!(woken.is_cancelled() && revoked.asleep[0].session.number == number);
    assert_eq!(bad.ending().cause(), Some(EndCause::Revoked));
    assert!(good.ending().cause().is_none() && without.ending().cause().is_none());
    assert!(!revoked.ending[0].is_cancelled());
    drop(bad);
    assert!(revoked.ending[0].is_cancelled() && registry.is_connected(&console("a")));
}

#[test]
fn another_identity_is_another_client() {
    let registry = registry(10, 10);
    let first = enter(&registry, "a-b", "console-a-b").unwrap();
    let second = enter(&registry, "a", "console-a-b").unwrap();
    assert!(first.ending().cause().is_none() && !second.replaces());
}

#[test]
fn takeover_needs_no_free_place() {
    let registry = registry(3, 2);
    let first = enter(&registry, "a", "1").unwrap();
    let second = enter(&registry, "a", "2").unwrap();
    assert_eq!(enter(&registry, "a", "3").err(), Some(RegistryFull::Identity));
    let other = enter(&registry, "b", "1").unwrap();
    assert_eq!(enter(&registry, "c", "1").err(), Some(RegistryFull::Broker));
    let again = enter(&registry, "a", "1").unwrap();
    assert_eq!(enter(&registry, "a", "3").err(), Some(RegistryFull::Broker));
    drop((first, second, other, again));
    assert_eq!(registry.connections(), 0);
    assert!(registry.present().per_identity.is_empty());
}

#[test]
fn session_is_resumed_only_by_its_client() {
    let registry = registry(10, 2);
    let ticket = enter(&registry, "a", "1").unwrap();
    let kept = session(&registry);
    let number = kept.number;
    let woken = registry.sleep(&ticket, kept, None).ok().unwrap();
    drop(ticket);
    assert!(registry.wake(&enter(&registry, "b", "1").unwrap()).is_none());
    assert!(registry.wake(&enter(&registry, "a", "2").unwrap()).is_none());
    let back = enter(&registry, "a", "1").unwrap();
    assert_eq!(registry.wake(&back).map(|former| former.session.number), Some(number));
    assert!(woken.is_cancelled() && registry.wake(&back).is_none());
    // Its task was late: this session is somebody's again.
    assert!(registry.forget(back.key(), number).is_none());
    let _woken = registry.sleep(&back, session(&registry), None).ok().unwrap();
    assert!(registry.forget(back.key(), number).is_none());
    assert!(registry.forget(back.key(), number + 100).is_none());
    assert_eq!(registry.asleep(), 1);
}

#[test]
fn sleeping_sessions_are_limited() {
    let registry = registry(10, 1);
    let first = enter(&registry, "a", "1").unwrap();
    registry.sleep(&first, session(&registry), None).ok().unwrap();
    drop(first);
    let second = enter(&registry, "a", "2").unwrap();
    assert!(registry.sleep(&second, session(&registry), None).is_err(), "of one identity");
    let third = enter(&registry, "b", "1").unwrap();
    registry.sleep(&third, session(&registry), None).ok().unwrap();
    let fourth = enter(&registry, "c", "1").unwrap();
    assert!(registry.sleep(&fourth, session(&registry), None).is_err(), "of all");
    drop((second, third, fourth));
    assert_eq!(registry.present().per_identity.len(), 2);
}
