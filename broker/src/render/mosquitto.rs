//! Mosquitto: a configuration and a file of permissions.
//!
//! Its patterns know the whole common name only. A host's is the table's `%u`; for everybody else, whose id
//! stands behind a prefix in the common name, nothing but an entry of its own says what the table says. As
//! patterns hold for everybody, such an entry also takes back what a host of that name could publish.

use std::fmt::Write as _;

use muster_topics::{
    PAYLOAD_MAX_BYTES,
    role::{Action, Role},
};

use super::context::{IDS, RenderContext, RenderedClient, RenderedFile};

const VERSION: &str = "Mosquitto 2.0.11 (Debian 12)";
const TESTED: &str =
    "Tested: muster's tests run it, and hold it to the same table of permissions as muster's own broker.";

/// Unacknowledged messages to a client. With Mosquitto's default of 20 a console would receive 10,000 outcomes in 500
/// turns.
const INFLIGHT: u32 = 1_000;
/// Messages that wait for a slow client: ten outcomes each of 10,000 hosts. Mosquitto's default of 1,000 silently lost
/// four of five answers to one command.
const QUEUED: u32 = 100_000;
/// Their bytes, for one client: the largest messages would otherwise take gigabytes.
const QUEUED_BYTES: u64 = 256 * 1024 * 1024;

pub(super) fn files(maker: &RenderContext<'_>) -> Vec<RenderedFile> {
    vec![
        RenderedFile { name: "mosquitto.conf", text: configuration(maker) },
        RenderedFile { name: "muster.acl", text: permissions(maker) },
    ]
}

fn configuration(maker: &RenderContext<'_>) -> String {
    let head = maker.head(
        "#",
        VERSION,
        TESTED,
        &[
            "The three PEM files come from `muster console issue --role broker --name NAME --san ADDRESS --out FOLDER`; \
             muster.acl is beside them. Mosquitto's own user must be able to read them.",
            IDS,
            "Different: a SUBSCRIBE for too much is granted, but brings only what the client may read. muster's own \
             broker refuses it. The same holds for shared subscriptions.",
        ],
    );
    let (folder, listen) = (&maker.folder, maker.fleet.listen);
    format!(
        "{head}
per_listener_settings false
listener {port} {ip}
cafile {folder}/authority.pem
certfile {folder}/certificate.pem
keyfile {folder}/key.pem
tls_version tlsv1.2
# A client needs a certificate of the authority; its common name is its identity.
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file {folder}/muster.acl
# What is revoked. Mosquitto reads the list when it starts, and refuses everybody once it is outdated. So have the
# console give it each new list: `revocation_command` in its configuration runs a program of yours that copies
# $MUSTER_REVOKED_PEM here and starts Mosquitto again. Then take the # away:
#crlfile {folder}/revoked.pem

# Every party publishes its retained messages again when it connects; this saves them the moment.
persistence true
persistence_location /var/lib/mosquitto/
autosave_interval 300

allow_zero_length_clientid false
set_tcp_nodelay true
# No message of the protocol is larger.
message_size_limit {PAYLOAD_MAX_BYTES}
# How much is sent ahead of acknowledgements.
max_inflight_messages {INFLIGHT}
# What waits for a client that does not keep up: ten outcomes each of 10,000 hosts; and the same in bytes.
max_queued_messages {QUEUED}
max_queued_bytes {QUEUED_BYTES}
# Sessions that nobody came back for.
persistent_client_expiration 7d
log_type error
log_type warning
log_type notice
",
        port = listen.port(),
        ip = listen.ip(),
    )
}

fn permissions(maker: &RenderContext<'_>) -> String {
    let mut text = maker.head(
        "#",
        VERSION,
        TESTED,
        &[
            "Every identity other than a host must be named (--console, --operator, --observer). A certificate whose name is not in here \
             has the rights of a host of that name: it reads broadcast commands and writes where no console looks.",
        ],
    );
    text.push_str("\n# Hosts: the user name is the common name, and a host's common name is its id.\n");
    // Adding lines to a string cannot fail.
    for (action, word) in [(Action::Publish, "write"), (Action::Subscribe, "read")] {
        for filter in maker.filters(Role::Host, action, "%u") {
            let _ = writeln!(text, "pattern {word} {filter}");
        }
    }
    for client in maker.others() {
        entry(maker, &client, &mut text);
    }
    text
}

fn entry(maker: &RenderContext<'_>, client: &RenderedClient, text: &mut String) {
    let name = &client.common_name;
    let _ = writeln!(text, "\nuser {name}");
    for (action, word) in [(Action::Publish, "write"), (Action::Subscribe, "read")] {
        for filter in maker.filters_and_system(client.role, action, &client.id) {
            let _ = writeln!(text, "topic {word} {filter}");
        }
    }
    text.push_str("# Not a host.\n");
    for filter in maker.filters(Role::Host, Action::Publish, name) {
        let _ = writeln!(text, "topic deny {filter}");
    }
}
