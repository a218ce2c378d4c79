-- The embedded time-series store. Its file is its own: SQLite alone reads it.

-- One row for each name and set of labels that has points. `labels` is a JSON object with sorted names,
-- so that one set has one spelling. The upper bits of a point's key hold the id, which is why it is bounded.
CREATE TABLE series (
    id     INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 4194303),
    name   TEXT NOT NULL,
    labels TEXT NOT NULL,
    UNIQUE (name, labels)
) STRICT;

-- Which series carry a label; `__name__` stands for the name. A selector starts at the rarest of its labels.
CREATE TABLE label (
    name   TEXT NOT NULL,
    value  TEXT NOT NULL,
    series INTEGER NOT NULL,
    PRIMARY KEY (name, value, series)
) STRICT, WITHOUT ROWID;

-- Points as they came. The key is the series' id and the time in one integer (`key.rs`): a point cannot be
-- there twice, and a stretch of one series is one range of keys, which lie side by side in the file.
CREATE TABLE head (
    key   INTEGER PRIMARY KEY,
    value REAL NOT NULL
) STRICT;
