"""The idempotent-node pattern: a node whose content takes effect once, whatever crashes and whoever repeats it."""
