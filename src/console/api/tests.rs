use std::collections::BTreeSet;

use muster_topics::{
    metric::Point,
    name::{Digest, HostId},
    outcome::{Outcome, Output, Status},
};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::*;
use crate::{
    PageChange,
    api::events::CommandFollower,
    store,
    testing::{Fixture, admin, problem},
};
use muster_test_support::committed;

/// A console, and a client that is signed in.
struct Api {
    fixture: Fixture,
    client: Client,
    token: String,
}

impl Api {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let token = fixture.console.new_api_token(&admin()).await.unwrap();
        Self { client: fixture.client(None), fixture, token }
    }

    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let url = format!("{}/api{path}", self.fixture.running.web_url());
        self.client.request(method.parse().unwrap(), url)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.request("GET", path).bearer_auth(&self.token)
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.request("POST", path).bearer_auth(&self.token)
    }

    async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        answer.json().await.unwrap()
    }
}

/// The command that writes generated files of the API anew.
const COMMAND: &str = "cargo test -p muster-console --lib api::";

#[test]
fn committed_document_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("api/openapi.json");
    committed::check(&path, &openapi::generate(), COMMAND);
}

#[test]
fn committed_reference_is_current() {
    let path = committed::reference(env!("CARGO_MANIFEST_DIR"), 2, "api.md");
    committed::check(&path, &reference::page(COMMAND), COMMAND);
}

#[test]
fn document_defines_every_referenced_schema() {
    let document: Value = serde_json::from_str(&openapi::generate()).unwrap();
    let mut names = BTreeSet::new();
    collect_references(&document, &mut names);
    assert!(names.contains("#/components/schemas/Command"));
    for name in &names {
        assert!(document.pointer(name.trim_start_matches('#')).is_some(), "{name}");
    }
    let ids: Vec<_> = routes().iter().map(|route| (route.method.as_str(), route.path)).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "no route stands twice");
}

fn collect_references(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            names.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| collect_references(value, names));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_references(value, names)),
        _ => (),
    }
}

#[tokio::test]
async fn closed_routes_require_a_token() {
    let api = Api::new().await;
    for route in routes() {
        let method = route.method.as_str().to_uppercase();
        let path = route.path.replace("{host}", "h").replace(['{', '}'], "");
        let answer = api.request(&method, &path).body("{}").send().await.unwrap();
        assert_eq!(answer.status() == StatusCode::UNAUTHORIZED, !route.open, "{method} {path}");
        if !route.open {
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
            assert_eq!(problem(answer).await.1, "no_token");
            let wrong = api.request(&method, &path).bearer_auth("wrong").send().await.unwrap();
            assert_eq!(problem(wrong).await, (401, "bad_token".to_owned()), "{method} {path}");
            // Signed in, each finds its handler.
            let right = api.request(&method, &path).bearer_auth(&api.token).body("{}").send().await.unwrap();
            assert!(![401, 405].contains(&right.status().as_u16()), "{method} {path} {}", right.status());
        }
    }
    let session = api.fixture.console.new_sign_in_link().await.unwrap();
    let code = session.rsplit_once("code=").unwrap().1;
    let cookie = api.fixture.console.sign_in(code).await.unwrap();
    let refused = api.request("GET", "/v1/status").bearer_auth(&cookie).send().await.unwrap();
    assert_eq!(problem(refused).await.1, "bad_token", "a session is no token");
}

#[tokio::test]
async fn faults_are_problem_responses() {
    let api = Api::new().await;
    let check = async |request: RequestBuilder, status: u16, code: &str| {
        let shown = format!("{request:?}");
        assert_eq!(problem(request.send().await.unwrap()).await, (status, code.to_owned()), "{shown}");
    };
    check(api.get("/v1/nothing"), 404, "unknown_path").await;
    check(api.get("/"), 404, "unknown_path").await;
    check(api.request("PUT", "/v1/hosts"), 405, "wrong_method").await;
    check(api.post("/v1/commands").body("{"), 400, "bad_json").await;
    check(
        api.post("/v1/commands").body("{\"target\":\"all\",\"verb\":{\"unit_run\":{\"unit\":\"a/b\"}},\"x\":1}"),
        400,
        "bad_json",
    )
    .await;
    for value in ["18446744073709551616", r#"{"a":1,"a":2}"#, &["[".repeat(100), "]".repeat(100)].concat()] {
        let body = format!(r#"{{"layer":"fleet","name":"a","value":{value}}}"#);
        check(api.post("/v1/vars").body(body), 400, "bad_json").await;
    }
    check(api.post("/v1/configs").body(" ".repeat(3 << 20)), 413, "too_large").await;
    check(api.get("/v1/commands?limit=x"), 400, "bad_query").await;
    check(api.get("/v1/commands?other=1"), 400, "bad_query").await;
    check(api.get("/v1/commands/x"), 404, "unknown_command").await;
    check(api.get("/v1/commands/0190d3a1-7b3c-7def-8abc-0123456789ab"), 404, "unknown_command").await;
    check(api.get("/v1/commands/0190d3a1-7b3c-7def-8abc-0123456789ab/events"), 404, "unknown_command").await;
    check(api.get("/v1/hosts/x"), 404, "unknown_host").await;
    check(api.post("/v1/hosts/x/refresh"), 404, "unknown_host").await;
    check(api.post("/v1/hosts/x/revoke"), 404, "unknown_host").await;
    check(api.get("/v1/units?host=x"), 404, "unknown_host").await;
    check(api.get(&format!("/v1/hosts/{}/units/a/b", HostId::random())), 404, "unknown_host").await;
    check(api.get(&format!("/v1/artifacts/{}", Digest::of(b""))), 404, "unknown_artifact").await;
    check(api.get("/v1/configs/a/1"), 404, "unknown_config").await;
    check(api.get("/v1/series?selector=%7B%7B"), 400, "bad_selector").await;
    check(api.get("/v1/series?selector=m&start_ms=2&end_ms=1"), 400, "bad_range").await;
    check(api.get("/v1/series/export?selector=%7B%7B"), 400, "bad_selector").await;
    check(api.get("/v1/series/export?selector=m&start_ms=2&end_ms=1"), 400, "bad_range").await;
    check(api.get("/v1/series/export?selector=m&format=xml"), 400, "bad_query").await;
    check(api.post("/v1/tokens").json(&json!({"for_s": 0})), 400, "bad_lifetime").await;
    for count in [0, 1_001] {
        check(api.post("/v1/token-batches").json(&json!({"count": count})), 400, "bad_count").await;
    }
    check(api.request("DELETE", "/v1/tokens/x").bearer_auth(&api.token), 404, "unknown_token").await;
    check(api.post("/v1/login").json(&json!({"code": "wrong"})), 401, "bad_code").await;
    check(
        api.post("/v1/commands").json(&json!({"target": "all", "verb": {"unit_run": {"unit": "a/b"}}})),
        409,
        "no_hosts",
    )
    .await;
    api.fixture.member("h").await;
    check(api.post("/v1/hosts/h/refresh"), 503, "no_broker").await;
}

#[tokio::test]
async fn not_found_has_a_hint_to_the_list() {
    let api = Api::new().await;
    for path in [
        "/v1/hosts/nobody",
        "/v1/hosts/nobody/labels",
        "/v1/units?host=nobody",
        "/v1/commands/0198c0de-0000-7000-8000-000000000000",
        "/v1/commands/short",
        "/v1/realms/nowhere",
    ] {
        let answer = api.get(path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        let problem: Value = answer.json().await.unwrap();
        assert!(problem["hint"].as_str().unwrap().contains(", or GET /api/v1/"), "{path}: {problem}");
    }
}

#[tokio::test]
async fn unique_prefix_of_an_id_is_accepted() {
    let api = Api::new().await;
    let host = api.fixture.member("a").await.id.to_string();
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(api.fixture.command(&[host.parse().unwrap()]).await.id.to_string());
    }
    assert_eq!(api.json(&format!("/v1/hosts/{}", &host[..8])).await["id"], host);
    assert_eq!(api.json(&format!("/v1/commands/{}", &ids[0][..35])).await["id"], ids[0]);
    assert_eq!(api.json(&format!("/v1/commands/{}", ids[0].to_uppercase())).await["id"], ids[0]);
    let answer = api.get(&format!("/v1/commands/{}", &ids[0][..4])).send().await.unwrap();
    let problem: Value = answer.json().await.unwrap();
    assert_eq!(problem["code"], "ambiguous_id");
    assert!(ids.iter().all(|id| problem["message"].as_str().unwrap().contains(id)), "{problem}");
    // Less than that is nobody's beginning.
    assert_eq!(api.get(&format!("/v1/commands/{}", &ids[0][..3])).send().await.unwrap().status(), 404);
    let (one, two) = (api.fixture.token().await, api.fixture.token().await);
    assert_ne!(one.secret, two.secret);
    let tokens = api.json("/v1/tokens").await;
    let id = tokens[0]["id"].as_str().unwrap();
    let answer = api.request("DELETE", &format!("/v1/tokens/{}", &id[..6])).bearer_auth(&api.token).send().await;
    assert_eq!(answer.unwrap().status(), StatusCode::NO_CONTENT);
    let left = api.json("/v1/tokens").await;
    assert_eq!(left.as_array().unwrap().len(), tokens.as_array().unwrap().len() - 1);
    assert!(!left.to_string().contains(id), "{left}");
}

#[tokio::test]
async fn lists_are_filtered_sorted_and_limited() {
    let api = Api::new().await;
    for name in ["b", "c", "a"] {
        api.fixture.member(name).await;
    }
    let label = json!({"target": {"hosts": ["c", "a"]}, "set": {"site": "north"}});
    assert_eq!(api.post("/v1/host-labels").json(&label).send().await.unwrap().status(), StatusCode::OK);
    let names = async |query: &str| {
        let hosts = api.json(&format!("/v1/hosts{query}")).await;
        hosts.as_array().unwrap().iter().map(|host| host["hostname"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("").await, ["a", "b", "c"]);
    assert_eq!(names("?limit=2").await, ["a", "b"]);
    assert_eq!(names("?select=label.site%3Dnorth").await, ["a", "c"]);
    assert_eq!(names("?select=not+host%3Da&limit=1&sort=hostname").await, ["b"]);
    for sort in muster_api::HostSort::WORDS {
        assert_eq!(names(&format!("?sort={sort}")).await.len(), 3, "{sort}");
    }
    for path in ["/v1/hosts?sort=colour", "/v1/hosts?select=colour%3Dred", "/v1/units?sort=colour", "/v1/alerts?sort=x"]
    {
        assert_eq!(api.get(path).send().await.unwrap().status(), StatusCode::BAD_REQUEST, "{path}");
    }
    for path in
        ["/v1/alerts?select=label.site&sort=severity", "/v1/alerts/history?sort=host", "/v1/units?kind=yuno&sort=phase"]
    {
        assert_eq!(api.json(path).await, json!([]), "{path}");
    }
}

#[tokio::test]
async fn sign_in_code_works_once() {
    let api = Api::new().await;
    let link = api.fixture.console.new_sign_in_link().await.unwrap();
    assert!(link.starts_with("http://127.0.0.1:"), "{link}");
    let code = link.rsplit_once("code=").unwrap().1;
    let login = || api.request("POST", "/v1/login").json(&json!({"code": code}));
    let answer: muster_api::LoggedIn = login().send().await.unwrap().json().await.unwrap();
    assert_eq!(answer.operator, admin());
    assert_eq!(problem(login().send().await.unwrap()).await, (401, "bad_code".to_owned()));
    let with_it = api.request("GET", "/v1/status").bearer_auth(&answer.token).send().await.unwrap();
    assert_eq!(with_it.status(), StatusCode::OK);
    let code = api.fixture.console.new_sign_in_link().await.unwrap();
    let session = api.fixture.console.sign_in(code.rsplit_once("code=").unwrap().1).await.unwrap();
    assert_eq!(api.fixture.console.session(&session).await.unwrap(), Some(admin()));
    api.fixture.console.sign_out(&session).await.unwrap();
    assert_eq!(api.fixture.console.session(&session).await.unwrap(), None);
    assert_eq!(api.fixture.console.session(&answer.token).await.unwrap(), None, "a token is no session");
}

#[tokio::test]
async fn an_artifact_is_uploaded_once_and_its_labels_stay() {
    let api = Api::new().await;
    let upload = |labels: &str, body: &'static str| api.post(&format!("/v1/artifacts?{labels}")).body(body);
    let first: Value = upload("role=r&version=1", "content").send().await.unwrap().json().await.unwrap();
    assert_eq!(first["sha256"], Digest::of(b"content").as_str());
    let again: Value = upload("role=r&version=1", "content").send().await.unwrap().json().await.unwrap();
    assert_eq!(again, first);
    let other = upload("role=r&version=1", "other").send().await.unwrap();
    assert_eq!(problem(other).await, (409, "version_taken".to_owned()));
    for (labels, body, code) in
        [("role=r", "x", "bad_query"), ("role=R&version=1", "x", "bad_query"), ("role=r&version=2", "", "empty")]
    {
        assert_eq!(problem(upload(labels, body).send().await.unwrap()).await, (400, code.to_owned()));
    }
    let large = api.post("/v1/artifacts?role=r&version=3").body(vec![0; 1024 * 1024 + 1]).send().await.unwrap();
    assert_eq!(problem(large).await, (413, "too_large".to_owned()));
    assert_eq!(api.json("/v1/artifacts").await.as_array().unwrap().len(), 1);
    assert_eq!(api.json("/v1/artifacts?role=other").await, json!([]));
    // Under another label it is the same one, so the beginning of its hash is still nobody else's.
    upload("role=s&version=1", "content").send().await.unwrap();
    let sha256 = first["sha256"].as_str().unwrap();
    for typed in [sha256, &sha256[..12], &sha256[..4]] {
        assert_eq!(api.json(&format!("/v1/artifacts/{typed}")).await["sha256"], first["sha256"], "{typed}");
    }
    let unknown = api.get("/v1/artifacts/0123").send().await.unwrap();
    assert_eq!(problem(unknown).await, (404, "unknown_artifact".to_owned()));
    assert_eq!(leftovers(&api), 0);
}

/// Files in the folder of artifacts that are not named by a hash.
fn leftovers(api: &Api) -> usize {
    let folder = api.fixture.dir.path().join("console/artifacts");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name.to_str().unwrap().parse::<Digest>().is_err()).count()
}

#[tokio::test]
async fn an_upload_that_is_cut_off_leaves_nothing() {
    let api = Api::new().await;
    let console = &api.fixture.console;
    let labels = muster_api::Labels { role: "r".parse().unwrap(), version: "1".parse().unwrap(), manifest: None };
    let pieces = [Ok("half"), Err("the connection broke")];
    let cut = console.add_artifact(&admin(), labels, futures_util::stream::iter(pieces)).await.unwrap_err();
    assert_eq!((cut.status, cut.problem.code.as_str()), (400, "incomplete"));
    // The same over a socket: more is announced than comes.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(api.fixture.running.web_addr()).await.unwrap();
    let head = format!(
        "POST /api/v1/artifacts?role=r&version=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\nhalf",
        api.token
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(api.json("/v1/artifacts").await, json!([]));
    assert_eq!(leftovers(&api), 0);
    let whole = api.post("/v1/artifacts?role=r&version=1").body("whole").send().await.unwrap();
    assert_eq!(whole.status(), StatusCode::OK);
}

#[tokio::test]
async fn config_version_is_immutable() {
    let api = Api::new().await;
    let add = |content: &str| api.post("/v1/configs").json(&json!({"id": "a.b", "version": "1", "content": content}));
    let first: Value = add("{\"x\": 1, \"a\": [true]}").send().await.unwrap().json().await.unwrap();
    assert_eq!(first["sha256"], Digest::of(b"{\"a\":[true],\"x\":1}").as_str());
    let same: Value = add("{\"a\":[true],\"x\":1.0}").send().await.unwrap().json().await.unwrap();
    assert_eq!(same, first);
    let other: muster_api::Problem = add("{}").send().await.unwrap().json().await.unwrap();
    assert_eq!((other.code.as_str(), other.diagnostic.hint.unwrap().contains("a.b@2")), ("version_taken", true));
    for bad in ["", "{", "{\"a\":1,\"a\":2}", "9007199254740993"] {
        assert_eq!(problem(add(bad).send().await.unwrap()).await, (400, "bad_config".to_owned()), "{bad}");
    }
    assert_eq!(api.json("/v1/configs").await.as_array().unwrap().len(), 1);
    assert_eq!(api.json("/v1/configs/a.b/1").await["content"], json!({"a": [true], "x": 1}));
}

#[tokio::test]
async fn command_is_checked_signed_and_stored() {
    let api = Api::new().await;
    let host = api.fixture.member("h").await.id;
    let submit = |verb: Value| api.post("/v1/commands").json(&json!({"target": {"hosts": ["h"]}, "verb": verb}));
    let command: muster_api::Command =
        submit(json!({"exec": {"argv": ["true"], "timeout_ms": 1000}})).send().await.unwrap().json().await.unwrap();
    assert_eq!((command.operator, command.hosts[0].host), (admin(), host));
    assert_eq!(command.expires_ms - command.issued_ms, 600_000);
    let shared = api.fixture.shared();
    let bytes = store::command::signed_bytes(shared.store.read(), command.id).await.unwrap().unwrap().0;
    let verified = muster_topics::envelope::open(&bytes, &shared.authority.keys().state.of_hosts()).unwrap();
    let body: muster_topics::command::Command = verified.body().unwrap();
    assert_eq!((body.id, body.target), (command.id, muster_topics::command::Target::Hosts(vec![host])));
    let sha256 = Digest::of(b"content");
    let apply = |size: u64| {
        json!({"unit_apply": {"unit": "default/u", "spec": {"kind": "yuno",
            "artifact": {"sha256": sha256, "size_bytes": size, "role": "r", "version": "1"}}}})
    };
    assert_eq!(problem(submit(apply(7)).send().await.unwrap()).await, (404, "unknown_artifact".to_owned()));
    api.post("/v1/artifacts?role=r&version=1").body("content").send().await.unwrap();
    assert_eq!(problem(submit(apply(8)).send().await.unwrap()).await, (409, "wrong_artifact".to_owned()));
    assert_eq!(submit(apply(7)).send().await.unwrap().status(), StatusCode::OK);
    let long = submit(json!({"exec": {"argv": ["x".repeat(70_000)], "timeout_ms": 1000}}));
    assert_eq!(problem(long.send().await.unwrap()).await, (413, "too_large".to_owned()));
    assert_eq!(api.json("/v1/commands?host=h&limit=1").await.as_array().unwrap().len(), 1);
    assert_eq!(api.json("/v1/commands").await.as_array().unwrap().len(), 2);
}

fn outcome(sent_bytes: u64) -> Outcome {
    let stdout = Output { sent_bytes, ..Output::default() };
    Outcome { status: Status::Completed, started_ms: None, finished_ms: 1, stdout, stderr: Output::default() }
}

#[tokio::test]
async fn events_have_state_then_changes_until_the_end() {
    use muster_api::{CommandEvent, CommandState};
    let api = Api::new().await;
    let shared = api.fixture.shared();
    let host = api.fixture.member("h").await.id;
    let id = api.fixture.command(&[host]).await.id;
    let mut follower = CommandFollower::new(api.fixture.console.clone(), id);
    let Some(CommandEvent::Host(line)) = follower.next().await else { panic!("the present state comes first") };
    assert_eq!(line.state(), CommandState::Waiting);
    // The outcome overtakes a piece of output that it counts: the end waits for that.
    let mut transaction = shared.store.begin().await.unwrap();
    let one = store::command::SettledOutcome { command: id, host, outcome: outcome(2) };
    store::command::settle(&mut transaction, &[one], 1).await.unwrap();
    transaction.commit().await.unwrap();
    shared.changed(PageChange::Command(id));
    let Some(CommandEvent::Host(line)) = follower.next().await else { panic!("a new state") };
    assert_eq!(line.state(), CommandState::Done);
    let mut transaction = shared.store.begin().await.unwrap();
    store::command::add_output(&mut transaction, id, host, muster_topics::outcome::Stream::Stdout, 0, b"ab")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    shared.changed(PageChange::Command(id));
    let Some(CommandEvent::Output { offset_bytes: 0, data, .. }) = follower.next().await else { panic!("output") };
    assert_eq!(data.to_bytes().unwrap(), b"ab");
    assert_eq!(follower.next().await, Some(CommandEvent::End));
    assert_eq!(follower.next().await, None);
    // Over HTTP, from the beginning, and ending by itself.
    let answer = api.get(&format!("/v1/commands/{id}/events")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let text = answer.text().await.unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, ["output", "host", "end"], "{text}");
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        serde_json::from_str::<CommandEvent>(data).unwrap();
    }
}

#[tokio::test]
async fn measurements_are_exported() {
    let api = Api::new().await;
    let point = |value| Point::new("m", &[("host", "a")], 1_704_067_200_000).field("f", value);
    api.fixture.shared().measurements.series.append(&[point(0.5)]).await.unwrap();
    for (format, kind, wanted) in [
        ("", "text/plain; charset=utf-8", "m,host=a f=0.5 1704067200000\n"),
        (
            "&format=csv",
            "text/csv; charset=utf-8; header=present",
            "series,time_ms,value\n\"m_f{host=\"\"a\"\"}\",1704067200000,0.5\n",
        ),
    ] {
        let answer = api.get(&format!("/v1/series/export?selector=m_f{format}")).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], kind);
        assert_eq!(answer.text().await.unwrap(), wanted);
    }
}
