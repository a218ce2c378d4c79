-- Units of deployments that their hosts' documents neither have nor remove: each comparison of all hosts looks for them.
CREATE INDEX unit_orphan ON unit (host, unit) WHERE json_extract(report, '$.owner.orphan') = 1;
