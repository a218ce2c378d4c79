//! RabbitMQ: its configuration, the plug-in, and users with their permissions as a document of definitions.
//!
//! MQTT's levels become words of a routing key, `/` a dot, `+` an asterisk; permissions are regular expressions
//! over that. Each client is a user without a password, whom only a certificate of that common name can be.

use muster_topics::{
    PAYLOAD_MAX_BYTES,
    role::{Action, Role},
};

use super::context::{IDS, RenderContext, RenderedClient, RenderedFile};

const VERSION: &str = "RabbitMQ 3.10.8 (Debian 12)";
const TESTED: &str = "Tested: muster's tests run it, with a host and a console that exchange commands, outcomes, presence and \
                      last wills, and with the rules as RabbitMQ can have them.";

/// Unacknowledged messages to a client: with RabbitMQ's default of 10 a console would receive 10,000 outcomes in 1,000
/// turns.
const PREFETCH: u32 = 1_000;

pub(super) fn files(maker: &RenderContext<'_>) -> Vec<RenderedFile> {
    vec![
        RenderedFile { name: "rabbitmq.conf", text: configuration(maker) },
        RenderedFile { name: "enabled_plugins", text: "[rabbitmq_mqtt].\n".to_owned() },
        RenderedFile { name: "definitions.json", text: definitions(maker) },
    ]
}

const NAMED: &str = "Everybody must be named, hosts too (--host). To add one: write definitions.json again with all of them, and \
                     `rabbitmqctl import_definitions FILE`; to lock one out: `rabbitmqctl delete_user ID`.";
const WILDCARDS: &str = "Different: a retained message does not reach a subscription with a wildcard. muster does not count on it: a \
                         console asks, and agents say everything when they connect.";

fn configuration(maker: &RenderContext<'_>) -> String {
    let head = maker.head(
        "#",
        VERSION,
        TESTED,
        &[
            "The three PEM files come from `muster console issue --role broker --name NAME --san ADDRESS --out FOLDER`; \
             definitions.json is beside them. enabled_plugins belongs into /etc/rabbitmq.",
            NAMED,
            IDS,
            WILDCARDS,
            "Different: a message that is too long is not passed on, but neither acknowledged nor refused.",
            "Not expressed: the revocation list.",
        ],
    );
    let (folder, listen) = (&maker.folder, maker.fleet.listen);
    format!(
        "{head}
listeners.tcp = none
mqtt.listeners.tcp = none
mqtt.listeners.ssl.1 = {listen}
ssl_options.cacertfile = {folder}/authority.pem
ssl_options.certfile = {folder}/certificate.pem
ssl_options.keyfile = {folder}/key.pem
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2
# A client needs a certificate of the authority; its common name is its identity.
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
mqtt.ssl_cert_login = true
mqtt.allow_anonymous = false

mqtt.vhost = /
mqtt.exchange = amq.topic
# How much is sent ahead of acknowledgements.
mqtt.prefetch = {PREFETCH}
# Retained messages outlive a restart.
mqtt.retained_message_store = rabbit_mqtt_retained_msg_store_dets
# No message of the protocol is larger.
max_message_size = {PAYLOAD_MAX_BYTES}
# Users and their permissions. As there are some, RabbitMQ makes no guest with a well-known password.
load_definitions = {folder}/definitions.json
"
    )
}

fn definitions(maker: &RenderContext<'_>) -> String {
    let head = maker.head("", VERSION, TESTED, &[NAMED, IDS, WILDCARDS]);
    let head = lines(head.lines().map(|line| quote(line.trim())));
    let everybody = maker.everybody();
    let all = |item: &dyn Fn(&RenderedClient) -> String| lines(everybody.iter().map(item));
    let users = all(&|client| {
        let name = quote(&client.common_name);
        // An empty hash is no password: it cannot be used to sign in.
        format!(
            "{{\"name\": {name}, \"password_hash\": \"\", \"hashing_algorithm\": \"rabbit_password_hashing_sha256\", \"tags\": []}}"
        )
    });
    let permissions = all(&permission);
    let topics = all(&|client| topic_permission(maker, client));
    format!(
        "{{
  \"about\": [{head}],
  \"vhosts\": [{{\"name\": \"/\"}}],
  \"users\": [{users}],
  \"permissions\": [{permissions}],
  \"topic_permissions\": [{topics}]
}}
"
    )
}

/// Returns items of a JSON list, one in each line.
fn lines(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| format!("\n    {item}")).collect();
    if items.is_empty() { String::new() } else { items.join(",") + "\n  " }
}

/// Returns a JSON string.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the permission for the exchange of all messages, and for the queues of the client's subscriptions.
fn permission(client: &RenderedClient) -> String {
    let queues = format!("mqtt-subscription-{}(-[A-Za-z0-9_-]+)?qos[01]", client.common_name);
    let (queues, both) = (quote(&format!("^{queues}$")), quote(&format!("^(amq\\.topic|{queues})$")));
    let user = quote(&client.common_name);
    format!("{{\"user\": {user}, \"vhost\": \"/\", \"configure\": {queues}, \"write\": {both}, \"read\": {both}}}")
}

fn topic_permission(maker: &RenderContext<'_>, client: &RenderedClient) -> String {
    // RabbitMQ inserts the user's name, which is a host's id.
    let id = if client.role == Role::Host { "{username}" } else { &client.id };
    let of = |action| {
        let filters = maker.filters(client.role, action, id);
        let any: Vec<String> = filters.iter().map(|filter| regular(filter)).collect();
        quote(&format!("^({})$", if any.is_empty() { "(?!)".to_owned() } else { any.join("|") }))
    };
    let (write, read) = (of(Action::Publish), of(Action::Subscribe));
    let user = quote(&client.common_name);
    format!("{{\"user\": {user}, \"vhost\": \"/\", \"exchange\": \"amq.topic\", \"write\": {write}, \"read\": {read}}}")
}

/// Converts a filter to a regular expression over routing keys, which may be filters: one level matches an asterisk,
/// which is `+`, but no `#`.
fn regular(filter: &str) -> String {
    let level = |level: &str| match level {
        "+" => "[^.#]+".to_owned(),
        "#" => ".+".to_owned(),
        literal => literal.to_owned(),
    };
    filter.split('/').map(level).collect::<Vec<_>>().join("\\.")
}
