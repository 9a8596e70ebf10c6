-- Advisory locks: transactions with the same lock's name run one after another.

-- name: take
@lock_all(:lock);
