-- Labels that operators have given hosts, beside those of the hosts' own configurations; and the order in time of what each host is
-- told of them.
CREATE TABLE host_label (
    host     TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (host, name)
) STRICT;
CREATE TABLE host_label_generation (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    generation INTEGER NOT NULL
) STRICT;
