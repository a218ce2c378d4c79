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
