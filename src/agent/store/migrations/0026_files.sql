-- Units of files that were applied: in which revision, and whether they are kept so.
CREATE TABLE files_unit (
    unit     TEXT NOT NULL PRIMARY KEY,
    revision TEXT NOT NULL,
    is_kept  INTEGER NOT NULL CHECK (is_kept IN (0, 1)),
    sum      INTEGER
) STRICT;

-- What units have made of paths: what was there before, what they have made, and what they were about to make.
CREATE TABLE files_path (
    unit      TEXT NOT NULL,
    path      TEXT NOT NULL,
    original  TEXT NOT NULL,
    made      TEXT,
    next      TEXT,
    is_purged INTEGER NOT NULL DEFAULT 0 CHECK (is_purged IN (0, 1)),
    -- Whether a secret is in what was made, or was about to be made.
    is_secret INTEGER NOT NULL DEFAULT 0 CHECK (is_secret IN (0, 1)),
    sum       INTEGER,
    PRIMARY KEY (unit, path),
    CHECK (made IS NOT NULL OR next IS NOT NULL)
) STRICT;

CREATE INDEX files_unit_unsealed ON files_unit (unit) WHERE sum IS NULL;
CREATE INDEX files_path_unsealed ON files_path (unit, path) WHERE sum IS NULL;

CREATE TRIGGER files_unit_changed AFTER UPDATE OF unit, revision, is_kept ON files_unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE files_unit SET sum = NULL WHERE unit = NEW.unit; END;

CREATE TRIGGER files_path_changed AFTER UPDATE OF unit, path, original, made, next, is_purged, is_secret
    ON files_path WHEN NEW.sum IS NOT NULL
BEGIN UPDATE files_path SET sum = NULL WHERE unit = NEW.unit AND path = NEW.path; END;
