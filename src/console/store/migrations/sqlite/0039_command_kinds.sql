-- How the hosts of a command ended is counted in the index, without their outputs: `command_status::kinds` has the same expression.
CREATE INDEX command_host_kinds ON command_host
    (command, state, json_remove(outcome, '$.started_ms', '$.finished_ms', '$.stdout', '$.stderr'));
