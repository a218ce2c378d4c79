//! rumqttc with MQTT 5.

use std::time::Duration;

use rumqttc::{
    NetworkOptions, TlsConfiguration, Transport,
    v5::{
        AsyncClient, ConnectionError, Event, MqttOptions, StateError,
        mqttbytes::{
            QoS,
            v5::{
                ConnectReturnCode, DisconnectReasonCode, Filter, LastWill, LastWillProperties, Packet, PubAckReason,
                PublishProperties, RetainForwardRule, SubscribeProperties, SubscribeReasonCode, UnsubAckReason,
            },
        },
    },
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    peer::{Accepted, Connect, Message, Properties, Subscribe},
    rig::{patiently, place::Place},
};

/// A client, and the task that polls it. It does not reconnect.
pub(crate) struct Five {
    client: AsyncClient,
    packets: mpsc::UnboundedReceiver<Packet>,
    messages: std::collections::VecDeque<Message>,
    task: JoinHandle<Option<DisconnectReasonCode>>,
}

fn connect_code(code: ConnectReturnCode) -> u8 {
    match code {
        ConnectReturnCode::Success => 0,
        ConnectReturnCode::ClientIdentifierNotValid => 0x85,
        other => panic!("{other:?}"),
    }
}

fn of_will(asked: &Properties) -> LastWillProperties {
    LastWillProperties {
        delay_interval: None,
        payload_format_indicator: None,
        message_expiry_interval: asked.expiry_s,
        content_type: asked.content_type.clone(),
        response_topic: asked.response_topic.clone(),
        correlation_data: asked.correlation.clone().map(Into::into),
        user_properties: asked.user.clone(),
    }
}

fn qos(number: u8) -> QoS {
    if number == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce }
}

impl Five {
    pub(crate) async fn connect(place: &Place, common_name: &str, connect: &Connect) -> (Self, Accepted) {
        let mut options = MqttOptions::new(&connect.client_id, "localhost", place.v4.port());
        let tls = place.authority.as_ref().unwrap().client(common_name);
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(tls)));
        options.set_clean_start(connect.clean);
        // Its own limit is 10 KB.
        options.set_max_packet_size(Some(1 << 20));
        options.set_session_expiry_interval(Some(connect.session_expiry_s));
        options.set_topic_alias_max((connect.alias_max > 0).then_some(connect.alias_max));
        // As it stands, each client takes 13.9 MB.
        options.set_outgoing_inflight_upper_limit(100);
        if let Some(will) = &connect.will {
            let properties = Some(of_will(&will.properties));
            let payload = will.payload.as_str();
            options.set_last_will(LastWill::new(&will.topic, payload, qos(will.qos), will.retain, properties));
        }
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        let (client, mut events) = AsyncClient::new(options, 100);
        let (tell, packets) = mpsc::unbounded_channel();
        let accepted = patiently("CONNACK", async {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(ack))) => {
                        return Accepted { session_present: ack.session_present, code: connect_code(ack.code) };
                    }
                    Ok(_) => {}
                    Err(ConnectionError::ConnectionRefused(code)) => {
                        return Accepted { session_present: false, code: connect_code(code) };
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await;
        let task = tokio::spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(packet)) => drop(tell.send(packet)),
                    Ok(_) => {}
                    Err(ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })) => {
                        return Some(reason_code);
                    }
                    Err(_) => return None,
                }
            }
        });
        (Self { client, packets, messages: Default::default(), task }, accepted)
    }

    /// The packet that `pick` takes. Messages that come before it are kept.
    async fn answer<T>(&mut self, what: &str, pick: impl Fn(&Packet) -> Option<T>) -> T {
        loop {
            let packet = patiently(what, self.packets.recv()).await.unwrap_or_else(|| panic!("no {what}: it ended"));
            match (pick(&packet), packet) {
                (Some(found), _) => return found,
                (None, Packet::Publish(publish)) => self.keep(publish),
                (None, _) => {}
            }
        }
    }

    fn keep(&mut self, publish: rumqttc::v5::mqttbytes::v5::Publish) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let message = Message::new(&text(&publish.topic), publish.qos as u8, &text(&publish.payload));
        let given = publish.properties.unwrap_or_default();
        let properties = Properties {
            content_type: given.content_type,
            response_topic: given.response_topic,
            correlation: given.correlation_data.map(|data| text(&data)),
            expiry_s: given.message_expiry_interval,
            alias: given.topic_alias,
            user: given.user_properties,
            subscription_ids: given.subscription_identifiers,
        };
        self.messages.push_back(Message { retain: publish.retain, properties, ..message });
    }

    pub(crate) async fn subscribe(&mut self, subscribe: &Subscribe) -> Vec<u8> {
        let filter = Filter {
            path: subscribe.filter.clone(),
            qos: qos(subscribe.qos),
            nolocal: subscribe.no_local,
            preserve_retain: subscribe.as_published,
            retain_forward_rule: match subscribe.handling {
                0 => RetainForwardRule::OnEverySubscribe,
                1 => RetainForwardRule::OnNewSubscribe,
                _ => RetainForwardRule::Never,
            },
        };
        let properties = SubscribeProperties { id: subscribe.id, user_properties: Vec::new() };
        self.client.subscribe_many_with_properties([filter], properties).await.unwrap();
        let codes = self.answer("SUBACK", |packet| match packet {
            Packet::SubAck(ack) => Some(ack.return_codes.clone()),
            _ => None,
        });
        let code = |code: &SubscribeReasonCode| match code {
            SubscribeReasonCode::Success(qos) => *qos as u8,
            SubscribeReasonCode::NotAuthorized => 0x87,
            SubscribeReasonCode::TopicFilterInvalid => 0x8f,
            other => panic!("{other:?}"),
        };
        codes.await.iter().map(code).collect()
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        self.client.unsubscribe(filter).await.unwrap();
        let codes = self.answer("UNSUBACK", |packet| match packet {
            Packet::UnsubAck(ack) => Some(ack.reasons.clone()),
            _ => None,
        });
        let code = |code: &UnsubAckReason| match code {
            UnsubAckReason::Success => 0,
            UnsubAckReason::NoSubscriptionExisted => 0x11,
            other => panic!("{other:?}"),
        };
        codes.await.iter().map(code).collect()
    }

    pub(crate) async fn publish(&mut self, message: &Message) -> u8 {
        let asked = message.properties.clone();
        let properties = PublishProperties {
            message_expiry_interval: asked.expiry_s,
            topic_alias: asked.alias,
            response_topic: asked.response_topic,
            correlation_data: asked.correlation.map(Into::into),
            user_properties: asked.user,
            content_type: asked.content_type,
            ..PublishProperties::default()
        };
        let payload = message.payload.clone();
        let (topic, qos) = (&message.topic, qos(message.qos));
        self.client.publish_with_properties(topic, qos, message.retain, payload, properties).await.unwrap();
        if message.qos == 0 {
            return 0;
        }
        let reason = self.answer("PUBACK", |packet| match packet {
            Packet::PubAck(ack) => Some(ack.reason),
            _ => None,
        });
        match reason.await {
            PubAckReason::Success => 0,
            PubAckReason::NoMatchingSubscribers => 0x10,
            PubAckReason::NotAuthorized => 0x87,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn message(&mut self, patience: Duration) -> Option<Message> {
        let next = async {
            while self.messages.is_empty() {
                if let Packet::Publish(publish) = self.packets.recv().await? {
                    self.keep(publish);
                }
            }
            self.messages.pop_front()
        };
        tokio::time::timeout(patience, next).await.ok().flatten()
    }

    pub(crate) async fn end(&mut self) -> Option<u8> {
        while patiently("the end", self.packets.recv()).await.is_some() {}
        let reason = patiently("the end", &mut self.task).await.unwrap();
        reason.map(|reason| match reason {
            DisconnectReasonCode::SessionTakenOver => 0x8e,
            DisconnectReasonCode::ServerShuttingDown => 0x8b,
            other => panic!("{other:?}"),
        })
    }

    pub(crate) async fn disconnect(mut self) {
        self.client.disconnect().await.unwrap();
        self.end().await;
    }
}

impl Drop for Five {
    fn drop(&mut self) {
        self.task.abort();
    }
}
