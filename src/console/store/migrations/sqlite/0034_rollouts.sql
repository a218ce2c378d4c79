-- Rollouts: how versions of deployments reach their hosts. One for each version that has a policy.
CREATE TABLE rollout (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL CHECK (version > 0),
    begun_ms   INTEGER NOT NULL,
    ended_ms   INTEGER,
    -- How it goes, without its hosts (JSON).
    state      TEXT NOT NULL,
    PRIMARY KEY (deployment, version),
    FOREIGN KEY (deployment, version) REFERENCES deployment_version (deployment, number)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID, STRICT;

-- The hosts of a rollout. They stay when a host is removed, so that each has an outcome.
CREATE TABLE rollout_host (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    host       TEXT NOT NULL,
    hostname   TEXT NOT NULL,
    -- The outcome, once there is one: the word of the API.
    outcome    TEXT,
    -- How far it is (JSON).
    progress   TEXT NOT NULL,
    PRIMARY KEY (deployment, version, host),
    FOREIGN KEY (deployment, version) REFERENCES rollout (deployment, version) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID, STRICT;
