-- A unit that is held or stopped on purpose needs nobody's eye, and one that went back to an earlier revision does: as
-- `UnitSummary::is_troubled` has it.
DROP INDEX unit_troubled;
ALTER TABLE unit DROP COLUMN troubled;
ALTER TABLE unit ADD COLUMN troubled INTEGER GENERATED ALWAYS AS (
    json_extract(report, '$.desired.run') <> 'stopped'
    AND ifnull(json_extract(report, '$.hold.reason'), '') <> 'operator'
    AND (json_extract(report, '$.observed.phase') IN ('backoff', 'failed')
        OR json_extract(report, '$.observed.rolled_back') IS NOT NULL
        OR json_extract(report, '$.hold') IS NOT NULL)
) VIRTUAL;
CREATE INDEX unit_troubled ON unit (troubled) WHERE troubled;
