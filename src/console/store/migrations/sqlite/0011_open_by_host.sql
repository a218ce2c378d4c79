-- How many commands that were given to a host by name wait for it: so that one host does not take the room of all.
CREATE INDEX command_host_open_by_host ON command_host (host) WHERE listed = 1 AND state IN ('waiting', 'accepted', 'running');
