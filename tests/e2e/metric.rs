//! Metrics: from the host to `muster metric query`.

use serde_json::Value;

use crate::fleet::{Fleet, eventually};

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
    for range in ["--since", "--range"] {
        let answer: Value = fleet.json(&["metric", "query", "muster_host_load_1m", range, "1h", "--step", "10s"]);
        assert_eq!(answer["series"][0]["labels"]["host"], host);
    }
    let csv = fleet.ok(&["metric", "query", "muster_host_memory_total_bytes", "--csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,series,value"));
    assert_eq!(lines.next().unwrap().rsplit_once(',').unwrap().1, total.to_string(), "{csv}");
    let table = fleet.ok(&["metric", "query", "count(muster_host_cpu_busy_ratio) + 1"]);
    assert!(table.contains(" 2 "), "{table}");
}

#[test]
fn a_selector_that_is_none_is_named() {
    let fleet = Fleet::start();
    for selector in ["", "{", "a{b=}", "a b", "rate(a)", "no_such_function(a)"] {
        let run = fleet.muster(&["metric", "query", selector]);
        assert!(run.code == 1 || run.code == 2, "{selector:?}: {run:?}");
        assert!(run.stderr.contains("error:"), "{selector:?}: {run:?}");
    }
    assert_eq!(fleet.json(&["metric", "query", "nothing_of_this_name"])["series"], serde_json::json!([]));
}
