"""`kfm queue create`: a dataset's queues, policies and subscriptions, created once (BEY-12)."""
