-- What is known of the sender of a message, decided when it is received: a replay from the landing zone asks no more.
-- NULL: received before signatures were verified.
ALTER TABLE nodd_wal_deliveries ADD COLUMN signature text
CONSTRAINT nodd_wal_deliveries_signature_is_known CHECK (signature IN ('verified', 'invalid', 'unchecked'))
