-- Sealed hours, beside `head`, where points stay as they came until their hour is over. Rows of `head` from before
-- stay where they are, and are sealed in their turn.

-- The points of a series in an hour (`chunk.rs`); key: hour, series, part of the hour (`key.rs`).
CREATE TABLE chunk (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- What an hour of a series comes to (`span.rs`), until its day is rolled up; key: series, hour. A row says, too, that this
-- hour is not in the two tables below yet, or not as it is now.
CREATE TABLE summary (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- A day of a series by five minutes; key: day, series.
CREATE TABLE five (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- Sixteen days of a series by the hour; key: series, which sixteen days.
CREATE TABLE hourly (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- From when on there is anything of a resolution: what is older was deleted, and is not taken any more.
CREATE TABLE kept_from (
    resolution TEXT PRIMARY KEY CHECK (resolution IN ('raw', 'five', 'hourly')),
    at_ms      INTEGER NOT NULL
) STRICT;

-- What could not be read, as it was found.
CREATE TABLE damaged (
    id       INTEGER PRIMARY KEY,
    place    TEXT NOT NULL CHECK (place IN ('chunk', 'summary', 'five', 'hourly')),
    key      INTEGER NOT NULL,
    found_ms INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    data     BLOB NOT NULL
) STRICT;
