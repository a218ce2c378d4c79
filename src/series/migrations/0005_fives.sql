-- Five-minute summaries in pieces, beside `five`, where a day is one row, and two of them often fill a page only half. What is in `five`
-- from before stays there until it is rolled up again or deleted.

-- A day of a series by five minutes, in pieces that fill pages; key: day, series, piece (`key.rs`).
CREATE TABLE fives (
    key  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;
