-- What authors say of their artifacts, known by the SHA-256 of its canonical JSON.
CREATE TABLE manifest (
    sha256   TEXT PRIMARY KEY CHECK (length(sha256) = 64),
    content  TEXT NOT NULL,
    operator TEXT NOT NULL,
    added_ms INTEGER NOT NULL
) STRICT;

ALTER TABLE artifact ADD COLUMN manifest TEXT REFERENCES manifest (sha256);

-- Labels that were removed. Nothing else may ever be added under one: hosts and people may remember what it was.
CREATE TABLE removed_label (
    kind       TEXT NOT NULL CHECK (kind IN ('artifact', 'config')),
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    sha256     TEXT NOT NULL CHECK (length(sha256) = 64),
    operator   TEXT NOT NULL,
    removed_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, name, version)
) STRICT;
