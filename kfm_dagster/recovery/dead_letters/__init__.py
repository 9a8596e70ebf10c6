"""Dead letters: what the queue gave up on, looked at, worked on where it lies, moved back or discarded."""
