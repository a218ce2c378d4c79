-- What operators have changed of deployments, cordons and variables, the newest last. What they order of hosts is in the ledger of
-- commands.
CREATE TABLE change (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms    INTEGER NOT NULL,
    operator TEXT NOT NULL,
    kind     TEXT NOT NULL,
    -- The deployment, the variable with its layer, or the hosts.
    subject  TEXT NOT NULL,
    detail   TEXT NOT NULL
) STRICT;
