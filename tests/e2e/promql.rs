//! Prometheus's HTTP API of the console, used as Grafana uses it.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually};

/// What speaks for Grafana: where the console is, and who asks.
pub(crate) struct Grafana {
    address: String,
    token: String,
}

impl Grafana {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        let file = fleet.home.path().join("config/muster/context.toml");
        let text = std::fs::read_to_string(file).unwrap();
        let found = |key: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim().strip_prefix('='));
            line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().trim_matches('"').to_owned()
        };
        let address = found("url").trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { address, token: found("token") }
    }

    /// Asks with a head and a body; gives the status and the JSON.
    pub(crate) fn send(&self, line: &str, authorization: &str, form: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = form.len();
        let head = format!(
            "{line} HTTP/1.0\r\nHost: {}\r\n{authorization}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(form.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{line}: {answer}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        let json = serde_json::from_str(body).unwrap_or_else(|error| panic!("{line}: {error}: {answer}"));
        (status, json)
    }

    fn basic(&self) -> String {
        format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("grafana:{}", self.token)))
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }

    /// By GET with basic authentication and by POST with a bearer's: the same answer.
    fn ask(&self, path: &str, params: &[(&str, &str)]) -> (u16, Value) {
        let form = encoded(params);
        let (status, answer) = self.send(&format!("GET /prometheus/api/v1/{path}?{form}"), &self.basic(), "");
        if path.contains("query") || path == "series" || path == "labels" {
            let (posted, other) = self.send(&format!("POST /prometheus/api/v1/{path}"), &self.bearer(), &form);
            assert_eq!((status, &answer["error"]), (posted, &other["error"]), "{path} {params:?}");
        }
        (status, answer)
    }

    /// The data of an answer that must be one.
    fn data(&self, path: &str, params: &[(&str, &str)]) -> Value {
        let (status, mut answer) = self.ask(path, params);
        assert_eq!((status, &answer["status"]), (200, &json!("success")), "{path} {params:?}: {answer}");
        answer["data"].take()
    }
}

fn encoded(params: &[(&str, &str)]) -> String {
    let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let pairs: Vec<String> = params.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    pairs.join("&")
}

#[test]
fn grafana_gets_prometheus_answers() {
    let fleet = Fleet::start();
    let host = fleet.host();
    let grafana = Grafana::new(&fleet);
    let total = eventually("a measurement", || {
        let data = grafana.data("query", &[("query", "muster_host_memory_total_bytes")]);
        let found = data["result"][0]["value"][1].as_str().map(|value| value.parse::<f64>().unwrap());
        found.ok_or_else(|| data.to_string())
    });
    assert!(total > 1e6);

    // What a data source asks when it is saved, and what its variables ask.
    assert_eq!(grafana.data("status/buildinfo", &[])["version"], "2.42.0");
    let names = grafana.data("label/__name__/values", &[]);
    assert!(names.as_array().unwrap().contains(&json!("muster_host_memory_total_bytes")), "{names}");
    let one = [("match[]", "muster_host_memory_total_bytes")];
    assert_eq!(grafana.data("label/host/values", &one), json!([host]));
    assert_eq!(grafana.data("label/host/values", &[("match[]", "nothing_of_this_name")]), json!([]));
    let labels = grafana.data("labels", &[("start", "0"), ("end", "2000000000")]);
    assert!(labels.as_array().unwrap().contains(&json!("host")), "{labels}");
    assert!(grafana.data("labels", &one).as_array().unwrap().contains(&json!("__name__")));
    let series = grafana.data("series", &one);
    assert_eq!(series[0]["__name__"], "muster_host_memory_total_bytes", "{series}");
    assert_eq!(grafana.data("metadata", &[("metric", "muster_host_memory_total_bytes")]).as_object().unwrap().len(), 1);

    // What its panels ask.
    let scalar = grafana.data("query", &[("query", "1 + 1"), ("time", "1700000000.5")]);
    assert_eq!(scalar, json!({ "resultType": "scalar", "result": [1_700_000_000.5, "2"] }));
    let sum = grafana.data("query", &[("query", "sum by (host) (muster_host_memory_total_bytes) / 2")]);
    assert_eq!(sum["resultType"], "vector");
    assert_eq!(sum["result"][0]["metric"], json!({ "host": host }));
    assert_eq!(sum["result"][0]["value"][1].as_str().unwrap().parse::<f64>().unwrap(), total / 2.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (start, end) = ((now - 600).to_string(), (now + 60).to_string());
    let params = [("query", "muster_host_memory_total_bytes"), ("start", &start), ("end", &end), ("step", "15s")];
    let range = grafana.data("query_range", &params);
    assert_eq!(range["resultType"], "matrix");
    let values = range["result"][0]["values"].as_array().unwrap();
    assert!(!values.is_empty() && values.iter().all(|pair| pair[1].as_str().unwrap().parse::<f64>().unwrap() == total));
}

#[test]
fn unsupported_queries_have_clear_errors() {
    let fleet = Fleet::start();
    let grafana = Grafana::new(&fleet);
    for (path, params, status, kind, words) in [
        ("query", &[("query", "sum(")][..], 400, "bad_data", "invalid query"),
        ("query", &[], 400, "bad_data", "\"query\""),
        ("query", &[("query", "holt_winters(up[5m], 0.1, 0.1)")], 400, "bad_data", "holt_winters"),
        ("query", &[("query", "up"), ("time", "yesterday")], 400, "bad_data", "yesterday"),
        ("query", &[("query", "topk(NaN, up)")], 422, "execution", "NaN"),
        ("query_range", &[("query", "up"), ("start", "0"), ("end", "10")], 400, "bad_data", "step"),
        ("query_range", &[("query", "up"), ("start", "0"), ("end", "10"), ("step", "0")], 400, "bad_data", "step"),
        ("query_range", &[("query", "up"), ("start", "10"), ("end", "0"), ("step", "1")], 400, "bad_data", "end"),
        ("query_range", &[("query", "up"), ("start", "0"), ("end", "1e6"), ("step", "1")], 400, "bad_data", "11000"),
        ("query_range", &[("query", "up[5m]"), ("start", "0"), ("end", "1"), ("step", "1")], 400, "bad_data", "range"),
        ("query", &[("query", "up"), ("timeout", "0")], 503, "timeout", "too long"),
        ("series", &[], 400, "bad_data", "match[]"),
        ("series", &[("match[]", "{}")], 400, "bad_data", "match[]"),
        ("series", &[("match[]", "rate(up[5m])")], 400, "bad_data", "plain selector"),
        ("label/a-b/values", &[], 400, "bad_data", "a-b"),
        ("nowhere", &[], 404, "not_found", "query_range"),
    ] {
        let (got, answer) = grafana.ask(path, params);
        assert_eq!((got, answer["errorType"].as_str()), (status, Some(kind)), "{path} {params:?}: {answer}");
        assert_eq!(answer["status"], "error");
        assert!(answer["error"].as_str().unwrap().contains(words), "{path} {params:?}: {answer}");
    }
    for authorization in ["", "Authorization: Bearer nobody\r\n", "Authorization: Basic !\r\n"] {
        let (status, answer) = grafana.send("GET /prometheus/api/v1/query?query=1", authorization, "");
        assert_eq!((status, &answer["errorType"]), (401, &json!("unauthorized")), "{authorization}");
    }
}
