-- The addresses that hosts were told last, to know whether they have changed.
CREATE TABLE address (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    generation   INTEGER NOT NULL,
    broker_urls  TEXT NOT NULL,
    console_urls TEXT NOT NULL
) STRICT;
