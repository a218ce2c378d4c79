-- What units have done to the packages of their host, run by run: a row is written before the package manager begins, with each
-- package's version before and after, and is done once all is as the revision's spec says. What a verified revision
-- has done is one row.
CREATE TABLE package_run (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    unit     TEXT NOT NULL,
    revision TEXT NOT NULL,
    spec     TEXT NOT NULL,
    changes  TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('begun', 'done')),
    sum      INTEGER
) STRICT;

CREATE INDEX package_run_of_unit ON package_run (unit, number);
CREATE INDEX package_run_unsealed ON package_run (number) WHERE sum IS NULL;

CREATE TRIGGER package_run_changed AFTER UPDATE OF unit, revision, spec, changes, state ON package_run WHEN NEW.sum IS NOT NULL
BEGIN UPDATE package_run SET sum = NULL WHERE number = NEW.number; END;

-- What units have left on their host beside packages: the holds that they have set, by package, and the files that they have written,
-- by path, with the hash of their content.
CREATE TABLE package_trace (
    unit   TEXT NOT NULL,
    name   TEXT NOT NULL,
    digest TEXT,
    sum    INTEGER,
    PRIMARY KEY (unit, name)
) STRICT;

CREATE INDEX package_trace_unsealed ON package_trace (unit, name) WHERE sum IS NULL;

CREATE TRIGGER package_trace_changed AFTER UPDATE OF unit, name, digest ON package_trace WHEN NEW.sum IS NOT NULL
BEGIN UPDATE package_trace SET sum = NULL WHERE unit = NEW.unit AND name = NEW.name; END;
