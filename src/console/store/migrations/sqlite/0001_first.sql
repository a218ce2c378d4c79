-- The console's store. Times are milliseconds since the Unix epoch, by the console's clock unless a
-- comment says otherwise. CHECKs mirror the enums of muster-topics and src/api.rs.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

-- Everyone who ever joined and was not removed.
CREATE TABLE host (
    id        TEXT PRIMARY KEY CHECK (length(id) = 36),
    hostname  TEXT NOT NULL,
    facts     TEXT NOT NULL,
    joined_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX host_by_hostname ON host (hostname);

-- Certificates that hosts were given. One that is not in here, or revoked, opens nothing.
CREATE TABLE certificate (
    serial     TEXT PRIMARY KEY,
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    key_sha256 TEXT NOT NULL CHECK (length(key_sha256) = 64),
    issued_ms  INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER
) STRICT;
CREATE INDEX certificate_by_host ON certificate (host);

CREATE TABLE presence (
    host          TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    state         TEXT NOT NULL CHECK (state IN ('online', 'offline', 'stopped')),
    epoch         INTEGER NOT NULL,
    session       INTEGER NOT NULL,
    agent_version TEXT NOT NULL,
    since_ms      INTEGER NOT NULL
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
    CHECK ((base_seq IS NULL) = (base_state IS NULL))
) STRICT;

CREATE TABLE unit (
    host    TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit    TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    -- By the host's clock.
    made_ms INTEGER NOT NULL,
    report  TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (host, unit)
) STRICT;

CREATE TABLE operator (
    name       TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL
) STRICT;

-- Secrets of operators, as SHA-256: one-time sign-in codes, sessions of browsers, tokens of programs.
CREATE TABLE credential (
    secret_sha256 TEXT PRIMARY KEY CHECK (length(secret_sha256) = 64),
    kind          TEXT NOT NULL CHECK (kind IN ('sign_in', 'session', 'api')),
    operator      TEXT NOT NULL REFERENCES operator (name) ON DELETE CASCADE,
    created_ms    INTEGER NOT NULL,
    expires_ms    INTEGER
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
    CHECK ((used_ms IS NULL) = (used_by IS NULL))
) STRICT;

-- The ledger. It outlives hosts and operators, so it does not refer to them.
CREATE TABLE command (
    id         TEXT PRIMARY KEY CHECK (length(id) = 36),
    operator   TEXT NOT NULL,
    issued_ms  INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    broadcast  INTEGER NOT NULL CHECK (broadcast IN (0, 1)),
    verb       TEXT NOT NULL,
    -- The signed bytes, exactly as they are published each time.
    signed     BLOB NOT NULL
) STRICT;

CREATE TABLE command_host (
    command    TEXT NOT NULL REFERENCES command (id) ON DELETE CASCADE,
    host       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'accepted', 'running', 'done', 'missing')),
    outcome    TEXT,
    outcome_ms INTEGER,
    PRIMARY KEY (command, host),
    CHECK ((state = 'done') = (outcome IS NOT NULL)),
    CHECK ((state = 'done') = (outcome_ms IS NOT NULL))
) STRICT;
CREATE INDEX command_host_by_host ON command_host (host, command);
CREATE INDEX command_host_open ON command_host (state) WHERE state IN ('waiting', 'accepted', 'running');

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

-- Labels of blobs; the blobs lie in the folder `artifacts`, named by their hash.
CREATE TABLE artifact (
    role       TEXT NOT NULL,
    version    TEXT NOT NULL,
    sha256     TEXT NOT NULL CHECK (length(sha256) = 64),
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    operator   TEXT NOT NULL,
    added_ms   INTEGER NOT NULL,
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
