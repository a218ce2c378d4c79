-- Some units go at once, as their document says; the host's policy counts the others.
ALTER TABLE removal ADD COLUMN at_once INTEGER NOT NULL DEFAULT 0 CHECK (at_once IN (0, 1));

DROP TRIGGER removal_changed;
CREATE TRIGGER removal_changed AFTER UPDATE OF unit, purge, asked_ms, approved, at_once, begun_ms ON removal
WHEN NEW.sum IS NOT NULL
BEGIN UPDATE removal SET sum = NULL WHERE unit = NEW.unit; END;
