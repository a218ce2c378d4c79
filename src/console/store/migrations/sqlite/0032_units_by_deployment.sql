-- What the list of all units is filtered by, without reading the reports.
ALTER TABLE unit ADD COLUMN deployment TEXT GENERATED ALWAYS AS (json_extract(report, '$.owner.deployment')) VIRTUAL;
ALTER TABLE unit ADD COLUMN deployment_version INTEGER
    GENERATED ALWAYS AS (json_extract(report, '$.owner.version')) VIRTUAL;
ALTER TABLE unit ADD COLUMN phase TEXT GENERATED ALWAYS AS (json_extract(report, '$.observed.phase')) VIRTUAL;
CREATE INDEX unit_by_deployment ON unit (deployment, deployment_version, phase, host, unit)
    WHERE deployment IS NOT NULL;
CREATE INDEX unit_by_phase ON unit (phase, host, unit);
