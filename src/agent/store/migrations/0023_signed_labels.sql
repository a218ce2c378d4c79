-- The message that had the console's labels, as it was signed: a console that has lost them is shown it.
ALTER TABLE host_labels ADD COLUMN signed TEXT;

DROP TRIGGER host_labels_changed;
CREATE TRIGGER host_labels_changed AFTER UPDATE OF one, generation, labels, signed ON host_labels WHEN NEW.sum IS NOT NULL
BEGIN UPDATE host_labels SET sum = NULL WHERE one = NEW.one; END;

-- The checksum is of all columns.
UPDATE host_labels SET sum = NULL;
