-- Tasks of hosts that have changed something, have failed or were interrupted, the last ones, for outlets. A host repeats an end until it is
-- acknowledged: number and beginning tell it from others. `n` grows, and no number is used again.
CREATE TABLE task_end (
    n           INTEGER PRIMARY KEY AUTOINCREMENT,
    host        TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    began_ms    INTEGER NOT NULL,
    body        TEXT NOT NULL,
    received_ms INTEGER NOT NULL,
    UNIQUE (host, number, began_ms)
) STRICT;

-- Up to which end each outlet was told.
CREATE TABLE task_end_told (
    outlet TEXT PRIMARY KEY,
    n      INTEGER NOT NULL
) STRICT;
