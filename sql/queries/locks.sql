-- Advisory locks: transactions that take one name go on one after the other, until each ends.

-- name: take
@lock_all(:lock);
