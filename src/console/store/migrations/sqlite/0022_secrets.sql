-- Secrets that units use by name. Values are encrypted with a key that lies outside of this database
-- (authority/secrets.key); a version whose value was erased keeps its row, so that its number is not used again.
CREATE TABLE secret (
    realm    TEXT NOT NULL,
    name     TEXT NOT NULL,
    version  INTEGER NOT NULL CHECK (version > 0),
    key_id   INTEGER,
    value    BLOB,
    operator TEXT NOT NULL,
    set_ms   INTEGER NOT NULL,
    PRIMARY KEY (realm, name, version),
    CHECK ((key_id IS NULL) = (value IS NULL))
) STRICT;
