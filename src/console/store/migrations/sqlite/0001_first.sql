-- The console's store. Times are milliseconds since the Unix epoch, by the console's clock unless a comment says otherwise. CHECKs
-- mirror the enums of muster-topics and muster-api.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

-- Members -----------------------------------------------------------------------------------------

-- Everyone who ever joined and was not removed.
CREATE TABLE host (
    id             TEXT PRIMARY KEY CHECK (length(id) = 36),
    hostname       TEXT NOT NULL,
    facts          TEXT NOT NULL,
    joined_ms      INTEGER NOT NULL,
    -- What of a command only this host may read is sealed to this key of it, once it has sent one.
    sealing_key    TEXT CHECK (sealing_key IS NULL OR length(sealing_key) = 44),
    sealing_key_ms INTEGER
) STRICT;

CREATE INDEX host_by_hostname ON host (hostname);

-- Certificates that hosts were given. One that is not in here, or revoked, opens nothing.
CREATE TABLE certificate (
    serial     TEXT PRIMARY KEY,
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    key_sha256 TEXT NOT NULL CHECK (length(key_sha256) = 64),
    issued_ms  INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER,
    -- The newest one of a host itself: a host that asks again soon gets the same one.
    pem        TEXT
) STRICT;

CREATE INDEX certificate_by_host ON certificate (host);
-- The revocation list is looked for every few seconds, among the certificates of every host.
CREATE INDEX certificate_revoked ON certificate (expires_ms) WHERE revoked_ms IS NOT NULL;

-- Certificates of hosts that were removed: they are good no more, though their time is not over.
CREATE TABLE removed (
    serial     TEXT PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER NOT NULL
) STRICT;

-- Certificates that were made by hand (`muster console issue`), so that each can be revoked.
CREATE TABLE issued (
    serial     TEXT PRIMARY KEY,
    role       TEXT NOT NULL CHECK (role IN ('broker', 'console', 'operator', 'observer')),
    name       TEXT NOT NULL,
    issued_ms  INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER
) STRICT;

-- One-time passwords for hosts that shall join; the secret as SHA-256.
CREATE TABLE token (
    id            TEXT PRIMARY KEY,
    secret_sha256 TEXT NOT NULL UNIQUE CHECK (length(secret_sha256) = 64),
    operator      TEXT NOT NULL,
    created_ms    INTEGER NOT NULL,
    expires_ms    INTEGER NOT NULL,
    revoked_ms    INTEGER,
    used_ms       INTEGER,
    used_by       TEXT,
    -- The host that is there already and may join with another key: an operator has said so.
    replaces      TEXT,
    CHECK ((used_ms IS NULL) = (used_by IS NULL))
) STRICT;

-- The addresses that hosts were told last, to know whether they have changed.
CREATE TABLE address (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    generation   INTEGER NOT NULL,
    broker_urls  TEXT NOT NULL,
    console_urls TEXT NOT NULL
) STRICT;

-- Labels that operators have given hosts, beside those of the hosts' own configurations; and the order in time of what each host is
-- told of them.
CREATE TABLE host_label (
    host     TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (host, name)
) STRICT;

CREATE TABLE host_label_generation (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    generation INTEGER NOT NULL
) STRICT;

-- Hosts that get no new deployments, or none at all.
CREATE TABLE host_cordon (
    host     TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    cordon   TEXT NOT NULL CHECK (cordon IN ('cordoned', 'drained')),
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL
) STRICT;

-- What hosts report -------------------------------------------------------------------------------

CREATE TABLE presence (
    host          TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    state         TEXT NOT NULL CHECK (state IN ('online', 'offline', 'stopped')),
    epoch         INTEGER NOT NULL,
    session       INTEGER NOT NULL,
    agent_version TEXT NOT NULL,
    since_ms      INTEGER NOT NULL,
    -- What the agent can do there, as it says, a JSON list; null as long as only a heartbeat was heard.
    capabilities  TEXT CHECK (capabilities IS NULL OR json_valid(capabilities))
) STRICT;

-- The newest heartbeat that was applied, and the one before it that its delta was made from: an
-- agent goes on making deltas from that one until it has the acknowledgement.
CREATE TABLE heartbeat (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    state      TEXT NOT NULL,
    base_seq   INTEGER,
    base_state TEXT,
    at_ms      INTEGER NOT NULL,
    -- The epochs of the last agents of the host that were heard of, the last one first.
    lives      TEXT NOT NULL DEFAULT '[]',
    CHECK ((base_seq IS NULL) = (base_state IS NULL))
) STRICT;

-- The last report of each unit. What lists of units are filtered by is read out of it, and indexed.
CREATE TABLE unit (
    host    TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit    TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    -- By the host's clock.
    made_ms INTEGER NOT NULL,
    report  TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    -- Whether it needs somebody's eye: as `UnitSummary::is_troubled` has it.
    troubled INTEGER GENERATED ALWAYS AS (
        json_extract(report, '$.desired.run') <> 'stopped'
        AND ifnull(json_extract(report, '$.hold.reason'), '') <> 'operator'
        AND (json_extract(report, '$.observed.phase') IN ('backoff', 'failed')
            OR json_extract(report, '$.observed.rolled_back') IS NOT NULL
            OR json_extract(report, '$.hold') IS NOT NULL)
    ) VIRTUAL,
    deployment         TEXT GENERATED ALWAYS AS (json_extract(report, '$.owner.deployment')) VIRTUAL,
    deployment_version INTEGER GENERATED ALWAYS AS (json_extract(report, '$.owner.version')) VIRTUAL,
    phase              TEXT GENERATED ALWAYS AS (json_extract(report, '$.observed.phase')) VIRTUAL,
    PRIMARY KEY (host, unit)
) STRICT;

CREATE INDEX unit_troubled ON unit (troubled) WHERE troubled;
CREATE INDEX unit_by_deployment ON unit (deployment, deployment_version, phase, host, unit)
    WHERE deployment IS NOT NULL;
CREATE INDEX unit_by_phase ON unit (phase, host, unit);
-- Units of deployments that their hosts' documents neither have nor remove: each comparison of all hosts looks for them.
CREATE INDEX unit_orphan ON unit (host, unit) WHERE json_extract(report, '$.owner.orphan') = 1;

-- Tasks of hosts that have changed something, have failed or were interrupted, the last ones, for outlets. A host repeats an end until it is
-- acknowledged: number and beginning tell it from others. `n` grows, and no number is used again.
CREATE TABLE task_end (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    host     TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    number   INTEGER NOT NULL,
    began_ms INTEGER NOT NULL,
    body     TEXT NOT NULL,
    UNIQUE (host, number, began_ms)
) STRICT;

-- Up to which end each outlet was told.
CREATE TABLE task_end_told (
    outlet TEXT PRIMARY KEY,
    n      INTEGER NOT NULL
) STRICT;

-- Operators ---------------------------------------------------------------------------------------

CREATE TABLE operator (
    name       TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL
) STRICT;

-- Secrets of operators, as SHA-256: one-time sign-in codes, sessions of browsers, tokens of programs. They can be listed and ended; one that
-- was ended is remembered until it would have expired.
CREATE TABLE credential (
    secret_sha256 TEXT PRIMARY KEY CHECK (length(secret_sha256) = 64),
    kind          TEXT NOT NULL CHECK (kind IN ('sign_in', 'session', 'api')),
    operator      TEXT NOT NULL REFERENCES operator (name) ON DELETE CASCADE,
    created_ms    INTEGER NOT NULL,
    expires_ms    INTEGER,
    id            TEXT,
    name          TEXT,
    used_ms       INTEGER,
    revoked_ms    INTEGER
) STRICT;

CREATE UNIQUE INDEX credential_by_id ON credential (id);

-- What operators have changed of deployments, cordons and variables, the newest last. What they order of hosts is in the ledger of
-- commands.
CREATE TABLE change (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms    INTEGER NOT NULL,
    operator TEXT NOT NULL,
    kind     TEXT NOT NULL,
    -- The deployment, the variable with its layer, or the hosts.
    subject  TEXT NOT NULL,
    detail   TEXT NOT NULL
) STRICT;

-- Commands ----------------------------------------------------------------------------------------

-- The ledger. It outlives hosts and operators, so it does not refer to them.
CREATE TABLE command (
    id               TEXT PRIMARY KEY CHECK (length(id) = 36),
    operator         TEXT NOT NULL,
    issued_ms        INTEGER NOT NULL,
    expires_ms       INTEGER NOT NULL,
    broadcast        INTEGER NOT NULL CHECK (broadcast IN (0, 1)),
    verb             TEXT NOT NULL,
    -- The signed bytes, exactly as they are published each time.
    signed           BLOB NOT NULL,
    -- Whom a broadcast was meant for: everybody, a group, or those that an expression picks.
    target           TEXT,
    -- Whether something is sealed in the signed bytes; then each host has the key to it, sealed to that host.
    sealed           INTEGER NOT NULL DEFAULT 0 CHECK (sealed IN (0, 1)),
    -- The most output that one host may tell of it, by stream; nothing of verbs without output.
    stdout_max_bytes INTEGER,
    stderr_max_bytes INTEGER,
    -- Whether it may have gone out to anybody: it is noted before it first does.
    went_out         INTEGER NOT NULL DEFAULT 1 CHECK (went_out IN (0, 1))
) STRICT;

CREATE INDEX command_broadcast ON command (id) WHERE broadcast = 1;

CREATE TABLE command_host (
    command    TEXT NOT NULL REFERENCES command (id) ON DELETE CASCADE,
    host       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'accepted', 'running', 'done', 'missing')),
    outcome    TEXT,
    outcome_ms INTEGER,
    -- A host's commands are found by its own index, broadcasts one by one: they are few, and an entry for each of their hosts in
    -- an index in the order of hosts is a page that changes for each host.
    listed     INTEGER NOT NULL DEFAULT 1 CHECK (listed IN (0, 1)),
    sealed_key TEXT,
    PRIMARY KEY (command, host),
    CHECK ((state = 'done') = (outcome IS NOT NULL)),
    CHECK ((state = 'done') = (outcome_ms IS NOT NULL))
) STRICT;

CREATE INDEX command_host_by_host ON command_host (host, command) WHERE listed = 1;
CREATE INDEX command_host_open ON command_host (state) WHERE state IN ('waiting', 'accepted', 'running');
-- How many commands that were given to a host by name wait for it: so that one host does not take the room of all.
CREATE INDEX command_host_open_by_host ON command_host (host) WHERE listed = 1 AND state IN ('waiting', 'accepted', 'running');
-- How the hosts of a command ended is counted in the index, without their outputs: `command_status::kinds` has the same expression.
CREATE INDEX command_host_kinds ON command_host
    (command, state, json_remove(outcome, '$.started_ms', '$.finished_ms', '$.stdout', '$.stderr'));

-- Output that came before the outcome, piece by piece; n is the order in which it came.
CREATE TABLE output (
    n            INTEGER PRIMARY KEY,
    command      TEXT NOT NULL,
    host         TEXT NOT NULL,
    stream       TEXT NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    offset_bytes INTEGER NOT NULL CHECK (offset_bytes >= 0),
    data         BLOB NOT NULL,
    UNIQUE (command, host, stream, offset_bytes),
    FOREIGN KEY (command, host) REFERENCES command_host (command, host) ON DELETE CASCADE
) STRICT;

CREATE INDEX output_by_host ON output (host, n);

-- How much output is stored of each host, and of all of them ('').
CREATE TABLE output_size (
    host  TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT;

CREATE TRIGGER output_added AFTER INSERT ON output BEGIN
    INSERT INTO output_size (host, bytes) VALUES (NEW.host, length(NEW.data)), ('', length(NEW.data))
    ON CONFLICT (host) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER output_deleted AFTER DELETE ON output BEGIN
    UPDATE output_size SET bytes = bytes - length(OLD.data) WHERE host IN (OLD.host, '');
END;

-- Content -----------------------------------------------------------------------------------------

-- What authors say of their artifacts, known by the SHA-256 of its canonical JSON.
CREATE TABLE manifest (
    sha256   TEXT PRIMARY KEY CHECK (length(sha256) = 64),
    content  TEXT NOT NULL,
    operator TEXT NOT NULL,
    added_ms INTEGER NOT NULL
) STRICT;

-- Labels of blobs; the blobs lie in the folder `artifacts`, named by their hash.
CREATE TABLE artifact (
    role       TEXT NOT NULL,
    version    TEXT NOT NULL,
    sha256     TEXT NOT NULL CHECK (length(sha256) = 64),
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    operator   TEXT NOT NULL,
    added_ms   INTEGER NOT NULL,
    manifest   TEXT REFERENCES manifest (sha256),
    PRIMARY KEY (role, version)
) STRICT;

CREATE INDEX artifact_by_hash ON artifact (sha256);

CREATE TABLE config (
    id       TEXT NOT NULL,
    version  TEXT NOT NULL,
    sha256   TEXT NOT NULL CHECK (length(sha256) = 64),
    -- Canonical JSON, of which sha256 is the hash.
    content  TEXT NOT NULL,
    operator TEXT NOT NULL,
    added_ms INTEGER NOT NULL,
    PRIMARY KEY (id, version)
) STRICT;

CREATE INDEX config_by_hash ON config (sha256);

-- Labels that were removed. Nothing else may ever be added under one: hosts and people may remember what it was.
CREATE TABLE removed_label (
    kind       TEXT NOT NULL CHECK (kind IN ('artifact', 'config')),
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    sha256     TEXT NOT NULL CHECK (length(sha256) = 64),
    operator   TEXT NOT NULL,
    removed_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, name, version)
) STRICT;

-- Secrets that units use by name. Values are encrypted with a key that lies outside of this database
-- (authority/secrets.key); a version whose value was erased keeps its row, so that its number is not used again.
CREATE TABLE secret (
    realm    TEXT NOT NULL,
    name     TEXT NOT NULL,
    version  INTEGER NOT NULL CHECK (version > 0),
    key_id   INTEGER,
    value    BLOB,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (realm, name, version),
    CHECK ((key_id IS NULL) = (value IS NULL))
) STRICT;

-- What the console has given to hosts: units, with what they name. This alone decides what a host may fetch, and what a change of a unit
-- may send it.
CREATE TABLE given_content (
    digest  TEXT PRIMARY KEY CHECK (length(digest) = 64),
    -- The unit with what it names (JSON): hosts that were given the same share it.
    content TEXT NOT NULL
) STRICT;

-- What a content lets its hosts fetch: a hash of artifacts, manifests and configs, or REALM/NAME@VERSION of a secret.
CREATE TABLE given_part (
    part    TEXT NOT NULL,
    content TEXT NOT NULL REFERENCES given_content (digest) ON DELETE CASCADE,
    PRIMARY KEY (part, content)
) WITHOUT ROWID, STRICT;

CREATE INDEX given_part_by_content ON given_part (content);

CREATE TABLE given (
    host    TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit    TEXT NOT NULL,
    content TEXT NOT NULL REFERENCES given_content (digest),
    -- The order in which the console gave it.
    n       INTEGER NOT NULL,
    -- The command that gives it, which its host may have refused; a document that gives it replaces what was there before.
    command TEXT,
    PRIMARY KEY (host, unit, content)
) WITHOUT ROWID, STRICT;

CREATE INDEX given_by_content ON given (content);

-- Desired state -----------------------------------------------------------------------------------

-- Realms, as hosts are told of them. `default` needs no row.
CREATE TABLE realm (
    name       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    definition TEXT NOT NULL
) STRICT;

-- Variables of hosts, in layers.
CREATE TABLE var (
    layer    TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    -- Of layer, name and value.
    digest   TEXT NOT NULL,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (layer, name)
) WITHOUT ROWID, STRICT;

-- Deployments, and their immutable versions.
CREATE TABLE deployment (
    name       TEXT PRIMARY KEY,
    -- The order in which deployments were made: the first keeps a unit that two claim.
    created_ms INTEGER NOT NULL,
    -- The number of its present version.
    version    INTEGER NOT NULL CHECK (version > 0),
    -- Its versions stay, so that no number is used twice.
    removed_ms INTEGER
) STRICT;

CREATE TABLE deployment_version (
    deployment TEXT NOT NULL REFERENCES deployment (name) DEFERRABLE INITIALLY DEFERRED,
    number     INTEGER NOT NULL CHECK (number > 0),
    digest     TEXT NOT NULL,
    -- The version as hosts get it.
    content    TEXT NOT NULL,
    -- The document as it was written.
    document   TEXT NOT NULL,
    operator   TEXT NOT NULL,
    applied_ms INTEGER NOT NULL,
    -- The version whose content a rollback repeats.
    repeats    INTEGER,
    PRIMARY KEY (deployment, number)
) STRICT;

-- Which host carries which deployment, in which version.
CREATE TABLE assignment (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    deployment TEXT NOT NULL REFERENCES deployment (name),
    version    INTEGER NOT NULL,
    -- The units made by verbs that the deployment takes over.
    adopt      TEXT NOT NULL DEFAULT '[]',
    -- The digest of the plan that an operator has seen of the host, for this version.
    plan       TEXT,
    -- The instances that the host carries of units that the console places: their numbers, by the units.
    instances  TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (host, deployment)
) WITHOUT ROWID, STRICT;

-- Units that are to go, until their hosts report them gone. What an operator has lowered or drained, and what the console has moved,
-- goes at once.
CREATE TABLE unit_removal (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit       TEXT NOT NULL,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    purge      INTEGER NOT NULL CHECK (purge IN (0, 1)),
    at_once    INTEGER NOT NULL DEFAULT 0 CHECK (at_once IN (0, 1)),
    PRIMARY KEY (host, unit, deployment)
) WITHOUT ROWID, STRICT;

-- Units of deployments that operators have left to verbs on single hosts.
CREATE TABLE detached_unit (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    deployment TEXT NOT NULL,
    unit       TEXT NOT NULL,
    PRIMARY KEY (host, deployment, unit)
) WITHOUT ROWID, STRICT;

-- Documents ---------------------------------------------------------------------------------------

-- Bodies of documents: hosts that carry the same deployments share one.
CREATE TABLE desired_body (
    digest    TEXT PRIMARY KEY,
    content   TEXT NOT NULL,
    -- Whether it has values that observers of the broker must not read.
    is_secret INTEGER NOT NULL CHECK (is_secret IN (0, 1))
) STRICT;

-- The present document of each host. One that was not sent yet is sent when the console starts.
CREATE TABLE host_document (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL REFERENCES desired_body (digest),
    made_ms    INTEGER NOT NULL,
    is_sent    INTEGER NOT NULL CHECK (is_sent IN (0, 1))
) STRICT;

CREATE INDEX host_document_digest ON host_document (digest);

-- The last documents of each host: a host that reports another one has it from a console whose store was lost or replaced.
CREATE TABLE issued_document (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    PRIMARY KEY (host, epoch, generation)
) WITHOUT ROWID, STRICT;

-- Documents that hosts have handed in, because this console did not make them.
CREATE TABLE handed_in_document (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    at_ms      INTEGER NOT NULL
) STRICT;

CREATE TABLE handed_in_body (
    digest  TEXT PRIMARY KEY,
    content TEXT NOT NULL
) STRICT;

-- Rollouts ----------------------------------------------------------------------------------------

-- How versions of deployments reach their hosts. One for each version that has a policy.
CREATE TABLE rollout (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL CHECK (version > 0),
    begun_ms   INTEGER NOT NULL,
    ended_ms   INTEGER,
    -- How it goes, without its hosts (JSON).
    state      TEXT NOT NULL,
    PRIMARY KEY (deployment, version),
    FOREIGN KEY (deployment, version) REFERENCES deployment_version (deployment, number)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID, STRICT;

-- The hosts of a rollout. They stay when a host is removed, so that each has an outcome.
CREATE TABLE rollout_host (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    host       TEXT NOT NULL,
    hostname   TEXT NOT NULL,
    -- The outcome, once there is one: the word of the API.
    outcome    TEXT,
    -- How far it is (JSON).
    progress   TEXT NOT NULL,
    PRIMARY KEY (deployment, version, host),
    FOREIGN KEY (deployment, version) REFERENCES rollout (deployment, version) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID, STRICT;

-- What has happened to rollouts, for people.
CREATE TABLE rollout_step (
    id         INTEGER PRIMARY KEY,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    -- Who did it; the console itself if there is none.
    operator   TEXT,
    text       TEXT NOT NULL
) STRICT;

CREATE INDEX rollout_step_of ON rollout_step (deployment, version, id);

-- Alerts ------------------------------------------------------------------------------------------

-- Each occurrence of an alert: those that hold, and those that are over. `gone` is one that its host holds no more, and of
-- which it has not told how it ended. Times are by the host's clock, but for received_ms. Alerts of the console itself are about no
-- host, so an alert's host need not be one.
CREATE TABLE alert (
    host        TEXT NOT NULL,
    id          TEXT NOT NULL,
    since_ms    INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('raised', 'cleared', 'gone')),
    rule        TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    ended_ms    INTEGER,
    body        TEXT NOT NULL,
    received_ms INTEGER NOT NULL,
    PRIMARY KEY (host, id, since_ms),
    CHECK ((state = 'raised') = (ended_ms IS NULL))
) STRICT;

CREATE INDEX alert_raised ON alert (host) WHERE state = 'raised';
CREATE INDEX alert_by_time ON alert (since_ms);

-- Rules for one host, or ('') for all; and the order in time of what is said to each.
CREATE TABLE alert_rule (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    rule TEXT NOT NULL,
    PRIMARY KEY (host, name)
) STRICT;

CREATE TABLE alert_generation (
    host       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL
) STRICT;

CREATE TABLE alert_silence (
    id         TEXT PRIMARY KEY,
    -- Of all hosts, of all rules, if not said.
    host       TEXT,
    rule       TEXT,
    reason     TEXT NOT NULL,
    operator   TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    until_ms   INTEGER NOT NULL
) STRICT;

-- What outlets were told to hold, and were not told to be over.
CREATE TABLE alert_told (
    outlet   TEXT NOT NULL,
    host     TEXT NOT NULL,
    id       TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (outlet, host, id, since_ms),
    FOREIGN KEY (host, id, since_ms) REFERENCES alert (host, id, since_ms) ON DELETE CASCADE
) STRICT;

CREATE INDEX alert_told_by_alert ON alert_told (host, id, since_ms);

-- Backups -----------------------------------------------------------------------------------------

-- Backups that were made, to say which is the last good one, and what is in each.
CREATE TABLE backup (
    -- The order in which they were made: the clock may have been set between two.
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    kind        TEXT NOT NULL CHECK (kind IN ('scheduled', 'requested')),
    name        TEXT NOT NULL,
    operator    TEXT,
    taken_ms    INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    hosts       INTEGER NOT NULL,
    parts       TEXT NOT NULL
) STRICT;
