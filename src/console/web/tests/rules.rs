//! Tests of alert rules, from the form to the console and back.

use reqwest::StatusCode;

use super::flow::{Browser, location};

#[tokio::test]
async fn a_rule_is_set_changed_and_removed() {
    let browser = Browser::new().await;
    let host = browser.fixture.member("shop-7").await.id.to_string();
    let token = browser.token().await;
    let listed = browser.page("/alerts").await;
    assert!(
        listed.contains("/alerts/rule?name=disk-full") && !listed.contains("\"From\">console"),
        "agents' own: {listed}"
    );
    let filled = browser.page("/alerts/rule?name=disk").await;
    assert!(filled.contains("value=\"90%\"") && filled.contains("value=\"5m\""), "as agents have it: {filled}");
    assert!(!filled.contains("readonly"), "{filled}");

    let fields = [
        ("csrf", token.as_str()),
        ("name", "disk"),
        ("host", ""),
        ("metric", "disk_used"),
        ("of", ""),
        ("threshold", "80%"),
        ("clear", "75%"),
        ("lasting", "10m"),
        ("severity", "critical"),
    ];
    let with = |changes: &[(&'static str, &'static str)]| {
        let value =
            |key: &str, was| changes.iter().find(|(changed, _)| *changed == key).map_or(was, |(_, value)| *value);
        fields.map(|(key, was)| (key, value(key, was)))
    };
    let answer = browser.post("/alerts/rule", &fields, &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/alerts#rules"));
    let answer = browser.post("/alerts/rule", &with(&[("host", "shop-7"), ("threshold", "95%")]), &[]).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    let rules = browser.fixture.console.alert_rules().await.unwrap();
    assert_eq!(rules.len(), 2);
    assert!(rules.iter().any(|one| one.host.is_none() && one.rule.threshold == 0.8 && one.rule.for_ms == 600_000));
    let listed = browser.page("/alerts").await;
    assert_eq!(listed.matches("\"From\">console").count(), 2, "{listed}");
    assert!(listed.contains(">shop-7</a>") && !listed.contains(&format!(">{host}<")), "by its name: {listed}");
    let changed = browser.page(&format!("/alerts/rule?name=disk&host={host}")).await;
    assert!(changed.contains("value=\"95%\"") && changed.contains("readonly"), "{changed}");

    // What is wrong is told beside its field, with the form as it was.
    for (field, value, words) in [
        ("name", "No Name", "id=\"about-name\"><strong class=\"why\">"),
        ("host", "nobody", "id=\"about-host\"><strong class=\"why\">no host has the id"),
        ("threshold", "much", "id=\"about-threshold\"><strong class=\"why\">&quot;much&quot; is not a level"),
        ("clear", "85%", "id=\"about-clear\"><strong class=\"why\">its clear level"),
        (
            "threshold",
            "80",
            "id=\"about-threshold\"><strong class=\"why\">its threshold is 80, and disk_used is a share",
        ),
        ("lasting", "long", "id=\"about-lasting\"><strong class=\"why\">"),
        ("metric", "weather", "id=\"about-metric\"><strong class=\"why\">"),
        ("severity", "bad", "id=\"about-severity\"><strong class=\"why\">"),
    ] {
        let answer = browser.post("/alerts/rule", &with(&[(field, value)]), &[]).await;
        assert!(answer.status().is_client_error(), "{field}: {}", answer.status());
        let text = answer.text().await.unwrap();
        assert!(text.contains(words) && text.contains("value=\"10m\"") | (field == "lasting"), "{field}: {text}");
    }
    let wrong = with(&[("metric", "cpu_busy"), ("of", "/")]);
    let text = browser.post("/alerts/rule", &wrong, &[]).await.text().await.unwrap();
    assert!(text.contains("id=\"about-of\"><strong class=\"why\">"), "{text}");
    assert_eq!(browser.fixture.console.alert_rules().await.unwrap(), rules, "nothing was set");

    let without = [("name", "disk"), ("metric", "disk_used"), ("threshold", "80%"), ("severity", "info")];
    assert_eq!(browser.post("/alerts/rule", &without, &[]).await.status(), StatusCode::FORBIDDEN, "no token");
    let removal = [("csrf", token.as_str()), ("name", "disk"), ("host", host.as_str())];
    let answer = browser.post("/alerts/rule/remove", &removal, &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/alerts#rules"));
    assert_eq!(browser.post("/alerts/rule/remove", &removal, &[]).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(browser.fixture.console.alert_rules().await.unwrap().len(), 1);
    assert_eq!(browser.get("/alerts/rule?name=disk&host=nobody").await.status(), StatusCode::NOT_FOUND);
    assert!(browser.page("/alerts/rule").await.contains("Set the rule"));
}
