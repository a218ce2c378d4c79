//! Retained messages.

use std::collections::BTreeSet;

use rumqttc::QoS;

use crate::fixture::{Fixture, HOST};

fn unit(index: usize) -> String {
    format!("muster/h/{HOST}/unit/default/u{index}")
}

#[tokio::test]
async fn a_wildcard_brings_all_of_them() {
    const COUNT: usize = 2000;
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for index in 0..COUNT {
        host.mqtt.publish(unit(index), QoS::AtLeastOnce, true, index.to_string()).await.unwrap();
        if index % 100 == 99 {
            host.acknowledged(100).await;
        }
    }
    assert_eq!(fixture.broker.stats().retained, COUNT as u64);
    for (filter, qos) in [("muster/h/+/unit/+/+", QoS::AtLeastOnce), ("muster/#", QoS::AtMostOnce)] {
        let mut console = fixture.client("console-main", &format!("console-main-{}", qos as u8)).await;
        console.subscribe(filter, qos).await;
        let mut found = BTreeSet::new();
        for _ in 0..COUNT {
            let message = console.message().await;
            assert!(message.retain && message.qos == qos);
            found.insert(message.topic);
        }
        assert_eq!(found, (0..COUNT).map(unit).collect());
        // And again, for whoever subscribes again.
        console.subscribe(filter, qos).await;
        for _ in 0..COUNT {
            assert!(console.message().await.retain);
        }
        // What follows is live.
        host.publish(&unit(0), true, "live").await;
        assert_eq!(console.text().await, (unit(0), "live".to_owned(), false));
    }
}

#[tokio::test]
async fn only_an_empty_retained_message_clears() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let mut console = fixture.console().await;
    host.publish(&unit(1), true, "kept").await;
    host.publish(&unit(1), false, "").await;
    host.publish(&unit(1), false, "passing").await;
    console.subscribe(&unit(1), QoS::AtLeastOnce).await;
    assert_eq!(console.text().await, (unit(1), "kept".to_owned(), true));
    host.publish(&unit(1), true, "").await;
    assert_eq!(console.text().await, (unit(1), String::new(), false));
    console.subscribe(&unit(1), QoS::AtLeastOnce).await;
    host.publish(&unit(1), false, "fence").await;
    assert_eq!(console.text().await, (unit(1), "fence".to_owned(), false));
    assert_eq!(fixture.broker.stats().retained, 0);
}

/// A subscriber that comes while values change ends with the last one, whatever the order of events.
#[tokio::test]
async fn the_last_value_wins_the_race() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for round in 0..30 {
        let publishing = async {
            for value in 0..20 {
                host.publish(&unit(round), true, &value.to_string()).await;
            }
        };
        let mut console = fixture.client("console-main", "console-main").await;
        let subscribing = async {
            console.subscribe(&unit(round), QoS::AtLeastOnce).await;
            let mut last = String::new();
            while last != "19" {
                last = console.text().await.1;
            }
        };
        tokio::join!(publishing, subscribing);
        // Nothing older comes after it.
        host.publish(&unit(round), false, "fence").await;
        let mut text = console.text().await.1;
        while text == "19" {
            text = console.text().await.1;
        }
        assert_eq!(text, "fence");
        console.disconnect().await;
    }
}

/// A real client of another make, which reads a host's whole tree.
#[tokio::test]
async fn mosquitto_sub_reads_a_hosts_tree() {
    const PROGRAM: &str = "/usr/bin/mosquitto_sub";
    if !std::path::Path::new(PROGRAM).exists() {
        eprintln!("{PROGRAM} is not installed: left out");
        return;
    }
    let fixture = Fixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pair = fixture.authority.issue("operator-anna");
    for (name, content) in [("ca", &fixture.authority.certificate), ("cert", &pair.certificate), ("key", &pair.key)] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&unit(1), true, "one").await;
    host.publish(&format!("muster/h/{HOST}/presence"), true, "here").await;
    let port = fixture.address().port().to_string();
    let filter = format!("muster/h/{HOST}/#");
    let output = tokio::process::Command::new(PROGRAM)
        .current_dir(folder.path())
        .args(["-V", "311", "-h", "localhost", "-p", &port, "--cafile", "ca", "--cert", "cert", "--key", "key"])
        .args(["-t", &filter, "-C", "2", "-W", "30", "-v"])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: BTreeSet<_> = stdout.lines().collect();
    let expected = [format!("{} one", unit(1)), format!("muster/h/{HOST}/presence here")];
    assert_eq!(lines, expected.iter().map(String::as_str).collect(), "{}", String::from_utf8_lossy(&output.stderr));
}
