-- What the console says of realms, as it said it; a name that is not here says nothing, and has all from its defaults.
CREATE TABLE realm (
    name       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Which ports the units' endpoints have. They go with their unit.
CREATE TABLE lease (
    unit     TEXT NOT NULL REFERENCES unit (name) ON DELETE CASCADE,
    name     TEXT NOT NULL,
    protocol TEXT NOT NULL CHECK (protocol IN ('tcp', 'udp')),
    port     INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    PRIMARY KEY (unit, name),
    UNIQUE (protocol, port)
) STRICT, WITHOUT ROWID;

-- What the units should have been, under a name. One is active at most.
CREATE TABLE snapshot (
    name      TEXT PRIMARY KEY,
    taken_by  TEXT NOT NULL,
    taken_ms  INTEGER NOT NULL,
    active_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX snapshot_active ON snapshot (1) WHERE active_ms IS NOT NULL;

CREATE TABLE snapshot_unit (
    snapshot    TEXT NOT NULL REFERENCES snapshot (name) ON DELETE CASCADE,
    unit        TEXT NOT NULL,
    spec        TEXT NOT NULL,
    run         TEXT NOT NULL CHECK (run IN ('stopped', 'running', 'playing')),
    -- While it is active, and if that has changed the unit: what it was before, and the generation that was made.
    before_spec TEXT,
    before_run  TEXT CHECK (before_run IN ('stopped', 'running', 'playing')),
    generation  INTEGER,
    PRIMARY KEY (snapshot, unit),
    CHECK ((before_spec IS NULL) = (generation IS NULL) AND (before_run IS NULL) = (generation IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX snapshot_unit_unit ON snapshot_unit (unit);
