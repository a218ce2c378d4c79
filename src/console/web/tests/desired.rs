//! Tests of what pages do with deployments, cordons and variables.

use muster_api::{ApplyDeployments, ApplyDocument, Labels};
use muster_base::clock::now_ms;
use muster_topics::{
    V1,
    desired::{DesiredHead, DesiredMark, DesiredReport, HandedIn, StoredDocument, UnitOwner},
    envelope::Envelope,
    name::{Digest, HostId},
    unit::{Observed, UnitReport},
};
use reqwest::StatusCode;
use serde_json::json;

use super::flow::{Browser, location};
use crate::{store, testing::admin, web::view::samples};

/// A browser, and a host that carries a deployment of `shop/till`.
async fn with_deployment() -> (Browser, HostId) {
    let browser = Browser::new().await;
    let (fixture, console) = (&browser.fixture, &browser.fixture.console);
    console.create_realm(&admin(), serde_json::from_value(json!({"name": "shop"})).unwrap()).await.unwrap();
    let labels = Labels { role: "till".parse().unwrap(), version: "1".parse().unwrap(), manifest: None };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(b"till".to_vec())]);
    console.add_artifact(&admin(), labels, body).await.unwrap();
    let host = fixture.member("shop-7").await.id;
    fixture.shared().hosts.desired.heard(host, DesiredReport::default(), None, now_ms());
    let content = json!({
        "deployment": "shop/tills", "target": {"select": "host=*"}, "units": [{"name": "till", "artifact": "till@1"}],
    });
    let documents = vec![ApplyDocument { source: "till.yaml".to_owned(), content }];
    console.apply_deployments(&admin(), ApplyDeployments { documents, ..Default::default() }).await.unwrap();
    (browser, host)
}

/// The host reports the unit, with an owner or without one.
async fn report(browser: &Browser, host: HostId, owner: Option<UnitOwner>) {
    let sample = samples::unit("", 0);
    let report = UnitReport {
        v: V1,
        epoch: 1,
        seq: u64::try_from(now_ms()).unwrap(),
        at_ms: 1,
        unit: "shop/till".parse().unwrap(),
        desired: sample.desired,
        observed: Observed::absent(1),
        hold: None,
        owner,
        pins: sample.pins,
        stats: None,
    };
    let mut transaction = browser.fixture.shared().store.begin().await.unwrap();
    store::host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Sends a form that succeeds, and returns where it leads.
async fn send(browser: &Browser, form: &str, fields: &[(&str, &str)]) -> String {
    let token = browser.token().await;
    let fields: Vec<(&str, &str)> = [("csrf", token.as_str())].into_iter().chain(fields.iter().copied()).collect();
    let answer = browser.post(form, &fields, &[]).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{form}");
    location(&answer).to_owned()
}

async fn refused(browser: &Browser, form: &str, fields: &[(&str, &str)]) -> (StatusCode, String) {
    let token = browser.token().await;
    let fields: Vec<(&str, &str)> = [("csrf", token.as_str())].into_iter().chain(fields.iter().copied()).collect();
    let answer = browser.post(form, &fields, &[]).await;
    (answer.status(), answer.text().await.unwrap())
}

#[tokio::test]
async fn host_is_cordoned_drained_and_opened_on_its_page() {
    let (browser, host) = with_deployment().await;
    let (page, form) = (format!("/host/{host}"), format!("/host/{host}/cordon"));
    assert!(browser.page(&page).await.contains(">Cordon</button>"));
    assert_eq!(send(&browser, &form, &[("cordon", "cordoned")]).await, page);
    let shown = browser.page(&page).await;
    assert!(shown.contains(">cordoned</span> by admin") && shown.contains(">Uncordon</button>"), "{shown}");
    assert!(browser.page("/deployments").await.contains("Hosts that get no new deployments"));
    assert!(browser.page("/").await.contains(">cordoned</span>"));
    // What draining removes is shown before.
    let asked = browser.page(&format!("{page}/drain")).await;
    assert!(asked.contains("shop/tills</a>: <code>shop/till</code>"), "{asked}");
    send(&browser, &form, &[("cordon", "drained")]).await;
    assert!(browser.page(&page).await.contains(">draining, 1 unit to go</span>"));
    assert!(browser.page(&format!("{page}/drain")).await.contains("It carries no deployment"));
    send(&browser, &form, &[("cordon", "open")]).await;
    assert!(!browser.page(&page).await.contains("by admin"));
    assert_eq!(refused(&browser, &form, &[("cordon", "shut")]).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn unit_is_detached_and_adopted_on_its_page() {
    let (browser, host) = with_deployment().await;
    let page = format!("/host/{host}/unit/shop/till");
    let owner = UnitOwner { deployment: "shop/tills".parse().unwrap(), version: 1, orphan: false };
    report(&browser, host, Some(owner)).await;
    // What its deployment would not let happen is not offered.
    let owned = browser.page(&page).await;
    for form in ["start", "stop", "label", "upgrade", "retire", "remove"] {
        assert!(!owned.contains(&format!("{page}/{form}\"")), "{form}");
    }
    for form in ["restart", "hold", "signal", "detach", "freeze"] {
        assert!(owned.contains(&format!("{page}/{form}\"")), "{form}");
    }
    assert!(owned.contains("href=\"/deployment/shop/tills\""));
    assert_eq!(send(&browser, &format!("{page}/detach"), &[]).await, page);
    // The host has yet to say so.
    let detached = browser.page(&page).await;
    assert!(detached.contains(&format!("{page}/start\"")) && detached.contains("It was taken out of the deployment"));
    assert_eq!(send(&browser, &format!("{page}/adopt"), &[]).await, page);
    assert!(!browser.page(&page).await.contains("It was taken out of"));

    // The same for several hosts, on the page of the deployment.
    let form = "/deployment/shop/tills/unit";
    let fields = |hosts, select, what| [("unit", "shop/till"), ("hosts", hosts), ("select", select), ("do", what)];
    assert_eq!(send(&browser, form, &fields("shop-7", "", "detach")).await, "/deployment/shop/tills");
    assert!(browser.page(&page).await.contains("It was taken out of the deployment"));
    send(&browser, form, &fields("", "host=shop-7", "adopt")).await;
    assert!(!browser.page(&page).await.contains("It was taken out of"));
    for wrong in [
        fields("", "", "adopt"),
        fields("shop-7", "host=*", "adopt"),
        fields("", "host=", "adopt"),
        fields("shop-7", "", "keep"),
    ] {
        assert_eq!(refused(&browser, form, &wrong).await.0, StatusCode::BAD_REQUEST, "{wrong:?}");
    }
    let (status, text) = refused(&browser, form, &fields("nobody", "", "adopt")).await;
    assert!(status == StatusCode::NOT_FOUND && text.contains("nobody"), "{status}");
}

#[tokio::test]
async fn variable_is_set_and_removed_on_its_page() {
    let browser = Browser::new().await;
    let host = browser.fixture.member("shop-7").await.id;
    assert!(browser.page("/vars").await.contains("There are no variables."));
    let fields =
        |kind, of, value, json| [("name", "limit"), ("kind", kind), ("of", of), ("value", value), ("json", json)];
    assert_eq!(send(&browser, "/vars", &fields("fleet", "", "text", "")).await, "/vars");
    send(&browser, "/vars", &fields("host", "shop-7", "[1]", "yes")).await;
    let shown = browser.page("/vars").await;
    assert!(shown.contains("<code>[1]</code>") && shown.contains(&format!("host <a href=\"/host/{host}\">shop-7</a>")));
    assert!(!browser.page("/vars?q=SHOP-7").await.contains("<code>text</code>"));
    for wrong in [fields("fleet", "shop", "x", ""), fields("label", "site", "x", ""), fields("fleet", "", "{", "yes")] {
        let (status, text) = refused(&browser, "/vars", &wrong).await;
        // What was typed is still there.
        assert!(status == StatusCode::BAD_REQUEST && text.contains("value=\"limit\""), "{wrong:?}: {text}");
    }
    let layer = format!("host:{host}");
    send(&browser, "/vars/remove", &[("layer", &layer), ("name", "limit")]).await;
    assert!(!browser.page("/vars").await.contains("<code>[1]</code>"));
    let (status, _) = refused(&browser, "/vars/remove", &[("layer", &layer), ("name", "limit")]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn hosts_are_confirmed_as_the_page_has_shown() {
    let (browser, host) = with_deployment().await;
    assert!(browser.page("/deployments/confirm").await.contains("No host waits for confirmation."));
    // The host has a document of a console that was lost.
    let shared = browser.fixture.shared();
    let (body, mark) = ("{\"v\":1}".to_owned(), DesiredMark { epoch: 1, generation: 5 });
    let digest = Digest::of(body.as_bytes());
    let head =
        DesiredHead { v: V1, host, mark, issued_ms: now_ms(), digest: digest.clone(), size_bytes: body.len() as u64 };
    let signed = shared.authority.keys().signer.sign(host.slot(), &head).await.unwrap();
    let head: Envelope = serde_json::from_slice(&signed).unwrap();
    let heard = DesiredReport { mark, digest: Some(digest), ..DesiredReport::default() };
    shared.hosts.desired.heard(host, heard, None, now_ms());
    assert!(browser.page("/deployments").await.contains("href=\"/deployments/confirm\""));
    assert!(browser.page("/deployments/confirm").await.contains("Not sent yet"));
    let handed_in = HandedIn { v: V1, document: Some(StoredDocument { head, body }), labels: None };
    browser.fixture.console.hand_in(host, &handed_in).await.unwrap();
    let page = browser.page("/deployments/confirm").await;
    assert!(page.contains("the hosts get it"), "{page}");
    let shown = page.split_once("name=\"shown\" value=\"").unwrap().1.split_once('"').unwrap().0.to_owned();
    let (status, text) = refused(&browser, "/deployments/confirm", &[("replace", ""), ("shown", "0")]).await;
    assert!(status == StatusCode::CONFLICT && text.contains("since the page was loaded"), "{status}");
    let other = [("replace", "yes"), ("shown", shown.as_str())];
    assert_eq!(send(&browser, "/deployments/confirm", &other).await, "/deployments");
    assert!(browser.page("/deployments/confirm").await.contains("No host waits for confirmation."));
}
