-- The newest certificate of a host itself: a host that asks again soon gets the same one.
ALTER TABLE certificate ADD COLUMN pem TEXT;
