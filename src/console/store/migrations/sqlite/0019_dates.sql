-- Dates that were signed are remembered by themselves from now on: those of a command are of the console's clock, and what was signed may
-- be dated otherwise while that is wrong.
INSERT INTO meta (key, value) SELECT 'signed_ms', max(issued_ms) FROM command WHERE true HAVING max(issued_ms) IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET value = max(meta.value, excluded.value);
-- Whether the agent of this presence goes back to an earlier time on the console's fresh word.
ALTER TABLE presence ADD COLUMN fresh_time INTEGER NOT NULL DEFAULT 0 CHECK (fresh_time IN (0, 1));
