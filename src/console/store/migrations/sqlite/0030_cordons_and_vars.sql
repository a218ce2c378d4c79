-- Hosts that get no new deployments, or none at all.
CREATE TABLE host_cordon (
    host     TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    cordon   TEXT NOT NULL CHECK (cordon IN ('cordoned', 'drained')),
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL
) STRICT;

-- Variables of hosts, in layers.
CREATE TABLE var (
    layer    TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    -- Of layer, name and value.
    digest   TEXT NOT NULL,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (layer, name)
) WITHOUT ROWID, STRICT;
