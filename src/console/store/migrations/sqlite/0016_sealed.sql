-- What of a command only its hosts may read is sealed to a key of each host's own.
ALTER TABLE host ADD COLUMN sealing_key TEXT CHECK (sealing_key IS NULL OR length(sealing_key) = 44);
ALTER TABLE host ADD COLUMN sealing_key_ms INTEGER;
-- Whether something is sealed in the signed bytes; then each host has the key to it, sealed to that host.
ALTER TABLE command ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0 CHECK (sealed IN (0, 1));
ALTER TABLE command_host ADD COLUMN sealed_key TEXT;
