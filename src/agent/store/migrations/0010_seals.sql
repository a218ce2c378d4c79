-- Which store this is, how many steps it has made, the latest time at which a command was issued that it has taken in,
-- and after a loss: up to which time nothing that was issued can be known to be new, and when that was noticed. And the time
-- that had certainly come, with how long the machine had run then, and which start of it that was.
CREATE TABLE meta_new (
    key   TEXT PRIMARY KEY CHECK (key IN ('created_ms', 'epoch', 'generation', 'signed_ms', 'store', 'steps', 'issued_ms',
                                          'lost_ms', 'noticed_ms', 'certain_ms', 'uptime_ms', 'boot')),
    value INTEGER NOT NULL,
    sum   INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO meta_new (key, value) SELECT key, value FROM meta;
DROP TABLE meta;
ALTER TABLE meta_new RENAME TO meta;

-- Checksums of rows: SQLite's own check does not see a bit that has flipped in what is stored. Each transaction ends with
-- those of the rows that it has changed, which the triggers find for it.
ALTER TABLE journal ADD COLUMN sum INTEGER;
ALTER TABLE outbox ADD COLUMN sum INTEGER;
ALTER TABLE unit ADD COLUMN sum INTEGER;
ALTER TABLE verified ADD COLUMN sum INTEGER;
ALTER TABLE realm ADD COLUMN sum INTEGER;
ALTER TABLE lease ADD COLUMN sum INTEGER;
ALTER TABLE snapshot ADD COLUMN sum INTEGER;
ALTER TABLE snapshot_unit ADD COLUMN sum INTEGER;
ALTER TABLE alert ADD COLUMN sum INTEGER;
ALTER TABLE alert_rules ADD COLUMN sum INTEGER;

CREATE INDEX meta_unsealed ON meta (key) WHERE sum IS NULL;
CREATE INDEX journal_unsealed ON journal (id) WHERE sum IS NULL;
CREATE INDEX outbox_unsealed ON outbox (command, seq) WHERE sum IS NULL;
CREATE INDEX unit_unsealed ON unit (name) WHERE sum IS NULL;
CREATE INDEX verified_unsealed ON verified (unit) WHERE sum IS NULL;
CREATE INDEX realm_unsealed ON realm (name) WHERE sum IS NULL;
CREATE INDEX lease_unsealed ON lease (unit, name) WHERE sum IS NULL;
CREATE INDEX snapshot_unsealed ON snapshot (name) WHERE sum IS NULL;
CREATE INDEX snapshot_unit_unsealed ON snapshot_unit (snapshot, unit) WHERE sum IS NULL;
CREATE INDEX alert_unsealed ON alert (id, since_ms) WHERE sum IS NULL;
CREATE INDEX alert_rules_unsealed ON alert_rules (one) WHERE sum IS NULL;

CREATE TRIGGER meta_changed AFTER UPDATE OF key, value ON meta WHEN NEW.sum IS NOT NULL
BEGIN UPDATE meta SET sum = NULL WHERE key = NEW.key; END;
CREATE TRIGGER journal_changed AFTER UPDATE OF id, body, received_ms, expires_ms, next_seq, stdout_bytes, stderr_bytes,
    finished_ms, answer_seq, answer, queued ON journal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE journal SET sum = NULL WHERE id = NEW.id; END;
CREATE TRIGGER outbox_changed AFTER UPDATE OF command, seq, payload, created_ms ON outbox WHEN NEW.sum IS NOT NULL
BEGIN UPDATE outbox SET sum = NULL WHERE command = NEW.command AND seq = NEW.seq; END;
CREATE TRIGGER unit_changed AFTER UPDATE OF name, generation, revision, spec, run, hold_reason, hold_since_ms, observed,
    held_by, held_since_ms, held_note, frozen, playing ON unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE unit SET sum = NULL WHERE name = NEW.name; END;
CREATE TRIGGER verified_changed AFTER UPDATE OF unit, revision, spec, since_ms ON verified WHEN NEW.sum IS NOT NULL
BEGIN UPDATE verified SET sum = NULL WHERE unit = NEW.unit; END;
CREATE TRIGGER realm_changed AFTER UPDATE OF name, generation, definition ON realm WHEN NEW.sum IS NOT NULL
BEGIN UPDATE realm SET sum = NULL WHERE name = NEW.name; END;
CREATE TRIGGER lease_changed AFTER UPDATE OF unit, name, protocol, port ON lease WHEN NEW.sum IS NOT NULL
BEGIN UPDATE lease SET sum = NULL WHERE unit = NEW.unit AND name = NEW.name; END;
CREATE TRIGGER snapshot_changed AFTER UPDATE OF name, taken_by, taken_ms, active_ms ON snapshot WHEN NEW.sum IS NOT NULL
BEGIN UPDATE snapshot SET sum = NULL WHERE name = NEW.name; END;
CREATE TRIGGER snapshot_unit_changed AFTER UPDATE OF snapshot, unit, spec, run, before_spec, before_run, generation
    ON snapshot_unit WHEN NEW.sum IS NOT NULL
BEGIN UPDATE snapshot_unit SET sum = NULL WHERE snapshot = NEW.snapshot AND unit = NEW.unit; END;
CREATE TRIGGER alert_changed AFTER UPDATE OF id, since_ms, state, at_ms, body ON alert WHEN NEW.sum IS NOT NULL
BEGIN UPDATE alert SET sum = NULL WHERE id = NEW.id AND since_ms = NEW.since_ms; END;
CREATE TRIGGER alert_rules_changed AFTER UPDATE OF one, generation, rules ON alert_rules WHEN NEW.sum IS NOT NULL
BEGIN UPDATE alert_rules SET sum = NULL WHERE one = NEW.one; END;

-- Rows whose checksum was wrong, as they were found, for somebody to look at.
CREATE TABLE damaged (
    at_ms   INTEGER NOT NULL,
    of      TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;
