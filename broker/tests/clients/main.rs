//! Real clients against the embedded broker, over mutual TLS: `mosquitto_pub` and `mosquitto_sub`, paho-mqtt (Python),
//! MQTT.js (Node) and rumqttc, each with MQTT 3.1.1 and 5.
//!
//! paho and MQTT.js run in processes of their own, which take requests and give answers as lines of JSON; rumqttc is here.
//! [`peer`] hides which is which; [`scenarios`] say what must hold for each of them, with raw MQTT on the other side.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../rig/mod.rs"]
mod rig;

mod five;
mod mosquitto;
mod peer;
mod rumqttc4;
mod rumqttc5;
mod scenarios;
mod script;

use peer::Kind;
use rig::wire::Version::{V4, V5};

/// A module for each client, with a test for each scenario.
macro_rules! clients {
    ($($client:ident: $kind:expr => [$($module:ident::{$($scenario:ident),+ $(,)?}),+];)+) => {
        $(mod $client {
            use super::*;
            $($(
                #[tokio::test]
                async fn $scenario() {
                    $module::$scenario($kind).await;
                }
            )+)+
        })+
    };
}

clients! {
    paho_4: Kind::Paho(V4) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed}
    ];
    mqttjs_4: Kind::MqttJs(V4) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed}
    ];
    rumqttc_4: Kind::Rumqttc(V4) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed}
    ];
    paho_5: Kind::Paho(V5) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed},
        five::{
            properties, properties_of_a_will, expiry, refused_publish, told_why, own_messages, retain_handling,
            as_published, subscription_ids, alias,
        }
    ];
    mqttjs_5: Kind::MqttJs(V5) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed},
        five::{
            properties, properties_of_a_will, expiry, refused_publish, told_why, own_messages, retain_handling,
            as_published, subscription_ids, alias, alias_of_the_broker,
        }
    ];
    rumqttc_5: Kind::Rumqttc(V5) => [
        scenarios::{every_quality, retained, last_will, resumed, refused_client_id, refused_filter, unsubscribed},
        five::{
            properties, properties_of_a_will, expiry, refused_publish, told_why, own_messages, retain_handling,
            as_published, subscription_ids, alias,
        }
    ];
}
