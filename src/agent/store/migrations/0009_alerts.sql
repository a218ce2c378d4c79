-- Alerts that hold, and those that are over and that the console has not acknowledged.
CREATE TABLE alert (
    id       TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('raised', 'cleared')),
    at_ms    INTEGER NOT NULL,
    body     TEXT NOT NULL,
    PRIMARY KEY (id, since_ms)
) STRICT;
-- The rules of the console: one row, once there are any.
CREATE TABLE alert_rules (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    rules      TEXT NOT NULL
) STRICT;
