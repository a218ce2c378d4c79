-- What an agent must know again after it was killed. Times are milliseconds since the Unix epoch.
--
-- Each row that anything is decided by has a checksum of its content, `sum`: SQLite's own check does not see a bit that has
-- flipped in what is stored. A trigger clears it when the row changes, and each transaction ends with the checksums of the rows
-- that have none (`row_checksum.rs`, whose table of columns is the same). The index `…_unsealed` finds these rows.

-- The store itself --------------------------------------------------------------------------------

-- When this store was made, and which life of the agent this is; the last generation that any unit was given (so that they
-- grow across the removal of a unit); the latest signed time seen. Which store this is, how many steps it has made, the latest time at
-- which a command was issued that it has taken in, and after a loss: up to which time nothing that was issued can be known to be new,
-- and when that was noticed. The time that had certainly come, with how long the machine had run then, and which start of it that was.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY CHECK (key IN ('created_ms', 'epoch', 'generation', 'signed_ms', 'store', 'steps', 'issued_ms',
                                          'lost_ms', 'noticed_ms', 'certain_ms', 'uptime_ms', 'boot', 'console_epoch')),
    value INTEGER NOT NULL,
    sum   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX meta_unsealed ON meta (key) WHERE sum IS NULL;
CREATE TRIGGER meta_changed AFTER UPDATE OF key, value ON meta WHEN NEW.sum IS NOT NULL
BEGIN UPDATE meta SET sum = NULL WHERE key = NEW.key; END;

-- The epochs of the last lives of the agent: a life that the console knows and this store does not came after this copy of it.
CREATE TABLE life (
    epoch INTEGER PRIMARY KEY,
    sum   INTEGER
) STRICT;

CREATE INDEX life_unsealed ON life (epoch) WHERE sum IS NULL;
CREATE TRIGGER life_changed AFTER UPDATE OF epoch ON life WHEN NEW.sum IS NOT NULL
BEGIN UPDATE life SET sum = NULL WHERE epoch = NEW.epoch; END;

-- Rows whose checksum was wrong, as they were found, for somebody to look at.
CREATE TABLE damaged (
    at_ms   INTEGER NOT NULL,
    of      TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;

-- Commands ----------------------------------------------------------------------------------------

-- Every command that reached this host, by id: a repeated delivery is answered from here. A row outlives the command's expiry,
-- so no repetition of it can be taken for new.
CREATE TABLE journal (
    id           TEXT PRIMARY KEY,
    body         TEXT NOT NULL,
    received_ms  INTEGER NOT NULL,
    expires_ms   INTEGER NOT NULL,
    -- Whether it waits for its turn, so that nothing of it was begun: after a restart of the agent it still may.
    queued       INTEGER NOT NULL DEFAULT 0 CHECK (queued IN (0, 1)),
    -- The number of the next message about it, and how much of its output went in those before.
    next_seq     INTEGER NOT NULL DEFAULT 1 CHECK (next_seq > 0),
    stdout_bytes INTEGER NOT NULL DEFAULT 0,
    stderr_bytes INTEGER NOT NULL DEFAULT 0,
    -- The terminal answer: when, which number, and the message itself.
    finished_ms  INTEGER,
    answer_seq   INTEGER,
    answer       BLOB,
    sum          INTEGER,
    CHECK ((finished_ms IS NULL) = (answer_seq IS NULL) AND (finished_ms IS NULL) = (answer IS NULL))
) STRICT;

CREATE INDEX journal_unfinished ON journal (received_ms) WHERE finished_ms IS NULL;
CREATE INDEX journal_expiry ON journal (expires_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX journal_unsealed ON journal (id) WHERE sum IS NULL;
CREATE TRIGGER journal_changed AFTER UPDATE OF id, body, received_ms, expires_ms, next_seq, stdout_bytes, stderr_bytes,
    finished_ms, answer_seq, answer, queued ON journal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE journal SET sum = NULL WHERE id = NEW.id; END;

-- Messages about commands that the console has not acknowledged yet.
CREATE TABLE outbox (
    command TEXT NOT NULL REFERENCES journal (id),
    seq     INTEGER NOT NULL,
    payload BLOB NOT NULL,
    sum     INTEGER,
    PRIMARY KEY (command, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_unsealed ON outbox (command, seq) WHERE sum IS NULL;
CREATE TRIGGER outbox_changed AFTER UPDATE OF command, seq, payload ON outbox WHEN NEW.sum IS NOT NULL
BEGIN UPDATE outbox SET sum = NULL WHERE command = NEW.command AND seq = NEW.seq; END;

-- Parts of sets of units that are too large for one message, until all of a set are here. What is lost of them is sent again.
CREATE TABLE unit_set_part (
    set_id     TEXT NOT NULL CHECK (length(set_id) = 36),
    number     INTEGER NOT NULL CHECK (number > 0),
    units      TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (set_id, number)
) STRICT;

-- Units -------------------------------------------------------------------------------------------

-- What each unit should be, why it may be held, and what it was last seen to be. A hold of an operator (by whom, since when, what
-- for) and `frozen` last from one generation to the next; `hold_reason` is what the agent itself found out, which belongs to one.
CREATE TABLE unit (
    name          TEXT PRIMARY KEY,
    generation    INTEGER NOT NULL CHECK (generation > 0),
    revision      TEXT NOT NULL,
    spec          TEXT NOT NULL,
    run           TEXT NOT NULL CHECK (run IN ('stopped', 'running')),
    -- A unit that should run may be one that should play as well.
    playing       INTEGER NOT NULL DEFAULT 0 CHECK (playing = 0 OR (playing = 1 AND run = 'running')),
    frozen        INTEGER NOT NULL DEFAULT 0 CHECK (frozen IN (0, 1)),
    hold_reason   TEXT CHECK (hold_reason IN ('broken')),
    hold_since_ms INTEGER,
    held_by       TEXT,
    held_since_ms INTEGER CHECK ((held_by IS NULL) = (held_since_ms IS NULL)),
    held_note     TEXT CHECK (held_note IS NULL OR held_by IS NOT NULL),
    observed      TEXT NOT NULL,
    sum           INTEGER,
    CHECK ((hold_reason IS NULL) = (hold_since_ms IS NULL))
) STRICT;

CREATE INDEX unit_unsealed ON unit (name) WHERE sum IS NULL;
CREATE TRIGGER unit_changed AFTER UPDATE OF name, generation, revision, spec, run, hold_reason, hold_since_ms, observed,
    held_by, held_since_ms, held_note, frozen, playing ON unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE unit SET sum = NULL WHERE name = NEW.name; END;

-- The last revision in which a unit was up for a while without a failure, with all of its spec: what it goes back to when a later
-- one fails.
CREATE TABLE verified (
    unit     TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    revision TEXT NOT NULL,
    spec     TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    sum      INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX verified_unsealed ON verified (unit) WHERE sum IS NULL;
CREATE TRIGGER verified_changed AFTER UPDATE OF unit, revision, spec, since_ms ON verified WHEN NEW.sum IS NOT NULL
BEGIN UPDATE verified SET sum = NULL WHERE unit = NEW.unit; END;

-- Which ports the units' endpoints have.
CREATE TABLE lease (
    unit     TEXT NOT NULL REFERENCES unit (name) ON DELETE CASCADE,
    name     TEXT NOT NULL,
    protocol TEXT NOT NULL CHECK (protocol IN ('tcp', 'udp')),
    port     INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    sum      INTEGER,
    PRIMARY KEY (unit, name),
    UNIQUE (protocol, port)
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_unsealed ON lease (unit, name) WHERE sum IS NULL;
CREATE TRIGGER lease_changed AFTER UPDATE OF unit, name, protocol, port ON lease WHEN NEW.sum IS NOT NULL
BEGIN UPDATE lease SET sum = NULL WHERE unit = NEW.unit AND name = NEW.name; END;

-- What the units should have been, under a name. One is active at most.
CREATE TABLE snapshot (
    name      TEXT PRIMARY KEY,
    taken_by  TEXT NOT NULL,
    taken_ms  INTEGER NOT NULL,
    active_ms INTEGER,
    sum       INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX snapshot_active ON snapshot (1) WHERE active_ms IS NOT NULL;
CREATE INDEX snapshot_unsealed ON snapshot (name) WHERE sum IS NULL;
CREATE TRIGGER snapshot_changed AFTER UPDATE OF name, taken_by, taken_ms, active_ms ON snapshot WHEN NEW.sum IS NOT NULL
BEGIN UPDATE snapshot SET sum = NULL WHERE name = NEW.name; END;

CREATE TABLE snapshot_unit (
    snapshot    TEXT NOT NULL REFERENCES snapshot (name) ON DELETE CASCADE,
    unit        TEXT NOT NULL,
    spec        TEXT NOT NULL,
    run         TEXT NOT NULL CHECK (run IN ('stopped', 'running', 'playing')),
    -- While it is active, and if that has changed the unit: what it was before, and the generation that was made.
    before_spec TEXT,
    before_run  TEXT CHECK (before_run IN ('stopped', 'running', 'playing')),
    generation  INTEGER,
    sum         INTEGER,
    PRIMARY KEY (snapshot, unit),
    CHECK ((before_spec IS NULL) = (generation IS NULL) AND (before_run IS NULL) = (generation IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX snapshot_unit_unit ON snapshot_unit (unit);
CREATE INDEX snapshot_unit_unsealed ON snapshot_unit (snapshot, unit) WHERE sum IS NULL;
CREATE TRIGGER snapshot_unit_changed AFTER UPDATE OF snapshot, unit, spec, run, before_spec, before_run, generation
    ON snapshot_unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE snapshot_unit SET sum = NULL WHERE snapshot = NEW.snapshot AND unit = NEW.unit; END;

-- The console's documents -------------------------------------------------------------------------

-- What the console says of realms, as it said it; a name that is not here says nothing, and has all from its defaults.
CREATE TABLE realm (
    name       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    definition TEXT NOT NULL,
    sum        INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX realm_unsealed ON realm (name) WHERE sum IS NULL;
CREATE TRIGGER realm_changed AFTER UPDATE OF name, generation, definition ON realm WHEN NEW.sum IS NOT NULL
BEGIN UPDATE realm SET sum = NULL WHERE name = NEW.name; END;

-- The labels that the console gives this host: one row, once there are any. `signed` is the message that had them, as it
-- came: a console that has lost them is shown it.
CREATE TABLE host_labels (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    labels     TEXT NOT NULL,
    signed     TEXT NOT NULL,
    sum        INTEGER
) STRICT;

CREATE INDEX host_labels_unsealed ON host_labels (one) WHERE sum IS NULL;
CREATE TRIGGER host_labels_changed AFTER UPDATE OF one, generation, labels, signed ON host_labels WHEN NEW.sum IS NOT NULL
BEGIN UPDATE host_labels SET sum = NULL WHERE one = NEW.one; END;

-- The rules of alerts: one row, once there are any.
CREATE TABLE alert_rules (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    rules      TEXT NOT NULL,
    sum        INTEGER
) STRICT;

CREATE INDEX alert_rules_unsealed ON alert_rules (one) WHERE sum IS NULL;
CREATE TRIGGER alert_rules_changed AFTER UPDATE OF one, generation, rules ON alert_rules WHEN NEW.sum IS NOT NULL
BEGIN UPDATE alert_rules SET sum = NULL WHERE one = NEW.one; END;

-- The document of desired state that the console made for this host: one row, once there is any. `head` is what it says of
-- itself, `signed` the same as it came, to be handed in again.
CREATE TABLE document (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    head   TEXT NOT NULL,
    signed TEXT NOT NULL,
    body   TEXT NOT NULL,
    sum    INTEGER
) STRICT;

CREATE INDEX document_unsealed ON document (one) WHERE sum IS NULL;
CREATE TRIGGER document_changed AFTER UPDATE OF one, head, signed, body ON document WHEN NEW.sum IS NOT NULL
BEGIN UPDATE document SET sum = NULL WHERE one = NEW.one; END;

-- A later document that was refused.
CREATE TABLE document_refusal (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    refusal TEXT NOT NULL,
    digest  TEXT NOT NULL,
    sum     INTEGER
) STRICT;

CREATE INDEX document_refusal_unsealed ON document_refusal (one) WHERE sum IS NULL;
CREATE TRIGGER document_refusal_changed AFTER UPDATE OF one, refusal, digest ON document_refusal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE document_refusal SET sum = NULL WHERE one = NEW.one; END;

-- Deployments -------------------------------------------------------------------------------------

-- What became of each deployment of the document: the version that is desired here (0 if none), and the one that was refused.
CREATE TABLE deployment (
    name            TEXT PRIMARY KEY,
    version         INTEGER NOT NULL,
    refused_version INTEGER,
    refused_message TEXT CHECK ((refused_version IS NULL) = (refused_message IS NULL)),
    may_pass        INTEGER NOT NULL DEFAULT 0 CHECK (may_pass IN (0, 1)),
    sum             INTEGER
) STRICT;

CREATE INDEX deployment_unsealed ON deployment (name) WHERE sum IS NULL;
CREATE TRIGGER deployment_changed AFTER UPDATE OF name, version, refused_version, refused_message, may_pass ON deployment
    WHEN NEW.sum IS NOT NULL
BEGIN UPDATE deployment SET sum = NULL WHERE name = NEW.name; END;

-- The deployments that units belong to. A unit without a row was made by a verb.
CREATE TABLE unit_owner (
    unit       TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    orphan     INTEGER NOT NULL DEFAULT 0 CHECK (orphan IN (0, 1)),
    sum        INTEGER
) STRICT;

CREATE INDEX unit_owner_unsealed ON unit_owner (unit) WHERE sum IS NULL;
CREATE TRIGGER unit_owner_changed AFTER UPDATE OF unit, deployment, version, orphan ON unit_owner WHEN NEW.sum IS NOT NULL
BEGIN UPDATE unit_owner SET sum = NULL WHERE unit = NEW.unit; END;

-- What became of versions of deployments that the host asks for: begun with a permit, ended, or tried again. `units` are the
-- units of the version, each with whether it was changed; `noted` is the message with which the console has heard the end.
CREATE TABLE admission (
    deployment TEXT NOT NULL,
    version    INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    stage      TEXT NOT NULL CHECK (stage IN ('begun', 'ended', 'again')),
    permit     INTEGER,
    units      TEXT NOT NULL,
    outcome    TEXT CHECK (outcome IN ('verified', 'rolled_back', 'failed', 'refused')),
    changed    INTEGER NOT NULL DEFAULT 0 CHECK (changed IN (0, 1)),
    message    TEXT,
    noted      TEXT,
    sum        INTEGER,
    PRIMARY KEY (deployment, version),
    CHECK ((stage = 'ended') = (outcome IS NOT NULL)),
    CHECK (stage <> 'begun' OR permit IS NOT NULL),
    CHECK (stage = 'ended' OR noted IS NULL)
) STRICT;

CREATE INDEX admission_unsealed ON admission (deployment, version) WHERE sum IS NULL;
CREATE TRIGGER admission_changed AFTER UPDATE OF deployment, version, digest, stage, permit, units, outcome, changed, message, noted
    ON admission WHEN NEW.sum IS NOT NULL
BEGIN UPDATE admission SET sum = NULL WHERE deployment = NEW.deployment AND version = NEW.version; END;

-- Units that are to go: asked for by the document, or by an operator (`approved`). Some go at once, as their document says; the
-- host's policy counts the others.
CREATE TABLE removal (
    unit     TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    purge    INTEGER NOT NULL CHECK (purge IN (0, 1)),
    asked_ms INTEGER NOT NULL,
    approved INTEGER NOT NULL DEFAULT 0 CHECK (approved IN (0, 1)),
    at_once  INTEGER NOT NULL DEFAULT 0 CHECK (at_once IN (0, 1)),
    begun_ms INTEGER,
    sum      INTEGER
) STRICT;

CREATE INDEX removal_unsealed ON removal (unit) WHERE sum IS NULL;
CREATE TRIGGER removal_changed AFTER UPDATE OF unit, purge, asked_ms, approved, at_once, begun_ms ON removal
    WHEN NEW.sum IS NOT NULL
BEGIN UPDATE removal SET sum = NULL WHERE unit = NEW.unit; END;

-- Removals of the last day that began without an operator, which the host's policy counts.
CREATE TABLE past_removal (
    unit  TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum   INTEGER,
    PRIMARY KEY (unit, at_ms)
) STRICT;

CREATE INDEX past_removal_unsealed ON past_removal (unit, at_ms) WHERE sum IS NULL;
CREATE TRIGGER past_removal_changed AFTER UPDATE OF unit, at_ms ON past_removal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE past_removal SET sum = NULL WHERE unit = NEW.unit AND at_ms = NEW.at_ms; END;

-- What changes of units did -----------------------------------------------------------------------

-- The tasks of units, the last ones of each, with the last part of what each has said; `log_begin` is how many bytes went before it.
-- They outlive their unit: its removal consists of tasks, too.
CREATE TABLE task (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    unit      TEXT NOT NULL,
    revision  TEXT NOT NULL,
    action    TEXT NOT NULL CHECK (action IN (
        'render', 'validate', 'install', 'uninstall', 'repair', 'wait', 'write', 'remove', 'notify'
    )),
    about     TEXT NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('running', 'changed', 'unchanged', 'failed', 'interrupted')),
    began_ms  INTEGER NOT NULL,
    ended_ms  INTEGER,
    message   TEXT,
    log       TEXT NOT NULL DEFAULT '',
    log_begin INTEGER NOT NULL DEFAULT 0,
    sum       INTEGER,
    CHECK ((state = 'running') = (ended_ms IS NULL))
) STRICT;

CREATE INDEX task_of_unit ON task (unit, number);
CREATE INDEX task_unsealed ON task (number) WHERE sum IS NULL;
CREATE TRIGGER task_changed AFTER UPDATE OF unit, revision, action, about, state, began_ms, ended_ms, message, log, log_begin
    ON task WHEN NEW.sum IS NOT NULL
BEGIN UPDATE task SET sum = NULL WHERE number = NEW.number; END;

-- Tasks that have changed something, have failed or were interrupted, and whose end the console has not acknowledged yet.
CREATE TABLE task_end (
    number INTEGER PRIMARY KEY REFERENCES task (number) ON DELETE CASCADE,
    sum    INTEGER
) STRICT;

CREATE INDEX task_end_unsealed ON task_end (number) WHERE sum IS NULL;

-- What a unit's change owes: it is done at least once, when the unit runs. A row goes when its action is done, or the change was
-- rolled back. `failed_ms` is when it was given up.
CREATE TABLE owed (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    unit      TEXT NOT NULL,
    revision  TEXT NOT NULL,
    action    TEXT NOT NULL,
    since_ms  INTEGER NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    due_ms    INTEGER NOT NULL,
    error     TEXT,
    failed_ms INTEGER,
    sum       INTEGER,
    UNIQUE (unit, revision, action),
    CHECK (failed_ms IS NULL OR error IS NOT NULL)
) STRICT;

CREATE INDEX owed_unsealed ON owed (number) WHERE sum IS NULL;
CREATE TRIGGER owed_changed AFTER UPDATE OF unit, revision, action, since_ms, attempts, due_ms, error, failed_ms ON owed
    WHEN NEW.sum IS NOT NULL
BEGIN UPDATE owed SET sum = NULL WHERE number = NEW.number; END;

-- Units of files that were applied: in which revision, and whether they are kept so.
CREATE TABLE files_unit (
    unit     TEXT NOT NULL PRIMARY KEY,
    revision TEXT NOT NULL,
    is_kept  INTEGER NOT NULL CHECK (is_kept IN (0, 1)),
    sum      INTEGER
) STRICT;

CREATE INDEX files_unit_unsealed ON files_unit (unit) WHERE sum IS NULL;
CREATE TRIGGER files_unit_changed AFTER UPDATE OF unit, revision, is_kept ON files_unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE files_unit SET sum = NULL WHERE unit = NEW.unit; END;

-- What units have made of paths: what was there before, what they have made, and what they were about to make.
CREATE TABLE files_path (
    unit      TEXT NOT NULL,
    path      TEXT NOT NULL,
    original  TEXT NOT NULL,
    made      TEXT,
    next      TEXT,
    is_purged INTEGER NOT NULL DEFAULT 0 CHECK (is_purged IN (0, 1)),
    -- Whether a secret is in what was made, or was about to be made.
    is_secret INTEGER NOT NULL DEFAULT 0 CHECK (is_secret IN (0, 1)),
    sum       INTEGER,
    PRIMARY KEY (unit, path),
    CHECK (made IS NOT NULL OR next IS NOT NULL)
) STRICT;

CREATE INDEX files_path_unsealed ON files_path (unit, path) WHERE sum IS NULL;
CREATE TRIGGER files_path_changed AFTER UPDATE OF unit, path, original, made, next, is_purged, is_secret
    ON files_path WHEN NEW.sum IS NOT NULL
BEGIN UPDATE files_path SET sum = NULL WHERE unit = NEW.unit AND path = NEW.path; END;

-- What units have done to the packages of their host, run by run: a row is written before the package manager begins, with each
-- package's version before and after, and is done once all is as the revision's spec says. What a verified revision
-- has done is one row.
CREATE TABLE package_run (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    unit     TEXT NOT NULL,
    revision TEXT NOT NULL,
    spec     TEXT NOT NULL,
    changes  TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('begun', 'done')),
    sum      INTEGER
) STRICT;

CREATE INDEX package_run_of_unit ON package_run (unit, number);
CREATE INDEX package_run_unsealed ON package_run (number) WHERE sum IS NULL;
CREATE TRIGGER package_run_changed AFTER UPDATE OF unit, revision, spec, changes, state ON package_run WHEN NEW.sum IS NOT NULL
BEGIN UPDATE package_run SET sum = NULL WHERE number = NEW.number; END;

-- What units have left on their host beside packages: the holds that they have set, by package, and the files that they have written,
-- by path, with the hash of their content.
CREATE TABLE package_trace (
    unit   TEXT NOT NULL,
    name   TEXT NOT NULL,
    digest TEXT,
    sum    INTEGER,
    PRIMARY KEY (unit, name)
) STRICT;

CREATE INDEX package_trace_unsealed ON package_trace (unit, name) WHERE sum IS NULL;
CREATE TRIGGER package_trace_changed AFTER UPDATE OF unit, name, digest ON package_trace WHEN NEW.sum IS NOT NULL
BEGIN UPDATE package_trace SET sum = NULL WHERE unit = NEW.unit AND name = NEW.name; END;

-- Measurements and alerts -------------------------------------------------------------------------

-- Measurements that the console has not acknowledged yet. They have no checksum: nothing is decided by them.
CREATE TABLE metric_batch (
    epoch      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    payload    BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (epoch, seq)
) STRICT, WITHOUT ROWID;

-- Alerts that hold, and those that are over and that the console has not acknowledged.
CREATE TABLE alert (
    id       TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('raised', 'cleared')),
    at_ms    INTEGER NOT NULL,
    body     TEXT NOT NULL,
    sum      INTEGER,
    PRIMARY KEY (id, since_ms)
) STRICT;

CREATE INDEX alert_unsealed ON alert (id, since_ms) WHERE sum IS NULL;
CREATE TRIGGER alert_changed AFTER UPDATE OF id, since_ms, state, at_ms, body ON alert WHEN NEW.sum IS NOT NULL
BEGIN UPDATE alert SET sum = NULL WHERE id = NEW.id AND since_ms = NEW.since_ms; END;
