//! EMQX: the parts of its configuration that matter here, and its file of permissions.
//!
//! The user name is the certificate's common name; expressions over it tell the roles apart.

use std::fmt::Write as _;

use muster_topics::{
    PAYLOAD_MAX_BYTES,
    role::{Action, Role},
};

use super::context::{RenderContext, RenderedFile};

const VERSION: &str = "EMQX 5.8";
const TESTED: &str = "UNTESTED: written from EMQX's documentation; no test of muster's runs it.";

/// The same as for Mosquitto, for the same reasons.
const INFLIGHT: u32 = 1_000;
const QUEUED: u32 = 100_000;
/// Room for topic and properties around the largest payload.
const PACKET_MAX_KIB: usize = PAYLOAD_MAX_BYTES / 1024 + 4;

/// A host's common name.
const UUID: &str = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$";

pub(super) fn files(maker: &RenderContext<'_>) -> Vec<RenderedFile> {
    vec![
        RenderedFile { name: "emqx.conf", text: configuration(maker) },
        RenderedFile { name: "acl.conf", text: permissions(maker) },
    ]
}

const CLIENT_IDS: &str = "Not expressed: whose a client id is. A client that is admitted may end another one's session by \
                          using its client id; its own permissions do not change.";

fn configuration(maker: &RenderContext<'_>) -> String {
    let head = maker.head(
        "#",
        VERSION,
        TESTED,
        &[
            "The three PEM files come from `muster console issue --role broker --name NAME --san ADDRESS --out FOLDER`; \
             acl.conf is beside them.",
            CLIENT_IDS,
        ],
    );
    let (folder, listen) = (&maker.folder, maker.fleet.listen);
    format!(
        "{head}
listeners.tcp.default.enable = false
listeners.ws.default.enable = false
listeners.wss.default.enable = false
listeners.ssl.default {{
  bind = \"{listen}\"
  ssl_options {{
    cacertfile = \"{folder}/authority.pem\"
    certfile = \"{folder}/certificate.pem\"
    keyfile = \"{folder}/key.pem\"
    versions = [\"tlsv1.3\", \"tlsv1.2\"]
    # A client needs a certificate of the authority; its common name is its identity.
    verify = verify_peer
    fail_if_no_peer_cert = true
  }}
}}
mqtt {{
  peer_cert_as_username = cn
  max_packet_size = {PACKET_MAX_KIB}KB
  max_inflight = {INFLIGHT}
  max_mqueue_len = {QUEUED}
  shared_subscription = false
}}
authorization {{
  no_match = deny
  deny_action = disconnect
  sources = [{{ type = file, enable = true, path = \"{folder}/acl.conf\" }}]
}}
"
    )
}

fn permissions(maker: &RenderContext<'_>) -> String {
    let mut text = maker.head(
        "%%",
        VERSION,
        TESTED,
        &["A console must be named (--console) to publish that it is there; hosts, operators and observers are known by the \
           form of their names."],
    );
    let roles = [
        (Role::Host, UUID.to_owned(), "${cert_common_name}"),
        (Role::Operator, "^operator-".to_owned(), ""),
        (Role::Observer, "^observer-".to_owned(), ""),
    ];
    for (role, expression, id) in roles {
        rules(maker, role, &format!("{{username, {{re, \"{expression}\"}}}}"), id, &mut text);
    }
    for name in &maker.fleet.consoles {
        rules(maker, Role::Console, &format!("{{username, \"console-{name}\"}}"), name.as_str(), &mut text);
    }
    text.push_str("\n{deny, all}.\n");
    text
}

/// Writes the rules of one kind of client: to publish and to subscribe.
fn rules(maker: &RenderContext<'_>, role: Role, who: &str, id: &str, text: &mut String) {
    text.push('\n');
    for (action, word) in [(Action::Publish, "publish"), (Action::Subscribe, "subscribe")] {
        let topics: Vec<String> =
            maker.filters_and_system(role, action, id).iter().map(|filter| format!("\n    \"{filter}\"")).collect();
        if !topics.is_empty() {
            // Adding lines to a string cannot fail.
            let _ = writeln!(text, "{{allow, {who}, {word}, [{}]}}.", topics.join(","));
        }
    }
}
