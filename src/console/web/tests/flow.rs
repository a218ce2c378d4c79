//! Tests of the pages over HTTP, from a real console on a free port.

use muster_api::{NewCommand, NewTarget};
use muster_net::pki;
use reqwest::{Client, Response, StatusCode, header, redirect::Policy};

use crate::{
    PageChange,
    testing::{Fixture, admin, exec},
};

/// A browser, as far as it matters here.
pub(super) struct Browser {
    pub(super) fixture: Fixture,
    client: Client,
    cookie: String,
}

const SECURITY: [(&str, &str); 3] =
    [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("x-frame-options", "DENY")];

impl Browser {
    /// One that nobody signed in with.
    async fn stranger() -> Self {
        let fixture = Fixture::new().await;
        // Everything here is plain HTTP; without a word about TLS a client cannot be made.
        let tls = rustls::ClientConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let client = Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).no_proxy();
        Self { fixture, client: client.build().unwrap(), cookie: String::new() }
    }

    /// One with a session.
    pub(super) async fn new() -> Self {
        let mut browser = Self::stranger().await;
        let code = browser.code().await;
        let answer = browser.post("/sign-in", &[("code", &code)], &[]).await;
        assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/"));
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=604800"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        assert!(!cookie.contains("Secure"), "on loopback this is plain HTTP: {cookie}");
        browser.cookie = cookie.split(';').next().unwrap().to_owned();
        browser
    }

    async fn code(&self) -> String {
        let link = self.fixture.console.new_sign_in_link().await.unwrap();
        link.rsplit_once('=').unwrap().1.to_owned()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.fixture.console.web_url())
    }

    pub(super) async fn get(&self, path: &str) -> Response {
        let answer = self.client.get(self.url(path)).header(header::COOKIE, &self.cookie).send().await.unwrap();
        secured(path, answer)
    }

    pub(super) async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers()[header::CACHE_CONTROL], "no-store", "{path}");
        answer.text().await.unwrap()
    }

    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Response {
        let request = self.client.post(self.url(path)).header(header::COOKIE, &self.cookie).form(fields);
        let request = headers.iter().fold(request, |request, (key, value)| request.header(*key, *value));
        secured(path, request.send().await.unwrap())
    }

    /// What a form of this session carries.
    pub(super) async fn token(&self) -> String {
        let page = self.page("/run").await;
        let (_, after) = page.split_once("name=\"csrf\" value=\"").unwrap();
        after.split_once('"').unwrap().0.to_owned()
    }
}

/// Every answer has the headers that keep a page to itself.
#[track_caller]
fn secured(path: &str, answer: Response) -> Response {
    let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
    for (name, value) in SECURITY {
        assert_eq!(answer.headers()[name], value, "{path}");
    }
    answer
}

pub(super) fn location(answer: &Response) -> &str {
    answer.headers().get(header::LOCATION).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn sign_in_link_works_once_by_a_button() {
    let browser = Browser::stranger().await;
    let code = browser.code().await;
    let link = format!("/sign-in?code={code}");
    for _ in 0..2 {
        // Looking at it, as previews do, uses nothing up.
        assert!(browser.page(&link).await.contains(&format!("value=\"{code}\"")));
    }
    let first = browser.post("/sign-in", &[("code", &code)], &[]).await;
    assert_eq!((first.status(), location(&first)), (StatusCode::SEE_OTHER, "/"));
    let second = browser.post("/sign-in", &[("code", &code)], &[]).await;
    assert_eq!(second.status(), StatusCode::UNAUTHORIZED);
    assert!(!second.headers().contains_key(header::SET_COOKIE));
    assert!(second.text().await.unwrap().contains("wrong, used or older"));
    let whole = format!("{}{}", browser.url(""), format_args!("/sign-in?code={}", browser.code().await));
    let pasted = browser.post("/sign-in", &[("code", &whole)], &[]).await;
    assert_eq!(pasted.status(), StatusCode::SEE_OTHER, "a whole link may be pasted");
    let code = browser.code().await;
    let foreign = browser.post("/sign-in", &[("code", &code)], &[("sec-fetch-site", "cross-site")]).await;
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn pages_require_a_session() {
    let mut browser = Browser::stranger().await;
    for cookie in ["", "muster-session-1=x", "nonsense", "=;;="] {
        browser.cookie = cookie.to_owned();
        for path in [
            "/",
            "/commands",
            "/run",
            "/join",
            "/live",
            "/host/x",
            "/host/x/charts?range=1h",
            "/charts",
            "/alerts/rule",
            "/nowhere",
        ] {
            let answer = browser.get(path).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.headers()["hx-refresh"], "true", "{path}");
            assert!(answer.text().await.unwrap().contains("You are not signed in"), "{path}");
        }
        let answer = browser.post("/run", &[("command", "true")], &[]).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn sign_out_ends_the_session() {
    let browser = Browser::new().await;
    assert!(browser.page("/").await.contains("No host has joined yet"));
    let token = browser.token().await;
    let out = browser.post("/sign-out", &[("csrf", &token)], &[]).await;
    assert_eq!((out.status(), location(&out)), (StatusCode::SEE_OTHER, "/sign-in"));
    assert!(out.headers()[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn form_of_other_session_or_origin_is_refused() {
    let browser = Browser::new().await;
    let (token, origin) = (browser.token().await, browser.url(""));
    let host = origin.strip_prefix("http://").unwrap();
    let others: String = token.chars().rev().collect();
    let good: [&[(&str, &str)]; 5] = [
        &[],
        &[("sec-fetch-site", "same-origin")],
        &[("origin", &origin)],
        // What browsers say of a form where no referrer is sent.
        &[("sec-fetch-site", "same-origin"), ("origin", "null")],
        &[("origin", &origin), ("host", host)],
    ];
    let bad: [&[(&str, &str)]; 6] = [
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site"), ("origin", &origin)],
        &[("sec-fetch-site", "none")],
        &[("origin", "null")],
        &[("origin", "http://muster.example")],
        &[("origin", "")],
    ];
    let lifetime = ("for_s", "900");
    for headers in good {
        let answer = browser.post("/join", &[("csrf", &token), lifetime], headers).await;
        assert_eq!(answer.status(), StatusCode::OK, "{headers:?}");
        let answer = browser.post("/join", &[lifetime], &[&[("x-csrf-token", token.as_str())], headers].concat()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{headers:?}");
    }
    let made = browser.fixture.console.tokens().await.unwrap().len();
    for headers in bad {
        let answer = browser.post("/join", &[("csrf", &token), lifetime], headers).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{headers:?}");
    }
    for wrong in ["", "00", "xyz", "é", &token[2..], &others] {
        let answer = browser.post("/join", &[("csrf", wrong), lifetime], &[]).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{wrong:?}");
        assert!(answer.text().await.unwrap().contains("does not belong to your session"));
    }
    assert_eq!(browser.post("/join", &[lifetime], &[]).await.status(), StatusCode::FORBIDDEN);
    let json = browser.client.post(browser.url("/join")).header(header::COOKIE, &browser.cookie).body("{}");
    assert_eq!(json.send().await.unwrap().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let long = "x".repeat(300_000);
    let answer = browser.post("/join", &[("csrf", &token), ("for_s", &long)], &[]).await;
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let delete = browser.client.delete(browser.url("/join")).header(header::COOKIE, &browser.cookie);
    assert_eq!(secured("/join", delete.send().await.unwrap()).status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(browser.fixture.console.tokens().await.unwrap().len(), made, "nothing was done");
}

#[tokio::test]
async fn a_token_is_shown_once_and_can_be_revoked() {
    let browser = Browser::new().await;
    let token = browser.token().await;
    let made = browser.post("/join", &[("csrf", &token), ("for_s", "900")], &[]).await.text().await.unwrap();
    assert!(made.contains("muster agent --join muster1."), "{made}");
    assert!(
        made.contains("Only this machine can use the token") && made.contains("hosts_listen"),
        "its address is loopback: {made}"
    );
    let listed = browser.page("/join").await;
    assert!(!listed.contains("muster1."), "only once");
    let id = browser.fixture.console.tokens().await.unwrap()[0].id.clone();
    assert!(listed.contains(&format!("/join/{id}/revoke")));
    let revoked = browser.post(&format!("/join/{id}/revoke"), &[("csrf", &token)], &[]).await;
    assert_eq!((revoked.status(), location(&revoked)), (StatusCode::SEE_OTHER, "/join"));
    assert!(!browser.page("/join").await.contains(&format!("/join/{id}/revoke")));
    let bad = browser.post("/join", &[("csrf", &token), ("for_s", "0")], &[]).await;
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn host_is_removed_by_its_page() {
    let browser = Browser::new().await;
    let id = browser.fixture.member("shop-7").await.id;
    let (token, path) = (browser.token().await, format!("/host/{id}/remove"));
    assert!(browser.page(&format!("/host/{id}")).await.contains(&path));
    assert_eq!(browser.post(&path, &[], &[]).await.status(), StatusCode::FORBIDDEN, "no token");
    let answer = browser.post(&path, &[("csrf", &token)], &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/"));
    assert!(!browser.page("/").await.contains("shop-7"));
    assert_eq!(browser.post(&path, &[("csrf", &token)], &[]).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn run_form_leads_to_the_commands_page() {
    let browser = Browser::new().await;
    let member = browser.fixture.member("shop-7").await;
    let (token, id) = (browser.token().await, member.id.to_string());
    assert!(browser.page("/run").await.contains("shop-7"));
    let fields = [
        ("csrf", token.as_str()),
        ("target", "these"),
        ("host", &id),
        ("command", "echo '<b>two words</b>'"),
        ("timeout_s", "5"),
        ("expires_min", "10"),
        ("user", ""),
    ];
    let sent = browser.post("/run", &fields, &[]).await;
    assert_eq!(sent.status(), StatusCode::SEE_OTHER);
    let path = location(&sent).to_owned();
    let page = browser.page(&path).await;
    assert!(page.contains("echo '&lt;b&gt;two words&lt;/b&gt;'") && page.contains("waiting"), "{page}");
    assert!(page.contains(&format!("sse-connect=\"/live?command={}\"", &path["/command/".len()..])));
    let part = browser.page(&format!("{path}?part=progress")).await;
    assert!(part.starts_with("<dl") && part.contains("shop-7"), "{part}");
    assert!(browser.page("/commands").await.contains(&path));
    assert!(browser.page(&format!("/host/{id}")).await.contains(&path));
    let again = browser.page(&format!("/run?again={}", &path["/command/".len()..])).await;
    assert!(again.contains("echo '&lt;b&gt;two words&lt;/b&gt;'</textarea>"), "{again}");
    let file = browser.get(&format!("{path}/host/{id}/stdout")).await;
    assert_eq!(file.status(), StatusCode::OK);
    assert_eq!(file.headers()[header::CONTENT_TYPE], "application/octet-stream");
    assert!(file.headers()[header::CONTENT_DISPOSITION].to_str().unwrap().starts_with("attachment;"));
    let mut wrong = fields;
    wrong[3].1 = "echo 'unclosed";
    let refused = browser.post("/run", &wrong, &[]).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("echo 'unclosed</textarea>") && refused.contains("is not closed"), "{refused}");
}

#[tokio::test]
async fn run_form_accepts_a_select_expression() {
    let browser = Browser::new().await;
    let ids = [browser.fixture.member("shop-7").await.id, browser.fixture.member("shop-8").await.id];
    browser.fixture.member("till-1").await;
    let token = browser.token().await;
    let mut fields = [
        ("csrf", token.as_str()),
        ("target", "picked"),
        ("select", "host=shop-* and fact.cpus>many"),
        ("command", "true"),
        ("timeout_s", "5"),
        ("expires_min", "10"),
    ];
    let refused = browser.post("/run", &fields, &[]).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("expected a number") && refused.contains("fact.cpus&gt;many\""), "{refused}");
    fields[2].1 = "host=bar-*";
    assert_eq!(browser.post("/run", &fields, &[]).await.status(), StatusCode::CONFLICT);
    assert!(browser.page("/commands").await.contains("No commands yet"));

    fields[2].1 = "host=shop-* and fact.cpus>=2";
    let sent = browser.post("/run", &fields, &[]).await;
    let path = location(&sent).to_owned();
    let page = browser.page(&path).await;
    let id = &path["/command/".len()..];
    assert!(page.contains("hosts selected by <code>host=shop-* and fact.cpus&gt;=2</code>"), "{page}");
    assert!(page.contains("shop-7") && page.contains("shop-8") && !page.contains("till-1"), "{page}");
    assert!(!page.contains("id=\"summary\""), "it is not over");
    let again = browser.page(&format!("/run?again={id}")).await;
    assert!(again.contains("value=\"host=shop-* and fact.cpus&gt;=2\""), "{again}");

    let mut db = browser.fixture.shared().store.begin().await.unwrap();
    let id = id.parse().unwrap();
    crate::store::command::miss(&mut db, id, &ids).await.unwrap();
    db.commit().await.unwrap();
    browser.fixture.shared().changed(PageChange::Command(id));
    let page = browser.page(&path).await;
    assert!(page.contains("2 hosts: 0 ok, 2 missing") && page.contains("<dd>shop-7, shop-8</dd>"), "{page}");
}

#[tokio::test]
async fn unknown_address_is_a_not_found_page() {
    let browser = Browser::new().await;
    let id = browser.fixture.member("shop-7").await.id;
    let missing = [
        "/nowhere".to_owned(),
        "/host/nobody".to_owned(),
        format!("/host/{id}?part=nothing"),
        format!("/host/{id}/unit/default/nothing"),
        format!("/host/{id}/unit/Default/x"),
        "/command/x".to_owned(),
        format!("/command/{}", muster_topics::name::CommandId::new()),
        "/config/a/1".to_owned(),
        "/assets/000000000000/style.css".to_owned(),
    ];
    for path in missing {
        let answer = browser.get(&path).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        assert!(answer.text().await.unwrap().contains("<h1>Not found</h1>"), "{path}");
    }
    assert_eq!(browser.get("/live?host=x").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(browser.get("/sign-out").await.status(), StatusCode::METHOD_NOT_ALLOWED);
    let by_name = browser.get("/host/shop-7").await;
    assert_eq!(location(&by_name), format!("/host/{id}"), "a hostname leads to the page");
    // The API beside the pages still answers in its own way.
    assert!(
        browser.client.get(browser.url("/api/nowhere")).send().await.unwrap().text().await.unwrap().starts_with('{')
    );
}

#[tokio::test]
async fn assets_are_public_and_immutable() {
    let browser = Browser::stranger().await;
    let page = browser.page("/sign-in").await;
    let assets: Vec<&str> = page.split('"').filter(|piece| piece.starts_with("/assets/")).collect();
    assert_eq!(assets.len(), 8, "{assets:?}");
    for path in assets {
        let answer = browser.get(path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers()[header::CACHE_CONTROL], "public, max-age=31536000, immutable");
        assert!(!answer.bytes().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn events_end_with_the_session() {
    let browser = Browser::new().await;
    let member = browser.fixture.member("shop-7").await;
    let mut live = browser.get(&format!("/live?host={}", member.id)).await;
    assert_eq!(live.status(), StatusCode::OK);
    assert_eq!(live.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut text = String::new();
    while !text.contains("event: sync") {
        text.push_str(std::str::from_utf8(&live.chunk().await.unwrap().unwrap()).unwrap());
    }
    let target = NewTarget::Hosts(vec![member.id.to_string()]);
    let command = NewCommand { target, expires_in_ms: None, verb: exec(&["true"]), copied_from: None };
    browser.fixture.console.submit(&admin(), command).await.unwrap();
    while !text.contains("event: command") {
        text.push_str(std::str::from_utf8(&live.chunk().await.unwrap().unwrap()).unwrap());
    }
    // A console that stops leaves no connection behind.
    browser.fixture.running.stop().await;
    while let Ok(Some(_)) = live.chunk().await {}
}

#[tokio::test]
async fn alerts_are_silenced_from_their_page() {
    let browser = Browser::new().await;
    let token = browser.token().await;
    let filled = browser.page("/alerts?host=till-7&rule=disk").await;
    assert!(filled.contains("value=\"till-7\"") && filled.contains("No alerts are active"), "{filled}");
    let fields =
        [("csrf", token.as_str()), ("rule", "disk"), ("host", ""), ("for_s", "7200"), ("reason", "it is a test")];
    let answer = browser.post("/alerts/silence", &fields, &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/alerts"));
    let id = browser.fixture.console.alert_silences().await.unwrap()[0].id.to_string();
    let page = browser.page("/alerts").await;
    let end = format!("/alerts/silence/{id}/remove");
    assert!(page.contains("it is a test") && page.contains(&end), "{page}");
    // What cannot be done is told, with the form as it was.
    for (field, value) in [("rule", "No Name"), ("for_s", "soon"), ("reason", ""), ("host", "nobody")] {
        let wrong = fields.map(|(key, was)| (key, if key == field { value } else { was }));
        let answer = browser.post("/alerts/silence", &wrong, &[]).await;
        assert!(answer.status().is_client_error(), "{field}: {}", answer.status());
        assert!(answer.text().await.unwrap().contains("role=\"alert\""), "{field}");
    }
    let answer = browser.post(&end, &[("csrf", &token)], &[]).await;
    assert_eq!((answer.status(), location(&answer)), (StatusCode::SEE_OTHER, "/alerts"));
    assert!(browser.fixture.console.alert_silences().await.unwrap().is_empty());
    let answer = browser.post("/alerts/silence", &[("rule", "disk")], &[]).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN, "a form without its token");
}

#[tokio::test]
async fn pages_below_a_proxy_path_are_refused_with_hint() {
    let browser = Browser::new().await;
    for (prefix, status) in [("/muster", 400), ("muster/", 400), ("/", 200), ("", 200)] {
        let request = browser.client.get(browser.url("/")).header(header::COOKIE, &browser.cookie);
        let answer = request.header("x-forwarded-prefix", prefix).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{prefix:?}");
        let answer = secured("/", answer);
        if status == 400 {
            let text = answer.text().await.unwrap();
            assert!(text.contains("below /muster") && text.contains("its own host name or port"), "{text}");
        }
    }
}
