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
