//! NATS: one file. MQTT's levels become tokens of a subject, `+` an asterisk, `#` a `>`.
//!
//! Each client is a user whom only a certificate with that subject can be.

use std::fmt::Write as _;

use muster_topics::{PAYLOAD_MAX_BYTES, role::Action};

use super::context::{IDS, RenderContext, RenderedClient, RenderedFile};

const VERSION: &str = "nats-server 2.9.10 (Debian 12)";
const TESTED: &str = "Tested: muster's tests run it, with a host and a console that exchange commands, outcomes, presence and \
                      last wills, and with the rules as NATS can have them.";

/// Unacknowledged messages to a client: with NATS's default of 100 a console would receive 10,000 outcomes in 100
/// turns.
const ACK_PENDING: u32 = 1_000;

/// The port for NATS's own protocol, on loopback: the server requires one.
const OWN_PROTOCOL: &str = "127.0.0.1:4222";

pub(super) fn files(maker: &RenderContext<'_>) -> Vec<RenderedFile> {
    vec![RenderedFile { name: "nats-server.conf", text: configuration(maker) }]
}

fn configuration(maker: &RenderContext<'_>) -> String {
    let head = maker.head(
        "#",
        VERSION,
        TESTED,
        &[
            "The three PEM files come from `muster console issue --role broker --name NAME --san ADDRESS --out FOLDER`.",
            "Everybody must be named, hosts too (--host). To add or lock out one: write this file again with all of them, and \
             `nats-server --signal reload`.",
            IDS,
            "Not expressed: the revocation list, and the longest message: max_payload bounds NATS's own protocol alone.",
        ],
    );
    let (folder, listen) = (&maker.folder, maker.fleet.listen);
    let tls = format!(
        "cert_file: \"{folder}/certificate.pem\"
    key_file: \"{folder}/key.pem\"
    ca_file: \"{folder}/authority.pem\"
    verify_and_map: true
    timeout: 10"
    );
    let mut users = String::new();
    for client in maker.everybody() {
        user(maker, &client, &mut users);
    }
    format!(
        "{head}
server_name: muster
# NATS's own protocol. The users below have no passwords, so it must ask for certificates as well.
listen: \"{OWN_PROTOCOL}\"
tls {{
    {tls}
}}

# Sessions, retained messages and what waits for an acknowledgement are kept here.
jetstream {{
    store_dir: \"/var/lib/nats\"
    max_memory_store: 268435456
    max_file_store: 1073741824
}}

mqtt {{
  listen: \"{listen}\"
  # A client needs a certificate of the authority; its subject is its identity.
  tls {{
    {tls}
  }}
  # How much is sent ahead of acknowledgements.
  max_ack_pending: {ACK_PENDING}
}}

# In NATS's own protocol: the largest message of muster's, and as much again for headers.
max_payload: {payload}

authorization {{
  users: [{users}
  ]
}}
",
        payload = 2 * PAYLOAD_MAX_BYTES,
    )
}

fn user(maker: &RenderContext<'_>, client: &RenderedClient, text: &mut String) {
    let subjects = |action| -> Vec<String> {
        maker.filters(client.role, action, &client.id).iter().flat_map(|filter| subjects(filter)).collect()
    };
    let list = |subjects: Vec<String>| {
        let lines: Vec<String> = subjects.iter().map(|subject| format!("\n        \"{subject}\"")).collect();
        lines.join("")
    };
    let (publish, mut subscribe) = (subjects(Action::Publish), subjects(Action::Subscribe));
    // Where the server delivers what waits for an acknowledgement.
    subscribe.push("$MQTT.sub.>".to_owned());
    // An explicit denial: an empty list would permit everything.
    let publish = if publish.is_empty() {
        "{ deny: \">\" }".to_owned()
    } else {
        format!("{{ allow: [{}\n      ] }}", list(publish))
    };
    // Adding lines to a string cannot fail.
    let _ = write!(
        text,
        "
    {{ user: \"CN={}\", permissions: {{
      publish: {publish}
      subscribe: {{ allow: [{}
      ] }}
    }} }}",
        client.common_name,
        list(subscribe)
    );
}

/// Converts a filter to subjects; `a/#` also matches `a`, which needs a subject of its own.
fn subjects(filter: &str) -> Vec<String> {
    let token = |level: &str| match level {
        "+" => "*".to_owned(),
        "#" => ">".to_owned(),
        literal => literal.to_owned(),
    };
    let subject = filter.split('/').map(token).collect::<Vec<_>>().join(".");
    match subject.strip_suffix(".>") {
        Some(above) => vec![above.to_owned(), subject],
        None => vec![subject],
    }
}
