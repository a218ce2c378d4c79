-- What the agent must know again after it was killed. Times are milliseconds since the Unix epoch.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY CHECK (key IN ('created_ms', 'epoch', 'signed_ms')),
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Every command that was let in, by id: a repeated delivery is answered from here. A row outlives
-- the command's expiry, so no repetition of it can be taken for new.
CREATE TABLE journal (
    id          TEXT PRIMARY KEY,
    body        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('accepted', 'running', 'done')),
    received_ms INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    started_ms  INTEGER,
    finished_ms INTEGER,
    CHECK ((state = 'done') = (finished_ms IS NOT NULL))
) STRICT;

CREATE INDEX journal_unfinished ON journal (received_ms) WHERE state <> 'done';
CREATE INDEX journal_expiry ON journal (expires_ms) WHERE state = 'done';

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
