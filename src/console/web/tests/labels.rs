//! Tests of a host's labels, from its page to the console and back.

use reqwest::StatusCode;

use super::flow::{Browser, location};

#[tokio::test]
async fn label_is_set_and_removed_on_the_page_of_its_host() {
    let browser = Browser::new().await;
    let host = browser.fixture.member("shop-7").await.id;
    let (token, page, form) = (browser.token().await, format!("/host/{host}"), format!("/host/{host}/label"));
    assert!(browser.page(&page).await.contains("Change labels"));
    let set = [("csrf", token.as_str()), ("name", "canary"), ("value", "yes")];
    let answer = browser.post(&form, &set, &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, page.as_str()));
    let shown = browser.page(&page).await;
    assert!(shown.contains("<code>canary=yes</code> set by admin"), "{shown}");

    let other = [("csrf", token.as_str()), ("name", "canary"), ("value", "no")];
    let refused = browser.post(&form, &other, &[]).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert!(refused.text().await.unwrap().contains("shop-7 has canary=yes"));
    let changed = [other[0], other[1], other[2], ("replace", "yes")];
    assert_eq!(browser.post(&form, &changed, &[]).await.status(), StatusCode::SEE_OTHER);
    for (name, value) in [("", "x"), ("Two Words", "x"), ("site", ""), ("site", "Ä")] {
        let wrong = [("csrf", token.as_str()), ("name", name), ("value", value)];
        assert_eq!(browser.post(&form, &wrong, &[]).await.status(), StatusCode::BAD_REQUEST, "{name}={value}");
    }
    assert_eq!(browser.post(&form, &[("name", "a"), ("value", "b")], &[]).await.status(), StatusCode::FORBIDDEN);

    let removal = [("csrf", token.as_str()), ("remove", "canary")];
    assert_eq!(browser.post(&form, &removal, &[]).await.status(), StatusCode::SEE_OTHER);
    let labels = browser.fixture.console.host_labels("shop-7").await.unwrap().labels;
    assert!(labels.is_empty(), "{labels:?}");
}
