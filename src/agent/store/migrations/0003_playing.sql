-- A unit that should run may be one that should play as well.
ALTER TABLE unit ADD COLUMN playing INTEGER NOT NULL DEFAULT 0
    CHECK (playing = 0 OR (playing = 1 AND run = 'running'));
