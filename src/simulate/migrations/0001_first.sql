-- What simulated hosts must know again after the simulation was killed. Times are milliseconds since the Unix epoch.

-- What they have in common: their membership, without what is each one's own.
CREATE TABLE fleet (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    membership TEXT NOT NULL
) STRICT;

CREATE TABLE host (
    n           INTEGER PRIMARY KEY,
    id          BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    certificate TEXT NOT NULL,
    key         TEXT NOT NULL,
    -- When it was made: no command issued before can be known to be new.
    created_ms  INTEGER NOT NULL,
    -- Which life of it this is, and what the lives are known by, the newest first.
    epoch       INTEGER NOT NULL,
    instances   TEXT NOT NULL DEFAULT ''
) STRICT;

-- The text of commands, once for all hosts that got the same.
CREATE TABLE command (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    body       TEXT NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

-- Every command that reached a host, and its answer, in the order of commands: what many hosts write at once lies together.
CREATE TABLE journal (
    command     BLOB NOT NULL CHECK (length(command) = 16),
    host        INTEGER NOT NULL,
    received_ms INTEGER NOT NULL,
    -- How often it took effect.
    effects     INTEGER NOT NULL DEFAULT 0,
    finished_ms INTEGER,
    answer      BLOB,
    -- The answer waits in the outbox until the console has it; this is the signed time of that news.
    acknowledged_ms INTEGER,
    PRIMARY KEY (command, host),
    CHECK ((finished_ms IS NULL) = (answer IS NULL))
) STRICT, WITHOUT ROWID;
