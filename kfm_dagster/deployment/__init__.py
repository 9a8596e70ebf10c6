"""A deployment: one on this machine, its checks, and the queues that it needs."""
