-- Secrets of operators can be listed and ended; one that was ended is remembered until it would have expired.
ALTER TABLE credential ADD COLUMN id TEXT;
ALTER TABLE credential ADD COLUMN name TEXT;
ALTER TABLE credential ADD COLUMN used_ms INTEGER;
ALTER TABLE credential ADD COLUMN revoked_ms INTEGER;
UPDATE credential SET id = substr(secret_sha256, 1, 10);
-- A program's token of before had no end: it gets a year.
UPDATE credential SET expires_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000 + 31536000000
WHERE kind = 'api' AND expires_ms IS NULL;
CREATE UNIQUE INDEX credential_by_id ON credential (id);

-- Alerts of the console itself are about no host, so an alert's host need not be one.
CREATE TABLE alert_new (
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
INSERT INTO alert_new SELECT host, id, since_ms, state, rule, epoch, seq, at_ms, ended_ms, body, received_ms FROM alert;
CREATE TABLE alert_told_new (
    outlet   TEXT NOT NULL,
    host     TEXT NOT NULL,
    id       TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (outlet, host, id, since_ms),
    FOREIGN KEY (host, id, since_ms) REFERENCES alert_new (host, id, since_ms) ON DELETE CASCADE
) STRICT;
INSERT INTO alert_told_new SELECT outlet, host, id, since_ms FROM alert_told;
DROP TABLE alert_told;
DROP TABLE alert;
ALTER TABLE alert_new RENAME TO alert;
ALTER TABLE alert_told_new RENAME TO alert_told;
CREATE INDEX alert_raised ON alert (host) WHERE state = 'raised';
CREATE INDEX alert_by_time ON alert (since_ms);
CREATE INDEX alert_told_by_alert ON alert_told (host, id, since_ms);
