//! Asks somebody else before hosts are admitted: `POST` of the hosts, answered with those that may. Anything but a timely,
//! well-formed yes is a no, with its reason, and is asked again later.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::StreamExt;
use muster_base::failure::with_causes;
use muster_net::{
    http::{self, Proxy},
    pki,
};
use muster_topics::{
    admission::REASON_MAX_BYTES,
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{HostId, LabelValue, Name},
};
use serde::{Deserialize, Serialize};

use super::{inbox::AuthorityAnswer, round::AuthorityRequest};
use crate::{
    config::RolloutConfig,
    state::{Console, ConsoleState},
    store,
};

/// The most hosts of one request; the others are asked for in the next ones.
const HOSTS_MAX: usize = 1_000;
/// The longest answer: a thousand ids, and as much again.
const ANSWER_MAX_BYTES: usize = 128 * 1024;

/// A request to an authority.
#[derive(Debug, Serialize)]
struct AskedHosts<'a> {
    deployment: &'a DeploymentName,
    version: u32,
    hosts: Vec<AskedHost>,
}

#[derive(Debug, Serialize)]
struct AskedHost {
    host: HostId,
    hostname: String,
    labels: std::collections::BTreeMap<Name, LabelValue>,
}

/// An authority's answer. What else it says is ignored.
#[derive(Debug, Deserialize)]
struct AdmittedHosts {
    admit: Vec<HostId>,
    #[serde(default)]
    reason: Option<String>,
}

/// Asks, and hands the answer in.
pub(super) async fn ask(console: Console, request: AuthorityRequest) {
    let AuthorityRequest { deployment, version, authority, hosts } = request;
    let timeout = Duration::from_millis(u64::try_from(authority.timeout_ms).unwrap_or(0));
    for part in hosts.chunks(HOSTS_MAX) {
        let asked = tokio::time::timeout(timeout, ask_for(&console.shared, &deployment, version, &authority.url, part));
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(_) => Err(format!("it has not answered within {} s", timeout.as_secs())),
        };
        let said = |host: &HostId| match &answer {
            Ok(admitted) if admitted.0.contains(host) => (*host, None),
            Ok((_, reason)) => (*host, Some(Arc::clone(reason))),
            Err(why) => (*host, Some(why.as_str().into())),
        };
        if let Err(error) = &answer {
            tracing::warn!(%deployment, version, url = authority.url, error, "the authority of a rollout has not answered");
        }
        let answer =
            AuthorityAnswer { deployment: deployment.clone(), version, hosts: part.iter().map(said).collect() };
        let rollouts = &console.shared.hosts.rollouts;
        rollouts.inbox().authorities.push(answer);
        rollouts.look();
    }
}

/// Asks for some hosts. Returns those that may begin, and why the others may not.
async fn ask_for(
    shared: &ConsoleState,
    deployment: &DeploymentName,
    version: u32,
    url: &str,
    hosts: &[HostId],
) -> Result<(BTreeSet<HostId>, Arc<str>), String> {
    let client = client(&shared.current().rollouts, url)?;
    let db = shared.store.read();
    let failed = |error: store::StoreError| format!("{:#}", Diagnostic::of(&error));
    let names = store::host::names_of(db, hosts).await.map_err(failed)?;
    let labels = store::label::given(db, Some(hosts)).await.map_err(failed)?;
    let asked = |host: &HostId| AskedHost {
        host: *host,
        hostname: names.get(host).cloned().unwrap_or_default(),
        labels: labels.get(host).map(store::label::values).unwrap_or_default(),
    };
    let body = AskedHosts { deployment, version, hosts: hosts.iter().map(asked).collect() };
    let answer = client.post(url).json(&body).send().await.map_err(|error| http::cause(&error))?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("it answers {status}"));
    }
    let (mut bytes, mut stream) = (Vec::new(), answer.bytes_stream());
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| http::cause(&error))?;
        if bytes.len() + piece.len() > ANSWER_MAX_BYTES {
            return Err(format!("its answer is longer than {ANSWER_MAX_BYTES} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    read(&bytes)
}

/// Reads an answer.
fn read(bytes: &[u8]) -> Result<(BTreeSet<HostId>, Arc<str>), String> {
    let answer: AdmittedHosts =
        serde_json::from_slice(bytes).map_err(|error| format!("its answer is not valid: {error}"))?;
    let mut reason = answer.reason.unwrap_or_else(|| "it does not name the host".to_owned());
    reason.retain(|c| !c.is_control());
    reason.truncate(reason.floor_char_boundary(REASON_MAX_BYTES / 2));
    Ok((answer.admit.into_iter().collect(), reason.into()))
}

/// Why the console cannot ask an authority: without authorities to trust it would believe anybody.
pub(crate) fn fault(config: &RolloutConfig) -> Option<&'static str> {
    config.authority_file.is_none().then_some(
        "the console's configuration has no authority for this address: set `authority_file` in its \
         [rollouts] to a PEM file with the authorities of its certificate",
    )
}

fn client(config: &RolloutConfig, url: &str) -> Result<reqwest::Client, String> {
    let url: reqwest::Url =
        url.parse().map_err(|error| format!("its address is not a URL: {}", http::url_fault(&error)))?;
    let Some(path) = &config.authority_file else {
        return Err(fault(config).unwrap_or_default().to_owned());
    };
    let pem = muster_base::files::read_text(path)
        .map_err(|error| format!("{:#}", Diagnostic::of_error(&error).within(path.display())))?;
    let roots = pki::roots(&pem).map_err(|error| with_causes(&error))?;
    let tls = rustls::ClientConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let proxy = Proxy::of(config.proxy.as_deref())
        .map_err(|error| format!("{:#}", Diagnostic::of(&error).within("`rollouts.proxy`")))?;
    let client = http::client(tls, &url, proxy.as_ref()).and_then(|client| client.https_only(true).build());
    client.map_err(|error| with_causes(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_read_and_garbage_is_a_no() {
        let host = HostId::random();
        let (admitted, reason) =
            read(format!(r#"{{"admit": ["{host}"], "reason": "one at a time"}}"#).as_bytes()).unwrap();
        assert!(admitted.contains(&host) && &*reason == "one at a time");
        assert!(read(br#"{"admit": [], "reason": null, "more": 1}"#).unwrap().0.is_empty());
        for garbage in ["", "yes", "{}", r#"{"admit": ["till-7"]}"#, r#"{"admit": true}"#, "[]"] {
            assert!(read(garbage.as_bytes()).unwrap_err().contains("not valid"), "{garbage}");
        }
    }

    #[test]
    fn nobody_is_trusted_without_an_authority_file() {
        let error = client(&RolloutConfig::default(), "https://orly.example/admit").unwrap_err();
        assert!(error.contains("authority_file"), "{error}");
    }
}
