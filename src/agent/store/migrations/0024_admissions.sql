-- What became of versions of deployments that the host asks for: begun with a lease, ended, or tried again. `units` are the
-- units of the version, each with whether it was changed; `noted` is the message with which the console has heard the end.
CREATE TABLE admission (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    stage      TEXT NOT NULL CHECK (stage IN ('begun', 'ended', 'again')),
    lease      INTEGER,
    units      TEXT NOT NULL,
    outcome    TEXT CHECK (outcome IN ('verified', 'rolled_back', 'failed', 'refused')),
    changed    INTEGER NOT NULL DEFAULT 0 CHECK (changed IN (0, 1)),
    message    TEXT,
    noted      TEXT,
    sum        INTEGER,
    PRIMARY KEY (deployment, version),
    CHECK ((stage = 'ended') = (outcome IS NOT NULL)),
    CHECK (stage <> 'begun' OR lease IS NOT NULL),
    CHECK (stage = 'ended' OR noted IS NULL)
) STRICT;

CREATE INDEX admission_unsealed ON admission (deployment, version) WHERE sum IS NULL;

CREATE TRIGGER admission_changed AFTER UPDATE OF deployment, version, digest, stage, lease, units, outcome, changed, message, noted
    ON admission WHEN NEW.sum IS NOT NULL
BEGIN UPDATE admission SET sum = NULL WHERE deployment = NEW.deployment AND version = NEW.version; END;
