-- Deployments, their immutable versions, and what is desired of each host.
CREATE TABLE deployment (
    name       TEXT PRIMARY KEY,
    -- The order in which deployments were made: the first keeps a unit that two claim.
    created_ms INTEGER NOT NULL,
    -- The number of its present version.
    version    INTEGER NOT NULL CHECK (version > 0),
    -- Its versions stay, so that no number is used twice.
    removed_ms INTEGER
) STRICT;

CREATE TABLE deployment_version (
    deployment TEXT NOT NULL REFERENCES deployment (name) DEFERRABLE INITIALLY DEFERRED,
    number     INTEGER NOT NULL CHECK (number > 0),
    digest     TEXT NOT NULL,
    -- The version as hosts get it.
    content    TEXT NOT NULL,
    -- The document as it was written.
    document   TEXT NOT NULL,
    operator   TEXT NOT NULL,
    applied_ms INTEGER NOT NULL,
    -- The version whose content a rollback repeats.
    repeats    INTEGER,
    PRIMARY KEY (deployment, number)
) STRICT;

-- Which host carries which deployment, in which version.
CREATE TABLE assignment (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    deployment TEXT NOT NULL REFERENCES deployment (name),
    version    INTEGER NOT NULL,
    -- The units made by verbs that the deployment takes over.
    adopt      TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (host, deployment)
) WITHOUT ROWID, STRICT;

-- Units that are to go, until their hosts report them gone.
CREATE TABLE unit_removal (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    unit       TEXT NOT NULL,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    purge      INTEGER NOT NULL CHECK (purge IN (0, 1)),
    PRIMARY KEY (host, unit, deployment)
) WITHOUT ROWID, STRICT;

-- Units of deployments that operators have left to verbs on single hosts.
CREATE TABLE detached_unit (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    deployment TEXT NOT NULL,
    unit       TEXT NOT NULL,
    PRIMARY KEY (host, deployment, unit)
) WITHOUT ROWID, STRICT;

-- Bodies of documents: hosts that carry the same deployments share one.
CREATE TABLE desired_body (
    digest    TEXT PRIMARY KEY,
    content   TEXT NOT NULL,
    -- Whether it has values that observers of the broker must not read.
    is_secret INTEGER NOT NULL CHECK (is_secret IN (0, 1))
) STRICT;

-- The present document of each host. One that was not sent yet is sent when the console starts.
CREATE TABLE host_document (
    host       TEXT PRIMARY KEY REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL REFERENCES desired_body (digest),
    made_ms    INTEGER NOT NULL,
    is_sent    INTEGER NOT NULL CHECK (is_sent IN (0, 1))
) STRICT;
CREATE INDEX host_document_digest ON host_document (digest);

-- The last documents of each host: a host that reports another one has it from a console whose store was lost or replaced.
CREATE TABLE issued_document (
    host       TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    PRIMARY KEY (host, epoch, generation)
) WITHOUT ROWID, STRICT;
