-- The epochs of the last lives of the agent: a life that the console knows and this store does not came after this copy of it.
CREATE TABLE life (
    epoch INTEGER PRIMARY KEY,
    sum   INTEGER
) STRICT;

CREATE INDEX life_unsealed ON life (epoch) WHERE sum IS NULL;
CREATE TRIGGER life_changed AFTER UPDATE OF epoch ON life WHEN NEW.sum IS NOT NULL
BEGIN UPDATE life SET sum = NULL WHERE epoch = NEW.epoch; END;
