-- Whether a command may have gone out to anybody: it is noted before it first does. Of those from before this nobody knows.
ALTER TABLE command ADD COLUMN went_out INTEGER NOT NULL DEFAULT 1 CHECK (went_out IN (0, 1));
