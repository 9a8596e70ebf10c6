-- Sizes of the newest objects of each product (ADR 030).

-- name: known
SELECT peer.dataset, peer.product, peer.month, peer.sizes
FROM @batch(:batch, wanted, dataset text, product text, month text)
INNER JOIN size_peers AS peer
    ON wanted.dataset = peer.dataset AND wanted.product = peer.product AND wanted.month = peer.month;

-- name: keep
INSERT INTO size_peers (dataset, product, month, sizes)
SELECT dataset, product, month, sizes FROM @batch(:batch, peer, dataset text, product text, month text, sizes json)
WHERE TRUE
@in_order(dataset, product, month)
ON CONFLICT (dataset, product, month) DO UPDATE SET sizes = excluded.sizes;
