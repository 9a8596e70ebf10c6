"""A deployment on this machine, the checks of a deployment, and the queues that it needs."""
