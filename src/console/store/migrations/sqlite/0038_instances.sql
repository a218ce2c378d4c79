-- The instances that the host carries of units that the console places: their numbers, by the units.
ALTER TABLE assignment ADD COLUMN instances TEXT NOT NULL DEFAULT '{}';
