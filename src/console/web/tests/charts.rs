//! Tests of charts as a script gets them, from a store with real points.

use muster_api::AlertStanding;
use muster_base::clock::now_ms;
use muster_series::SeriesColumn;
use muster_topics::{Millis, metric::Point, name::HostId};
use serde_json::Value;

use super::flow::Browser;
use crate::{store::alert, web::view::samples};

const HOUR_MS: Millis = 3_600_000;
const DAY_MS: Millis = 24 * HOUR_MS;

/// Points of a host in a stretch of time: a gauge that is 0.25, and a counter that grows by 1,000 each second.
fn columns(host: HostId, (from_ms, to_ms): (Millis, Millis), every_ms: usize) -> Vec<SeriesColumn> {
    let column = |name: &str, label: Option<(&str, &str)>, value: &dyn Fn(Millis) -> f64| SeriesColumn {
        name: name.to_owned(),
        labels: [("host", host.to_string()), ("hostname", "shop-7".to_owned())]
            .into_iter()
            .chain(label.map(|(name, value)| (name, value.to_owned())))
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        samples: (from_ms..to_ms).step_by(every_ms).map(|at_ms| (at_ms, value(at_ms - from_ms))).collect(),
    };
    vec![
        column("muster_host_cpu_busy_ratio", None, &|_| 0.25),
        column("muster_host_network_receive_bytes_total", Some(("interface", "eth0")), &|at_ms| at_ms as f64),
        column("muster_host_disk_used_bytes", Some(("mount", "/")), &|_| 30.0),
        column("muster_host_disk_total_bytes", Some(("mount", "/")), &|_| 40.0),
    ]
}

async fn asked(browser: &Browser, path: &str) -> Value {
    let answer = browser.get(path).await;
    assert_eq!(answer.status(), 200, "{path}");
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

/// The values of a chart's line, without those that are not there.
fn values(answer: &Value, word: &str, label: &str) -> Vec<f64> {
    let chart = answer["charts"].as_array().unwrap().iter().find(|chart| chart["word"] == word);
    let chart = chart.unwrap_or_else(|| panic!("no chart {word}: {answer}"));
    let line = chart["lines"].as_array().unwrap().iter().find(|line| line["label"] == label);
    let line = line.unwrap_or_else(|| panic!("no line {label}: {chart}"));
    assert_eq!(line["values"].as_array().unwrap().len(), answer["times"].as_array().unwrap().len());
    line["values"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

#[tokio::test]
async fn every_range_has_charts_from_the_right_resolution() {
    let browser = Browser::new().await;
    let host = browser.fixture.member("shop-7").await.id;
    let series = browser.fixture.shared().measurements.series.clone();
    let now = now_ms();
    series.append_columns(columns(host, (now - 400 * DAY_MS, now - HOUR_MS / 4), 300_000)).await.unwrap();
    series.settle().await;
    // Until now, however long that took.
    series.append_columns(columns(host, (now - HOUR_MS / 4, now_ms()), 10_000)).await.unwrap();
    for (range, step, least) in [
        ("15m", 10, 80),
        ("6h", 60, 300),
        ("24h", 300, 280),
        ("7d", 1_800, 330),
        ("30d", 7_200, 355),
        ("90d", 21_600, 355),
        ("1y", 86_400, 360),
    ] {
        let answer = asked(&browser, &format!("/host/{host}/charts?range={range}")).await;
        assert_eq!(answer["step"], f64::from(step), "{range}");
        let cpu = values(&answer, "cpu", "busy");
        assert!(cpu.len() >= least && cpu.len() <= 368, "{range}: {} values", cpu.len());
        assert!(cpu.iter().all(|value| (value - 0.25).abs() < 1e-9), "{range}: {cpu:?}");
        assert!(values(&answer, "disk", "/").iter().all(|value| (value - 0.75).abs() < 1e-9), "{range}");
        // The counter began anew a quarter of an hour ago.
        let network = values(&answer, "network", "eth0 in");
        let steady = network.iter().filter(|rate| (**rate - 1_000.0).abs() < 1.0).count();
        assert!(steady + 3 >= network.len() && steady + 8 >= least, "{range}: {network:?}");
    }
    // A part of last week, and one of last year, of which there are hours alone.
    let part = |days: Millis, length_ms: Millis| {
        let from = (now - days * DAY_MS) / 1000;
        format!("/host/{host}/charts?range=1h&from={from}&to={}", from + length_ms / 1000)
    };
    for (days, length_ms, step, least) in [(5, HOUR_MS, 10.0, 300), (30, HOUR_MS, 300.0, 11), (300, DAY_MS, 300.0, 270)]
    {
        let answer = asked(&browser, &part(days, length_ms)).await;
        assert_eq!(answer["step"], step, "{days}");
        let cpu = values(&answer, "cpu", "busy");
        assert!(cpu.len() >= least, "{days}: {}", cpu.len());
    }
    let other = HostId::random();
    let nothing = asked(&browser, &format!("/host/{other}/charts?range=1h")).await;
    assert_eq!((nothing["charts"].as_array().unwrap().len(), nothing["marks"].as_array().unwrap().len()), (0, 0));
    for bad in ["range=2h", "from=x&to=5", "range=1h&to=NaN%20"] {
        assert_eq!(browser.get(&format!("/host/{host}/charts?{bad}")).await.status(), 400, "{bad}");
    }
}

#[tokio::test]
async fn alerts_and_newest_values_are_there() {
    let browser = Browser::new().await;
    let host = browser.fixture.member("shop-7").await.id;
    let shared = browser.fixture.shared();
    let now = now_ms();
    let mut one = samples::alert("shop-7", "disk /: 93 %", AlertStanding::Raised, 2).alert;
    (one.since_ms, one.at_ms) = (now - 60_000, now - 1_000);
    let mut db = shared.store.begin().await.unwrap();
    alert::put(&mut db, host, &one, now).await.unwrap();
    db.commit().await.unwrap();
    let tags =
        [("host", &*host.to_string()), ("hostname", "shop-7"), ("realm", "shop"), ("unit", "till"), ("kind", "yuno")];
    let point =
        |name: &str, field: &str, value: f64, ago_ms: Millis| Point::new(name, &tags, now - ago_ms).field(field, value);
    let points = [
        point("muster_unit_memory", "resident_bytes", 3.0 * 1024.0 * 1024.0, 5_000),
        point("muster_unit_memory", "limit_bytes", 6.0 * 1024.0 * 1024.0, 5_000),
        point("muster_yuno_requests", "total", 10.0, 15_000),
        point("muster_yuno_requests", "total", 30.0, 5_000),
        Point::new("muster_host_cpu", &tags[..2], now - 5_000).field("busy_ratio", 0.5),
    ];
    shared.measurements.series.append(&points).await.unwrap();

    let answer = asked(&browser, &format!("/host/{host}/charts?range=15m")).await;
    let mark = &answer["marks"][0];
    assert_eq!((mark["severity"].as_str(), mark["chart"].as_str()), (Some("critical"), Some("disk")));
    assert!(mark["to"].is_null() && mark["from"].as_f64().unwrap() > answer["from"].as_f64().unwrap());
    assert_eq!(answer["charts"].as_array().unwrap().len(), 1, "what belongs to units is not the host's: {answer}");

    let unit = format!("/host/{host}/unit/shop/till");
    let answer = asked(&browser, &format!("{unit}/charts")).await;
    assert!(answer["marks"].as_array().unwrap().is_empty(), "that alert is the host's");
    assert_eq!(values(&answer, "unit-memory", "limit"), [6.0 * 1024.0 * 1024.0]);
    assert_eq!(values(&answer, "muster_yuno_requests_total", "value"), [2.0]);
    let page = browser.page(&format!("/host/{host}?range=30d")).await;
    assert!(page.contains("50 %") && page.contains(&format!("data-charts=\"/host/{host}/charts\"")), "{page}");
    assert!(page.contains("data-range=\"30d\""), "{page}");
}

#[tokio::test]
async fn first_page_has_fleet_charts() {
    let browser = Browser::new().await;
    let empty = browser.page("/").await;
    assert!(empty.contains("No host has joined yet") && !empty.contains("data-charts"), "{empty}");
    let host = browser.fixture.member("shop-7").await.id;
    browser.fixture.member("shop-8").await;
    let shared = browser.fixture.shared();
    let now = now_ms();
    let tags = [("hostname", "shop-7")];
    shared.measurements.latest.note(
        host,
        &[
            Point::new("muster_host_cpu", &tags, now).field("busy_ratio", 0.875),
            Point::new("muster_host_memory", &tags, now).field("used_bytes", 1e9).field("total_bytes", 4e9),
            Point::new("muster_host_disk", &[tags[0], ("mount", "/srv")], now)
                .field("used_bytes", 93.0)
                .field("total_bytes", 100.0),
        ],
    );
    let page = browser.page("/").await;
    for wanted in [
        "Busiest processors",
        "88 %",
        "<code>/srv</code>",
        "93 %",
        "never connected",
        "data-charts=\"/charts\"",
        "/?range=1y",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    let part = browser.page("/?part=glance").await;
    assert!(part.contains("Busiest processors") && !part.contains("<html"), "{part}");
    let searched = browser.page("/?q=shop").await;
    assert!(!searched.contains("Busiest processors") && searched.contains("never connected"), "{searched}");
    let fleet = asked(&browser, "/charts?range=24h").await;
    assert!(fleet["charts"].as_array().unwrap().is_empty(), "nothing was recorded yet");
}
