-- A host's commands are found by its own index, broadcasts one by one: they are few, and an entry for each of their hosts in
-- an index in the order of hosts is a page that changes for each host.
ALTER TABLE command_host ADD COLUMN listed INTEGER NOT NULL DEFAULT 1 CHECK (listed IN (0, 1));
DROP INDEX command_host_by_host;
CREATE INDEX command_host_by_host ON command_host (host, command) WHERE listed = 1;
CREATE INDEX command_broadcast ON command (id) WHERE broadcast = 1;
