-- Units that need somebody's eye are found without reading every report.
ALTER TABLE unit ADD COLUMN troubled INTEGER GENERATED ALWAYS AS (
    json_extract(report, '$.observed.phase') IN ('backoff', 'failed') OR json_extract(report, '$.hold') IS NOT NULL
) VIRTUAL;
CREATE INDEX unit_troubled ON unit (troubled) WHERE troubled;
