-- The latest epoch of the console in which a message was signed that this host has accepted.
CREATE TABLE meta_new (
    key   TEXT PRIMARY KEY CHECK (key IN ('created_ms', 'epoch', 'generation', 'signed_ms', 'store', 'steps', 'issued_ms',
                                          'lost_ms', 'noticed_ms', 'certain_ms', 'uptime_ms', 'boot', 'console_epoch')),
    value INTEGER NOT NULL,
    sum   INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO meta_new (key, value, sum) SELECT key, value, sum FROM meta;
DROP TABLE meta;
ALTER TABLE meta_new RENAME TO meta;
CREATE INDEX meta_unsealed ON meta (key) WHERE sum IS NULL;
CREATE TRIGGER meta_changed AFTER UPDATE OF key, value ON meta WHEN NEW.sum IS NOT NULL
BEGIN UPDATE meta SET sum = NULL WHERE key = NEW.key; END;
