-- Documents that hosts have handed in, because this console did not make them.
CREATE TABLE handed_in_document (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    at_ms      INTEGER NOT NULL
) STRICT;
CREATE TABLE handed_in_body (
    digest  TEXT PRIMARY KEY,
    content TEXT NOT NULL
) STRICT;
