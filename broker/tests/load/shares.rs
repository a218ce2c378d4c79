//! What one identity can take: of memory, of the room for what waits, of the room for what is retained. Others notice
//! nothing of it.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    Witnesses, event,
    rig::{
        HOST, OTHER,
        child::{OursApart, rss_bytes},
        client::Mqtt,
        place::Place,
        wire::{self, Connect, Properties, Publish, Version},
    },
};

fn unit(index: usize) -> String {
    format!("muster/s/00/h/{OTHER}/unit/default/u{index}")
}

async fn client(place: &Place, version: Version, common_name: &str, instance: &str) -> Mqtt {
    Mqtt::connect(place, version, common_name, &Connect::new(&format!("{common_name}-{instance}"))).await
}

/// The most memory that the broker has until it has not grown for a while.
async fn most_rss(ours: &OursApart) -> u64 {
    let (mut most, mut grown) = (0, tokio::time::Instant::now());
    while grown.elapsed() < Duration::from_millis(1500) {
        let now = rss_bytes(ours.child.pid());
        if now > most {
            (most, grown) = (now, tokio::time::Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn filter_repeated_20_000_times_brings_retained_once() {
    const FILTERS: usize = 20_000;
    const RETAINED: usize = 250;
    let mut ours = OursApart::start(&BrokerLimits::default());
    let mut host = client(&ours.place, Version::V5, OTHER, "1").await;
    for index in 0..RETAINED {
        host.publish(Publish::new(&unit(index), 1, index.to_string()).retained()).await;
    }
    let witnesses = Witnesses::start(&ours.place).await;
    let before = rss_bytes(ours.child.pid());
    let mut greedy = client(&ours.place, Version::V5, "operator-greedy", "1").await;
    let filters = vec![(format!("muster/s/00/h/{OTHER}/#"), 0_u8); 2_000];
    let long: Vec<_> = filters.iter().map(|(filter, options)| (filter.as_str(), *options)).collect();
    let short = vec![("muster/#", 0); FILTERS];
    // It does not read.
    greedy.send(&wire::subscribe(Version::V5, 1, &Properties::new(), &short)).await;
    greedy.send(&wire::subscribe(Version::V5, 2, &Properties::new(), &long)).await;
    let most = most_rss(&ours).await;
    println!("{} KiB more", most.saturating_sub(before) / 1024);
    // The witnesses fill the router's log meanwhile, some 20 MB; two SUBSCRIBEs of 220 KB and their answers are nothing.
    assert!(most < before + (48 << 20), "{} bytes more", most - before);
    let passed = witnesses.end().await;
    assert!(passed > 50, "only {passed} messages");
    // Two filters match, and each of them brings everything once.
    let came = greedy.messages_until_quiet(Duration::from_secs(1)).await;
    let units = came.iter().filter(|message| message.topic.contains("/unit/")).count();
    assert_eq!(units, 2 * RETAINED);
    assert_eq!((ours.stat("slow_total"), ours.stat("dropped_total")), (0, 0));
}

/// Filters that all match every unit.
fn wide_filters() -> Vec<String> {
    let mut filters = vec!["muster/#".to_owned()];
    for first in ["h", "+"] {
        filters.extend([format!("muster/s/+/{first}/#"), format!("muster/s/+/{first}/+/#")]);
        for second in ["unit", "+"] {
            filters.push(format!("muster/s/+/{first}/+/{second}/#"));
            for third in ["default", "+"] {
                let start = format!("muster/s/+/{first}/+/{second}/{third}");
                filters.extend([format!("{start}/#"), format!("{start}/+")]);
            }
        }
    }
    filters
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_wide_subscription_takes_no_memory() {
    const HOSTS: usize = 20;
    const UNITS: usize = 250;
    const READERS: usize = 8;
    let ours = OursApart::start(&BrokerLimits::default());
    for host in 0..HOSTS {
        let name = format!("{host:08x}-6a61-4a1c-9d0f-0d6d5a8f1f52");
        let mut host = client(&ours.place, Version::V5, &name, "1").await;
        for index in 0..UNITS {
            let topic = format!("muster/s/00/h/{name}/unit/default/u{index}");
            host.publish(Publish::new(&topic, 1, "x").retained()).await;
        }
        host.disconnect().await;
    }
    let before = rss_bytes(ours.child.pid());
    let filters = wide_filters();
    let mut readers = Vec::new();
    for number in 0..READERS {
        let mut reader = client(&ours.place, Version::V5, "operator-greedy", &number.to_string()).await;
        let all: Vec<_> = filters.iter().map(|filter| (filter.as_str(), 0)).collect();
        reader.send(&wire::subscribe(Version::V5, 1, &Properties::new(), &all)).await;
        readers.push(reader);
    }
    let most = most_rss(&ours).await;
    println!("{} KiB more", most.saturating_sub(before) / 1024);
    // For each reader: TLS, an output buffer that is full, and what is taken at a time.
    assert!(most < before + READERS as u64 * (2 << 20), "{} bytes more", most - before);
    // And whoever reads gets all of it, as fast as it reads.
    let mut reader = readers.pop().unwrap();
    for _ in 0..filters.len() * HOSTS * UNITS {
        assert!(reader.message().await.retain);
    }
}

/// A console that does not read for a moment keeps its whole queue, whatever one identity subscribes to.
#[tokio::test(flavor = "multi_thread")]
async fn message_queued_4_000_times_is_charged_to_its_identity() {
    let mut ours = OursApart::start(&BrokerLimits::default());
    let presence = format!("muster/s/00/h/{OTHER}/presence");
    let mut host = client(&ours.place, Version::V4, OTHER, "1").await;
    host.publish(Publish::new(&presence, 1, vec![b'x'; 200_000]).retained()).await;
    let before = rss_bytes(ours.child.pid());
    let mut greedy = client(&ours.place, Version::V4, OTHER, "2").await;
    for part in 0..4 {
        let filters = vec![(presence.as_str(), 1); 1000];
        greedy.send(&wire::subscribe(Version::V4, part + 1, &Properties::new(), &filters)).await;
    }
    let most = most_rss(&ours).await;
    println!("{} KiB more, {} wait", most.saturating_sub(before) / 1024, ours.stat("mailbox_bytes"));
    assert!(ours.stat("mailbox_bytes") < 1 << 20);

    let mut console = client(&ours.place, Version::V4, "console-main", "1").await;
    console.subscribe(&event(), 1).await;
    let mut writer = client(&ours.place, Version::V4, HOST, "1").await;
    // More than what the kernel holds for a socket, and less than its queue.
    const COUNT: usize = 1000;
    for number in 0..COUNT {
        writer.publish(Publish::new(&event(), 1, format!("{number:<12000}")).id(1)).await;
    }
    for number in 0..COUNT {
        assert_eq!(console.message().await.text().trim(), number.to_string());
    }
    assert_eq!((ours.stat("slow_total"), ours.stat("dropped_total")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn host_retaining_67_mb_is_limited_to_its_share() {
    const COUNT: usize = 305;
    const BYTES: usize = 220_000;
    let limits = BrokerLimits::default();
    let mut ours = OursApart::start(&limits);
    let before = rss_bytes(ours.child.pid());
    let mut greedy = client(&ours.place, Version::V5, OTHER, "1").await;
    let fits = limits.retained_host_max_bytes / BYTES;
    for index in 0..COUNT {
        let publish = Publish::new(&unit(index), 1, vec![b'x'; BYTES]).retained();
        let expected = if index < fits { 0 } else { 0x97 };
        assert_eq!(greedy.try_publish(publish).await, Ok(expected), "{index}");
    }
    let most = rss_bytes(ours.child.pid());
    println!("{} KiB more", most.saturating_sub(before) / 1024);
    // Its share, the router's log of four times what may be on its way, and as much in the journal's queue.
    assert!(most < before + (24 << 20), "{} bytes more", most - before);
    let presence = format!("muster/s/00/h/{HOST}/presence");
    let mut host = client(&ours.place, Version::V4, HOST, "1").await;
    host.publish(Publish::new(&presence, 1, "here").retained()).await;
    let mut console = client(&ours.place, Version::V4, "console-main", "1").await;
    console.subscribe("muster/s/#", 1).await;
    let came = console.messages_until_quiet(Duration::from_secs(1)).await;
    assert_eq!(came.len(), fits + 1);
    assert!(came.iter().any(|message| message.topic == presence && message.text() == "here"));
    assert_eq!(ours.stat("retained_refused_total"), (COUNT - fits) as u64);
}
