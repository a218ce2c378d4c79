-- Certificates that were made by hand (`muster console issue`), so that each can be revoked.
CREATE TABLE issued (
    serial     TEXT PRIMARY KEY,
    role       TEXT NOT NULL CHECK (role IN ('broker', 'console', 'operator', 'observer')),
    name       TEXT NOT NULL,
    issued_ms  INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    revoked_ms INTEGER
) STRICT;

-- The revocation list is looked for every few seconds, among the certificates of every host.
CREATE INDEX certificate_revoked ON certificate (expires_ms) WHERE revoked_ms IS NOT NULL;
