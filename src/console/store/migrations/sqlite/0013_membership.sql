-- A token for a host that is there already, whatever key it comes with: an operator has said so.
ALTER TABLE token ADD COLUMN replaces TEXT;
