//! The hub against the real router.

use super::*;
use crate::{access::Access, message::QoS};

async fn hub(limits: Limits) -> Arc<Hub> {
    Hub::start(&limits, &Prefix::default(), Arc::default(), Retained::open(None, &limits, 0).unwrap()).await.unwrap()
}

fn filter(text: &str) -> Filter {
    Access::new("console-main".parse().unwrap(), Prefix::default()).subscribe(text).unwrap()
}

fn message(topic: &str, payload: &str) -> Message {
    Message::plain(topic, payload, false)
}

async fn subscribe(hub: &Hub, text: &str) -> Link {
    let mut link = hub.link().await.unwrap();
    link.subscribe(7, &[(1, &filter(text))]).await.unwrap();
    assert!(matches!(link.next().await, Ok(Event::Subscribed(7))));
    link
}

async fn next_payload(link: &mut Link) -> String {
    match link.next().await.unwrap() {
        Event::Message { message, .. } => String::from_utf8(message.payload().to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn publish(hub: &Hub, topic: &str, payload: &str) {
    hub.publish(vec![message(topic, payload)]).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn messages_arrive_in_order_with_their_place_and_quality() {
    let hub = hub(Limits::default()).await;
    let mut link = subscribe(&hub, "muster/+").await;
    for batch in 0..40 {
        let messages = (0..25).map(|index| message("muster/a", &(batch * 25 + index).to_string())).collect();
        hub.publish(messages).await.unwrap().await.unwrap();
    }
    let mut places = Vec::new();
    for expected in 0..1000 {
        let Event::Message { subscription: 1, place, message } = link.next().await.unwrap() else { panic!() };
        assert_eq!((message.payload(), message.qos()), (expected.to_string().as_bytes(), QoS::AtLeastOnce));
        places.push(place);
    }
    assert!(places.windows(2).all(|pair| pair[1] == pair[0] + 1), "{places:?}");
    link.close().await;
}

#[tokio::test]
async fn a_reader_that_falls_behind_its_log_can_tell() {
    let hub = hub(Limits { log_wide_bytes: 4096, ..Limits::default() }).await;
    let mut link = subscribe(&hub, "muster/#").await;
    for index in 0..1000 {
        publish(&hub, "muster/a", &format!("{index:0>100}")).await;
    }
    let mut expected = None;
    let jumped = loop {
        let Event::Message { place, .. } = link.next().await.unwrap() else { panic!() };
        if expected.is_some_and(|expected| expected != place) {
            break true;
        }
        if place >= 999 {
            break false;
        }
        expected = Some(place + 1);
    };
    assert!(jumped, "1000 messages of 100 bytes cannot have been kept in 4 KiB");
    link.close().await;
}

#[tokio::test]
async fn links_come_and_go_on_a_busy_topic() {
    let hub = hub(Limits::default()).await;
    let mut steady = subscribe(&hub, "muster/#").await;
    let publisher = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move {
            for index in 0..3000 {
                publish(&hub, "muster/a", &index.to_string()).await;
                tokio::task::yield_now().await;
            }
        }
    });
    let comers = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move {
            for round in 0..300 {
                let mut link = subscribe(&hub, "muster/#").await;
                for _ in 0..round % 5 {
                    link.next().await.ok();
                }
                // The router uses few slots, so ids are used again and again.
                assert!(link.slot() <= 3, "slot {}", link.slot());
                link.close().await;
            }
        }
    });
    for expected in 0..3000 {
        assert_eq!(next_payload(&mut steady).await, expected.to_string());
    }
    publisher.await.unwrap();
    // The last ones wait for messages that no longer come.
    let busy = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move {
            loop {
                publish(&hub, "muster/b", "x").await;
                tokio::task::yield_now().await;
            }
        }
    });
    comers.await.unwrap();
    busy.abort();
    assert_eq!(hub.counters.router_deaths.get(), 0);
}

#[tokio::test]
async fn a_router_that_dies_is_noticed_and_replaced() {
    let hub = hub(Limits::default()).await;
    let kept = Message::plain("muster/kept", "still here", true);
    hub.publish(vec![kept]).await.unwrap().await.unwrap();
    let mut subscriber = subscribe(&hub, "muster/#").await;
    hub.link().await.unwrap().kill_router().await;

    // Links end instead of falling silent, and can be closed all the same.
    assert!(matches!(subscriber.next().await, Err(Gone)));
    subscriber.close().await;
    // A will gets through, by the next router.
    hub.publish_surely(message("muster/will", "gone")).await;
    assert_eq!(hub.counters.router_deaths.get(), 1);
    let mut link = subscribe(&hub, "muster/#").await;
    publish(&hub, "muster/a", "again").await;
    assert_eq!(next_payload(&mut link).await, "again");
    assert_eq!(hub.retained(&filter("muster/kept")).len(), 1);
    link.close().await;
}

#[tokio::test]
async fn what_is_unsubscribed_ends_and_filters_are_limited() {
    let hub = hub(Limits { filters_max: 2, ..Limits::default() }).await;
    let mut link = subscribe(&hub, "muster/a").await;
    assert!(link.has_room_for(&filter("muster/a")) && link.has_room_for(&filter("muster/b")));
    assert!(!link.has_room_for(&filter("muster/c")));
    link.unsubscribe(vec!["muster/a".to_owned()]).await.unwrap();
    publish(&hub, "muster/a", "unheard").await;
    link.subscribe(8, &[(2, &filter("muster/a")), (3, &filter("muster/b"))]).await.unwrap();
    assert!(matches!(link.next().await, Ok(Event::Subscribed(8))));
    publish(&hub, "muster/b", "heard").await;
    assert!(matches!(link.next().await, Ok(Event::Message { subscription: 3, .. })));
    publish(&hub, "muster/a", "heard").await;
    assert!(matches!(link.next().await, Ok(Event::Message { subscription: 2, .. })));
    link.close().await;
}

#[tokio::test]
async fn a_stopped_hub_is_gone() {
    let hub = hub(Limits::default()).await;
    let mut link = subscribe(&hub, "muster/a").await;
    assert!(hub.is_ready());
    hub.stop();
    assert!(!hub.is_ready());
    assert!(matches!(hub.publish(vec![message("muster/a", "x")]).await, Err(Gone)));
    assert!(hub.link().await.is_err());
    assert!(link.unsubscribe(vec!["muster/a".to_owned()]).await.is_ok());
    link.close().await;
}

#[test]
fn one_hosts_logs_are_small_and_the_others_are_not() {
    let limits = Limits { log_host_bytes: 8192, log_wide_bytes: 40_960, ..Limits::default() };
    let config = router_config(&limits, &"a/b".parse().unwrap());
    let custom = config.custom_segment.unwrap();
    let mut patterns: Vec<_> = custom.keys().cloned().collect();
    patterns.sort();
    assert_eq!(patterns, ["a/b/h/+/ack", "a/b/h/+/admission/answer", "a/b/h/+/cmd", "a/b/h/+/desired"]);
    assert!(custom.values().all(|segment| segment.max_segment_size * segment.max_segment_count == 8192));
    assert_eq!(config.max_segment_size * config.max_segment_count, 40_960);
}
