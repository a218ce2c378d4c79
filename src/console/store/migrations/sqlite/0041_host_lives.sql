-- The epochs of the last agents of a host that were heard of, the last one first.
ALTER TABLE heartbeat ADD COLUMN lives TEXT NOT NULL DEFAULT '[]';
