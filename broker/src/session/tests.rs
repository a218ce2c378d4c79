//! Tests of sessions with a client made of bytes.

use super::*;
use crate::{
    access::ClientAccess,
    codec::{self, ClientPacket, RetainHandling},
    mailbox::{IdentityBacklog, MessagePool, PooledMessage},
    message::{BrokerMessage, publication},
};
use proptest::prelude::*;

const REACH: ClientLimits =
    ClientLimits { version: ProtocolVersion::V311, window: 9, packet_max_bytes: 1 << 20, stays: true };

fn plain() -> SubscribeOptions {
    SubscribeOptions { qos: QoS::AtLeastOnce, no_local: false, as_published: false, handling: RetainHandling::Always }
}

fn session() -> ClientSession {
    ClientSession::new(
        1,
        Mailbox::new(1 << 20, IdentityBacklog::new(usize::MAX, usize::MAX, MessagePool::new(usize::MAX))),
    )
}

fn lot(message: BrokerMessage) -> Arc<PooledMessage> {
    PooledMessage::new(message, &MessagePool::new(usize::MAX))
}

fn parcel(text: &str, qos: QoS) -> Parcel {
    Parcel { message: lot(BrokerMessage::plain("a", text, false)), qos, retain: false, subscription_id: None }
}

/// What `fill` wrote: packet id, whether it is a repetition, and payload of each message.
fn sent(session: &mut ClientSession, reach: ClientLimits) -> Vec<(Option<u16>, bool, String)> {
    let mut out = BytesMut::new();
    let filled = session.fill(reach, 0, &mut out, |_| ());
    let mut rest = &out[..];
    let mut found = Vec::new();
    while let Some((frame, used)) = codec::frame(rest, usize::MAX).unwrap() {
        let Ok(ClientPacket::Publish { packet_id, publication }) = reach.version.decode(&frame) else {
            panic!("no publish")
        };
        found.push((packet_id, rest[0] & 8 != 0, String::from_utf8(publication.payload.to_vec()).unwrap()));
        rest = &rest[used..];
    }
    assert_eq!(filled.sent as usize, found.len());
    found
}

fn payloads(session: &mut ClientSession, reach: ClientLimits) -> Vec<String> {
    sent(session, reach).into_iter().map(|(_, _, payload)| payload).collect()
}

#[test]
fn the_window_holds_back_and_acknowledgements_open_it() {
    let mut session = session();
    for text in ["1", "2", "3"] {
        session.mailbox.put(parcel(text, QoS::AtLeastOnce));
    }
    let reach = ClientLimits { window: 2, ..REACH };
    assert_eq!(payloads(&mut session, reach), ["1", "2"]);
    assert!(!session.wants_more() && session.is_owed());
    assert!(!session.acknowledge(9));
    assert!(session.acknowledge(2) && !session.acknowledge(2));
    assert_eq!(payloads(&mut session, reach), ["3"]);
    assert!(session.wants_more());
    assert!(session.acknowledge(1) && session.acknowledge(3) && !session.is_owed());
}

#[test]
fn unacknowledged_messages_are_resent_first() {
    let mut session = session();
    for text in ["1", "2", "3", "4"] {
        session.mailbox.put(parcel(text, QoS::AtLeastOnce));
    }
    session.mailbox.put(parcel("lost", QoS::AtMostOnce));
    let reach = ClientLimits { window: 3, ..REACH };
    assert_eq!(payloads(&mut session, reach), ["1", "2", "3"]);
    session.acknowledge(2);
    session.sleep();
    session.mailbox.put(parcel("5", QoS::AtLeastOnce));
    session.wake();
    assert!(!session.wants_more());
    let expected = [(Some(1), true, "1"), (Some(3), true, "3"), (Some(4), false, "4")];
    let expected = expected.map(|(id, dup, text)| (id, dup, text.to_owned()));
    assert_eq!(sent(&mut session, reach), expected);
    for id in [1, 3, 4] {
        assert!(session.acknowledge(id));
    }
    assert_eq!(sent(&mut session, reach), [(Some(5), false, "5".to_owned())]);
}

#[test]
fn acknowledged_messages_are_not_resent() {
    let mut session = session();
    for text in ["1", "2", "3"] {
        session.mailbox.put(parcel(text, QoS::AtLeastOnce));
    }
    assert_eq!(payloads(&mut session, REACH).len(), 3);
    session.sleep();
    session.wake();
    assert!(session.acknowledge(2));
    assert_eq!(payloads(&mut session, REACH), ["1", "3"]);
    assert!(session.acknowledge(1) && session.acknowledge(3) && !session.is_owed() && session.wants_more());
}

/// Who reads everything and acknowledges nothing has as much kept for it as may wait, and its identity is charged for it.
#[test]
fn messages_kept_for_resending_are_limited() {
    let account = IdentityBacklog::new(usize::MAX, usize::MAX, MessagePool::new(usize::MAX));
    let cost = parcel("1", QoS::AtLeastOnce).cost();
    let mut session = ClientSession::new(1, Mailbox::new(3 * cost, Arc::clone(&account)));
    let put = |session: &ClientSession, texts: &[&str]| {
        for text in texts {
            session.mailbox.put(parcel(text, QoS::AtLeastOnce));
        }
    };
    put(&session, &["1", "2", "3"]);
    assert_eq!(payloads(&mut session, REACH), ["1", "2", "3"]);
    put(&session, &["4", "5"]);
    assert_eq!(payloads(&mut session, REACH), [""; 0]);
    assert_eq!(account.used(), 5 * cost);
    assert!(session.acknowledge(2));
    assert_eq!(payloads(&mut session, REACH), ["4"]);
    session.sleep();
    session.wake();
    assert_eq!(account.used(), 4 * cost);
    assert_eq!(payloads(&mut session, REACH), ["1", "3", "4"]);
    for packet_id in [1, 3, 4] {
        assert!(session.acknowledge(packet_id));
    }
    assert_eq!(payloads(&mut session, REACH), ["5"]);
    assert!(session.acknowledge(5));
    assert_eq!(payloads(&mut session, REACH), [""; 0]);
    assert_eq!(account.used(), 0);
    // Nothing is kept for a session that ends with its connection.
    let ends = ClientLimits { stays: false, ..REACH };
    put(&session, &["6", "7", "8"]);
    assert_eq!(payloads(&mut session, ends).len(), 3);
    put(&session, &["9"]);
    assert_eq!(payloads(&mut session, ends), ["9"]);
    put(&session, &["10"]);
    drop(session);
    assert_eq!(account.used(), 0);
}

#[test]
fn smaller_window_limits_resending() {
    let mut session = session();
    for text in ["1", "2", "3"] {
        session.mailbox.put(parcel(text, QoS::AtLeastOnce));
    }
    payloads(&mut session, REACH);
    session.sleep();
    session.wake();
    let narrow = ClientLimits { window: 1, ..REACH };
    assert_eq!(payloads(&mut session, narrow), ["1"]);
    assert_eq!(payloads(&mut session, narrow), [""; 0]);
    session.acknowledge(1);
    assert_eq!(payloads(&mut session, narrow), ["2"]);
}

#[test]
fn expired_or_too_large_messages_are_skipped() {
    let mut session = session();
    let expired = BrokerMessage::new(&codec::Publication { expiry_s: Some(1), ..publication("a", b"old") }, 0, 0);
    session.mailbox.put(Parcel { message: lot(expired), ..parcel("", QoS::AtLeastOnce) });
    session.mailbox.put(parcel(&"x".repeat(100), QoS::AtLeastOnce));
    session.mailbox.put(parcel("good", QoS::AtLeastOnce));
    let mut out = BytesMut::new();
    let filled = session.fill(ClientLimits { packet_max_bytes: 50, ..REACH }, 1000, &mut out, |_| ());
    assert_eq!(filled, FillResult { sent: 1, expired: 1, too_large: 1 });
    assert!(out.ends_with(b"good"));
}

#[test]
fn a_full_buffer_holds_back() {
    let mut session = session();
    for _ in 0..3 {
        session.mailbox.put(parcel(&"x".repeat(OUTPUT_HIGH_BYTES), QoS::AtMostOnce));
    }
    for _ in 0..3 {
        assert_eq!(payloads(&mut session, REACH).len(), 1);
    }
    assert!(session.wants_more());
}

#[test]
fn subscriptions_are_one_per_filter() {
    let access = ClientAccess::of("console-main");
    let mut subscriptions = Subscriptions::default();
    for (filter, no_local) in [("muster/a", false), ("muster/b", false), ("muster/a", true)] {
        let options = SubscribeOptions { no_local, ..plain() };
        subscriptions.add(Subscription { filter: access.subscribe(filter).unwrap(), options, id: None, place: None });
    }
    assert_eq!((subscriptions.len(), subscriptions.contains("muster/a")), (2, true));
    assert!(subscriptions.remove("muster/a").unwrap().options.no_local);
    assert!(subscriptions.remove("muster/a").is_none() && subscriptions.iter().count() == 1);
}

/// Two filters, one of them asked for again at first and again on the way; three chunks each.
#[test]
fn retained_messages_follow_queued_ones() {
    let access = ClientAccess::of("console-main");
    let mut session = session();
    let filter = |text: &str| access.subscribe(text).unwrap();
    for text in ["muster/a", "muster/b", "muster/a"] {
        session.cursors.begin(filter(text));
    }
    let narrow = ClientLimits { window: 2, ..REACH };
    let bring = |session: &mut ClientSession, begins_again: bool| {
        let cursor = session.cursors.next().unwrap();
        let text = format!("{}{}", cursor.filter, cursor.after.as_deref().unwrap_or_default());
        cursor.after = match cursor.after.as_deref() {
            None => Some("1".to_owned()),
            Some("1") => Some("2".to_owned()),
            _ => None,
        };
        if cursor.after.is_none() {
            session.cursors.finish();
        } else if begins_again {
            session.cursors.begin(filter("muster/a"));
        }
        session.mailbox.put_retained([parcel(&text, QoS::AtLeastOnce)].into_iter());
    };
    let mut found = Vec::new();
    session.mailbox.put(parcel("live", QoS::AtLeastOnce));
    for round in 0..20 {
        let mut out = BytesMut::new();
        session.fill(narrow, 0, &mut out, |session| bring(session, round == 1));
        let mut rest = &out[..];
        while let Some((frame, used)) = codec::frame(rest, usize::MAX).unwrap() {
            let Ok(ClientPacket::Publish { packet_id, publication }) = narrow.version.decode(&frame) else { panic!() };
            found.push(String::from_utf8(publication.payload.to_vec()).unwrap());
            assert!(session.acknowledge(packet_id.unwrap()));
            rest = &rest[used..];
        }
    }
    let (a, b) =
        (["muster/a", "muster/a1", "muster/a", "muster/a1", "muster/a2"], ["muster/b", "muster/b1", "muster/b2"]);
    assert_eq!(found, [&["live"][..], &a, &b].concat());
    assert!(session.cursors.is_empty() && session.wants_more());
}

#[test]
fn unsubscribe_stops_retained_messages() {
    let access = ClientAccess::of("console-main");
    let mut session = session();
    session.cursors.begin(access.subscribe("muster/a").unwrap());
    session.cursors.begin(access.subscribe("muster/b").unwrap());
    assert!(session.unsubscribe("muster/a").is_none());
    assert_eq!(session.cursors.next().map(|cursor| cursor.filter.to_string()).as_deref(), Some("muster/b"));
}

proptest! {
    /// Whatever is acknowledged in whatever order, and however often the client comes back, an id is never given out
    /// while it is owed, and every message gets there.
    #[test]
    fn ids_differ_and_nothing_is_lost(steps in proptest::collection::vec(0_usize..10, 0..300), start in 65_500_u16..) {
        let mut session = session();
        session.window.last = start;
        let reach = ClientLimits { window: 5, ..REACH };
        let mut owed: Vec<(u16, String)> = Vec::new();
        let (mut put, mut delivered) = (0, std::collections::BTreeSet::new());
        for step in steps.into_iter().chain(std::iter::repeat_n(7, 700)) {
            match step {
                8 if put < 600 => {
                    session.mailbox.put(parcel(&put.to_string(), QoS::AtLeastOnce));
                    put += 1;
                }
                9 => {
                    session.sleep();
                    session.wake();
                }
                index => {
                    for (id, dup, payload) in sent(&mut session, reach) {
                        let id = id.unwrap();
                        let known = owed.iter().find(|(owed, _)| *owed == id);
                        let expected = dup.then_some(&payload);
                        prop_assert_eq!(known.map(|(_, text)| text), expected);
                        if !dup {
                            owed.push((id, payload));
                        }
                    }
                    if !owed.is_empty() {
                        let (id, payload) = owed.remove(index % owed.len());
                        prop_assert!(session.acknowledge(id));
                        delivered.insert(payload);
                    }
                }
            }
        }
        prop_assert_eq!(delivered.len(), put);
    }
}
