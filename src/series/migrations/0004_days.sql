-- Whole days, beside `chunk`, where hours stay until their day is rolled up. What is in `chunk` from before stays there.

-- The points of a series in a day (`day.rs`), in pieces that fill pages; key: day, series, piece (`key.rs`).
CREATE TABLE day (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- As before, and for days.
CREATE TABLE damaged_with_days (
    id       INTEGER PRIMARY KEY,
    place    TEXT NOT NULL CHECK (place IN ('chunk', 'day', 'summary', 'five', 'hourly')),
    key      INTEGER NOT NULL,
    found_ms INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    data     BLOB NOT NULL
) STRICT;

INSERT INTO damaged_with_days SELECT id, place, key, found_ms, reason, data FROM damaged;

DROP TABLE damaged;

ALTER TABLE damaged_with_days RENAME TO damaged;
