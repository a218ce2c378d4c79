-- The document of desired state that the console made for this host: one row, once there is any. `head` is what it says of
-- itself, `signed` the same as it came, to be handed in again.
CREATE TABLE document (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    head   TEXT NOT NULL,
    signed TEXT NOT NULL,
    body   TEXT NOT NULL,
    sum    INTEGER
) STRICT;

-- A later document that was refused.
CREATE TABLE document_refusal (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    refusal TEXT NOT NULL,
    digest  TEXT NOT NULL,
    sum     INTEGER
) STRICT;

-- What became of each deployment of the document: the version that is desired here (0 if none), and the one that was refused.
CREATE TABLE deployment (
    name            TEXT PRIMARY KEY,
    version         INTEGER NOT NULL,
    refused_version INTEGER,
    refused_message TEXT CHECK ((refused_version IS NULL) = (refused_message IS NULL)),
    may_pass        INTEGER NOT NULL DEFAULT 0 CHECK (may_pass IN (0, 1)),
    sum             INTEGER
) STRICT;

-- The deployments that units belong to. A unit without a row was made by a verb.
CREATE TABLE unit_owner (
    unit       TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    orphan     INTEGER NOT NULL DEFAULT 0 CHECK (orphan IN (0, 1)),
    sum        INTEGER
) STRICT;

CREATE INDEX document_unsealed ON document (one) WHERE sum IS NULL;
CREATE INDEX document_refusal_unsealed ON document_refusal (one) WHERE sum IS NULL;
CREATE INDEX deployment_unsealed ON deployment (name) WHERE sum IS NULL;
CREATE INDEX unit_owner_unsealed ON unit_owner (unit) WHERE sum IS NULL;

CREATE TRIGGER document_changed AFTER UPDATE OF one, head, signed, body ON document WHEN NEW.sum IS NOT NULL
BEGIN UPDATE document SET sum = NULL WHERE one = NEW.one; END;
CREATE TRIGGER document_refusal_changed AFTER UPDATE OF one, refusal, digest ON document_refusal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE document_refusal SET sum = NULL WHERE one = NEW.one; END;
CREATE TRIGGER deployment_changed AFTER UPDATE OF name, version, refused_version, refused_message, may_pass ON deployment
    WHEN NEW.sum IS NOT NULL
BEGIN UPDATE deployment SET sum = NULL WHERE name = NEW.name; END;
CREATE TRIGGER unit_owner_changed AFTER UPDATE OF unit, deployment, version, orphan ON unit_owner WHEN NEW.sum IS NOT NULL
BEGIN UPDATE unit_owner SET sum = NULL WHERE unit = NEW.unit; END;
