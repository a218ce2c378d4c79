-- Backups that were made, to say which is the last good one, and what is in each.
CREATE TABLE backup (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL CHECK (kind IN ('scheduled', 'requested')),
    name        TEXT NOT NULL,
    operator    TEXT,
    taken_ms    INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    hosts       INTEGER NOT NULL,
    parts       TEXT NOT NULL
) STRICT;
CREATE INDEX backup_taken ON backup (taken_ms);
