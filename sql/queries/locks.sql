-- Advisory locks: transactions that take a lock of the same name run one after another.

-- name: take
@lock_all(:lock);
