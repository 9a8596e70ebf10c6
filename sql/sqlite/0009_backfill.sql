-- Under way.
SELECT 1
