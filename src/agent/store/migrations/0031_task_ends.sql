-- Tasks that have changed something, have failed or were interrupted, and whose end the console has not acknowledged yet.
CREATE TABLE task_end (
    number INTEGER PRIMARY KEY REFERENCES task (number) ON DELETE CASCADE,
    sum    INTEGER
) STRICT;

CREATE INDEX task_end_unsealed ON task_end (number) WHERE sum IS NULL;
