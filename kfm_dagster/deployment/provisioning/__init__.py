"""`kfm queue create`: queue, dead-letter queue, policies and subscriptions of a dataset, made once (BEY-12)."""
