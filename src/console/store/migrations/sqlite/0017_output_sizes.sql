-- The most output that one host may tell of a command, by stream; of older commands nothing is said.
ALTER TABLE command ADD COLUMN stdout_max_bytes INTEGER;
ALTER TABLE command ADD COLUMN stderr_max_bytes INTEGER;
-- How much output is stored of each host, and of all of them ('').
CREATE TABLE output_size (
    host  TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO output_size (host, bytes) SELECT host, sum(length(data)) FROM output GROUP BY host;
INSERT INTO output_size (host, bytes) SELECT '', coalesce(sum(length(data)), 0) FROM output;
CREATE TRIGGER output_added AFTER INSERT ON output BEGIN
    INSERT INTO output_size (host, bytes) VALUES (NEW.host, length(NEW.data)), ('', length(NEW.data))
    ON CONFLICT (host) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER output_deleted AFTER DELETE ON output BEGIN
    UPDATE output_size SET bytes = bytes - length(OLD.data) WHERE host IN (OLD.host, '');
END;
CREATE INDEX output_by_host ON output (host, n);
