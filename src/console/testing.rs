//! Fixtures: a console with real files and real listeners on free ports, without a broker.

use std::{sync::Arc, time::Duration};

use muster_bus::sealing::HostKey;
use muster_net::{http, pki};
use muster_topics::{
    V1,
    command::{Exec, Verb},
    heartbeat::Facts,
    join::{JoinRequest, JoinToken, Membership, Problem},
    name::{Digest, HostId, Name},
    unit::ArtifactRef,
};
use rcgen::{CertificateParams, KeyPair};
use reqwest::{Client, Response, StatusCode};

use super::{Console, RunningConsole, config::Config, prepare, state::ConsoleState, store::given::GivenUnit};

pub(super) struct Fixture {
    pub(super) dir: tempfile::TempDir,
    pub(super) running: RunningConsole,
    pub(super) console: Console,
}

pub(super) fn config(dir: &std::path::Path) -> Config {
    let free = "127.0.0.1:0".parse().unwrap();
    Config {
        data_dir: dir.join("console"),
        web_listen: free,
        hosts_listen: free,
        // No broker listens on port 1; the console has to work without.
        broker_url: "mqtts://127.0.0.1:1".to_owned(),
        artifact_max_bytes: 1024 * 1024,
        ..Config::default()
    }
}

impl Fixture {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let running = prepare(config(dir.path())).await.unwrap().start().await.unwrap();
        Self { console: running.console(), dir, running }
    }

    pub(super) fn shared(&self) -> &Arc<ConsoleState> {
        &self.console.shared
    }

    /// Returns a join token.
    pub(super) async fn token(&self) -> JoinToken {
        self.token_for(None).await
    }

    /// Returns a join token, for an existing host if one is given.
    pub(super) async fn token_for(&self, replaces: Option<HostId>) -> JoinToken {
        let new = muster_api::NewToken { for_s: None, replace: replaces.map(|host| host.to_string()) };
        let token = self.console.create_token(&admin(), new).await.unwrap();
        token.token.parse().unwrap()
    }

    /// Records that a host was given a unit with some content.
    pub(super) async fn give(&self, host: HostId, content: &[&Digest]) {
        let artifact = |sha256: &&Digest| ArtifactRef {
            sha256: (*sha256).clone(),
            size_bytes: 1,
            role: "r".parse().unwrap(),
            version: "1".parse().unwrap(),
            manifest: None,
        };
        let artifacts = content.iter().map(artifact).collect();
        let unit = GivenUnit { artifacts, ..GivenUnit::nothing(&"default/given".parse().unwrap()) };
        let mut db = self.shared().store.begin().await.unwrap();
        super::store::given::give(&mut db, &[host], &unit, None).await.unwrap();
        db.commit().await.unwrap();
    }

    /// Returns a client that trusts the authority alone, with a certificate and key if given.
    pub(super) fn client(&self, identity: Option<(&str, &str)>) -> Client {
        let authority = self.shared().authority.certificate_pem();
        let tls = match identity {
            Some((certificate, key)) => pki::client(&authority, certificate, key).unwrap(),
            None => rustls::ClientConfig::builder_with_provider(pki::provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(pki::roots(&authority).unwrap())
                .with_no_client_auth(),
        };
        http::direct(tls).timeout(Duration::from_secs(60)).build().unwrap()
    }

    pub(super) fn hosts_url(&self, path: &str) -> String {
        format!("{}{path}", self.shared().settings.urls.hosts)
    }

    /// Returns a member that has joined with a token of its own.
    pub(super) async fn member(&self, hostname: &str) -> Member {
        let key = KeyPair::generate().unwrap();
        let request = join_request(&self.token().await.secret, HostId::random(), hostname, &key);
        let answer = self.client(None).post(self.hosts_url("/v1/join")).json(&request).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let membership: Membership = answer.json().await.unwrap();
        Member { id: membership.host, certificate: membership.certificate, key: key.serialize_pem() }
    }

    /// Applies a deployment of one container.
    pub(super) async fn deploy_container(&self, deployment: &str, select: &str) -> muster_api::AppliedDeployment {
        self.roll_out_container(deployment, select, "till", None).await
    }

    /// The same, with the policy of a rollout.
    pub(super) async fn roll_out_container(
        &self,
        deployment: &str,
        select: &str,
        unit: &str,
        policy: Option<serde_json::Value>,
    ) -> muster_api::AppliedDeployment {
        let mut content = serde_json::json!({
            "deployment": deployment, "target": {"select": select},
            "units": [{"name": unit, "kind": "container", "image": {"name": "docker.io/library/busybox:1"}}],
        });
        if let Some(policy) = policy {
            content["rollout"] = policy;
        }
        let documents = vec![muster_api::ApplyDocument { source: String::new(), content }];
        let apply = muster_api::ApplyDeployments { documents, dry_run: false, adopt: false, plan: None };
        self.console.apply_deployments(&admin(), apply).await.unwrap().deployments.remove(0)
    }

    /// Returns a member that is connected, and has reported its state.
    pub(super) async fn asking_member(&self, hostname: &str) -> Member {
        let member = self.member(hostname).await;
        self.shared().hosts.desired.heard(member.id, Default::default(), None, muster_base::clock::now_ms());
        self.shared().hosts.rollouts.presence(member.id, true);
        self.console.catch_up().await.unwrap();
        member
    }

    /// Returns a command that waits for these hosts.
    pub(super) async fn command(&self, hosts: &[HostId]) -> muster_api::Command {
        let target = muster_api::NewTarget::Hosts(hosts.iter().map(HostId::to_string).collect());
        let command = muster_api::NewCommand { target, expires_in_ms: None, verb: exec(&["true"]), copied_from: None };
        self.console.submit(&admin(), command).await.unwrap()
    }
}

pub(super) struct Member {
    pub(super) id: HostId,
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Member {
    pub(super) fn identity(&self) -> Option<(&str, &str)> {
        Some((&self.certificate, &self.key))
    }
}

pub(super) fn admin() -> Name {
    "admin".parse().unwrap()
}

pub(super) fn exec(argv: &[&str]) -> Verb {
    Verb::Exec(Exec::new(argv.iter().map(|word| (*word).to_owned()).collect(), 1_000))
}

pub(super) fn facts() -> Facts {
    Facts {
        os: "os".to_owned(),
        kernel: "6".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 2,
        cpu_model: "model".to_owned(),
        memory_bytes: 1,
        boot_id: "boot".to_owned(),
        boot_ms: 0,
    }
}

pub(super) fn csr(key: &KeyPair) -> String {
    CertificateParams::default().serialize_request(key).unwrap().pem().unwrap()
}

pub(super) fn join_request(secret: &str, host: HostId, hostname: &str, key: &KeyPair) -> JoinRequest {
    let sealing_key = HostKey::derived_from(key.serialize_pem().as_bytes()).public();
    let (secret, hostname) = (secret.to_owned(), hostname.to_owned());
    JoinRequest { v: V1, secret, host, csr: csr(key), hostname, facts: facts(), sealing_key }
}

/// Returns status and code of an answer that must be a problem.
pub(super) async fn problem(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let problem: Problem = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{status} {text:?}: {error}"));
    assert!(!problem.diagnostic.cause.is_empty());
    (status, problem.code)
}
