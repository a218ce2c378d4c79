-- What operators want of a unit beside its spec, and what lasts from one generation to the next: a hold of theirs
-- (by whom, since when, what for), and whether it should be suspended. `hold_reason` stays what the agent itself
-- found out, which belongs to one generation.
ALTER TABLE unit ADD COLUMN held_by TEXT;
ALTER TABLE unit ADD COLUMN held_since_ms INTEGER CHECK ((held_by IS NULL) = (held_since_ms IS NULL));
ALTER TABLE unit ADD COLUMN held_note TEXT CHECK (held_note IS NULL OR held_by IS NOT NULL);
ALTER TABLE unit ADD COLUMN frozen INTEGER NOT NULL DEFAULT 0 CHECK (frozen IN (0, 1));
