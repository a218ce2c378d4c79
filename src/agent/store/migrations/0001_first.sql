-- What the agent must know again after it was killed. Times are milliseconds since the Unix epoch.

-- When this store was made, which life of the agent this is, the last generation that any unit was
-- given (so that they grow across the removal of a unit), and the latest signed time seen.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY CHECK (key IN ('created_ms', 'epoch', 'generation', 'signed_ms')),
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Every command that reached this host, by id: a repeated delivery is answered from here. A row
-- outlives the command's expiry, so no repetition of it can be taken for new.
CREATE TABLE journal (
    id           TEXT PRIMARY KEY,
    body         TEXT NOT NULL,
    received_ms  INTEGER NOT NULL,
    expires_ms   INTEGER NOT NULL,
    -- The number of the next message about it, and how much of its output went in those before.
    next_seq     INTEGER NOT NULL DEFAULT 1 CHECK (next_seq > 0),
    stdout_bytes INTEGER NOT NULL DEFAULT 0,
    stderr_bytes INTEGER NOT NULL DEFAULT 0,
    -- The terminal answer: when, which number, and the message itself.
    finished_ms  INTEGER,
    answer_seq   INTEGER,
    answer       BLOB,
    CHECK ((finished_ms IS NULL) = (answer_seq IS NULL) AND (finished_ms IS NULL) = (answer IS NULL))
) STRICT;

CREATE INDEX journal_unfinished ON journal (received_ms) WHERE finished_ms IS NULL;
CREATE INDEX journal_expiry ON journal (expires_ms) WHERE finished_ms IS NOT NULL;

-- Messages about commands that the console has not acknowledged yet.
CREATE TABLE outbox (
    command    TEXT NOT NULL REFERENCES journal (id),
    seq        INTEGER NOT NULL,
    payload    BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (command, seq)
) STRICT, WITHOUT ROWID;

-- What each unit should be, why it may be held, and what it was last seen to be.
CREATE TABLE unit (
    name          TEXT PRIMARY KEY,
    generation    INTEGER NOT NULL CHECK (generation > 0),
    revision      TEXT NOT NULL,
    spec          TEXT NOT NULL,
    run           TEXT NOT NULL CHECK (run IN ('stopped', 'running')),
    hold_reason   TEXT CHECK (hold_reason IN ('broken')),
    hold_since_ms INTEGER,
    observed      TEXT NOT NULL,
    CHECK ((hold_reason IS NULL) = (hold_since_ms IS NULL))
) STRICT;

-- Measurements that the console has not acknowledged yet.
CREATE TABLE metric_batch (
    epoch      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    payload    BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (epoch, seq)
) STRICT, WITHOUT ROWID;
