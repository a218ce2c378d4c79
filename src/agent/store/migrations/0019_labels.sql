-- The labels that the console gives this host: one row, once there are any.
CREATE TABLE host_labels (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    labels     TEXT NOT NULL,
    sum        INTEGER
) STRICT;
CREATE INDEX host_labels_unsealed ON host_labels (one) WHERE sum IS NULL;
CREATE TRIGGER host_labels_changed AFTER UPDATE OF one, generation, labels ON host_labels WHEN NEW.sum IS NOT NULL
BEGIN UPDATE host_labels SET sum = NULL WHERE one = NEW.one; END;
