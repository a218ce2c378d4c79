-- The embedded time-series store. Its file is its own: SQLite alone reads it. Keys pack a series and a time into one integer
-- (`key.rs`), so that what is read together lies side by side in the file.

-- Series ------------------------------------------------------------------------------------------

-- One row for each name and set of labels that has points. `labels` is a JSON object with sorted names,
-- so that one set has one spelling. The id is a part of keys, which is why it is bounded.
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

-- Points ------------------------------------------------------------------------------------------

-- Points as they came; key: five minutes, series, time within. What came for all series at about one time lies side by side, and a
-- commit changes few pages. A point cannot be there twice.
CREATE TABLE head (
    key   INTEGER PRIMARY KEY,
    value REAL NOT NULL
) STRICT;

-- The points of a series in an hour that is over (`chunk.rs`), until its day is; key: hour, series, part of the hour.
CREATE TABLE chunk (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- The points of a series in a day (`day.rs`), in pieces that fill pages; key: day, series, piece.
CREATE TABLE day (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- Summaries ---------------------------------------------------------------------------------------

-- What an hour of a series comes to (`rollup_blob.rs`), until its day is rolled up; key: series, hour. A row says, too, that this
-- hour is not in the two tables below yet, or not as it is now.
CREATE TABLE summary (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- A day of a series by five minutes, in pieces that fill pages; key: day, series, piece.
CREATE TABLE five (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- Sixteen days of a series by the hour; key: series, which sixteen days.
CREATE TABLE hourly (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- The store itself --------------------------------------------------------------------------------

-- From when on there is anything of a resolution: what is older was deleted, and is not taken any more.
CREATE TABLE kept_from (
    resolution TEXT PRIMARY KEY CHECK (resolution IN ('raw', 'five', 'hourly')),
    at_ms      INTEGER NOT NULL
) STRICT;

-- What could not be read, as it was found.
CREATE TABLE damaged (
    id       INTEGER PRIMARY KEY,
    place    TEXT NOT NULL CHECK (place IN ('chunk', 'day', 'summary', 'five', 'hourly')),
    key      INTEGER NOT NULL,
    found_ms INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    data     BLOB NOT NULL
) STRICT;
