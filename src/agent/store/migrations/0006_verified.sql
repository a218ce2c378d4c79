-- The last revision in which a unit was up for a while without a failure, with all of its spec: what it goes back to when
-- a later one fails. It goes with its unit.
CREATE TABLE verified (
    unit     TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    revision TEXT NOT NULL,
    spec     TEXT NOT NULL,
    since_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
