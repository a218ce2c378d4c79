-- Each occurrence of an alert: those that hold, and those that are over. `gone` is one that its host holds no more, and of
-- which it has not told how it ended. Times are by the host's clock, but for received_ms.
CREATE TABLE alert (
    host        TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
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
