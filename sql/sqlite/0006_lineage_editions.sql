-- Which unit's Item stood before: what makes an Item a revision of an earlier one in the lineage.
ALTER TABLE catalog_items ADD COLUMN replaces_wal_id text
