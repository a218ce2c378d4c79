//! rumqttc with MQTT 3.1.1.

use std::time::Duration;

use rumqttc::{
    AsyncClient, ConnectionError, Event, LastWill, MqttOptions, Packet, QoS, SubscribeReasonCode, TlsConfiguration,
    Transport,
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    peer::{Accepted, Connect, Message, Subscribe},
    rig::{patiently, place::Place},
};

/// A client, and the task that polls it. It does not reconnect.
pub(crate) struct Four {
    client: AsyncClient,
    packets: mpsc::UnboundedReceiver<Packet>,
    messages: std::collections::VecDeque<Message>,
    task: JoinHandle<()>,
}

fn qos(number: u8) -> QoS {
    if number == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce }
}

impl Four {
    pub(crate) async fn connect(place: &Place, common_name: &str, connect: &Connect) -> (Self, Accepted) {
        let mut options = MqttOptions::new(&connect.client_id, "localhost", place.v4.port());
        let tls = place.authority.as_ref().unwrap().client(common_name);
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(tls)));
        options.set_clean_session(connect.clean);
        // Its own limit is 10 KB.
        options.set_max_packet_size(1 << 20, 1 << 20);
        if let Some(will) = &connect.will {
            options.set_last_will(LastWill::new(&will.topic, will.payload.as_str(), qos(will.qos), will.retain));
        }
        let (client, mut events) = AsyncClient::new(options, 100);
        events.network_options.set_tcp_nodelay(true);
        let (tell, packets) = mpsc::unbounded_channel();
        let accepted = patiently("CONNACK", async {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(ack))) => {
                        return Accepted { session_present: ack.session_present, code: ack.code as u8 };
                    }
                    Ok(_) => {}
                    Err(ConnectionError::ConnectionRefused(code)) => {
                        return Accepted { session_present: false, code: code as u8 };
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await;
        let task = tokio::spawn(async move {
            while let Ok(event) = events.poll().await {
                if let Event::Incoming(packet) = event {
                    tell.send(packet).ok();
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

    fn keep(&mut self, publish: rumqttc::Publish) {
        let payload = String::from_utf8(publish.payload.to_vec()).unwrap();
        let message = Message::new(&publish.topic, publish.qos as u8, &payload);
        self.messages.push_back(Message { retain: publish.retain, ..message });
    }

    pub(crate) async fn subscribe(&mut self, subscribe: &Subscribe) -> Vec<u8> {
        self.client.subscribe(&subscribe.filter, qos(subscribe.qos)).await.unwrap();
        let codes = self.answer("SUBACK", |packet| match packet {
            Packet::SubAck(ack) => Some(ack.return_codes.clone()),
            _ => None,
        });
        let code = |code: &SubscribeReasonCode| match code {
            SubscribeReasonCode::Success(qos) => *qos as u8,
            SubscribeReasonCode::Failure => 0x80,
        };
        codes.await.iter().map(code).collect()
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        self.client.unsubscribe(filter).await.unwrap();
        self.answer("UNSUBACK", |packet| matches!(packet, Packet::UnsubAck(_)).then(Vec::new)).await
    }

    pub(crate) async fn publish(&mut self, message: &Message) -> u8 {
        let payload = message.payload.as_str();
        self.client.publish(&message.topic, qos(message.qos), message.retain, payload).await.unwrap();
        if message.qos > 0 {
            self.answer("PUBACK", |packet| matches!(packet, Packet::PubAck(_)).then_some(())).await;
        }
        0
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
        None
    }

    pub(crate) async fn disconnect(mut self) {
        self.client.disconnect().await.unwrap();
        self.end().await;
    }
}

impl Drop for Four {
    fn drop(&mut self) {
        self.task.abort();
    }
}
