use super::*;

#[test]
fn invalid_broker_url_error_is_short() {
    assert_eq!(parse_broker_url("mqtts://127.0.0.1:8883").unwrap().port, 8883);
    let error = parse_broker_url(&"x".repeat(10_000)).unwrap_err().to_string();
    assert!(error.len() < 400 && error.contains("mqtts://HOST:PORT"), "{error}");
}

#[test]
fn receipt_belongs_to_its_connection() {
    let (acks, mut received) = mpsc::channel(1);
    let receipt = || MessageReceipt(Some((acks.clone(), Publish::new("t", QoS::AtLeastOnce, []))));
    drop(receipt());
    assert!(received.try_recv().is_err(), "dropping is not acknowledging");
    receipt().acknowledge();
    assert!(received.try_recv().is_ok());
    let late = receipt();
    drop(received);
    late.acknowledge();
}

/// The way of a command through a real broker, with an agent that is played here.
mod with_a_broker {
    use muster_api::CommandState;
    use muster_base::clock::now_ms;
    use muster_broker::{Broker, Tls};
    use muster_net::pki;
    use muster_topics::{
        ack::{Ack, Numbered, ReportAck},
        command::{Command, Refresh, Target},
        envelope::{Kind, Verified, open},
        topic::Topic,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        PreparedConsole, RunningConsole, prepare,
        testing::{Fixture, Member, config, facts},
    };

    /// Ample: the machine may be busy.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn broker(prepared: &PreparedConsole, listen: &str) -> Broker {
        let (certificate, key) = prepared.authority().issue_server(&["127.0.0.1".to_owned()]).unwrap();
        let authority = prepared.authority().certificate_pem();
        let tls = Tls { authority, certificate, key };
        let listen = listen.parse().unwrap();
        let config = muster_broker::Config::new(listen, tls);
        Broker::start(config).await.unwrap()
    }

    async fn console_with_broker() -> (Fixture, Broker, Tls) {
        let dir = tempfile::tempdir().unwrap();
        let prepared = prepare(config(dir.path())).await.unwrap();
        let (certificate, key) = prepared.authority().issue_server(&["127.0.0.1".to_owned()]).unwrap();
        let tls = Tls { authority: prepared.authority().certificate_pem(), certificate, key };
        let broker = broker(&prepared, "127.0.0.1:0").await;
        let url = format!("mqtts://{}", broker.local_addr());
        let running: RunningConsole = prepared.with_broker(url, None).start().await.unwrap();
        (Fixture { console: running.console(), running, dir }, broker, tls)
    }

    /// A host's side of the bus.
    struct Agent {
        member: Member,
        client: AsyncClient,
        events: EventLoop,
        keys: Vec<muster_topics::envelope::PublicKey>,
    }

    impl Agent {
        async fn connect(fixture: &Fixture, broker: &Broker, member: Member) -> Self {
            let authority = fixture.shared().authority.certificate_pem();
            let tls = pki::client(&authority, &member.certificate, &member.key).unwrap();
            let address = broker.local_addr();
            let mut options = MqttOptions::new(format!("{}-1", member.id), address.ip().to_string(), address.port());
            options.set_transport(Transport::tls_with_config(tls.into()));
            options.set_max_packet_size(PACKET_MAX_BYTES, PACKET_MAX_BYTES);
            let (client, events) = AsyncClient::new(options, 64);
            let filters = Filter::of_agent(member.id, &[]).into_iter();
            let filters =
                filters.map(|filter| SubscribeFilter::new(Prefix::default().filter(&filter), QoS::AtLeastOnce));
            client.subscribe_many(filters).await.unwrap();
            let keys = fixture.shared().authority.keys().state.of_hosts();
            let mut agent = Self { member, client, events, keys };
            agent.until(|event| matches!(event, Event::Incoming(Packet::SubAck(_))).then_some(())).await;
            agent
        }

        /// Polls until something happens.
        async fn until<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
            let found = async {
                loop {
                    if let Some(found) = wanted(self.events.poll().await.unwrap()) {
                        return found;
                    }
                }
            };
            timeout(PATIENCE, found).await.unwrap()
        }

        /// The next signed message of a kind.
        async fn signed(&mut self, kind: Kind) -> Verified {
            let keys = self.keys.clone();
            self.until(|event| {
                let Event::Incoming(Packet::Publish(publish)) = event else { return None };
                open(&publish.payload, &keys).ok().filter(|verified| verified.kind() == kind)
            })
            .await
        }

        async fn say(&mut self, topic: HostTopic, retain: bool, payload: impl Into<Vec<u8>>) {
            let topic = Prefix::default().topic(&Topic::Host(self.member.id, topic));
            self.client.publish(topic, QoS::AtLeastOnce, retain, payload).await.unwrap();
        }

        async fn say_json(&mut self, topic: HostTopic, payload: Value) {
            self.say(topic, false, serde_json::to_vec(&payload).unwrap()).await;
        }

        async fn online(&mut self, session: u64) {
            let presence = json!({
                "v": 1, "state": "online", "instance": uuid::Uuid::nil(), "epoch": 1, "session": session,
                "protocol": 1, "agent_version": "0.1.0", "capabilities": ["podman"], "since_ms": 1,
            });
            self.say(HostTopic::Presence, true, serde_json::to_vec(&presence).unwrap()).await;
        }
    }

    async fn until_connected(fixture: &Fixture) {
        let mut connected = fixture.shared().hosts.link.connected.clone();
        timeout(PATIENCE, connected.wait_for(|connected| *connected)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn command_is_sent_and_its_outcome_acknowledged() {
        let (fixture, broker, _) = console_with_broker().await;
        until_connected(&fixture).await;
        let member = fixture.member("h").await;
        let host = member.id;
        // The host is away when the command is made, and gets it when it comes.
        let id = fixture.command(&[host]).await.id;
        let mut agent = Agent::connect(&fixture, &broker, member).await;
        agent.online(1).await;
        let command: Command = agent.signed(Kind::Command).await.body().unwrap();
        assert_eq!((command.id, command.target), (id, Target::Hosts(vec![host])));
        let outcome = json!({"v": 1, "command": id, "seq": 1, "at_ms": now_ms(), "kind": "done",
            "outcome": {"status": "exited", "exit": {"code": 0}, "finished_ms": now_ms()}});
        let mut changes = fixture.console.changes();
        agent.say_json(HostTopic::Outcome, outcome.clone()).await;
        let ack: Ack = agent.signed(Kind::Ack).await.body().unwrap();
        assert_eq!((ack.host, ack.reports), (host, vec![ReportAck { command: id, seq: 1 }]));
        assert_eq!(changes.recv().await.unwrap(), crate::PageChange::Command(id));
        assert_eq!(fixture.console.command(id).await.unwrap().hosts[0].state(), CommandState::Done);
        // Said again, it is acknowledged again.
        agent.say_json(HostTopic::Outcome, outcome).await;
        let ack: Ack = agent.signed(Kind::Ack).await.body().unwrap();
        assert_eq!(ack.reports.len(), 1);
        // A heartbeat, and measurements.
        let state = json!({"hostname": "h", "agent_version": "1", "facts": facts(), "interfaces": {}, "labels": {},
            "realms": [], "units": {}, "command_keys": {"ids": [], "authorities": []},
            "desired": {"mark": {"epoch": 0, "generation": 0}}});
        let beat = json!({"v": 1, "epoch": 1, "seq": 1, "at_ms": 1, "final": false, "kind": "full", "state": state});
        agent.say_json(HostTopic::Heartbeat, beat).await;
        let ack: Ack = agent.signed(Kind::Ack).await.body().unwrap();
        assert_eq!(ack.heartbeat, Some(Numbered { epoch: 1, seq: 1 }));
        let batch = format!("# v=1 epoch=1 seq=5\nmuster_host_cpu busy_ratio=0.5 {}\n", now_ms());
        agent.say(HostTopic::Metric, false, muster_topics::metric::pack(&batch)).await;
        let ack: Ack = agent.signed(Kind::Ack).await.body().unwrap();
        assert_eq!(ack.metrics, [Numbered { epoch: 1, seq: 5 }]);
        let answer = fixture.console.series("muster_host_cpu_busy_ratio", None, 10).await.unwrap();
        assert_eq!(answer.series[0].labels["host"], host.to_string());
        fixture.running.stop().await;
        broker.stop().await;
    }

    #[tokio::test]
    async fn reconnect_asks_hosts_for_full_state() {
        let (fixture, first, tls) = console_with_broker().await;
        until_connected(&fixture).await;
        let listen = first.local_addr();
        first.stop().await;
        let mut connected = fixture.shared().hosts.link.connected.clone();
        timeout(PATIENCE, connected.wait_for(|connected| !*connected)).await.unwrap().unwrap();
        assert!(!fixture.console.status().await.unwrap().broker_connected);
        let member = fixture.member("h").await;
        let (host, id) = (member.id, fixture.command(&[member.id]).await.id);
        let config = muster_broker::Config::new(listen, tls);
        let second = Broker::start(config).await.unwrap();
        let mut agent = Agent::connect(&fixture, &second, member).await;
        agent.online(1).await;
        until_connected(&fixture).await;
        let command: Command = agent.signed(Kind::Command).await.body().unwrap();
        assert_eq!((command.id, command.target), (id, Target::Hosts(vec![host])));
        fixture.running.stop().await;
        second.stop().await;
    }

    #[tokio::test]
    async fn console_publishes_presence_and_goodbye() {
        let (fixture, broker, _) = console_with_broker().await;
        let member = fixture.member("h").await;
        let mut agent = Agent::connect(&fixture, &broker, member).await;
        let topic = Prefix::default().topic(&Topic::ConsolePresence("main".parse().unwrap()));
        agent.client.subscribe(topic.clone(), QoS::AtLeastOnce).await.unwrap();
        let mut states = Vec::new();
        let mut said = |event: Event| {
            let Event::Incoming(Packet::Publish(publish)) = event else { return None };
            let presence: Option<ConsolePresence> = serde_json::from_slice(&publish.payload).ok();
            presence.filter(|_| publish.topic == topic).map(|presence| states.push(presence.state))
        };
        agent.until(&mut said).await;
        fixture.running.stop().await;
        agent.until(&mut said).await;
        assert_eq!(states, [PresenceState::Online, PresenceState::Stopped]);
        broker.stop().await;
    }

    #[tokio::test]
    async fn connect_asks_hosts_for_full_state() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = prepare(config(dir.path())).await.unwrap();
        let broker = broker(&prepared, "127.0.0.1:0").await;
        let running = prepared.start().await.unwrap();
        let fixture = Fixture { console: running.console(), running, dir };
        let member = fixture.member("h").await;
        let (certificate, key, id) = (member.certificate.clone(), member.key.clone(), member.id);
        fixture.running.stop().await;
        // The same console again, this time where the broker is.
        let fixture_dir = fixture.dir;
        let prepared = prepare(config(fixture_dir.path())).await.unwrap();
        let keys = prepared.authority().keys().state.of_hosts();
        let tls = pki::client(&prepared.authority().certificate_pem(), &certificate, &key).unwrap();
        let mut options = MqttOptions::new(format!("{id}-1"), "127.0.0.1", broker.local_addr().port());
        options.set_transport(Transport::tls_with_config(tls.into()));
        let (client, events) = AsyncClient::new(options, 64);
        client
            .subscribe(Prefix::default().topic(&Topic::CommandAll(member.id.slot())), QoS::AtLeastOnce)
            .await
            .unwrap();
        let mut agent = Agent { member, client, events, keys };
        agent.until(|event| matches!(event, Event::Incoming(Packet::SubAck(_))).then_some(())).await;
        let url = format!("mqtts://{}", broker.local_addr());
        let running = prepared.with_broker(url, None).start().await.unwrap();
        let refresh: Refresh = agent.signed(Kind::Refresh).await.body().unwrap();
        assert!(refresh.within_ms > 0);
        running.stop().await;
        broker.stop().await;
    }

    #[tokio::test]
    async fn document_is_sent_with_its_body_and_again_to_a_broker_that_lost_it() {
        use muster_topics::{desired::DesiredHead, name::Digest};
        let (fixture, first, tls) = console_with_broker().await;
        until_connected(&fixture).await;
        let member = fixture.member("h").await;
        let host = member.id;
        let mut agent = Agent::connect(&fixture, &first, member).await;
        let topic = Prefix::default().topic(&Topic::Host(host, HostTopic::Desired));
        agent.client.subscribe(topic.clone(), QoS::AtLeastOnce).await.unwrap();
        agent.online(1).await;
        let state = json!({"hostname": "h", "agent_version": "1", "facts": facts(), "interfaces": {}, "labels": {},
            "realms": [], "units": {}, "command_keys": {"ids": [], "authorities": []},
            "desired": {"mark": {"epoch": 0, "generation": 0}}});
        let beat = json!({"v": 1, "epoch": 1, "seq": 1, "at_ms": 1, "final": false, "kind": "full", "state": state});
        agent.say_json(HostTopic::Heartbeat, beat).await;
        let _: Ack = agent.signed(Kind::Ack).await.body().unwrap();
        fixture.deploy_container("default/till", "host=*").await;
        let head: DesiredHead = agent.signed(Kind::DesiredHead).await.body().unwrap();
        assert_eq!((head.host, head.mark.epoch, head.mark.generation), (host, 1, 1));
        // The body comes behind it.
        let body = agent
            .until(|event| match event {
                Event::Incoming(Packet::Publish(publish)) if publish.topic == topic => Some(publish.payload),
                _ => None,
            })
            .await;
        assert_eq!((Digest::of(&body), body.len() as u64), (head.digest.clone(), head.size_bytes));
        // Who comes later gets the head alone, which is retained.
        agent.client.unsubscribe(topic.clone()).await.unwrap();
        agent.client.subscribe(topic.clone(), QoS::AtLeastOnce).await.unwrap();
        let retained = agent
            .until(|event| match event {
                Event::Incoming(Packet::Publish(publish)) if publish.topic == topic => Some(publish),
                _ => None,
            })
            .await;
        assert!(retained.retain);
        let again: DesiredHead = open(&retained.payload, &agent.keys).unwrap().body().unwrap();
        assert_eq!(again, head);
        // A broker that has lost everything gets it anew.
        let listen = first.local_addr();
        first.stop().await;
        let mut connected = fixture.shared().hosts.link.connected.clone();
        timeout(PATIENCE, connected.wait_for(|connected| !*connected)).await.unwrap().unwrap();
        let second = Broker::start(muster_broker::Config::new(listen, tls)).await.unwrap();
        let mut agent = Agent::connect(&fixture, &second, agent.member).await;
        agent.client.subscribe(topic, QoS::AtLeastOnce).await.unwrap();
        let anew: DesiredHead = agent.signed(Kind::DesiredHead).await.body().unwrap();
        assert_eq!((anew.mark, &anew.digest), (head.mark, &head.digest));
        fixture.running.stop().await;
        second.stop().await;
    }
}
