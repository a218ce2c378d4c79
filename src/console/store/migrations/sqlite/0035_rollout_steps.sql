-- What has happened to rollouts, for people.
CREATE TABLE rollout_step (
    id         INTEGER PRIMARY KEY,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    -- Who did it; the console itself if there is none.
    operator   TEXT,
    text       TEXT NOT NULL
) STRICT;
CREATE INDEX rollout_step_of ON rollout_step (deployment, version, id);
