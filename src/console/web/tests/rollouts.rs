//! Tests of the pages of rollouts, with a host that is played here.

use std::time::Duration;

use muster_topics::{
    V1,
    ack::Numbered,
    admission::{AdmissionReport, AdmissionStage, ChangeOutcome},
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{Digest, HostId},
};
use reqwest::StatusCode;
use serde_json::json;

use super::flow::{Browser, location};

/// A host that reports on its rollout.
struct Played {
    host: HostId,
    deployment: DeploymentName,
    digest: Digest,
    seq: u64,
}

impl Played {
    fn say(&mut self, browser: &Browser, stage: AdmissionStage) {
        self.seq += 1;
        let number = Numbered { epoch: 1, seq: self.seq };
        let (deployment, digest) = (self.deployment.clone(), self.digest.clone());
        let report = AdmissionReport { v: V1, number, at_ms: 1, deployment, version: 1, digest, stage };
        assert!(browser.fixture.shared().hosts.rollouts.heard(self.host, report));
    }
}

impl Browser {
    /// Loads a page until it has these words.
    async fn see(&self, path: &str, words: &str) -> String {
        let mut page = String::new();
        for _ in 0..100 {
            page = self.page(path).await;
            if page.contains(words) {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{path}: {words:?} is not in {page}");
    }

    async fn act(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, String) {
        let token = self.token().await;
        let fields: Vec<(&str, &str)> = [("csrf", token.as_str())].into_iter().chain(fields.iter().copied()).collect();
        let answer = self.post(path, &fields, &[]).await;
        let (status, place) = (answer.status(), location(&answer).to_owned());
        (status, if status == StatusCode::SEE_OTHER { place } else { answer.text().await.unwrap() })
    }
}

const PAGE: &str = "/rollout/default/till";

async fn rolled_out() -> (Browser, Played) {
    let browser = Browser::new().await;
    let host = browser.fixture.asking_member("till-7").await.id;
    let policy = json!({"soak": "0s", "max_failures": 1});
    browser.fixture.roll_out_container("default/till", "host=*", "till", Some(policy)).await;
    let deployment: DeploymentName = "default/till".parse().unwrap();
    let digest = browser.fixture.console.deployment_history(&deployment).await.unwrap()[0].digest.clone();
    (browser, Played { host, deployment, digest, seq: 0 })
}

#[tokio::test]
async fn rollout_is_paused_and_cancelled_on_its_pages() {
    let (browser, played) = rolled_out().await;
    let list = browser.page("/rollouts").await;
    assert!(list.contains(&format!("<a href=\"{PAGE}\">default/till</a>")) && list.contains(">running<"), "{list}");
    for page in ["/deployment/default/till".to_owned(), format!("/host/{}", played.host)] {
        browser.see(&page, &format!("<a href=\"{PAGE}\">")).await;
    }
    let page = browser.page(PAGE).await;
    assert!(page.contains("Pause…") && page.contains("Cancel…") && !page.contains("Resume…"), "{page}");
    assert!(!page.contains("Cancel and roll back…"), "there is no version to go back to: {page}");

    // What is not possible has no button, and is refused.
    let resume = browser.page(&format!("{PAGE}/resume")).await;
    assert!(resume.contains("does not allow that") && !resume.contains("<button class=\"primary\""), "{resume}");
    assert_eq!(browser.act(&format!("{PAGE}/resume"), &[("version", "1")]).await.0, StatusCode::CONFLICT);

    let pause = format!("{PAGE}/pause");
    assert!(browser.page(&pause).await.contains("No further host begins"));
    assert_eq!(
        browser.post(&pause, &[("version", "1")], &[]).await.status(),
        StatusCode::FORBIDDEN,
        "without its token"
    );
    assert_eq!(browser.act(&pause, &[("version", "")]).await.0, StatusCode::BAD_REQUEST);
    let (status, other) = browser.act(&pause, &[("version", "2")]).await;
    assert!(status == StatusCode::CONFLICT && other.contains("version 2"), "{other}");
    assert!(browser.page(PAGE).await.contains("Pause…"), "nothing was changed");
    assert_eq!(browser.act(&pause, &[("version", "1")]).await, (StatusCode::SEE_OTHER, PAGE.to_owned()));
    let page = browser.page(PAGE).await;
    assert!(page.contains("admin has paused it") && page.contains("Resume…") && !page.contains("Pause…"), "{page}");

    let (status, _) = browser.act(&format!("{PAGE}/cancel"), &[("version", "1")]).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    let page = browser.page(PAGE).await;
    assert!(page.contains(">cancelled<") && !page.contains("Cancel…"), "{page}");
    for path in ["/rollout/default/none", "/rollout/default/till/dance", "/rollout/default/till?version=7"] {
        assert_eq!(browser.get(path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn failed_host_is_found_and_released_on_its_page() {
    let (browser, mut played) = rolled_out().await;
    let release = format!("{PAGE}/release?host={}", played.host);
    let shown = browser.page(&release).await;
    assert!(!shown.contains("<button class=\"primary\""), "it is not unavailable: {shown}");
    played.say(&browser, AdmissionStage::Asks);
    browser.see(&format!("{PAGE}?wave=1"), "till-7").await;
    played.say(&browser, AdmissionStage::Begun { permit: 1 });
    browser.see(&format!("{PAGE}?waits=changing"), "till-7").await;
    let diagnostic = Some(Diagnostic::new("unit default/till: <b>exit code 3</b>"));
    let (permit, outcome) = (Some(1), ChangeOutcome::Failed);
    played.say(&browser, AdmissionStage::Ended { permit, outcome, changed: true, diagnostic });
    let page = browser.see(&format!("{PAGE}?outcome=failed"), "Release…").await;
    assert!(page.contains("unit default/till: &lt;b&gt;exit code 3") && page.contains(">unavailable<"), "{page}");
    let page = browser.page(&format!("{PAGE}?outcome=verified")).await;
    assert!(page.contains("No host matches."), "{page}");
    // A region alone knows the same.
    let part = browser.page(&format!("{PAGE}?outcome=failed&part=hosts")).await;
    assert!(part.contains("Release…") && !part.contains("<h1"), "{part}");

    assert!(browser.page(&release).await.contains("counts as available again"));
    let host = played.host.to_string();
    let done = browser.act(&format!("{PAGE}/release"), &[("host", &host)]).await;
    assert_eq!(done, (StatusCode::SEE_OTHER, PAGE.to_owned()));
    let page = browser.page(PAGE).await;
    assert!(!page.contains("Release…") && page.contains("till-7 counts as available"), "{page}");
    assert_eq!(browser.act(&format!("{PAGE}/release"), &[("host", &host)]).await.0, StatusCode::CONFLICT);
    let stranger = format!("{PAGE}/release?host={}", HostId::random());
    assert_eq!(browser.get(&stranger).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn earlier_rollout_is_shown_with_its_hosts() {
    let (browser, mut played) = rolled_out().await;
    played.say(&browser, AdmissionStage::Asks);
    browser.see(&format!("{PAGE}?wave=1"), "till-7").await;
    played.say(&browser, AdmissionStage::Begun { permit: 1 });
    let (permit, outcome) = (Some(1), ChangeOutcome::Verified);
    played.say(&browser, AdmissionStage::Ended { permit, outcome, changed: true, diagnostic: None });
    browser.see(PAGE, ">completed<").await;
    browser.fixture.roll_out_container("default/till", "host=*", "scanner", Some(json!({}))).await;
    let page = browser.page(PAGE).await;
    assert!(page.contains("Rollout of default/till, version 2") && !page.contains("an earlier rollout"), "{page}");
    let (_, history) = page.split_once("Rollouts of this deployment").unwrap();
    let (_, first) = history.split_once(&format!("{PAGE}?version=1")).unwrap();
    assert!(first.contains(">completed<") && first.contains("1 verified"), "counted in the store: {history}");
    let earlier = browser.page(&format!("{PAGE}?version=1")).await;
    assert!(earlier.contains("This is an earlier rollout.") && earlier.contains("till-7"), "{earlier}");
    assert!(!earlier.contains("Cancel…"), "{earlier}");
}
