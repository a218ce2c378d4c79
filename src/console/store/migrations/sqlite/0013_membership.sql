-- A token for a host that is there already, whatever key it comes with: an operator has said so.
ALTER TABLE token ADD COLUMN replaces TEXT;

-- Artifacts, manifests and configs that the console has told a host to use, by their hash: all that it may fetch.
CREATE TABLE assigned (
    host   TEXT NOT NULL REFERENCES host (id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    PRIMARY KEY (host, sha256)
) WITHOUT ROWID, STRICT;

-- What was assigned before this was remembered: as far as the ledger still tells, and what hosts have by now.
INSERT OR IGNORE INTO assigned (host, sha256)
SELECT command_host.host, part.value
FROM command_host
JOIN host ON host.id = command_host.host
JOIN command ON command.id = command_host.command
JOIN json_tree(command.verb) AS part
WHERE part.key IN ('sha256', 'manifest') AND part.type = 'text' AND length(part.value) = 64;

INSERT OR IGNORE INTO assigned (host, sha256)
SELECT unit.host, part.value
FROM unit JOIN json_tree(unit.report, '$.desired') AS part
WHERE part.key IN ('sha256', 'manifest') AND part.type = 'text' AND length(part.value) = 64;
