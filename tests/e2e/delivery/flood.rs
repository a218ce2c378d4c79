//! A host that sends measurements with new series without end: commands to another are answered meanwhile, and it takes nobody's
//! place.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use muster_base::clock::now_ms;
use muster_topics::name::HostId;
use rumqttc::{Client, MqttOptions, QoS, TlsConfiguration, Transport};
use serde_json::json;

use super::{
    bus::Kind,
    stage::{Special, Stage, shell},
};
use crate::{fleet::eventually, wire::of_host};

/// The lines of a batch: nearly as many as it may have.
const LINES: usize = 600;
/// How many commands have to be answered meanwhile.
const COMMANDS: usize = 8;

/// Somebody with the certificate of a host, who publishes until he is told to end.
struct Flood {
    ends: Arc<AtomicBool>,
    publisher: JoinHandle<u64>,
}

impl Flood {
    fn start(stage: &Stage, host: HostId, folder: &Path) -> Self {
        let identity = muster_agent::join::load(folder).unwrap().unwrap();
        let (address, port) = stage.bus.url().trim_start_matches("mqtts://").rsplit_once(':').map(owned).unwrap();
        let mut options = MqttOptions::new(format!("{host}-{}", uuid::Uuid::new_v4()), address, port);
        options.set_max_packet_size(1 << 20, 1 << 20);
        let tls = TlsConfiguration::Rustls(Arc::new(identity.tls().unwrap()));
        options.set_transport(Transport::Tls(tls));
        let (client, mut connection) = Client::new(options, 16);
        thread::spawn(move || for _ in connection.iter().take_while(Result::is_ok) {});
        let ends = Arc::new(AtomicBool::new(false));
        let publisher = thread::spawn({
            let ends = Arc::clone(&ends);
            move || publish(&client, host, &ends)
        });
        Self { ends, publisher }
    }

    /// Ends it; how many series it has made up.
    fn end(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.publisher.join().unwrap()
    }
}

fn owned((address, port): (&str, &str)) -> (String, u16) {
    (address.to_owned(), port.parse().unwrap())
}

fn publish(client: &Client, host: HostId, ends: &AtomicBool) -> u64 {
    let topic = of_host(&host.to_string(), "metric");
    let mut series = 0;
    for batch in 1.. {
        let mut text = format!("# v=1 epoch=1 seq={batch}\n");
        for _ in 0..LINES {
            series += 1;
            text += &format!("flood,host={host},hostname=loud,number={series} value=1 {}\n", now_ms());
        }
        if ends.load(Ordering::Relaxed) || client.publish(&topic, QoS::AtMostOnce, false, text).is_err() {
            break;
        }
    }
    series
}

#[test]
fn flood_of_measurements_holds_nobody_up() {
    let agent_config = "[metrics]\nsample_ms = 1000\n";
    let console_config = "host_series_max = 200\n";
    let stage = Stage::start_special(Kind::Own, Special { agent_config, console_config, ..Special::default() });
    let loud = stage.other;
    stage.second().kill();
    let flood = Flood::start(&stage, loud, &stage.home.path().join("second"));
    let alerts = || stage.ask("GET", "/alerts", None);
    let is_told = |rule: &str| {
        let alerts = alerts()?;
        let mut all = alerts.as_array().into_iter().flatten();
        let is_it = all.any(|one| one["alert"]["rule"] == rule && one["host"] == json!(loud));
        if is_it { Ok(()) } else { Err(alerts.to_string()) }
    };
    eventually("an alert about its series", || is_told("console-series-share"));
    eventually("an alert about its bytes", || is_told("console-measurements-share"));
    let (began, mut longest) = (now_ms(), std::time::Duration::ZERO);
    for _ in 0..COMMANDS {
        let ordered = Instant::now();
        stage.succeeds(&stage.order(&shell("true"), 600_000));
        longest = longest.max(ordered.elapsed());
    }
    eventually("measurements of the other host", || {
        let answer = stage.ok(&["-o", "json", "metric", "query", "muster_host_load_1m", "--since", "5m"]);
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let points = answer["series"][0]["points"].as_array().cloned().unwrap_or_default();
        let is_new = points.last().is_some_and(|point| point[0].as_i64() > Some(began));
        if is_new { Ok(()) } else { Err(answer.to_string()) }
    });
    let lasted_ms = now_ms() - began;
    let series = flood.end();
    eprintln!(
        "{series} series were made up; in {lasted_ms} ms of it the longest command took {} ms",
        longest.as_millis()
    );
    let answer = stage.ok(&["-o", "json", "metric", "query", "count(flood_value)", "--since", "10m"]);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let counts = answer["series"][0]["points"].as_array().unwrap().iter().filter_map(|point| point[1].as_f64());
    let most = counts.fold(0.0, f64::max);
    assert!(series > 10_000 && (1.0..=200.0).contains(&most), "{series}: {answer}");
}
