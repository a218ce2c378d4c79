-- Realms, as hosts are told of them. `default` needs no row.
CREATE TABLE realm (
    name       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    definition TEXT NOT NULL
) STRICT;
