//! Tests with the real router.

use super::*;
use tokio::sync::mpsc;

struct Rig {
    hub: Arc<RouterHandle>,
    out: mpsc::UnboundedReceiver<String>,
}

impl Rig {
    async fn new(limits: BrokerLimits) -> Self {
        let hub = RouterHandle::new(&limits, Arc::default());
        let first = hub.start().await.unwrap();
        let (tell, out) = mpsc::unbounded_channel();
        tokio::spawn(Arc::clone(&hub).run(first, move |messages| {
            for message in messages.iter().filter(|message| !message.topic().is_empty()) {
                tell.send(String::from_utf8(message.payload().to_vec()).unwrap()).ok();
            }
            let refused = messages.iter().enumerate().filter(|(_, message)| message.payload().ends_with(b"7"));
            refused.map(|(index, message)| RefusedMessage { index, message: message.clone() }).collect()
        }));
        Self { hub, out }
    }

    async fn publish(&self, range: std::ops::Range<usize>) -> BatchReply {
        self.hub.publish(range.map(|index| BrokerMessage::plain("muster/a", &index.to_string(), false)).collect()).await
    }

    async fn expect(&mut self, range: std::ops::Range<usize>) {
        for index in range {
            assert_eq!(self.out.recv().await, Some(index.to_string()));
        }
    }
}

#[tokio::test]
async fn messages_keep_order_and_publishers_are_notified() {
    let mut rig = Rig::new(BrokerLimits::default()).await;
    for batch in 0..400 {
        rig.publish(batch * 25..batch * 25 + 25).await.await.unwrap();
    }
    rig.expect(0..10_000).await;
    assert_eq!(rig.hub.counters.router_deaths.get(), 0);
}

/// Whatever batches the router makes of them, a publisher is told of its own.
#[tokio::test]
async fn publisher_learns_which_messages_were_refused() {
    let rig = Rig::new(BrokerLimits::default()).await;
    let mut taken = Vec::new();
    for batch in 0..200 {
        taken.push(rig.publish(batch * 13..batch * 13 + 13).await);
    }
    for (batch, taken) in taken.into_iter().enumerate() {
        let refused = taken.await.unwrap();
        let found: Vec<_> = refused.iter().map(|refused| refused.index).collect();
        let expected: Vec<_> = (0..13).filter(|index| (batch * 13 + index) % 10 == 7).collect();
        assert_eq!(found, expected, "of batch {batch}");
        for RefusedMessage { index, message } in refused {
            assert_eq!(message.payload(), (batch * 13 + index).to_string().as_bytes());
        }
    }
}

#[tokio::test]
async fn flood_larger_than_the_log_loses_nothing() {
    let mut rig = Rig::new(BrokerLimits { intake_max_bytes: 4096, ..BrokerLimits::default() }).await;
    let hub = Arc::clone(&rig.hub);
    let flood = tokio::spawn(async move {
        for index in 0..20_000 {
            drop(hub.publish(vec![BrokerMessage::plain("muster/a", &index.to_string(), false)]).await);
        }
    });
    rig.expect(0..20_000).await;
    flood.await.unwrap();
    assert_eq!(rig.hub.counters.router_deaths.get(), 0);
}

#[tokio::test]
async fn dead_router_is_replaced_without_loss() {
    let mut rig = Rig::new(BrokerLimits::default()).await;
    let mut taken = Vec::new();
    for round in 0..5 {
        rig.hub.kill_router().await;
        for batch in 0..20 {
            let from = (round * 20 + batch) * 10;
            taken.push(rig.publish(from..from + 10).await);
        }
        while rig.hub.counters.router_deaths.get() <= round as u64 {
            sleep(Duration::from_millis(5)).await;
        }
    }
    rig.expect(0..1000).await;
    for taken in taken {
        taken.await.unwrap();
    }
}

#[tokio::test]
async fn skipping_router_is_replaced_without_loss() {
    let mut rig = Rig::new(BrokerLimits::default()).await;
    rig.publish(0..10).await.await.unwrap();
    // As if the log had jumped: this batch never went in.
    let intake = rig.hub.way().intake.take();
    let skipped = rig.publish(10..20).await;
    rig.hub.way().intake = intake;
    let seen = rig.publish(20..30).await;
    skipped.await.unwrap();
    seen.await.unwrap();
    assert_eq!(rig.hub.counters.router_deaths.get(), 1);
    rig.expect(0..30).await;
}

#[tokio::test]
async fn hanging_router_is_replaced() {
    let mut rig = Rig::new(BrokerLimits::default()).await;
    // To the hub it looks the same when nothing that goes in comes out.
    rig.hub.way().intake = None;
    let taken = rig.publish(0..3).await;
    taken.await.unwrap();
    rig.expect(0..3).await;
    assert_eq!(rig.hub.counters.router_deaths.get(), 1);
}

#[tokio::test]
async fn stop_releases_all_publishers() {
    let rig = Rig::new(BrokerLimits::default()).await;
    rig.hub.way().intake = None;
    let taken = rig.publish(0..3).await;
    rig.hub.stop();
    assert!(taken.await.is_err());
}
