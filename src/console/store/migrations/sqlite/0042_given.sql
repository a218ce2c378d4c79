-- What the console has given to hosts: units, with what they name. This alone decides what a host may fetch, and what a change of a unit
-- may send it.
CREATE TABLE given_content (
    digest  TEXT PRIMARY KEY CHECK (length(digest) = 64),
    -- The unit with what it names (JSON): hosts that were given the same share it.
    content TEXT NOT NULL
) STRICT;

-- What a content lets its hosts fetch: a hash of artifacts, manifests and configs, or REALM/NAME@VERSION of a secret.
CREATE TABLE given_part (
    part    TEXT NOT NULL,
    content TEXT NOT NULL REFERENCES given_content (digest) ON DELETE CASCADE,
    PRIMARY KEY (part, content)
) WITHOUT ROWID, STRICT;
CREATE INDEX given_part_by_content ON given_part (content);

CREATE TABLE given (
    host    TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit    TEXT NOT NULL,
    content TEXT NOT NULL REFERENCES given_content (digest),
    -- The order in which the console gave it.
    n       INTEGER NOT NULL,
    -- The command that gives it, which its host may have refused; a document that gives it replaces what was there before.
    command TEXT,
    PRIMARY KEY (host, unit, content)
) WITHOUT ROWID, STRICT;
CREATE INDEX given_by_content ON given (content);
