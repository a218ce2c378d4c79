-- Whether a command waits for its turn, so that nothing of it was begun: after a restart of the agent it still may.
ALTER TABLE journal ADD COLUMN queued INTEGER NOT NULL DEFAULT 0 CHECK (queued IN (0, 1));
