//! Part 2: aliases, shared subscriptions, quality of service, and what a client may ask for about its pace.

use std::{collections::HashMap, time::Duration};

use muster_broker::BrokerLimits;

use crate::{
    DEAD, console, event, host,
    rig::{
        HOST,
        child::{Rumqttd, Settings},
        client::{Failed, Mqtt},
        place::{Ours, Place},
        wire::{self, ALIAS, ALIAS_MAX, BOTH, Connect, PACKET_MAX, Packet, Properties, Publish, RECEIVE_MAX, Version},
    },
    serves, unit,
};

/// The topics that a wildcard subscriber which knows aliases reads out of what it is sent.
async fn topics_with_aliases(place: &Place) -> Vec<String> {
    let connect = Connect::new("console-main").properties(Properties::new().two(ALIAS_MAX, 10));
    let mut reader = Mqtt::connect(place, Version::V5, "console-main", &connect).await;
    reader.subscribe("muster/s/+/h/+/unit/#", 1).await;
    let mut sender = host(place, Version::V5).await;
    let mut aliases: HashMap<usize, String> = HashMap::new();
    let mut topics = Vec::new();
    for name in ["a", "b", "c", "b"] {
        sender.publish(Publish::new(&unit(name), 1, name)).await;
        let message = reader.message().await;
        assert_eq!(message.text(), name);
        let topic = match message.properties.get(ALIAS) {
            Some(alias) if message.topic.is_empty() => aliases[&alias].clone(),
            Some(alias) => {
                aliases.insert(alias, message.topic.clone());
                message.topic
            }
            None => message.topic,
        };
        topics.push(topic);
    }
    topics
}

#[tokio::test]
async fn wildcard_subscriber_gets_right_topics() {
    let right = ["a", "b", "c", "b"].map(unit);
    let rumqttd = Rumqttd::start(Settings::default());
    assert_ne!(topics_with_aliases(&rumqttd.place).await, right);

    let ours = Ours::start(BrokerLimits::default()).await;
    assert_eq!(topics_with_aliases(&ours.place).await, right);
    // Aliases of a publisher are its own.
    let mut reader = console(&ours.place, Version::V5).await;
    reader.subscribe("muster/s/+/h/+/unit/#", 1).await;
    let mut sender = host(&ours.place, Version::V5).await;
    let alias = || Properties::new().two(ALIAS, 1);
    for (topic, expected) in [(unit("a"), "a"), (String::new(), "a"), (unit("b"), "b"), (String::new(), "b")] {
        sender.publish(Publish::new(&topic, 1, "x").properties(alias())).await;
        let message = reader.message().await;
        assert_eq!((message.topic, message.properties), (unit(expected), Properties::new()));
    }
    let mut stranger = host(&ours.place, Version::V5).await;
    let unknown = stranger.try_publish(Publish::new("", 1, "x").properties(alias())).await;
    assert!(matches!(unknown, Err(Failed::Refused(0x82 | 0x94))), "{unknown:?}");
}

/// Two members of a group, of which one takes one message and acknowledges nothing; gives how many of 200 the other one
/// gets.
async fn share_of_the_lively(place: &Place) -> usize {
    let shared = format!("$share/group/{}", event());
    let mut stuck = Mqtt::connect(place, Version::V5, "operator-a", &Connect::new("operator-a")).await;
    stuck.subscribe(&shared, 1).await;
    let mut lively = Mqtt::connect(place, Version::V5, "operator-b", &Connect::new("operator-b")).await;
    lively.subscribe(&shared, 1).await;
    let mut sender = host(place, Version::V5).await;
    for number in 0..1_000 {
        sender.publish(Publish::new(&event(), 1, number.to_string())).await;
    }
    lively.messages_until_quiet(Duration::from_secs(2)).await.len()
}

/// A group of one name on two filters; gives how many of a hundred messages on either come.
async fn two_filters_of_one_group(place: &Place) -> usize {
    let filters = [format!("$share/group/{}", unit("a")), format!("$share/group/{}", unit("b"))];
    let mut member = Mqtt::connect(place, Version::V5, "operator-a", &Connect::new("operator-a")).await;
    for filter in &filters {
        member.subscribe(filter, 1).await;
    }
    let mut sender = host(place, Version::V5).await;
    for number in 0..50 {
        sender.publish(Publish::new(&unit("a"), 1, number.to_string())).await;
        sender.publish(Publish::new(&unit("b"), 1, number.to_string())).await;
    }
    member.messages_until_quiet(Duration::from_secs(2)).await.len()
}

#[tokio::test]
async fn shared_subscriptions_are_refused() {
    const NOT_SUPPORTED: u8 = 0x9e;
    const AVAILABLE: u8 = 0x2a;
    let rumqttd = Rumqttd::start(Settings::default());
    // It has acknowledged a thousand, and each window of a hundred that the stuck one holds is out of reach.
    assert!(share_of_the_lively(&rumqttd.place).await < 900);
    let rumqttd = Rumqttd::start(Settings::default());
    assert!(two_filters_of_one_group(&rumqttd.place).await < 100);

    let ours = Ours::start(BrokerLimits::default()).await;
    let (mut client, accepted) =
        Mqtt::connect_to(&ours.place, Version::V5, "operator-a", &Connect::new("operator-a")).await;
    assert_eq!(accepted.properties.get(AVAILABLE), Some(0));
    for filter in ["$share/group/muster/#", "$share/a/b"] {
        assert_eq!(client.try_subscribe(&Properties::new(), &[(filter, 1)]).await, Ok(vec![NOT_SUPPORTED]));
    }
}

#[tokio::test]
async fn qos_0_message_stays_qos_0() {
    let rumqttd = Rumqttd::start(Settings::default());
    let ours = Ours::start(BrokerLimits::default()).await;
    for (place, version, qos) in
        [(&rumqttd.place, Version::V4, 1), (&ours.place, Version::V4, 0), (&ours.place, Version::V5, 0)]
    {
        let mut reader = console(place, version).await;
        reader.subscribe(&event(), 1).await;
        host(place, version).await.publish(Publish::new(&event(), 0, "x")).await;
        assert_eq!(reader.message().await.qos, qos);
    }
}

/// Publishes with QoS 2, loses the connection after PUBREC, and comes back to release the message, as the protocol has it.
/// Gives what the broker answers, and whether the message arrives.
async fn released_after_a_reconnect(place: &Place) -> (Result<Packet, Failed>, bool) {
    let mut reader = console(place, Version::V4).await;
    reader.subscribe(&event(), 1).await;
    let connect = Connect::persistent(&format!("{HOST}-1"));
    let mut sender = Mqtt::connect(place, Version::V4, HOST, &connect).await;
    sender.send(&Publish::new(&event(), 2, "x").encode(Version::V4)).await;
    let received = sender.packet_within(DEAD).await;
    drop(sender);
    let mut sender = Mqtt::connect(place, Version::V4, HOST, &connect).await;
    let answer = match received {
        Ok(Packet::Other(0x50, _)) => {
            sender.send(&wire::packet(0x62, &[0, 1])).await;
            sender.packet_within(DEAD).await
        }
        other => other,
    };
    (answer, reader.message_within(Duration::from_secs(1)).await.is_ok())
}

#[tokio::test]
async fn qos_2_is_refused() {
    const MAXIMUM_QOS: u8 = 0x24;
    let rumqttd = Rumqttd::start(Settings::default());
    // It had said PUBREC.
    assert_eq!(released_after_a_reconnect(&rumqttd.place).await, (Err(Failed::Ended), false));

    let ours = Ours::start(BrokerLimits::default()).await;
    let connect = Connect::new(&format!("{HOST}-1"));
    let (mut client, accepted) = Mqtt::connect_to(&ours.place, Version::V5, HOST, &connect).await;
    assert_eq!(accepted.properties.get(MAXIMUM_QOS), Some(1));
    client.send(&Publish::new(&event(), 2, "x").encode(Version::V5)).await;
    assert_eq!(client.end().await, Some(0x9b));
    // MQTT 3.1.1 has no words for it.
    assert_eq!(released_after_a_reconnect(&ours.place).await.0, Err(Failed::Ended));
    for version in BOTH {
        let mut reader = console(&ours.place, version).await;
        assert_eq!(reader.try_subscribe(&Properties::new(), &[(&event(), 2)]).await, Ok(vec![1]));
    }
}

/// Has many messages sent to a client that acknowledges none and asked for at most two; gives how many come.
async fn window(place: &Place) -> usize {
    let connect = Connect::new("operator-anna").properties(Properties::new().two(RECEIVE_MAX, 2));
    let mut reader = Mqtt::connect(place, Version::V5, "operator-anna", &connect).await;
    reader.subscribe(&event(), 1).await;
    let mut sender = host(place, Version::V5).await;
    for _ in 0..10 {
        sender.publish(Publish::new(&event(), 1, "x")).await;
    }
    let mut count = 0;
    while let Ok(packet) = reader.packet_within(Duration::from_secs(1)).await {
        count += usize::from(matches!(packet, Packet::Publish(_)));
    }
    count
}

#[tokio::test]
async fn the_receive_maximum_is_kept() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert_eq!(window(&rumqttd.place).await, 10);

    let ours = Ours::start(BrokerLimits::default()).await;
    assert_eq!(window(&ours.place).await, 2);
}

/// Has a message sent that is larger than its reader takes, and then a small one; gives what comes.
async fn small_enough(place: &Place) -> Vec<usize> {
    let connect = Connect::new("operator-anna").properties(Properties::new().four(PACKET_MAX, 500));
    let mut reader = Mqtt::connect(place, Version::V5, "operator-anna", &connect).await;
    reader.subscribe(&event(), 1).await;
    let mut sender = host(place, Version::V5).await;
    sender.publish(Publish::new(&event(), 1, [b'x'; 2_000])).await;
    sender.publish(Publish::new(&event(), 1, [b'x'; 20])).await;
    reader.messages_until_quiet(Duration::from_secs(1)).await.iter().map(|message| message.payload.len()).collect()
}

#[tokio::test]
async fn the_maximum_packet_size_is_kept() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert_eq!(small_enough(&rumqttd.place).await, [2_000, 20]);

    let ours = Ours::start(BrokerLimits::default()).await;
    assert_eq!(small_enough(&ours.place).await, [20]);
}

/// Acknowledges two messages the wrong way round; whether the broker goes along.
async fn out_of_order(place: &Place, version: Version) -> Result<(), Failed> {
    let mut reader = Mqtt::connect(place, version, "operator-anna", &Connect::new("operator-anna")).await;
    reader.subscribe(&event(), 1).await;
    let mut sender = host(place, version).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        sender.publish(Publish::new(&event(), 1, "x")).await;
        match reader.packet_within(DEAD).await? {
            Packet::Publish(publish) => ids.push(publish.packet_id),
            other => panic!("{other:?}"),
        }
    }
    for id in ids.iter().rev() {
        reader.try_send(&wire::puback(*id)).await?;
    }
    reader.ping().await
}

#[tokio::test]
async fn acknowledgements_may_come_in_any_order() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert_eq!(out_of_order(&rumqttd.place, Version::V4).await, Err(Failed::Ended));

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        assert_eq!(out_of_order(&ours.place, version).await, Ok(()));
        assert_eq!(serves(&ours.place, version).await, Ok(()));
    }
}
