//! Connects to the broker as a host does, and tries what its permissions let the host do.

use std::{sync::Arc, time::Duration};

use muster_base::failure::with_causes;
use muster_bus::address::BrokerAddress;
use muster_net::pki;
use muster_topics::topic::{Filter, HostTopic, Topic, TopicKind};
use rumqttc::{
    AsyncClient, Event, EventLoop, Incoming, MqttOptions, NetworkOptions, QoS, SubscribeFilter, SubscribeReasonCode,
    TlsConfiguration, Transport,
};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{facts::BrokerFacts, setup::MemberSetup};

/// How long everything may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take that some brokers never give.
const ANSWER: Duration = Duration::from_secs(3);

/// Tries what an agent does. `is_running`: the host's agent runs, and nothing is published beside it.
pub async fn probe(member: &MemberSetup, is_running: bool) -> BrokerFacts {
    let options = match options(member) {
        Ok(options) => options,
        Err(why) => return BrokerFacts::Refused(why),
    };
    let (client, mut eventloop) = AsyncClient::new(options, 16);
    let mut network = NetworkOptions::new();
    network.set_connection_timeout(PATIENCE.as_secs());
    eventloop.set_network_options(network);
    let mut probe = BrokerProbe { member, client, eventloop };
    let found = probe.run(is_running).await;
    let _ = probe.client.try_disconnect();
    let _ = probe.next(Instant::now() + Duration::from_millis(200)).await;
    found.unwrap_or_else(BrokerFacts::Refused)
}

fn options(member: &MemberSetup) -> Result<MqttOptions, String> {
    let address = BrokerAddress::parse(&member.broker_url).ok_or("its address is not mqtts://HOST[:PORT]")?;
    // An identity of its own beside the agent's; a clean session and no last will, so that nothing stays of it.
    let mut options = MqttOptions::new(format!("{}-{}", member.host, Uuid::new_v4()), address.host, address.port);
    options.set_clean_session(true).set_keep_alive(Duration::from_secs(30)).set_transport(if address.tls {
        let tls = pki::client(&member.authority, &member.certificate, &member.key);
        let tls = tls.map_err(|error| with_causes(&error))?;
        Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls)))
    } else {
        Transport::Tcp
    });
    Ok(options)
}

struct BrokerProbe<'a> {
    member: &'a MemberSetup,
    client: AsyncClient,
    eventloop: EventLoop,
}

impl BrokerProbe<'_> {
    async fn run(&mut self, is_running: bool) -> Result<BrokerFacts, String> {
        let until = Instant::now() + PATIENCE;
        while !matches!(self.next(until).await?, Incoming::ConnAck(_)) {}

        let filters: Vec<String> =
            Filter::of_agent(self.member.host, &[]).iter().map(|filter| self.member.prefix.filter(filter)).collect();
        let (codes, retained) = self.subscribe(&filters, until).await?;
        let is_refused = |code: &SubscribeReasonCode| *code == SubscribeReasonCode::Failure;
        let refused: Vec<String> =
            filters.iter().zip(&codes).filter(|(_, code)| is_refused(code)).map(|(filter, _)| filter.clone()).collect();
        let publishes = match retained {
            Some(payload) if !is_running && refused.is_empty() => Some(self.publish(payload).await?),
            _ => None,
        };
        // Last, as some brokers end the connection of whom they refuse something.
        let others = self.member.prefix.filter(&Filter::EveryHost(TopicKind::Outcome));
        let answer = self.subscribe(&[others], Instant::now() + ANSWER).await;
        let reads_others = answer.is_ok_and(|(codes, _)| codes.iter().any(|code| !is_refused(code)));
        Ok(BrokerFacts::Connected { refused, reads_others, publishes })
    }

    /// Subscribes; returns the broker's answers, and the presence that it has retained.
    async fn subscribe(
        &mut self,
        filters: &[String],
        until: Instant,
    ) -> Result<(Vec<SubscribeReasonCode>, Option<Vec<u8>>), String> {
        let all = filters.iter().map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
        self.client.try_subscribe_many(all).map_err(|error| error.to_string())?;
        let (presence, mut retained) = (self.presence(), None);
        let mut is_of_presence = |packet: &Incoming| {
            if let Incoming::Publish(publish) = packet
                && publish.topic == presence
                && publish.retain
            {
                retained = Some(publish.payload.to_vec());
            }
        };
        let codes = loop {
            match self.next(until).await? {
                Incoming::SubAck(ack) => break ack.return_codes,
                packet => is_of_presence(&packet),
            }
        };
        // What is retained comes after the answer.
        let soon = Instant::now() + Duration::from_millis(500);
        while let Ok(packet) = self.next(soon.min(until)).await {
            is_of_presence(&packet);
        }
        Ok((codes, retained))
    }

    /// Publishes what the broker has retained of this host once more, and waits for it.
    async fn publish(&mut self, payload: Vec<u8>) -> Result<bool, String> {
        let topic = self.presence();
        let sent = self.client.try_publish(&topic, QoS::AtLeastOnce, false, payload.clone());
        sent.map_err(|error| error.to_string())?;
        let until = Instant::now() + ANSWER;
        while let Ok(packet) = self.next(until).await {
            if let Incoming::Publish(publish) = packet
                && publish.topic == topic
                && publish.payload == payload
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn presence(&self) -> String {
        self.member.prefix.topic(&Topic::Host(self.member.host, HostTopic::Presence))
    }

    /// The next packet.
    async fn next(&mut self, until: Instant) -> Result<Incoming, String> {
        loop {
            match timeout_at(until, self.eventloop.poll()).await {
                Ok(Ok(Event::Incoming(packet))) => return Ok(packet),
                Ok(Ok(Event::Outgoing(_))) => {}
                Ok(Err(error)) => return Err(with_causes(&error)),
                Err(_) => return Err("it did not answer in time".to_owned()),
            }
        }
    }
}
