"""`kfm queue create`: queues, policies and subscriptions of a dataset, created once (BEY-12)."""
