-- Certificates of hosts that were removed: they are good no more, though their time is not over.
CREATE TABLE removed (
    serial     TEXT PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER NOT NULL
) STRICT;
