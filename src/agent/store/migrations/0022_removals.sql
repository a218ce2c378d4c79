-- Units that are to go: asked for by the document, or by an operator (`approved`).
CREATE TABLE removal (
    unit     TEXT PRIMARY KEY REFERENCES unit (name) ON DELETE CASCADE,
    purge    INTEGER NOT NULL CHECK (purge IN (0, 1)),
    asked_ms INTEGER NOT NULL,
    approved INTEGER NOT NULL DEFAULT 0 CHECK (approved IN (0, 1)),
    begun_ms INTEGER,
    sum      INTEGER
) STRICT;

-- Removals of the last day that began without an operator, which the host's policy counts.
CREATE TABLE past_removal (
    unit  TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum   INTEGER,
    PRIMARY KEY (unit, at_ms)
) STRICT;

CREATE INDEX removal_unsealed ON removal (unit) WHERE sum IS NULL;
CREATE INDEX past_removal_unsealed ON past_removal (unit, at_ms) WHERE sum IS NULL;

CREATE TRIGGER removal_changed AFTER UPDATE OF unit, purge, asked_ms, approved, begun_ms ON removal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE removal SET sum = NULL WHERE unit = NEW.unit; END;
CREATE TRIGGER past_removal_changed AFTER UPDATE OF unit, at_ms ON past_removal WHEN NEW.sum IS NOT NULL
BEGIN UPDATE past_removal SET sum = NULL WHERE unit = NEW.unit AND at_ms = NEW.at_ms; END;
