-- The digest of the plan that an operator has seen of a host, for the version that it is assigned.
ALTER TABLE assignment ADD COLUMN plan TEXT;
