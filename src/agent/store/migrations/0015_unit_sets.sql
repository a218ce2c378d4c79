-- Parts of sets of units that are too large for one message, until all of a set are here.
CREATE TABLE unit_set_part (
    set_id     TEXT NOT NULL CHECK (length(set_id) = 36),
    number     INTEGER NOT NULL CHECK (number > 0),
    units      TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (set_id, number)
) STRICT;
