//! The files that rows name, in the folder in which their verbs are run.

use muster_topics::name::Digest;

use crate::fleet::{Home, file};

/// The public key of the backups of this fleet.
pub(crate) const RECIPIENT: &str = "age13npderxfd0zxce89wd9kvz6yc0z78qmyg3mm4yccdqjzsu9mgvxquxd726";

/// Names and contents.
const FILES: &[(&str, &str)] = &[
    // Programs.
    ("sleeper", "#!/bin/sh\necho begun\nexec sleep 1000\n"),
    ("sleeper2", "#!/bin/sh\necho begun again\nexec sleep 1000\n"),
    ("failer", "#!/bin/sh\necho cannot >&2\nexit 3\n"),
    // What programs read.
    ("app.json", "{\"a\": 1}"),
    ("app2.json", "{\"a\": 2, \"b\": true}"),
    ("broken.json", "{\"a\": 1,"),
    ("twice.json", "{\"a\": 1, \"a\": 2}"),
    ("password", "swordfish\n"),
    ("template.txt", "lanes: {{ vars.lanes }}\n"),
    ("template-broken.txt", "{{ vars.\n"),
    ("template-undefined.txt", "{{ vars.nothing }}\n"),
    // Configurations of roles.
    ("empty.toml", ""),
    ("broken.toml", "data_dir = \n"),
    ("unknown-key.toml", "data_dri = \"x\"\n"),
    ("bad-value.toml", "data_dir = 3\n"),
    ("checked.toml", "realms = [\"shop\"]\n[labels]\nshop = \"7\"\n[metrics.every_s]\ncores = \"off\"\n"),
    (
        "wrong-agent.toml",
        "data_dir = \"fresh\"\nheartbeat_ms = 0\nremoval_day_share = \"much\"\npolicy_file = \"no-policy.toml\"\n\
         local_listen = \"0.0.0.0:7070\"\n[admission]\ncommand = [\"/no/such\"]\nwindow = []\n",
    ),
    ("removed-agent.toml", "keep_alive_s = 60\n"),
    ("checked-console.toml", "data_dir = \"console\"\npublic_names = [\"fleet.example\"]\n"),
    (
        "wrong-console.toml",
        "data_dir = \"empty.toml\"\nbroker_url = \"http://127.0.0.1:1\"\nweb_listen = \"127.0.0.1:7443\"\n\
         [host_shares]\nseries_max = 5\n[[metric_stores]]\nname = \"a\"\nkind = \"influxdb1\"\nurl = \"http://h\"\n",
    ),
    ("removed-console.toml", "[backup]\nwith_artifacts = true\n"),
    (
        "checked-broker.toml",
        "data_dir = \"broker-data\"\ncertificate_file = \"broker/certificate.pem\"\nkey_file = \"broker/key.pem\"\n\
         authority_file = \"broker/authority.pem\"\nclients_max = 100\n",
    ),
    (
        "wrong-broker.toml",
        "data_dir = \"broker-data\"\ncertificate_file = \"password\"\nkey_file = \"password\"\n\
         authority_file = \"nothing.pem\"\nplain_listen = \"127.0.0.1:8883\"\nusers_file = \"password\"\n\
         memory_max_bytes = 1000\n",
    ),
    ("removed-broker.toml", "[limits]\ninflight_max = 100\n"),
    // Batches.
    ("batch.yaml", "- argv: [echo, one]\n- shell: echo two\n"),
    ("batch-broken.yaml", "- argv: echo\n"),
    ("batch-failing.yaml", "- argv: [echo, one]\n- shell: exit 3\n- argv: [echo, three]\n"),
    // Documents.
    ("unit.yaml", "unit: default/a\nkind: yuno\nartifact: sleeper@2\nconfigs: [app.main@1]\nrun: running\n"),
    ("motd.yaml", "unit: default/motd\nkind: files\nrun: running\nfiles: {/tmp/muster-snapshots: {directory: {}}}\n"),
    ("unit-unknown.yaml", "unit: default/a\nkind: yuno\nartefact: sleeper@1\n"),
    ("unit-no-artifact.yaml", "unit: default/a\nkind: yuno\nartifact: nothing@1\n"),
    (
        "deployment.yaml",
        "deployment: default/fleet\ntarget: {select: host=shop-7}\nunits:\n\
         - {name: d, artifact: sleeper@1, verify_after_ms: 300}\n",
    ),
    (
        "deployment-2.yaml",
        "deployment: default/fleet\ntarget: {select: host=shop-7}\nunits:\n\
         - {name: d, artifact: sleeper@2, verify_after_ms: 300}\n",
    ),
    (
        "deployment-unknown.yaml",
        "deployment: default/fleet\ntarget: {select: host=shop-7}\nunit:\n- {name: d, artifact: sleeper@1}\n",
    ),
    (
        "deployment-no-artifact.yaml",
        "deployment: default/fleet\ntarget: {select: host=shop-7}\nunits:\n- {name: d, artifact: nothing@1}\n",
    ),
    (
        "rollout.yaml",
        "deployment: default/wave\ntarget: {select: label.simulated=true}\nrollout: {soak: 0}\nunits:\n\
         - {name: w, artifact: sleeper@1, verify_after_ms: 300}\n",
    ),
    (
        "rollout-approved.yaml",
        "deployment: default/wave\ntarget: {select: label.simulated=true}\n\
         rollout: {waves: [1], approve: first, soak: 0}\nunits:\n\
         - {name: w, artifact: sleeper@2, verify_after_ms: 300}\n",
    ),
    // The private key of the backups of this fleet.
    ("identity", "AGE-SECRET-KEY-10LXHV0TTUHKT80KLK9SN4YDRTJ5R9DGYSTFH7ZCUHXHS86YQNV7QNL82HU\n"),
];

/// Writes them.
pub(crate) fn write_all(home: &Home) {
    for (name, content) in FILES {
        file(home, name, content);
    }
}

/// Whether hexadecimal digits are the beginning of a file's digest.
pub(crate) fn has_digest(digits: &str) -> bool {
    FILES.iter().any(|(_, content)| Digest::of(content.as_bytes()).to_string().starts_with(digits))
}
