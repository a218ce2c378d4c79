use muster_topics::{
    V1,
    alert::{Alert, AlertState, Metric, Severity},
    diagnostic::Diagnostic,
    name::HostId,
};

use super::*;

fn alert(standing: AlertStanding) -> muster_api::Alert {
    muster_api::Alert {
        host: HostId::random(),
        hostname: "till-7".to_owned(),
        standing,
        ended_ms: (standing != AlertStanding::Raised).then_some(1_700_000_060_000),
        received_ms: 1_700_000_001_000,
        silence: None,
        alert: Alert {
            v: V1,
            epoch: 1,
            seq: 1,
            id: "disk-1".parse().unwrap(),
            rule: "disk".parse().unwrap(),
            severity: Severity::Warning,
            unit: None,
            mount: Some("/".to_owned()),
            metric: Metric::DiskUsed,
            value: 0.93,
            threshold: 0.9,
            clear: 0.85,
            since_ms: 1_700_000_000_000,
            at_ms: 1_700_000_050_000,
            state: AlertState::Raised,
            diagnostic: Diagnostic::new("file system / used: 93 %"),
        },
    }
}

#[test]
fn alertmanager_gets_its_own_format() {
    let one = alert(AlertStanding::Raised);
    let body = alertmanager_body(&one, 1_700_000_240_000, "http://console");
    assert_eq!(body["labels"]["alertname"], "disk");
    assert_eq!((&body["labels"]["severity"], &body["labels"]["mount"]), (&json!("warning"), &json!("/")));
    assert_eq!((&body["startsAt"], &body["endsAt"]), (&json!("2023-11-14T22:13:20Z"), &json!("2023-11-14T22:17:20Z")));
    let link = format!("http://console/alerts#alert-{}-disk-1-1700000000000", one.host);
    assert_eq!(body["generatorURL"], link);
    // The same labels when it is over, or Alertmanager takes it for another one.
    let over = muster_api::Alert { standing: AlertStanding::Cleared, ..one };
    let over = alertmanager_body(&over, 0, "http://console");
    assert_eq!((&over["labels"], &over["endsAt"]), (&body["labels"], &json!("2023-11-14T22:13:20.001Z")));
    assert!(body["labels"].as_object().unwrap().values().all(Value::is_string));
}

#[test]
fn signature_covers_time_and_body() {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    // printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
    let wanted = "sha256=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163";
    assert_eq!(signature(&key, "1700000000", "{}"), wanted);
    assert_ne!(signature(&key, "1700000001", "{}"), wanted);
}

#[test]
fn invalid_outlet_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let config = |url: &str| OutletConfig {
        kind: OutletKind::Webhook,
        url: url.to_owned(),
        secret_file: None,
        authority_file: None,
        proxy: None,
        tasks: false,
    };
    let good = config("http://example.org/hook");
    let secret = OutletConfig { secret_file: path("secret", "s3cret\n"), ..good.clone() };
    assert!(AlertOutlet::open(&good).is_ok() && AlertOutlet::open(&secret).unwrap().key.is_some());
    for (config, words) in [
        (config("example.org"), "not a URL"),
        (config("https://u:hunter2@example.org"), "`secret_file`"),
        (config("u:hunter2@example.org/hook"), "`secret_file`"),
        (config("ftp://example.org"), "http"),
        (config("https://example.org"), "authority_file"),
        (OutletConfig { secret_file: Some(dir.path().join("none")), ..good.clone() }, "none"),
        (OutletConfig { secret_file: path("empty", "\n"), ..good.clone() }, "empty"),
        (OutletConfig { authority_file: path("no.pem", "x"), ..good.clone() }, "authority"),
        (OutletConfig { kind: OutletKind::Alertmanager, tasks: true, ..good.clone() }, "only a webhook"),
        (OutletConfig { proxy: Some("socks5://p".to_owned()), ..good }, "http://HOST:PORT"),
    ] {
        let error = Diagnostic::of(&AlertOutlet::open(&config).unwrap_err()).to_string();
        assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
    }
}
