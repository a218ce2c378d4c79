-- What an operator has lowered or drained, and what the console has moved, goes at once.
ALTER TABLE unit_removal ADD COLUMN at_once INTEGER NOT NULL DEFAULT 0 CHECK (at_once IN (0, 1));
