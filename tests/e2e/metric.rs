//! Metrics: from the host to `muster metric query`.

use std::{fs, time::Duration};

use muster_topics::metric;
use serde_json::Value;

use crate::{
    fleet::{Fleet, Running, eventually},
    roles::Roles,
};

fn last(fleet: &Fleet, selector: &str) -> f64 {
    eventually(selector, || {
        let answer = fleet.json(&["metric", "query", selector]);
        let point = &answer["series"][0]["points"][0];
        point[1].as_f64().ok_or_else(|| answer.to_string())
    })
}

#[test]
fn host_and_yuno_are_measured() {
    let fleet = Fleet::start_with(&[]);
    let host = fleet.host();
    fleet.unit_in_phase("default/hello", "running");
    let busy = last(&fleet, "muster_host_cpu_busy_ratio");
    assert!((0.0..=1.0).contains(&busy), "{busy}");
    let total = last(&fleet, &format!("muster_host_memory_total_bytes{{host=\"{host}\"}}"));
    let used = last(&fleet, "muster_host_memory_used_bytes");
    assert!(0.0 < used && used < total, "{used} of {total}");
    let resident = last(&fleet, "muster_unit_memory_resident_bytes{realm=\"default\",unit=\"hello\"}");
    assert!(resident > 100_000.0, "{resident}");
    for range in [&["--since", "1h"][..], &["--since", "2h", "--until", "0s"]] {
        let query = ["metric", "query", "muster_host_load_1m", "--step", "10s"];
        let answer: Value = fleet.json(&[&query[..], range].concat());
        assert_eq!(answer["series"][0]["labels"]["host"], host);
    }
    let csv = fleet.ok(&["metric", "query", "muster_host_memory_total_bytes", "--csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,series,value"));
    assert_eq!(lines.next().unwrap().rsplit_once(',').unwrap().1, total.to_string(), "{csv}");
    let table = fleet.ok(&["metric", "query", "count(muster_host_cpu_busy_ratio) + 1"]);
    assert!(table.contains(" 2 "), "{table}");
}

/// The times of all values of a series, the oldest first.
fn times(roles: &Roles, series: &str) -> Vec<i64> {
    let exported = roles.home.muster(&["metric", "export", series, "--csv"]).expect_code(0).stdout;
    let time = |line: &str| line.rsplit(',').nth(1).and_then(|time| time.parse().ok());
    let mut times: Vec<i64> = exported.lines().filter_map(time).collect();
    times.sort_unstable();
    times
}

#[test]
fn measurements_during_outage_arrive_without_gap() {
    let mut roles = Roles::start();
    let data = roles.home.path().join("agent");
    let config = roles.home.path().join("often.toml");
    let text = format!("data_dir = \"{}\"\n[metrics]\nsample_ms = 200\n", data.display());
    fs::write(&config, text).unwrap();
    let join = format!("--join={}", roles.token());
    let agent = Running::start(roles.home.command().args(["agent", "--config", config.to_str().unwrap(), &join]));
    roles.wait_for_host("online");
    let series = "muster_host_load_1m";
    eventually("a first batch", || (times(&roles, series).len() > 2).then_some(()).ok_or("none yet".to_owned()));

    roles.kill_broker();
    let pool = data.join("agent.db");
    let waiting = eventually("batches that wait", || {
        let waiting = batches(&pool);
        if waiting.len() >= 12 { Ok(waiting) } else { Err(format!("{} wait", waiting.len())) }
    });
    roles.revive_broker();
    let (first_ms, last_ms) = (waiting[0], waiting[waiting.len() - 1]);
    let arrived = eventually("all of them", || {
        let arrived: Vec<i64> =
            times(&roles, series).into_iter().filter(|ms| (first_ms..=last_ms).contains(ms)).collect();
        if waiting.iter().all(|ms| arrived.contains(ms)) {
            Ok(arrived)
        } else {
            Err(format!("{arrived:?} of {waiting:?}"))
        }
    });
    assert_eq!(arrived, waiting, "each once, with its own time");
    eventually("nothing that waits", || {
        let waiting = batches(&pool).len();
        // One may have come just now.
        if waiting <= 1 { Ok(()) } else { Err(format!("{waiting} wait")) }
    });
    agent.kill();
}

/// The times of the loads in batches that wait in an agent's store, the oldest first.
fn batches(store: &std::path::Path) -> Vec<i64> {
    use sqlx::Row;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(store).read_only(true);
        let options = options.busy_timeout(Duration::from_secs(5));
        let mut store = sqlx::ConnectOptions::connect(&options).await.unwrap();
        let rows =
            sqlx::query("SELECT payload FROM metric_batch ORDER BY epoch, seq").fetch_all(&mut store).await.unwrap();
        let points = rows.iter().flat_map(|row| metric::decode(row.get("payload")).unwrap().1);
        let mut times: Vec<i64> =
            points.filter(|point| point.measurement == "muster_host_load").map(|point| point.at_ms).collect();
        times.sort_unstable();
        times
    })
}

#[test]
fn invalid_selector_is_refused() {
    let fleet = Fleet::start();
    for selector in ["", "{", "a{b=}", "a b", "rate(a)", "no_such_function(a)"] {
        let run = fleet.muster(&["metric", "query", selector]);
        assert!(run.code == 1 || run.code == 2, "{selector:?}: {run:?}");
        assert!(run.stderr.contains("error:"), "{selector:?}: {run:?}");
    }
    assert_eq!(fleet.json(&["metric", "query", "nothing_of_this_name"])["series"], serde_json::json!([]));
}
